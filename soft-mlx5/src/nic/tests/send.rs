//! SEND on connected queue pairs.

use mlx5_wire::ctrl::{CQ_UPDATE, SOLICITED};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::program::*;
use crate::fabric::{Fabric, Switch};
use crate::nic::NicConfig;
use crate::nic::objects::*;

struct Pair {
    device: Device,
    cq_send: Cq,
    cq_recv: Cq,
    a: Qp,
    b: Qp,
    memory: Memory,
    key: u32,
}

fn pair(mtu: u32) -> Pair {
    let mut device = Device::new();
    let (cq_send, cq_recv) = (device.cq(256), device.cq(256));
    let path = Path { mtu, ..Path::default() };
    let (a, b) = device.pair_with(|attr| attr, &cq_send, &cq_recv, path);
    let memory = Memory::new(1 << 20);
    let key = device.register(&memory, ALL_ACCESS);
    Pair { device, cq_send, cq_recv, a, b, memory, key }
}

#[test]
fn every_length_around_the_mtu_arrives_whole() {
    let mtu = 256;
    let mut p = pair(mtu);
    let half = p.memory.len() / 2;
    for len in [0, 1, 31, 255, 256, 257, 511, 512, 513, 10_000, half as u32] {
        let sent = pattern(len.into(), len as usize);
        p.memory.set(0, &sent);
        p.memory.set(half, &vec![0; half]);
        let at = p.memory.addr() + half as u64;
        let counter = p.b.post_receive(&[DataSegment::new(at, half as u32, p.key)]);
        let mut work = Work::send();
        if len > 0 {
            work = work.data(p.memory.addr(), len, p.key);
        }
        let index = p.device.post(&mut p.a, &work);
        p.device.settle();
        let cqe = p.cq_recv.expect(CqeOpcode::ResponderSend, &p.b, counter);
        assert_eq!((cqe.byte_cnt.get(), cqe.source_qpn()), (len, p.a.number.0));
        assert_eq!(p.memory.get(half, len as usize), sent);
        assert!(p.memory.get(half + len as usize, half - len as usize).iter().all(|b| *b == 0));
        let cqe = p.cq_send.expect(CqeOpcode::Requester, &p.a, index);
        assert_eq!(cqe.send_opcode(), WqeOpcode::SEND.get());
    }
    p.cq_send.expect_nothing();
    p.cq_recv.expect_nothing();
}

#[test]
fn several_gather_and_scatter_entries() {
    let mut p = pair(256);
    p.memory.set(0, &pattern(1, 1000));
    let (from, to, key) = (p.memory.addr(), p.memory.addr() + 4096, p.key);
    p.b.post_receive(&[
        DataSegment::new(to + 500, 300, key),
        DataSegment::new(to, 1, key),
        DataSegment::new(to + 100, 400, key),
    ]);
    let work = Work::send().data(from + 900, 100, key).inline(b"inline").data(from, 500, key);
    p.device.post(&mut p.a, &work);
    p.device.settle();
    let cqe = p.cq_recv.expect(CqeOpcode::ResponderSend, &p.b, 0);
    assert_eq!(cqe.byte_cnt.get(), 606);
    let source = pattern(1, 1000);
    let sent = [&source[900..], b"inline", &source[..500]].concat();
    assert_eq!(p.memory.get(4096 + 500, 300), sent[..300]);
    assert_eq!(p.memory.get(4096, 2), [sent[300], 0]);
    assert_eq!(p.memory.get(4096 + 100, 305), sent[301..]);
}

#[test]
fn immediate_data_and_solicited_event() {
    let mut p = pair(256);
    for len in [0, 10, 600] {
        p.b.post_receive(&[DataSegment::new(p.memory.addr(), 1024, p.key)]);
        let mut work = Work::new(WqeOpcode::SEND_IMM).imm(0xcafe_f00d);
        if len > 0 {
            work = work.data(p.memory.addr() + 4096, len, p.key);
        }
        p.device.post(&mut p.a, &work.flags(CQ_UPDATE | SOLICITED));
        p.device.settle();
        let cqe = p.cq_recv.poll().unwrap();
        assert_eq!(cqe.opcode(), CqeOpcode::ResponderSendImm);
        assert_eq!(cqe.imm_inval_pkey.get(), 0xcafe_f00d);
        assert_eq!(cqe.op_own & 2, 2, "solicited");
    }
}

#[test]
fn unsignaled_sends_complete_silently() {
    let mut p = pair(256);
    for _ in 0..3 {
        p.b.post_receive(&[DataSegment::new(p.memory.addr(), 64, p.key)]);
    }
    let quiet = Work::send().inline(b"x").flags(0);
    p.device.post(&mut p.a, &quiet);
    p.device.post(&mut p.a, &quiet);
    let last = p.device.post(&mut p.a, &Work::send().inline(b"y"));
    p.device.settle();
    assert_eq!(p.cq_recv.drain().len(), 3);
    p.cq_send.expect(CqeOpcode::Requester, &p.a, last);
    p.cq_send.expect_nothing();
}

