//! Group I: speed of doorbell and of libmlx5 on the same device, in turns.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use doorbell::DataPath;

use super::check::{Check, Needs};
use super::lab::Lab;
use super::messages::{Command, Request};
use super::pair::{Pair, Shape};
use super::peer::Peer;
use super::stop::{Stop, fail};
use super::two_way::TwoWay;

pub const CHECKS: &[Check] = &[
    Check { id: "I46", name: "from post to message, beside libmlx5", needs: Needs::Rings, run: latency },
    Check { id: "I47", name: "time for each message in batches, beside libmlx5", needs: Needs::Rings, run: rate },
    Check { id: "I49", name: "from post to completion, beside libmlx5", needs: Needs::Rings, run: completion },
];

/// Checks between this host and the peer.
pub const PEER: &[Check] = &[
    Check { id: "I53", name: "half a round trip to the peer, beside libmlx5", needs: Needs::Peer, run: round_trip },
    Check { id: "I54", name: "messages from the peer in a second", needs: Needs::Peer, run: stream },
];

/// Times of libmlx5 that doorbell may take: single runs differ by as much.
const SLACK: f64 = 1.1;
/// Microseconds from post to message above which tests of clusters fail (ngc_multinode_perf, for sends and writes).
const SLOW: f64 = 2.5;
/// Messages of 4 KiB on their way to an SRQ.
const LONG: u32 = 30;
/// Round trips to the peer between two commands.
const TURN: u32 = 1000;

fn verdict(lab: &Lab, what: &str, ours: f64, theirs: f64) -> Result<(), Stop> {
    if lab.model || ours <= theirs * SLACK {
        return Ok(());
    }
    fail(format!("{what}: {ours:.2} us with doorbell, {theirs:.2} us with libmlx5"))
}

fn model_note(lab: &Lab) -> &'static str {
    if lab.model { " (a model, which has no timing of an adapter)" } else { "" }
}

/// Times a step with doorbell and with libmlx5, in turns, so that a disturbance affects both. Returns the times in
/// microseconds, from the least to the greatest.
fn in_turns(
    lab: &Lab,
    rounds: u32,
    mut step: impl FnMut(&mut Pair) -> Result<Instant, Stop>,
) -> Result<[Vec<f64>; 2], Stop> {
    let shape = Shape { local: true, watched: false, ..Shape::new(lab) };
    let pair = |path| Pair::new(lab, &Shape { path, ..shape.clone() });
    let mut pairs = [pair(DataPath::Direct)?, pair(DataPath::Verbs)?];
    let mut times = [Vec::new(), Vec::new()];
    for _ in lab.rounds(rounds) {
        for (pair, times) in pairs.iter_mut().zip(&mut times) {
            let began = Instant::now();
            let ended = step(pair)?;
            times.push((ended - began).as_nanos() as f64 / 1000.0);
            pair.all_sent(0)?;
        }
    }
    times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    Ok(times)
}

/// Says the percentiles of both, and fails where doorbell's median is too long.
fn compare(lab: &Lab, what: &str, times: &[Vec<f64>; 2]) -> Result<String, Stop> {
    let mut text = Vec::new();
    for (percent, name) in [(0.5, "p50"), (0.99, "p99"), (0.9999, "p99.99")] {
        let [ours, theirs] = [0, 1].map(|side| times[side][(times[side].len() as f64 * percent) as usize]);
        text.push(format!("{name} {ours:.2} and {theirs:.2} us"));
        if percent < 0.9 {
            verdict(lab, what, ours, theirs)?;
        }
    }
    let median = times[0][times[0].len() / 2];
    if !lab.model && median > SLOW {
        text.push(format!("above {SLOW} us, which tests of clusters take for a failure"));
    }
    Ok(format!("{}{}", text.join(", "), model_note(lab)))
}

fn latency(lab: &mut Lab) -> Result<String, Stop> {
    let times = in_turns(lab, 20_000, |pair| {
        pair.send(0, b"ping", None)?;
        pair.take(1)?;
        Ok(Instant::now())
    })?;
    compare(lab, "from post to message, p50", &times)
}

fn completion(lab: &mut Lab) -> Result<String, Stop> {
    let times = in_turns(lab, 20_000, |pair| {
        pair.send(0, b"ping", None)?;
        pair.sent(0)?;
        let ended = Instant::now();
        pair.take(1)?;
        Ok(ended)
    })?;
    compare(lab, "from post to completion, p50", &times)
}

