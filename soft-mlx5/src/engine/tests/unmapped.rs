//! Memory that the program takes away while the device uses it.

use mlx5_wire::ctrl::CQ_UPDATE;
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::program::*;
use crate::objects::strict::Rule;
use crate::objects::*;

const LOCAL_PROT: u8 = 0x04;
const FLUSH: u8 = 0x05;
const REMOTE_ACCESS: u8 = 0x13;
const REMOTE_OP: u8 = 0x14;

#[test]
fn unmapped_registered_memory_is_a_protection_error() {
    use WqeOpcode as Op;
    let operands = [0; 16];
    // The operation, and the side that loses its memory.
    let cases: [(Op, bool, u8, Option<u8>); 6] = [
        (Op::SEND, true, LOCAL_PROT, None),
        (Op::SEND, false, REMOTE_OP, Some(LOCAL_PROT)),
        (Op::RDMA_WRITE, false, REMOTE_ACCESS, None),
        (Op::RDMA_READ, false, REMOTE_ACCESS, None),
        (Op::RDMA_READ, true, LOCAL_PROT, None),
        (Op::ATOMIC_FA, false, REMOTE_ACCESS, None),
    ];
    for (opcode, ours, syndrome, at_peer) in cases {
        let mut device = Device::new();
        let (mut send, mut recv) = (device.cq(16), device.cq(16));
        let (mut a, mut b) = device.pair(|attr| attr, &send, &recv);
        let (memory, gone) = (Memory::new(64), Memory::new(64));
        let there = (memory.addr(), device.register(&memory, ALL_ACCESS));
        let missing = (gone.addr(), device.register(&gone, ALL_ACCESS));
        gone.take_away();
        let (local, remote) = if ours { (missing, there) } else { (there, missing) };
        b.post_receive(&[DataSegment::new(remote.0, 64, remote.1)]);
        let mut work = Work::new(opcode);
        if opcode != Op::SEND {
            work = work.remote(remote.0, remote.1);
        }
        if opcode == Op::ATOMIC_FA {
            work = work.bytes(&operands);
        }
        let len = if opcode == Op::ATOMIC_FA { 8 } else { 48 };
        device.post(&mut a, &work.data(local.0, len, local.1));
        device.settle();
        send.expect_error(CqeOpcode::RequesterError, &a, 0, syndrome);
        if let Some(syndrome) = at_peer {
            recv.expect_error(CqeOpcode::ResponderError, &b, 0, syndrome);
        }
    }
}

#[test]
fn a_lost_ring_or_record_stops_its_queue_pair() {
    let lost: [fn(&Qp) -> &Memory; 3] = [|qp| &qp.sq, |qp| &qp.rq, |qp| &qp.record];
    for which in lost {
        let mut device = Device::new();
        let (mut send, recv) = (device.cq(16), device.cq(16));
        let (mut a, mut b) = device.pair(|attr| attr, &send, &recv);
        // The send is under way when the memory is taken away: its receive comes later.
        let started = device.post(&mut a, &Work::send().inline(b"first"));
        device.settle();
        a.post_receive(&[]);
        let (_, ctrl) = a.write(&Work::send());
        if std::ptr::eq(which(&a), &a.record) {
            a.record.take_away();
        } else {
            which(&a).take_away();
            device.ring(&mut a, ctrl);
        }
        b.post_receive(&[]);
        device.post(&mut b, &Work::send().flags(0));
        device.finish_within(50_000_000);
        assert_eq!(device.state(&a), QpState::Err);
        assert_eq!(device.nic.violations(Rule::QueueMemory), 1);
        assert_eq!(device.events().iter().filter(|e| **e == Event::QpFatal(a.number)).count(), 1);
        // A started WQE is still reported, as done or as flushed.
        let cqe = send.poll().unwrap();
        assert_eq!((cqe.qpn(), cqe.wqe_counter.get()), (a.number.0, started));
        if cqe.opcode() == CqeOpcode::RequesterError {
            assert_eq!(error(&cqe).syndrome, FLUSH);
        }
        // Reset gives no memory back.
        device.set_state(&a, QpState::Reset);
        let lid = device.nic.port().lid;
        device.connect(&a, lid, b.number);
        device.settle();
        assert_eq!(device.nic.destroy_qp(a.number), Ok(()));
    }
}

#[test]
fn a_lost_srq_stops_the_queue_pairs_that_want_its_wqes() {
    let lost: [fn(&Srq) -> &Memory; 2] = [|srq| &srq.ring, |srq| &srq.record];
    for which in lost {
        let mut device = Device::new();
        let (send, recv) = (device.cq(16), device.cq(16));
        let mut srq = device.srq(8, 5);
        let number = srq.number;
        let with_srq = |attr| QpAttr { srq: Some(number), ..attr };
        let (mut a, b) = device.pair(with_srq, &send, &recv);
        srq.post(&[]).unwrap();
        which(&srq).take_away();
        device.post(&mut a, &Work::send());
        device.finish_within(5_000_000);
        assert_eq!(device.nic.violations(Rule::QueueMemory), 1);
        let events = device.events();
        assert_eq!(events.iter().filter(|e| **e == Event::SrqError(number)).count(), 1);
        assert!(events.contains(&Event::QpFatal(b.number)), "{events:?}");
        assert_eq!(device.state(&b), QpState::Err);
    }
}

#[test]
fn a_lost_cq_stops_its_queue_pairs() {
    let lost: [fn(&Cq) -> &Memory; 2] = [|cq| &cq.ring, |cq| &cq.record];
    for which in lost {
        let mut device = Device::new();
        let (send, recv) = (device.cq(4), device.cq(64));
        let (mut a, mut b) = device.pair(|attr| attr, &send, &recv);
        which(&send).take_away();
        // The record is read only when the CQ seems full.
        for _ in 0..5 {
            b.post_receive(&[]);
            device.post(&mut a, &Work::send().flags(CQ_UPDATE));
        }
        device.settle();
        assert_eq!(device.nic.violations(Rule::QueueMemory), 1);
        let events = device.events();
        assert!(events.contains(&Event::CqError(send.number)), "{events:?}");
        assert!(events.contains(&Event::QpFatal(a.number)), "{events:?}");
        assert_eq!(device.state(&a), QpState::Err);
    }
}

#[test]
fn a_lost_record_of_an_armed_cq_is_a_cq_error() {
    let mut device = Device::new();
    let cq = device.cq(4);
    device.arm(&cq, 0, false);
    cq.record.take_away();
    device.settle();
    assert_eq!(device.events(), [Event::CqError(cq.number)]);
}
