//! Queue pairs in error, reset and drained.

use mlx5_wire::data::DataSegment;
use mlx5_wire::dbrec::{RECEIVE, SEND};
use mlx5_wire::opcode::CqeOpcode::{Requester, RequesterError, ResponderError, ResponderSend};

use super::program::*;
use crate::objects::strict::Rule;
use crate::objects::*;

const FLUSH: u8 = 0x05;

#[test]
fn everything_posted_is_flushed_in_order() {
    let mut device = Device::new();
    let (mut send, mut recv) = (device.cq(64), device.cq(64));
    let (mut a, _b) = device.pair(|attr| attr, &send, &recv);
    for _ in 0..5 {
        a.post_receive(&[]);
    }
    // The peer has no receives: these sends are started, or wait.
    for _ in 0..7 {
        device.post(&mut a, &Work::send().flags(0).inline(&[1; 100]));
    }
    device.settle();
    device.set_state(&a, QpState::Err);
    device.settle();
    for i in 0..7 {
        send.expect_error(RequesterError, &a, i * 2, FLUSH);
    }
    for i in 0..5 {
        recv.expect_error(ResponderError, &a, i, FLUSH);
    }
    // WQEs that are posted to a queue pair in error come back, too.
    let receive = a.post_receive(&[]);
    device.settle();
    recv.expect_error(ResponderError, &a, receive, FLUSH);
    let index = device.post(&mut a, &Work::send());
    device.settle();
    send.expect_error(RequesterError, &a, index, FLUSH);
    send.expect_nothing();
    recv.expect_nothing();
    assert!(device.events().is_empty());
}

#[test]
fn an_srq_keeps_its_wqes_but_gives_back_the_one_taken() {
    let mut device = Device::new();
    let (send, mut recv) = (device.cq(64), device.cq(64));
    let mut srq = device.srq(8, 5);
    let number = Some(srq.number);
    let path = Path { mtu: 256, ..Path::default() };
    let (mut a, b) = device.pair_with(|attr| QpAttr { srq: number, ..attr }, &send, &recv, path);
    let memory = Memory::new(65536);
    let key = device.register(&memory, ALL_ACCESS);
    for _ in 0..7 {
        srq.post(&[DataSegment::new(memory.addr(), 65536, key)]).unwrap();
    }
    // The message has 256 packets: it is not complete after one step.
    device.post(&mut a, &Work::send().data(memory.addr(), 65536, key));
    device.nic.step(1);
    device.set_state(&b, QpState::Err);
    device.settle();
    recv.expect_error(ResponderError, &b, 0, FLUSH);
    recv.expect_nothing();
    assert_eq!(device.events(), [Event::LastWqe(b.number)]);
}

#[test]
fn a_queue_pair_in_error_reports_its_last_wqe_once() {
    let mut device = Device::new();
    let (send, recv) = (device.cq(64), device.cq(64));
    let srq = device.srq(8, 5);
    let (a, _b) = device.pair(|attr| QpAttr { srq: Some(srq.number), ..attr }, &send, &recv);
    for _ in 0..2 {
        device.set_state(&a, QpState::Err);
        device.settle();
        device.settle();
    }
    assert_eq!(device.events(), [Event::LastWqe(a.number)]);
}

#[test]
fn a_reset_queue_pair_starts_from_zero() {
    let mut device = Device::new();
    let (mut send, mut recv) = (device.cq(64), device.cq(64));
    let (mut a, mut b) = device.pair(|attr| attr, &send, &recv);
    let lid = device.nic.port().lid;
    for round in 0..3 {
        for qp in [&mut a, &mut b] {
            device.set_state(qp, QpState::Reset);
            qp.record.span().set_record(RECEIVE, 0).unwrap();
            qp.record.span().set_record(SEND, 0).unwrap();
            (qp.received, qp.sent) = (0, 0);
        }
        let path = Path { sq_psn: 100 * round, rq_psn: 100 * round, ..Path::default() };
        device.connect_with(&a, lid, b.number, path);
        device.connect_with(&b, lid, a.number, path);
        for index in 0..5 {
            b.post_receive(&[]);
            device.post(&mut a, &Work::send());
            device.settle();
            recv.expect(ResponderSend, &b, index);
            send.expect(Requester, &a, index);
        }
        // The reset discards these WQEs: neither of them may complete.
        b.post_receive(&[]);
        a.write(&Work::send());
        device.settle();
    }
    send.expect_nothing();
    recv.expect_nothing();
    assert_eq!(device.nic.violations(Rule::DoorbellState), 0);
}

