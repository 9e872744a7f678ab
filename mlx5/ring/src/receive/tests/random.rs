//! Long random sequences, on queues of all sizes and near every wrap of a counter.

use std::vec::Vec;

use mlx5_wire::opcode::CqeOpcode;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::rq::ReceiveQueue;
use crate::srq::SharedReceiveQueue;
use crate::testing::{Give, Rig, TestQueue};

/// A step of a test; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Post(usize),
    Load,
    Complete { position: usize, kind: u8, solicited: bool },
    Poll { budget: u32, script: Vec<Give> },
    Forget { script: Vec<Give>, post: usize },
    GiveBack { index: usize, recycle: bool },
    Stray(u16),
}

fn give() -> impl Strategy<Value = Give> {
    prop_oneof![
        6 => Just(Give::Recycle),
        4 => Just(Give::Take),
        1 => Just(Give::Hold),
        1 => Just(Give::RecycleHeld),
        1 => Just(Give::TakeHeld),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    // Mostly in order, so that stretches get long.
    let position = prop_oneof![3 => Just(0), 1 => any::<usize>()];
    prop_oneof![
        3 => (1..40usize).prop_map(Op::Post),
        1 => Just(Op::Load),
        20 => (position, any::<u8>(), any::<bool>())
            .prop_map(|(position, kind, solicited)| Op::Complete { position, kind, solicited }),
        4 => (1..40u32, prop::collection::vec(give(), 0..40))
            .prop_map(|(budget, script)| Op::Poll { budget, script }),
        1 => (prop::collection::vec(give(), 0..10), 0..4usize)
            .prop_map(|(script, post)| Op::Forget { script, post }),
        1 => (any::<usize>(), any::<bool>())
            .prop_map(|(index, recycle)| Op::GiveBack { index, recycle }),
        1 => any::<u16>().prop_map(Op::Stray),
    ]
}

fn apply<Q: TestQueue>(rig: &mut Rig<Q>, op: &Op) {
    match op {
        Op::Post(count) => {
            let buffers = rig.free_buffers(*count);
            rig.post(&buffers);
        }
        Op::Load => {
            if let Some(buffer) = rig.free_buffer() {
                rig.load(buffer);
            }
        }
        Op::Complete { position, kind, solicited } => {
            let count = rig.device.queue.len();
            if count > 0 && rig.cq_device.outstanding() < rig.cq.capacity() {
                let opcode = match kind % 16 {
                    0 => CqeOpcode::ResponderError,
                    1 => CqeOpcode::ResponderSendImm,
                    2 => CqeOpcode::ResponderWriteImm,
                    3 => CqeOpcode::ResponderSendInv,
                    _ => CqeOpcode::ResponderSend,
                };
                rig.complete_as(position % count, opcode, *solicited);
            }
        }
        Op::Poll { budget, script } => {
            rig.poll(*budget, script);
        }
        Op::Forget { script, post } => {
            let buffers = rig.free_buffers(*post);
            rig.poll_and_forget(script.len() as u32, script, &buffers);
        }
        Op::GiveBack { index, recycle } => {
            if !rig.held.is_empty() {
                rig.give_back(index % rig.held.len(), *recycle);
            }
        }
        Op::Stray(counter) => {
            let known = |taken: &crate::testing::Taken| taken.wqe_counter == *counter;
            if rig.device.completed.is_empty() && !rig.device.queue.iter().any(known) {
                rig.stray(*counter);
            }
        }
    }
}

/// Takes everything out again: each buffer comes back, once.
fn account<Q: TestQueue>(rig: &mut Rig<Q>) {
    while !rig.held.is_empty() {
        rig.give_back(0, false);
    }
    for _ in 0..2 {
        while !rig.device.queue.is_empty() {
            let room = rig.cq.capacity() - rig.cq_device.outstanding();
            for _ in 0..room.min(rig.device.queue.len() as u32) {
                rig.complete(0);
            }
            rig.poll(u32::MAX, &std::vec![Give::Take; rig.buffers.len()]);
        }
        rig.poll(u32::MAX, &std::vec![Give::Take; rig.buffers.len()]);
    }
    assert_eq!(rig.free_buffers(usize::MAX).len(), rig.buffers.len(), "buffers lost");
}

/// Where counters start.
#[derive(Clone, Copy, Debug)]
struct Start {
    wqe: u32,
    cqe: u32,
}

fn start() -> impl Strategy<Value = Start> {
    let near = |bits: u32| (1u64 << bits) as u32;
    let wqe = prop_oneof![Just(0), Just(near(16)), Just(near(31)), Just(near(32))];
    let cqe = prop_oneof![Just(0), Just(near(24)), Just(near(31)), Just(near(32))];
    (wqe, cqe, 0..100u32).prop_map(|(wqe, cqe, before)| Start {
        wqe: wqe.wrapping_sub(before),
        cqe: cqe.wrapping_sub(before),
    })
}

fn run<Q: TestQueue>(smallest: u32) {
    let cases = std::env::var("PROPTEST_CASES").map_or(64, |cases| cases.parse().unwrap());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let seed = match std::env::var("RING_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => std::collections::hash_map::RandomState::new().hash_one(0),
    };
    std::println!("RING_SEED={seed} replays this run");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&u64::to_le_bytes(seed));
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let size = prop_oneof![Just(smallest), Just(2), Just(4), Just(16), Just(64), Just(512)];
    let full = any::<bool>();
    let ops = prop::collection::vec(op(), 1..400);
    let shape = (size, full, 0..3u32, 1..4usize, any::<bool>(), start());
    runner
        .run(&(shape, ops), |((slots, full, cqes, max_sge, wide, start), ops)| {
            let buffers = slots as usize + 1;
            let cqe_size = if wide { 128 } else { 64 };
            let mut rig = Rig::<Q>::with(slots, buffers, slots << cqes, cqe_size, max_sge);
            rig.start_queue_at(start.wqe);
            rig.start_cq_at(start.cqe);
            if full {
                let all = rig.free_buffers(slots as usize);
                rig.post(&all);
                rig.load(slots - 1);
            }
            for op in &ops {
                apply(&mut rig, op);
            }
            account(&mut rig);
            Ok(())
        })
        .unwrap();
}

use core::hash::BuildHasher;

#[test]
fn srq() {
    run::<SharedReceiveQueue<u32>>(2);
}

#[test]
fn rq() {
    run::<ReceiveQueue<u32>>(1);
}
