//! One SRQ and one CQ for many queue pairs.

use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::program::*;
use crate::fabric::rng::Rng;
use crate::nic::objects::*;
use crate::nic::strict::Rule;

#[test]
fn slots_complete_in_whatever_order_and_none_is_lost() {
    const QPS: usize = 64;
    const SLOTS: usize = 128;
    // Messages of more packets than a queue pair sends in one turn: shorter ones overtake them.
    const SIZE: usize = 16384;
    let mut device = Device::new();
    let (mut send, mut recv) = (device.cq(4096), device.cq(256));
    let mut srq = device.srq(SLOTS as u32, 6);
    let number = srq.number;
    let path = Path { mtu: 256, rnr_timer: 1, ..Path::default() };
    let mut pairs: Vec<_> =
        (0..QPS).map(|_| device.pair_with(|attr| QpAttr { srq: Some(number), ..attr }, &send, &recv, path)).collect();
    let memory = Memory::new(SLOTS * SIZE + SIZE * QPS);
    let key = device.register(&memory, ALL_ACCESS);
    let addr = memory.addr();
    let post = |srq: &mut Srq, slot_of: &mut Vec<usize>, buffer: usize| {
        // The second entry splits the buffer at an odd place.
        let at = addr + (buffer * SIZE) as u64;
        let segments = [DataSegment::new(at, 301, key), DataSegment::new(at + 301, SIZE as u32 - 301, key)];
        let slot = srq.post(&segments).unwrap();
        slot_of[usize::from(slot)] = buffer;
    };
    let mut buffer_of = vec![usize::MAX; SLOTS];
    for buffer in 0..SLOTS - 1 {
        post(&mut srq, &mut buffer_of, buffer);
    }
    let mut rng = Rng::new(9);
    let (mut sent, mut received, mut out_of_order) = (vec![0u32; QPS], vec![0u32; QPS], 0);
    let message = |qp: usize, number: u32| {
        let seed = (qp as u64) << 32 | u64::from(number);
        pattern(seed, 1 + Rng::new(seed).below(SIZE as u64 - 1) as usize)
    };
    let mut last_slot = 0;
    for _ in 0..30_000 {
        let i = rng.below(QPS as u64) as usize;
        // The source buffer is free again after the message before was received.
        if sent[i] == received[i] {
            let bytes = message(i, sent[i]);
            let at = SLOTS * SIZE + i * SIZE;
            memory.set(at, &bytes);
            let work = Work::new(WqeOpcode::SEND_IMM).flags(0).imm(i as u32);
            let work = work.data(memory.addr() + at as u64, bytes.len() as u32, key);
            device.post(&mut pairs[i].0, &work);
            sent[i] += 1;
        }
        if rng.chance(0.8) {
            continue;
        }
        device.now += 200;
        device.nic.step(device.now);
        while let Some(cqe) = recv.poll() {
            assert_eq!(cqe.opcode(), CqeOpcode::ResponderSendImm);
            let from = cqe.imm_inval_pkey.get() as usize;
            assert_eq!(cqe.qpn(), pairs[from].1.number.0);
            assert_eq!(cqe.srqn_uidx.get(), pairs[from].1.attr.user_index);
            let slot = cqe.wqe_counter.get();
            let buffer = std::mem::replace(&mut buffer_of[usize::from(slot)], usize::MAX);
            assert_ne!(buffer, usize::MAX, "slot {slot} completed twice");
            let bytes = memory.get(buffer * SIZE, cqe.byte_cnt.get() as usize);
            assert_eq!(bytes, message(from, received[from]));
            received[from] += 1;
            out_of_order += u32::from(slot < last_slot);
            last_slot = slot;
            srq.give_back(slot);
            post(&mut srq, &mut buffer_of, buffer);
        }
    }
    device.finish();
    while recv.poll().is_some() {}
    send.expect_nothing();
    assert!(received.iter().all(|n| *n > 50), "{received:?}");
    assert!(out_of_order > 1000, "{out_of_order}");
    for rule in [Rule::SrqSlotTwice, Rule::SrqLink, Rule::ReceiveOverflow] {
        assert_eq!(device.nic.violations(rule), 0);
    }
}

#[test]
fn an_empty_srq_makes_senders_wait_and_raises_its_limit() {
    let mut device = Device::new();
    let (mut send, mut recv) = (device.cq(64), device.cq(64));
    let mut srq = device.srq(8, 5);
    let number = srq.number;
    let with_srq = |attr| QpAttr { srq: Some(number), ..attr };
    let mut pairs: Vec<_> = (0..4).map(|_| device.pair(with_srq, &send, &recv)).collect();
    for _ in 0..3 {
        srq.post(&[]).unwrap();
    }
    device.nic.modify_srq_limit(number, 2).unwrap();
    assert!(device.events().is_empty());
    for (a, _) in &mut pairs {
        device.post(a, &Work::send());
    }
    device.settle();
    assert_eq!(recv.drain().len(), 3);
    assert_eq!(device.events(), [Event::SrqLimit(number)]);
    assert_eq!(device.nic.srq_limit(number), Ok(0));
    srq.post(&[]).unwrap();
    device.finish();
    assert_eq!(recv.drain().len(), 1);
    assert_eq!(send.drain().len(), 4);
}
