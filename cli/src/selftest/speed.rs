//! Group I: how fast it is, doorbell beside libmlx5 on the same device, in turns.

use std::time::Instant;

use doorbell::Path;

use super::check::{Check, Needs, Stop, fail};
use super::lab::Lab;
use super::pair::{Pair, Shape};

pub const CHECKS: &[Check] = &[
    Check {
        id: "I46",
        name: "half a round trip, beside libmlx5",
        needs: Needs::Rings,
        run: latency,
    },
    Check {
        id: "I47",
        name: "time for each message in batches, beside libmlx5",
        needs: Needs::Rings,
        run: rate,
    },
];

/// What doorbell may take more than libmlx5: single runs differ by as much.
const SLACK: f64 = 1.1;

fn verdict(lab: &Lab, what: &str, ours: f64, theirs: f64) -> Result<(), Stop> {
    if lab.model || ours <= theirs * SLACK {
        return Ok(());
    }
    fail(format!("{what}: {ours:.2} us with doorbell, {theirs:.2} us with libmlx5"))
}

fn said(lab: &Lab) -> &'static str {
    if lab.model { " (a model: it says nothing of an adapter)" } else { "" }
}

fn latency(lab: &mut Lab) -> Result<String, Stop> {
    let mut pairs = [Path::Direct, Path::Verbs].map(|path| {
        let mut pair = Pair::new(lab, &Shape { path, ..Shape::new(lab) })?;
        pair.tap = None;
        Ok::<_, Stop>(pair)
    });
    let mut times = [Vec::new(), Vec::new()];
    for _ in lab.rounds(20_000) {
        // In turns, so that what disturbs one disturbs the other.
        for (pair, times) in pairs.iter_mut().zip(&mut times) {
            let pair = pair.as_mut().map_err(|stop| Stop::Fail(format!("{stop:?}")))?;
            let began = Instant::now();
            pair.send(0, b"ping", None)?;
            pair.take(1)?;
            times.push(began.elapsed().as_nanos() as f64 / 1000.0);
            pair.sent(0)?;
        }
    }
    let mut text = Vec::new();
    for (percent, name) in [(0.5, "p50"), (0.99, "p99"), (0.9999, "p99.99")] {
        let at = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[(times.len() as f64 * percent) as usize]
        };
        let [ours, theirs] = &mut times;
        let (ours, theirs) = (at(ours), at(theirs));
        text.push(format!("{name} {ours:.2} and {theirs:.2} us"));
        if percent < 0.9 {
            verdict(lab, "from post to message, p50", ours, theirs)?;
        }
    }
    Ok(format!("{}{}", text.join(", "), said(lab)))
}

fn rate(lab: &mut Lab) -> Result<String, Stop> {
    let mut text = Vec::new();
    for batch in [1, 8, 32] {
        let mut spent = [0.0; 2];
        for (path, spent) in [Path::Direct, Path::Verbs].into_iter().zip(&mut spent) {
            let mut pair = Pair::new(lab, &Shape { path, ..Shape::new(lab) })?;
            pair.tap = None;
            let mut taking = 0;
            let mut messages = 0;
            for _ in lab.rounds(2_000) {
                messages += batch;
                for _ in 0..batch {
                    pair.send(0, b"message", None)?;
                }
                pair.all_sent(0)?;
                // All have arrived: only what it takes to take them counts.
                let began = Instant::now();
                pair.take(batch)?;
                taking += began.elapsed().as_nanos();
            }
            *spent = taking as f64 / f64::from(messages) / 1000.0;
        }
        text.push(format!("batches of {batch}: {:.3} and {:.3} us", spent[0], spent[1]));
        verdict(lab, &format!("a message in a batch of {batch}"), spent[0], spent[1])?;
    }
    Ok(format!("{}{}", text.join(", "), said(lab)))
}
