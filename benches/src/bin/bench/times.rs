//! Nanoseconds per message.
//!
//! Doorbell and its reference take turns, so that what disturbs the machine disturbs both. A sample is the
//! time of a thousand messages or more, because clocks of virtual machines step by 10 ns.

use doorbell_benches::case::{self, Case};
use doorbell_benches::lines::{self, Lines};
use doorbell_benches::operation::Rig;
use doorbell_benches::report::{self, Row};
use doorbell_benches::world::World;

/// Samples of each.
const SAMPLES: usize = 101;
/// Messages of a sample, at least.
const MESSAGES: u32 = 1000;

/// Times the cases whose names contain `filter`, and prints them.
pub(crate) fn run(filter: &str) -> Vec<Row> {
    let world = World::new();
    let other_core = lines::pin(1);
    lines::pin(0);
    if !other_core {
        println!("times: not measured: lines in the cache of another core, for there is only one");
    }
    let mut rows = Vec::new();
    for (case, lines) in case::timed() {
        let skipped = (lines == Lines::OtherCore || case.needs_two_cores()) && !other_core;
        if skipped || !case.label().contains(filter) {
            continue;
        }
        rows.push(compare(&world, &case, lines));
    }
    report::print(&rows);
    rows
}

fn compare(world: &World, case: &Case, lines: Lines) -> Row {
    let mut rigs =
        [case.doorbell, case.reference].map(|name| Rig::new(world, case.operation, name));
    let mut samples = [Vec::new(), Vec::new()];
    // The first samples warm up.
    for sample in 0..SAMPLES + 3 {
        for (rig, samples) in rigs.iter_mut().zip(&mut samples) {
            let time = time(rig, lines);
            if sample >= 3 {
                samples.push(time);
            }
        }
    }
    let [(doorbell, doorbell_spread), (reference, reference_spread)] = samples.map(middle);
    Row {
        op: case.timed_label(lines),
        unit: "ns/message",
        doorbell,
        reference,
        reference_name: case.reference.reference().into(),
        spread: Some([doorbell_spread, reference_spread]),
    }
}

/// Nanoseconds per message of one sample.
fn time(rig: &mut Rig, lines: Lines) -> f64 {
    let (mut nanoseconds, mut messages) = (0, 0);
    while messages < MESSAGES.max(rig.count()) {
        nanoseconds += rig.time(lines).as_nanos();
        messages += rig.count();
    }
    nanoseconds as f64 / f64::from(messages)
}

/// The median, and half of the distance between the quartiles.
fn middle(mut samples: Vec<f64>) -> (f64, f64) {
    samples.sort_by(f64::total_cmp);
    let at = |quarter: usize| samples[samples.len() * quarter / 4];
    (at(2), (at(3) - at(1)) / 2.0)
}
