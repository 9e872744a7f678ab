//! Indices that wrap, CQEs of both sizes, payload in CQEs, events, resize.

use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::ctrl::{CQ_UPDATE, SOLICITED};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::WqeOpcode;

use super::program::*;
use crate::objects::*;

#[test]
fn small_messages_come_inside_the_cqe() {
    for (size, capacity, format) in [(64, 32, CqeFormat::Inline32), (128, 64, CqeFormat::Inline64)] {
        let mut device = Device::new();
        let (send, mut recv) = (device.cq(16), device.cq_of_size(16, size));
        let (mut a, mut b) = device.pair(|attr| QpAttr { scatter_to_cqe_rq: true, ..attr }, &send, &recv);
        let memory = Memory::new(4096);
        let key = device.register(&memory, ALL_ACCESS);
        for len in [0, 1, 31, 32, 33, 63, 64, 65, 2000] {
            let bytes = pattern(len as u64, len);
            memory.set(0, &[0; 2000]);
            memory.set(2048, &bytes);
            b.post_receive(&[DataSegment::new(memory.addr(), 2000, key)]);
            let mut work = Work::send();
            if len > 0 {
                work = work.data(memory.addr() + 2048, len as u32, key);
            }
            device.post(&mut a, &work);
            device.settle();
            let (cqe, front) = recv.poll_both().unwrap();
            assert_eq!(cqe.byte_cnt.get(), len as u32);
            if (1..=capacity).contains(&len) {
                assert_eq!(cqe.format(), format);
                let found = if size == 128 { front } else { cqe.to_bytes().to_vec() };
                assert_eq!(found[..len], bytes);
                assert_eq!(memory.get(0, 100), [0; 100], "the buffer is left alone");
            } else {
                assert_eq!(cqe.format(), CqeFormat::Plain);
                assert_eq!(memory.get(0, len), bytes);
            }
        }
    }
}

#[test]
fn small_reads_come_inside_the_cqe_when_signaled() {
    let mut device = Device::new();
    let (mut send, recv) = (device.cq(16), device.cq(16));
    let (mut a, _b) = device.pair(|attr| QpAttr { scatter_to_cqe_sq: true, ..attr }, &send, &recv);
    let memory = Memory::new(4096);
    let key = device.register(&memory, ALL_ACCESS);
    memory.set(0, &pattern(1, 32));
    for (flags, len) in [(CQ_UPDATE, 32), (0, 32), (CQ_UPDATE, 33)] {
        memory.set(2048, &[0; 64]);
        let read = Work::new(WqeOpcode::RDMA_READ).flags(flags).remote(memory.addr(), key);
        device.post(&mut a, &read.data(memory.addr() + 2048, len, key));
        device.settle();
        let cqe = send.poll();
        let inline = (flags, len) == (CQ_UPDATE, 32);
        assert_eq!(memory.get(2048, 32) == pattern(1, 32), !inline);
        if inline {
            let cqe = cqe.unwrap();
            assert_eq!(cqe.format(), CqeFormat::Inline32);
            assert_eq!(cqe.to_bytes()[..32], pattern(1, 32));
        }
    }
}

#[test]
fn events_follow_arms() {
    let mut device = Device::new();
    let (send, mut recv) = (device.cq(16), device.cq(16));
    let (mut a, mut b) = device.pair(|attr| attr, &send, &recv);
    let event = Event::Completion(recv.number);
    let mut deliver = |device: &mut Device, flags| {
        b.post_receive(&[]);
        device.post(&mut a, &Work::send().flags(flags));
        device.settle();
        device.events()
    };
    assert_eq!(deliver(&mut device, 0), [], "not armed");
    // The message is there and was not taken: the event comes at once.
    device.arm(&recv, 0, false);
    device.settle();
    assert_eq!(device.events(), [event]);
    recv.drain();
    device.arm(&recv, 1, false);
    device.settle();
    assert_eq!(device.events(), []);
    assert_eq!(deliver(&mut device, 0), [event]);
    assert_eq!(deliver(&mut device, 0), []);
    recv.drain();
    device.arm(&recv, 2, true);
    assert_eq!(deliver(&mut device, 0), []);
    assert_eq!(deliver(&mut device, SOLICITED), [event]);
}

#[test]
fn arms_of_many_cqs_at_one_register_are_all_seen_and_no_others() {
    let mut device = Device::new();
    let cqs: Vec<_> = (0..6).map(|_| device.cq(16)).collect();
    let mut pairs: Vec<_> = cqs.iter().map(|cq| device.pair(|attr| attr, cq, cq)).collect();
    // The doorbells overwrite each other before the device looks; the last two CQs are not armed.
    for cq in &cqs[..4] {
        device.arm(cq, 0, false);
    }
    for (a, b) in &mut pairs {
        b.post_receive(&[]);
        device.post(a, &Work::send().flags(CQ_UPDATE | SOLICITED));
    }
    device.settle();
    let armed: Vec<_> = cqs[..4].iter().map(|cq| Event::Completion(cq.number)).collect();
    assert_eq!(device.events(), armed);
}

#[test]
fn an_arm_without_doorbell_is_not_seen() {
    let mut device = Device::new();
    let (send, recv) = (device.cq(16), device.cq(16));
    let (mut a, mut b) = device.pair(|attr| attr, &send, &recv);
    recv.write_arm(0);
    b.post_receive(&[]);
    device.post(&mut a, &Work::send());
    device.settle();
    assert_eq!(device.events(), []);
    device.arm(&recv, 0, false);
    device.settle();
    assert_eq!(device.events(), [Event::Completion(recv.number)]);
}

#[test]
fn a_cq_is_resized_under_traffic() {
    let mut device = Device::new();
    let (send, mut recv) = (device.cq(64), device.cq(4));
    let (mut a, mut b) = device.pair(|attr| attr, &send, &recv);
    let mut deliver = |device: &mut Device| {
        b.post_receive(&[]);
        device.post(&mut a, &Work::send().flags(0));
        device.settle();
    };
    for _ in 0..3 {
        deliver(&mut device);
    }
    let new = recv.resize(&mut device, 16);
    for _ in 0..10 {
        deliver(&mut device);
    }
    recv.copy_old(new);
    assert_eq!(recv.drain().len(), 13);
    assert!(device.events().is_empty());
}
