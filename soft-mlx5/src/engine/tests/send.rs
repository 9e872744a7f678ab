//! SEND on connected queue pairs.

use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::program::*;
use crate::objects::*;

fn setup() -> Setup {
    Setup::new(Path { mtu: 256, ..Path::default() })
}

#[test]
fn unsignaled_sends_complete_silently() {
    let mut p = setup();
    for _ in 0..3 {
        p.b.post_receive(&[DataSegment::new(p.memory.addr(), 64, p.key)]);
    }
    let quiet = Work::send().inline(b"x").flags(0);
    p.device.post(&mut p.a, &quiet);
    p.device.post(&mut p.a, &quiet);
    let last = p.device.post(&mut p.a, &Work::send().inline(b"y"));
    p.device.settle();
    assert_eq!(p.recv.drain().len(), 3);
    p.send.expect(CqeOpcode::Requester, &p.a, last);
    p.send.expect_nothing();
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
    let mut p = setup();
    p.b.post_receive(&[]);
    let (_, ctrl) = p.a.write(&Work::send());
    p.a.record.span().set_record(mlx5_wire::dbrec::SEND, 1).unwrap();
    p.device.settle();
    p.recv.expect_nothing();
    p.device.ring(&mut p.a, ctrl);
    p.device.settle();
    p.recv.expect(CqeOpcode::ResponderSend, &p.b, 0);
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
fn a_nop_between_sends_that_are_sent_again() {
    let mut p = setup();
    for work in [Work::send(), Work::new(WqeOpcode::NOP), Work::send()] {
        p.device.post(&mut p.a, &work);
    }
    // The receiver is not ready for the first message: everything is sent again.
    p.device.settle();
    p.b.post_receive(&[]);
    p.b.post_receive(&[]);
    p.device.finish();
    assert_eq!(p.recv.drain().len(), 2);
    for index in 0..3 {
        p.send.expect(CqeOpcode::Requester, &p.a, index);
    }
}

#[test]
fn a_nop_completes_in_its_turn() {
    let mut p = setup();
    p.b.post_receive(&[]);
    p.device.post(&mut p.a, &Work::send());
    let nop = p.device.post(&mut p.a, &Work::new(WqeOpcode::NOP));
    p.device.settle();
    p.send.expect(CqeOpcode::Requester, &p.a, 0);
    p.send.expect(CqeOpcode::Requester, &p.a, nop);
}
