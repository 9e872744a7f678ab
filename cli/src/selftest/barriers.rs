//! Group G: nothing is read before it was written.

use std::path::Path;
use std::time::{Duration, Instant};

use super::check::{Check, Needs};
use super::cqes::rule;
use super::lab::Lab;
use super::pair::{Pair, Shape};
use super::receive::payload;
use super::stop::{Stop, fail};
use super::witness::Rule;
use crate::process;

pub const CHECKS: &[Check] = &[
    Check { id: "G39", name: "payloads and CQEs of many messages are whole", needs: Needs::Rings, run: whole },
    Check {
        id: "G40",
        name: "the same on other processors, one of each NUMA node",
        needs: Needs::Rings,
        run: elsewhere,
    },
    Check { id: "G41", name: "the barriers of this processor", needs: Needs::Nothing, run: processor },
];

/// Messages, unless the time is over before.
const MESSAGES: u32 = 10_000_000;
/// Time for them, in a quick run and in a full one.
const TIME: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(20)];
const BATCH: u32 = 32;
const BYTES: usize = 48;

fn whole(lab: &mut Lab) -> Result<String, Stop> {
    let (time, most) = match lab.soak {
        Some(time) => (time, u32::MAX),
        None => (TIME[usize::from(!lab.quick)], MESSAGES),
    };
    let (count, checked) = messages(lab, time, most)?;
    let barrier = if cfg!(target_arch = "aarch64") { "dmb oshld" } else { "no lfence" };
    let checked = match rule(lab) {
        Rule::Known => format!("{checked} CQEs checked as they were taken"),
        Rule::Another => "signatures of another rule, so payload, counter and owner only".into(),
    };
    Ok(format!("{count} messages, {checked}, {barrier}"))
}

/// Sends and checks messages, for `time` and at most `most`; returns how many, and how many of their CQEs were
/// verified.
fn messages(lab: &mut Lab, time: Duration, most: u32) -> Result<(u32, u64), Stop> {
    // An hour of CQEs would fill the memory.
    let watched = lab.soak.is_none();
    let mut pair = Pair::new(lab, &Shape { watched, ..Shape::new(lab) })?;
    if rule(lab) == Rule::Known {
        pair.receiver.verify_cqes()?;
    }
    // The receiver must read each CQE first, as any other does; a tap would touch the CQE before.
    pair.tap = None;
    let began = Instant::now();
    let (mut number, mut next) = (0u32, 0u32);
    loop {
        let is_over = next >= most || began.elapsed() >= time;
        while !is_over && number.wrapping_sub(next) < BATCH {
            pair.send(0, &payload(number, BYTES), None)?;
            number += 1;
        }
        // At last the receiver catches up with the device: no CQE follows the one that it reads.
        if number == next {
            break;
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
    Ok((next, counted.verified_cqes))
}

/// Time for all processors together.
const ELSEWHERE: Duration = Duration::from_secs(8);

fn elsewhere(lab: &mut Lab) -> Result<String, Stop> {
    let allowed = process::allowed_cpus();
    let nodes = crate::sysfs::numa_nodes(Path::new("/sys"));
    let cpus = processors(&allowed, &nodes);
    if cpus.len() < 2 {
        return Err(Stop::Cannot("this process may run on one processor only".into()));
    }
    let time = if lab.quick { ELSEWHERE / 10 } else { ELSEWHERE } / cpus.len() as u32;
    let mut count = 0;
    for cpu in &cpus {
        process::run_on(&[*cpu])?;
        let done = messages(lab, time, MESSAGES);
        process::run_on(&allowed)?;
        let done = done.map_err(|stop| match stop {
            Stop::Fail(why) => Stop::Fail(format!("on processor {cpu}: {why}")),
            cannot => cannot,
        });
        count += done?.0;
    }
    Ok(format!("{count} messages on processors {cpus:?} of {} NUMA nodes", nodes.len().max(1)))
}

/// The first allowed processor of each node; where there is one node, the first and the last of all.
fn processors(allowed: &[u32], nodes: &[(u32, Vec<u32>)]) -> Vec<u32> {
    let first = |cpus: &Vec<u32>| allowed.iter().copied().find(|cpu| cpus.contains(cpu));
    let mut chosen: Vec<u32> = nodes.iter().filter_map(|(_, cpus)| first(cpus)).collect();
    if chosen.len() < 2 {
        chosen = allowed.first().into_iter().chain(allowed.last()).copied().collect();
        chosen.dedup();
    }
    chosen
}

fn processor(_: &mut Lab) -> Result<String, Stop> {
    Ok(if cfg!(target_arch = "aarch64") {
        "aarch64: dmb oshld, dmb oshst, dsb st"
    } else {
        "x86-64: program order, sfence before and after registers"
    }
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_a_processor_of_those_that_are_allowed() {
        let nodes = [(0, vec![0, 1, 4, 5]), (1, vec![2, 3, 6, 7])];
        assert_eq!(processors(&[1, 2, 3], &nodes), [1, 2]);
        // All on one node, or the nodes are not known: two of them.
        assert_eq!(processors(&[4, 5], &nodes), [4, 5]);
        assert_eq!(processors(&[0, 1, 2], &[]), [0, 2]);
        assert_eq!(processors(&[3], &nodes), [3]);
    }
}