#[test]
fn a_queue_that_signals_all_needs_no_flag() {
    let mut device = Device::new();
    let (mut send, recv) = (device.cq(16), device.cq(16));
    let (mut a, mut b) = device.pair(|attr| QpAttr { signal_all: true, ..attr }, &send, &recv);
    b.post_receive(&[]);
    device.post(&mut a, &Work::send().flags(0));
    device.settle();
    send.expect(CqeOpcode::Requester, &a, 0);
}

#[test]
fn nothing_moves_before_the_register_is_written() {
    let mut p = pair(256);
    p.b.post_receive(&[]);
    let (_, ctrl) = p.a.write(&Work::send());
    p.a.record.span().set_record(mlx5_wire::dbrec::SEND, 1).unwrap();
    p.device.settle();
    p.cq_recv.expect_nothing();
    p.device.ring(&mut p.a, ctrl);
    p.device.settle();
    p.cq_recv.expect(CqeOpcode::ResponderSend, &p.b, 0);
}

#[test]
fn one_ring_covers_a_batch() {
    let mut p = pair(256);
    let mut last = None;
    for _ in 0..20 {
        p.b.post_receive(&[DataSegment::new(p.memory.addr(), 64, p.key)]);
        last = Some(p.a.write(&Work::send().inline(b"abc").data(p.memory.addr(), 8, p.key)).1);
    }
    p.device.ring(&mut p.a, last.unwrap());
    p.device.settle();
    assert_eq!(p.cq_recv.drain().len(), 20);
    assert_eq!(p.cq_send.drain().len(), 20);
}

#[test]
fn a_shared_register_loses_no_ring() {
    let mut device = Device::new();
    let (mut send, mut recv) = (device.cq(64), device.cq(64));
    let register = device.qp_attr(Service::Rc, &send, &recv).register;
    let pairs: Vec<_> = (0..8).map(|_| device.pair(|attr| QpAttr { register, ..attr }, &send, &recv)).collect();
    let mut pairs = pairs;
    // All ring before the device looks: the device can see only the last one or two.
    for (a, b) in &mut pairs {
        b.post_receive(&[]);
        device.post(a, &Work::send());
    }
    device.settle();
    assert_eq!(recv.drain().len(), 8);
    assert_eq!(send.drain().len(), 8);
}

#[test]
fn two_devices_on_a_switch() {
    let fabric = Fabric::Switch(Switch::new());
    let config = || NicConfig { fabric: fabric.clone(), ..NicConfig::default() };
    let (mut left, mut right) = (Device::with(config()), Device::with(config()));
    assert_eq!((left.nic.port().lid, right.nic.port().lid), (1, 2));
    let (mut send, unused) = (left.cq(16), left.cq(16));
    let mut recv = right.cq(16);
    let a = left.qp_attr(Service::Rc, &send, &unused);
    let mut a = left.qp(a);
    let b = right.qp_attr(Service::Rc, &recv, &recv);
    let mut b = right.qp(b);
    left.connect(&a, 2, b.number);
    right.connect(&b, 1, a.number);
    let memory = Memory::new(8192);
    let key = right.register(&memory, ALL_ACCESS);
    b.post_receive(&[DataSegment::new(memory.addr(), 8192, key)]);
    left.post(&mut a, &Work::send().inline(b"over the wire"));
    for _ in 0..10 {
        left.settle();
        right.settle();
    }
    let cqe = recv.expect(CqeOpcode::ResponderSend, &b, 0);
    assert_eq!((cqe.slid.get(), cqe.byte_cnt.get()), (1, 13));
    assert_eq!(memory.get(0, 13), b"over the wire");
    send.expect(CqeOpcode::Requester, &a, 0);
    assert_eq!(left.nic.drops(), Default::default());
}

#[test]
fn a_nop_between_sends_that_are_sent_again() {
    let mut p = pair(256);
    for work in [Work::send(), Work::new(WqeOpcode::NOP), Work::send()] {
        p.device.post(&mut p.a, &work);
    }
    // The receiver is not ready for the first message: everything is sent again.
    p.device.settle();
    p.b.post_receive(&[]);
    p.b.post_receive(&[]);
    p.device.finish();
    assert_eq!(p.cq_recv.drain().len(), 2);
    for index in 0..3 {
        p.cq_send.expect(CqeOpcode::Requester, &p.a, index);
    }
}

#[test]
fn a_nop_completes_in_its_turn() {
    let mut p = pair(256);
    p.b.post_receive(&[]);
    p.device.post(&mut p.a, &Work::send());
    let nop = p.device.post(&mut p.a, &Work::new(WqeOpcode::NOP));
    p.device.settle();
    p.cq_send.expect(CqeOpcode::Requester, &p.a, 0);
    p.cq_send.expect(CqeOpcode::Requester, &p.a, nop);
}