#[test]
fn a_drained_send_queue_finishes_what_it_began_and_starts_nothing() {
    let mut device = Device::new();
    let (mut send, recv) = (device.cq(64), device.cq(64));
    let (mut a, mut b) = device.pair(|attr| attr, &send, &recv);
    device.post(&mut a, &Work::send());
    device.settle();
    device.set_state(&a, QpState::Sqd);
    device.post(&mut a, &Work::send());
    device.settle();
    let status = device.nic.query_qp(a.number).unwrap();
    assert!(status.sq_draining);
    assert!(!device.events().contains(&Event::SqDrained(a.number)));
    b.post_receive(&[]);
    b.post_receive(&[]);
    device.finish();
    send.expect(Requester, &a, 0);
    send.expect_nothing();
    assert!(device.events().contains(&Event::SqDrained(a.number)));
    assert!(!device.nic.query_qp(a.number).unwrap().sq_draining);
    device.set_state(&a, QpState::Rts);
    device.finish();
    send.expect(Requester, &a, 1);
}

#[test]
fn what_was_rung_before_a_command_belongs_to_the_time_before_it() {
    let mut device = Device::new();
    let (send, recv) = (device.cq(64), device.cq(64));
    let (mut a, mut b) = device.pair(|attr| attr, &send, &recv);
    device.post(&mut a, &Work::send());
    device.set_state(&a, QpState::Reset);
    // Another queue pair rings at the same register, so the register is still read.
    let neighbour = QpAttr { register: b.attr.register, ..b.attr };
    let _neighbour = device.qp(neighbour);
    device.post(&mut b, &Work::send());
    device.nic.destroy_qp(b.number).unwrap();
    device.settle();
    for rule in [Rule::DoorbellState, Rule::DoorbellQpn] {
        assert_eq!(device.nic.violations(rule), 0);
    }
}

#[test]
fn communication_is_established_with_the_first_packet_in_rtr() {
    let mut device = Device::new();
    let (send, recv) = (device.cq(64), device.cq(64));
    let (mut a, mut b) = device.pair(|attr| attr, &send, &recv);
    let lid = device.nic.port().lid;
    device.set_state(&b, QpState::Reset);
    let init = QpModify { state: Some(QpState::Init), ..QpModify::default() };
    device.modify(&b, init);
    let rtr = QpModify {
        state: Some(QpState::Rtr),
        av: Some(AddressVector { dlid: lid, ..AddressVector::default() }),
        dest_qpn: Some(a.number.0),
        rq_psn: Some(0x1000),
        ..QpModify::default()
    };
    device.modify(&b, rtr);
    for _ in 0..2 {
        b.post_receive(&[]);
        device.post(&mut a, &Work::send());
        device.settle();
    }
    assert_eq!(device.events(), [Event::CommunicationEstablished(b.number)]);
}

#[test]
fn objects_in_use_are_not_destroyed_and_destroyed_ones_are_not_touched() {
    let mut device = Device::new();
    let (send, recv) = (device.cq(64), device.cq(64));
    let srq = device.srq(8, 5);
    let (mut a, b) = device.pair(|attr| QpAttr { srq: Some(srq.number), ..attr }, &send, &recv);
    assert_eq!(device.nic.destroy_cq(send.number), Err(Errno(libc::EBUSY)));
    assert_eq!(device.nic.destroy_srq(srq.number), Err(Errno(libc::EBUSY)));
    // The doorbell was rung, and the queue pair is destroyed before the device looks.
    device.post(&mut a, &Work::send().inline(b"gone"));
    device.nic.destroy_qp(a.number).unwrap();
    assert_eq!(device.nic.destroy_qp(a.number), Err(Errno(libc::EINVAL)));
    a.sq.set(0, &vec![0xff; a.sq.len()]);
    a.record.span().set_record(SEND, 0xffff).unwrap();
    device.nic.destroy_qp(b.number).unwrap();
    device.finish();
    device.nic.destroy_cq(send.number).unwrap();
    device.nic.destroy_cq(recv.number).unwrap();
    device.nic.destroy_srq(srq.number).unwrap();
    device.finish();
    assert!(send.peek().is_none() && recv.peek().is_none());
}
