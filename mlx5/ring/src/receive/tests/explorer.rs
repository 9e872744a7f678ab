//! Every state that a small queue can reach, by every order of posting, completing, polling and giving back.
//!
//! A state is what decides the future: the states and links of the slots, the fields of the queue, the order
//! in which the device has WQEs and wrote CQEs, what is held, and where the CQ stands. Which buffer is which
//! does not matter, since the rig compares each with its slot in every state.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::vec::Vec;
use std::{println, vec};

use crate::rq::ReceiveQueue;
use crate::srq::SharedReceiveQueue;
use crate::testing::{Give, Rig, TestQueue};

use Give::{Hold, Recycle, RecycleHeld, Take, TakeHeld};

#[derive(Clone, Debug)]
enum Op {
    Post(usize),
    Load,
    Complete(usize),
    Poll(u32, Vec<Give>),
    /// A batch that is forgotten; then as many are posted.
    Forget(Vec<Give>, usize),
    GiveBack(usize, bool),
}

/// What can be done in this state.
fn ops<Q: TestQueue>(rig: &Rig<Q>) -> Vec<Op> {
    let mut ops = Vec::new();
    let pool = rig.free_buffers(usize::MAX).len();
    for count in [1, 2, pool] {
        if count > 0 && count <= pool && (count < 3 || count == pool) {
            ops.push(Op::Post(count));
        }
    }
    if pool > 0 && rig.device.is_srq() {
        ops.push(Op::Load);
    }
    ops.extend((0..rig.device.queue.len()).map(Op::Complete));
    for index in 0..rig.held.len() {
        ops.extend([Op::GiveBack(index, true), Op::GiveBack(index, false)]);
    }
    let arrived = rig.device.completed.len();
    if arrived == 0 {
        ops.push(Op::Poll(1, vec![]));
    }
    const EACH: [Give; 3] = [Recycle, Take, Hold];
    for first in EACH {
        if arrived >= 1 {
            ops.push(Op::Poll(1, vec![first]));
            // One that ends because nothing more has arrived.
            ops.push(Op::Poll(arrived as u32 + 1, vec![first; arrived]));
        }
        if arrived >= 1 {
            ops.push(Op::Forget(vec![first], 0));
            ops.push(Op::Forget(vec![first], pool.min(2)));
        }
        for second in EACH {
            if arrived >= 2 {
                ops.push(Op::Forget(vec![first, second], pool.min(1)));
                ops.push(Op::Poll(2, vec![first, second]));
                ops.push(Op::Poll(2, vec![first, RecycleHeld, second]));
                ops.push(Op::Poll(3, vec![first, TakeHeld, second, RecycleHeld]));
            }
            for third in EACH {
                if arrived >= 3 {
                    ops.push(Op::Poll(3, vec![first, second, third]));
                }
            }
        }
        if !rig.held.is_empty() {
            ops.push(Op::Poll(1, vec![RecycleHeld, first]));
            ops.push(Op::Poll(1, vec![TakeHeld, first]));
            ops.push(Op::Poll(arrived as u32 + 1, vec![first, RecycleHeld, TakeHeld]));
        }
    }
    ops
}

fn apply<Q: TestQueue>(rig: &mut Rig<Q>, op: &Op) {
    match op {
        Op::Post(count) => {
            let buffers = rig.free_buffers(*count);
            rig.post(&buffers);
        }
        Op::Load => {
            let buffer = rig.free_buffer().unwrap();
            rig.load(buffer);
        }
        Op::Complete(position) => rig.complete(*position),
        Op::Poll(budget, script) => {
            rig.poll(*budget, script);
        }
        Op::Forget(script, post) => {
            let buffers = rig.free_buffers(*post);
            rig.poll_and_forget(script.len() as u32, script, &buffers);
        }
        Op::GiveBack(index, recycle) => rig.give_back(*index, *recycle),
    }
}