/// A queue pair of this host and one of the peer, connected.
fn connected(lab: &Lab, path: DataPath) -> Result<(TwoWay, Rc<RefCell<Peer>>), Stop> {
    let peer = lab.peer.clone().ok_or("no peer")?;
    let mut end = TwoWay::new(lab, path)?;
    let addresses = peer.borrow_mut().addresses(&Command::OpenTwoWay)?;
    end.connect(addresses.first().ok_or("the peer sent no address")?)?;
    let near = end.address()?.to_string();
    peer.borrow_mut().ask(&Command::ConnectTwoWay { near })?;
    Ok((end, peer))
}

fn round_trip(lab: &mut Lab) -> Result<String, Stop> {
    let mut text = Vec::new();
    let mut medians = Vec::new();
    let paths = if lab.direct { vec![DataPath::Direct, DataPath::Verbs] } else { vec![DataPath::Verbs] };
    for path in paths {
        let (mut end, peer) = connected(lab, path)?;
        let mut times = Vec::new();
        for _ in lab.rounds(20) {
            peer.borrow_mut().ask(&Command::Answer { count: TURN })?;
            times.extend(end.round_trips(TURN)?);
        }
        peer.borrow_mut().tell(&Command::CloseTwoWay)?;
        times.sort_by(f64::total_cmp);
        let at = |percent: f64| times[(times.len() as f64 * percent) as usize];
        medians.push(at(0.5));
        text.push(format!("{path}: p50 {:.2}, p99 {:.2} us", at(0.5), at(0.99)));
    }
    if let [ours, theirs] = medians[..] {
        verdict(lab, "half a round trip, p50", ours, theirs)?;
    }
    Ok(format!("{}{}", text.join("; "), model_note(lab)))
}

fn stream(lab: &mut Lab) -> Result<String, Stop> {
    let (mut end, peer) = connected(lab, lab.path())?;
    let count = if lab.quick { 10_000 } else { 200_000 };
    peer.borrow_mut().ask(&Command::Stream { count })?;
    let rate = end.rate(count)?;
    peer.borrow_mut().tell(&Command::CloseTwoWay)?;
    Ok(format!("{count} messages of 8 bytes, {:.3} million in a second{}", rate / 1e6, model_note(lab)))
}

fn rate(lab: &mut Lab) -> Result<String, Stop> {
    let mut text = Vec::new();
    for batch in [1, 8, 32] {
        let mut spent = [0.0; 2];
        for (path, spent) in [DataPath::Direct, DataPath::Verbs].into_iter().zip(&mut spent) {
            let mut pair = Pair::new(lab, &Shape { path, local: true, watched: false, ..Shape::new(lab) })?;
            let mut taking = 0;
            let mut messages = 0;
            for _ in lab.rounds(2_000) {
                messages += batch;
                for _ in 0..batch {
                    pair.send(0, b"message", None)?;
                }
                pair.all_sent(0)?;
                // All have arrived: only the time to take them counts.
                let began = Instant::now();
                pair.take(batch)?;
                taking += began.elapsed().as_nanos();
            }
            *spent = taking as f64 / f64::from(messages) / 1000.0;
        }
        text.push(format!("batches of {batch}: {:.3} and {:.3} us", spent[0], spent[1]));
        verdict(lab, &format!("a message in a batch of {batch}"), spent[0], spent[1])?;
    }
    // How fast an adapter takes receives from an SRQ depends on the order of its slots.
    for qps in [3, 10] {
        let [ours, theirs] = [to_srq(lab, DataPath::Direct, qps)?, to_srq(lab, DataPath::Verbs, qps)?];
        text.push(format!("4 KiB from {qps} queue pairs to an SRQ: {ours:.3} and {theirs:.3} us"));
        verdict(lab, &format!("4 KiB from {qps} queue pairs to an SRQ"), ours, theirs)?;
    }
    Ok(format!("{}{}", text.join(", "), model_note(lab)))
}

/// Microseconds for each message of 4 KiB that queue pairs send in turn to an SRQ.
fn to_srq(lab: &Lab, path: DataPath, qps: u32) -> Result<f64, Stop> {
    let srq = Shape { qps, srq: true, receives: 255, buffer: 4096, buffers: 256, ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &Shape { path, local: true, watched: false, ..srq })?;
    let mut messages = 0;
    let began = Instant::now();
    for _ in lab.rounds(200) {
        for message in 0..LONG {
            pair.post((message % qps) as usize, &Request::Long(4096))?;
        }
        pair.take(LONG)?;
        for qp in 0..qps {
            pair.all_sent(qp as usize)?;
        }
        messages += LONG;
    }
    Ok(began.elapsed().as_nanos() as f64 / f64::from(messages) / 1000.0)
}
