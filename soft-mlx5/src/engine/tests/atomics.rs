//! Atomics.

use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::remote::AtomicSegment;

use super::program::*;
use crate::base::faults::Faults;
use crate::engine::NicConfig;
use crate::objects::*;

fn word(memory: &Memory, at: usize) -> u64 {
    u64::from_ne_bytes(memory.get(at, 8).try_into().unwrap())
}

fn work(opcode: WqeOpcode, swap_add: u64, compare: u64, remote: (u64, u32), local: (u64, u32)) -> Work {
    let operands = AtomicSegment { swap_add: swap_add.into(), compare: compare.into() };
    Work::new(opcode).remote(remote.0, remote.1).bytes(&operands.to_bytes()).data(local.0, 8, local.1)
}

#[test]
fn compare_swap_and_fetch_add() {
    let mut device = Device::new();
    let (mut send, recv) = (device.cq(16), device.cq(16));
    let (mut a, _b) = device.pair(|attr| attr, &send, &recv);
    let memory = Memory::new(64);
    let key = device.register(&memory, ALL_ACCESS);
    let (remote, local) = ((memory.addr() + 8, key), (memory.addr() + 32, key));
    // No two bytes are alike, so that swapped bytes show.
    const FIRST: u64 = 0x0102_0304_0506_0708;
    const SUM: u64 = FIRST + 0x1011_1213_1415_1617;
    const LAST: u64 = 0xf1e2_d3c4_b5a6_9788;
    memory.set(8, &FIRST.to_ne_bytes());
    for (opcode, swap_add, compare, before, after) in [
        (WqeOpcode::ATOMIC_FA, SUM - FIRST, 0, FIRST, SUM),
        (WqeOpcode::ATOMIC_CS, LAST, SUM.swap_bytes(), SUM, SUM),
        (WqeOpcode::ATOMIC_CS, LAST, SUM, SUM, LAST),
        (WqeOpcode::ATOMIC_FA, u64::MAX, 0, LAST, LAST - 1),
    ] {
        let index = device.post(&mut a, &work(opcode, swap_add, compare, remote, local));
        device.settle();
        let cqe = send.expect(CqeOpcode::Requester, &a, index);
        assert_eq!((cqe.send_opcode(), cqe.byte_cnt.get()), (opcode.get(), 8));
        assert_eq!((word(&memory, 32), word(&memory, 8)), (before, after));
    }
}

#[test]
fn a_result_is_big_endian_in_a_cqe_and_in_host_order_in_memory() {
    const BEFORE: u64 = 0x0102_0304_0506_0708;
    const ADD: u64 = 0x1020_3040_5060_7080;
    for size in [64, 128] {
        let mut device = Device::new();
        let (mut send, recv) = (device.cq_of_size(16, size), device.cq(16));
        let with_scatter = |attr| QpAttr { scatter_to_cqe_sq: true, ..attr };
        let (mut a, _b) = device.pair(with_scatter, &send, &recv);
        let memory = Memory::new(64);
        let key = device.register(&memory, ALL_ACCESS);
        let (remote, local) = ((memory.addr() + 8, key), (memory.addr() + 32, key));
        memory.set(8, &BEFORE.to_ne_bytes());
        device.post(&mut a, &work(WqeOpcode::ATOMIC_FA, ADD, 0, remote, local));
        device.settle();
        let (cqe, front) = send.poll_both().unwrap();
        assert_ne!(cqe.format(), CqeFormat::Plain);
        let found = if size == 128 { front } else { cqe.to_bytes().to_vec() };
        assert_eq!(found[..8], BEFORE.to_be_bytes(), "CQE of {size} bytes");
        assert_eq!((word(&memory, 32), word(&memory, 8)), (0, BEFORE + ADD));
        // Unsignaled, it goes to memory.
        let unsignaled = work(WqeOpcode::ATOMIC_CS, 1, BEFORE + ADD, remote, local).flags(0);
        device.post(&mut a, &unsignaled);
        device.settle();
        assert_eq!((word(&memory, 32), word(&memory, 8)), (BEFORE + ADD, 1));
    }
}

#[test]
fn an_unaligned_address_is_an_invalid_request() {
    let mut device = Device::new();
    let (mut send, recv) = (device.cq(16), device.cq(16));
    let (mut a, _b) = device.pair(|attr| attr, &send, &recv);
    let memory = Memory::new(64);
    let key = device.register(&memory, ALL_ACCESS);
    let at = memory.addr();
    device.post(&mut a, &work(WqeOpcode::ATOMIC_FA, 1, 0, (at + 4, key), (at + 32, key)));
    device.settle();
    send.expect_error(CqeOpcode::RequesterError, &a, 0, 0x12);
    assert_eq!(word(&memory, 0), 0);
}

#[test]
fn no_atomic_is_executed_twice_on_a_bad_link() {
    let faults = Faults { loss: 0.1, duplication: 0.1, reordering: 0.1, ..Faults::default() };
    let mut device = Device::with(NicConfig { faults, seed: 3, ..NicConfig::default() });
    let (mut send, recv) = (device.cq(64), device.cq(16));
    let (mut a, _b) = device.pair(|attr| attr, &send, &recv);
    let memory = Memory::new(1024);
    let key = device.register(&memory, ALL_ACCESS);
    let mut sum = 0u64;
    for round in 0..500u64 {
        for i in 0..8 {
            let local = (memory.addr() + 64 + 8 * i, key);
            let add = round * 8 + i;
            device.post(&mut a, &work(WqeOpcode::ATOMIC_FA, add, 0, (memory.addr(), key), local));
        }
        device.finish();
        for i in 0..8 {
            let cqe = send.poll().unwrap();
            assert_eq!(cqe.opcode(), CqeOpcode::Requester, "{:?}", error(&cqe));
            assert_eq!(word(&memory, 64 + 8 * i), sum);
            sum += round * 8 + i as u64;
        }
    }
    assert_eq!(word(&memory, 0), sum);
    assert!(device.nic.drops().injected > 100);
}
