//! Messages, with the device stepped and with its thread.

use std::time::Duration;

use crate::world::{World, poll, post_recv, post_send};
use rdma_core_sys::*;

#[test]
fn a_stepped_device_moves_a_message_when_stepped_and_not_before() {
    let world = World::stepped();
    let mut memory: Vec<_> = (0..8192).map(|index| index as u8).collect();
    let mr = world.reg(&mut memory, IBV_ACCESS_LOCAL_WRITE);
    let cq = world.cq(16);
    let qp = world.connected(cq, std::ptr::null_mut());
    memory[4096..].fill(0);
    post_recv(qp, mr, 4096, 4096);
    post_send(qp, mr, 0, 3000);
    assert!(poll(cq).is_none());
    assert!(world.device().settle() > 0);
    let completions: Vec<_> = std::iter::from_fn(|| poll(cq)).collect();
    assert_eq!(completions.len(), 2);
    for wc in completions {
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        if wc.opcode & IBV_WC_RECV != 0 {
            assert_eq!(wc.byte_len, 3000);
        }
    }
    assert_eq!(memory[4096..4096 + 3000], memory[..3000]);
    assert!(!world.device().step(), "nothing is left to do");
}

#[test]
fn a_small_message_travels_in_its_cqe() {
    let world = World::stepped();
    let cq = world.cq(16);
    let qp = world.connected(cq, std::ptr::null_mut());
    let mut memory = vec![7; 256];
    let mr = world.reg(&mut memory, IBV_ACCESS_LOCAL_WRITE);
    for (length, inside) in [(32, true), (33, false)] {
        memory[128..].fill(0);
        post_recv(qp, mr, 128, 128);
        post_send(qp, mr, 0, length);
        world.device().settle();
        // The library moves the bytes when it takes the completion.
        assert_eq!(memory[128] == 0, inside, "{length} bytes");
        while poll(cq).is_some() {}
        assert!(memory[128..128 + length as usize].iter().all(|&byte| byte == 7));
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = || {
        let faults = soft_mlx5::Faults { loss: 0.2, reordering: 0.2, ..Default::default() };
        let world = World::new(soft_mlx5::Device::builder().stepped().faults(faults).seed(42));
        let mut memory = vec![0; 1 << 16];
        let mr = world.reg(&mut memory, IBV_ACCESS_LOCAL_WRITE);
        let cq = world.cq(64);
        let qp = world.connected(cq, std::ptr::null_mut());
        let mut trace = Vec::new();
        for round in 0..16 {
            post_recv(qp, mr, 1 << 15, 1 << 15);
            post_send(qp, mr, 0, 4096);
            while trace.len() < 2 * (round + 1) {
                let steps = world.device().settle();
                let now = world.device().now();
                let seen: Vec<_> = std::iter::from_fn(|| poll(cq)).collect();
                trace.extend(seen.iter().map(|wc| (now, steps, wc.opcode, wc.status)));
                let timer = world.device().next_timer();
                world.device().advance(timer.map_or(Duration::ZERO, |at| at.saturating_sub(now)));
            }
        }
        trace
    };
    let first = run();
    assert_eq!(first, run());
    assert!(first.last().unwrap().0 > Duration::ZERO, "no packet was lost: the test shows nothing");
}
