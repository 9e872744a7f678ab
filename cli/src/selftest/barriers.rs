//! Group G: nothing is read before it was written.

use std::time::{Duration, Instant};

use super::check::{Check, Needs, Stop, fail};
use super::lab::Lab;
use super::pair::{Pair, Shape};
use super::receive::payload;

pub const CHECKS: &[Check] = &[
    Check {
        id: "G39",
        name: "payloads and CQEs of many messages are whole",
        needs: Needs::Rings,
        run: whole,
    },
    Check {
        id: "G40",
        name: "the same from another NUMA node",
        needs: Needs::Device,
        run: other_node,
    },
    Check {
        id: "G41",
        name: "the barriers of this processor",
        needs: Needs::Device,
        run: processor,
    },
];

/// Messages, unless the time is over before.
const MESSAGES: u32 = 10_000_000;
/// Time for them, in a quick run and in a full one.
const TIME: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(20)];
const BATCH: u32 = 32;
const BYTES: usize = 48;

fn whole(lab: &mut Lab) -> Result<String, Stop> {
    let shape = Shape { receiver: |config| config.verify_cqes(true), ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    // The receiver reads as any other does; what looks ahead would touch each CQE first.
    pair.tap = None;
    let (began, time) = (Instant::now(), TIME[usize::from(!lab.quick)]);
    let (mut number, mut next) = (0u32, 0u32);
    while next < MESSAGES && began.elapsed() < time {
        while number.wrapping_sub(next) < BATCH {
            pair.send(0, &payload(number, BYTES), None)?;
            number += 1;
        }
        let first = next;
        pair.receive(1, |message| {
            let message = message?;
            if message[..] != payload(next, BYTES)[..] {
                return fail(format!(
                    "message {next}: stale, changed or out of order: {:02x?}",
                    &message[..8.min(message.len())]
                ));
            }
            next += 1;
            Ok(())
        })?;
        debug_assert!(next > first);
        if let Some(wrong) = pair.receiver.wrong_cqe() {
            return fail(format!("after {next} messages: {wrong}"));
        }
    }
    let counted = pair.receiver.statistics().unwrap_or_default();
    let barrier = if cfg!(target_arch = "aarch64") { "dmb oshld" } else { "no lfence" };
    Ok(format!(
        "{next} messages, {} CQEs checked as they were taken, {barrier}",
        counted.verified_cqes
    ))
}

fn other_node(_: &mut Lab) -> Result<String, Stop> {
    let nodes = crate::sysfs::numa_nodes(std::path::Path::new("/sys")).len();
    let run = "run once under numactl --cpunodebind for each node";
    match nodes {
        0 | 1 => Err(Stop::Cannot("this machine has one NUMA node".into())),
        _ => Err(Stop::Cannot(format!("{nodes} NUMA nodes: {run}"))),
    }
}

fn processor(_: &mut Lab) -> Result<String, Stop> {
    Ok(if cfg!(target_arch = "aarch64") {
        "aarch64: dmb oshld, dmb oshst, dsb st"
    } else {
        "x86-64: program order, sfence before and after registers"
    }
    .into())
}