fn key<Q: TestQueue>(rig: &Rig<Q>, cq_position: bool) -> Vec<u8> {
    let mut key = Vec::with_capacity(64);
    let slots = rig.queue.book().count();
    for slot in 0..slots {
        key.push(rig.queue.book().state(slot));
        if rig.device.is_srq() {
            key.push(rig.device.link_of(slot) as u8);
        }
    }
    rig.queue.fingerprint(&mut key);
    for list in [&rig.device.queue, &rig.device.completed] {
        key.push(0xff);
        key.extend(list.iter().map(|taken| taken.slot as u8));
    }
    key.push(0xff);
    key.extend(rig.held.iter().map(|held| held.slot as u8));
    if cq_position {
        key.push((rig.cq.consumer_index() & (2 * rig.cq.capacity() - 1)) as u8);
    }
    key
}

/// Explores from an empty queue. Returns how many states and steps there were, and whether that is all.
fn explore<Q: TestQueue>(slots: u32, buffers: usize, limit: usize) -> (usize, usize, bool) {
    let cqes = slots.max(2);
    let mut rig = Rig::<Q>::new(slots, buffers, cqes);
    // Where the CQ stands multiplies the states; for the larger queues it is left to chance.
    let cq_position = slots <= 2;
    let mut seen = HashSet::from([key(&rig, cq_position)]);
    let mut frontier = VecDeque::from([rig.save()]);
    let mut steps = 0;
    while let Some(state) = frontier.pop_front() {
        rig.restore(&state);
        strays(&mut rig);
        for op in ops(&rig) {
            rig.restore(&state);
            let outcome = catch_unwind(AssertUnwindSafe(|| apply(&mut rig, &op)));
            if let Err(panic) = outcome {
                rig.restore(&state);
                println!("{op:?} in {}", rig.describe());
                resume_unwind(panic);
            }
            steps += 1;
            if seen.len() < limit && seen.insert(key(&rig, cq_position)) {
                frontier.push_back(rig.save());
            }
        }
    }
    (seen.len(), steps, seen.len() < limit)
}

/// No CQE that names a WQE that is not posted does anything.
fn strays<Q: TestQueue>(rig: &mut Rig<Q>) {
    if !rig.device.completed.is_empty() {
        return;
    }
    let slots = rig.queue.book().count() as u16;
    let last = rig.device.seen;
    let counters = if rig.device.is_srq() { 0..slots + 2 } else { 0..3 * slots + 2 };
    for i in counters {
        let counter =
            if rig.device.is_srq() { i } else { last.wrapping_sub(2 * slots).wrapping_add(i) };
        if rig.device.queue.iter().all(|taken| taken.wqe_counter != counter) {
            let state = rig.save();
            rig.stray(counter);
            rig.restore(&state);
        }
    }
}

fn limit(default: usize) -> usize {
    std::env::var("EXPLORER_STATES").map_or(default, |limit| limit.parse().unwrap())
}

fn srq(slots: u32, buffers: usize, default: usize) -> bool {
    let (states, steps, all) = explore::<SharedReceiveQueue<u32>>(slots, buffers, limit(default));
    println!("SRQ of {slots} slots, {buffers} buffers: {states} states, {steps} steps, all: {all}");
    all
}

fn rq(slots: u32, buffers: usize, default: usize) -> bool {
    let (states, steps, all) = explore::<ReceiveQueue<u32>>(slots, buffers, limit(default));
    println!("RQ of {slots} slots, {buffers} buffers: {states} states, {steps} steps, all: {all}");
    all
}

#[test]
fn all_states_of_an_srq_of_2() {
    for buffers in 1..=3 {
        assert!(srq(2, buffers, 100_000));
    }
}

#[test]
fn all_states_of_an_srq_of_4() {
    for buffers in 1..=5 {
        assert!(srq(4, buffers, 1_000_000));
    }
}

#[test]
fn states_of_an_srq_of_8() {
    for buffers in [3, 7, 8] {
        srq(8, buffers, 5_000);
    }
}

#[test]
fn all_states_of_an_rq_of_1_and_2() {
    for slots in [1, 2] {
        for buffers in 1..=3 {
            assert!(rq(slots, buffers, 100_000));
        }
    }
}

#[test]
fn all_states_of_an_rq_of_4() {
    for buffers in 1..=5 {
        assert!(rq(4, buffers, 1_000_000));
    }
}

#[test]
fn states_of_an_rq_of_8() {
    for buffers in [3, 8, 9] {
        rq(8, buffers, 5_000);
    }
}
