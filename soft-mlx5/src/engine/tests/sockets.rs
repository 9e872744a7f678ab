//! Devices that reach each other through the kernel's sockets, as those of two processes do.

use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::program::*;
use crate::engine::NicConfig;
use crate::engine::requester::hints;
use crate::fabric::{Fabric, Switch};
use crate::objects::*;

fn named(test: &str) -> Fabric {
    Fabric::Named(format!("unit-{}-{test}", std::process::id()))
}

struct End {
    device: Device,
    send: Cq,
    recv: Cq,
    qp: Qp,
    memory: Memory,
    key: u32,
}

fn end(test: &str) -> End {
    end_on(named(test))
}

fn end_on(fabric: Fabric) -> End {
    let mut device = Device::with(NicConfig { fabric, ..NicConfig::default() });
    let (send, recv) = (device.cq(256), device.cq(256));
    let attr = device.qp_attr(Service::Rc, &send, &recv);
    let qp = device.qp(attr);
    let memory = Memory::new(1 << 20);
    let key = device.register(&memory, ALL_ACCESS);
    End { device, send, recv, qp, memory, key }
}

fn connect(a: &mut End, b: &mut End) {
    let (lid_a, lid_b) = (a.device.nic.port().lid, b.device.nic.port().lid);
    // The RNR timer is longer than the test's steps are apart.
    let path = Path { mtu: 4096, timeout: 10, ..Path::default() };
    a.device.connect_with(&a.qp, lid_b, b.qp.number, path);
    b.device.connect_with(&b.qp, lid_a, a.qp.number, path);
}

fn settle(a: &mut End, b: &mut End) {
    while a.device.nic.step(a.device.now) | b.device.nic.step(b.device.now) {}
}

#[test]
fn large_messages_both_ways_through_short_queues() {
    let (mut a, mut b) = (end("large"), end("large"));
    connect(&mut a, &mut b);
    let len = 1 << 18;
    for round in 0..10 {
        for (end, seed) in [(&mut a, 1), (&mut b, 2)] {
            end.memory.set(0, &pattern(round * 2 + seed, len));
            let to = end.memory.addr() + (1 << 19);
            end.qp.post_receive(&[DataSegment::new(to, len as u32, end.key)]);
            let work = Work::send().data(end.memory.addr(), len as u32, end.key);
            end.device.post(&mut end.qp, &work);
        }
        settle(&mut a, &mut b);
        for (end, seed) in [(&mut a, 2), (&mut b, 1)] {
            let cqe = end.recv.poll().expect("a message");
            assert_eq!(cqe.byte_cnt.get(), len as u32);
            assert_eq!(end.memory.get(1 << 19, len), pattern(round * 2 + seed, len));
            end.send.expect(CqeOpcode::Requester, &end.qp, round as u16);
        }
    }
    // Back-pressure held packets back; none was lost.
    assert_eq!((a.device.nic.drops(), b.device.nic.drops()), Default::default());
    assert!(a.device.nic.wait_fd().is_some());
}

#[test]
fn reads_and_immediates_between_processes() {
    let (mut a, mut b) = (end("read"), end("read"));
    connect(&mut a, &mut b);
    b.memory.set(0, &pattern(3, 100_000));
    let read = Work::new(WqeOpcode::RDMA_READ).remote(b.memory.addr(), b.key);
    a.device.post(&mut a.qp, &read.data(a.memory.addr(), 100_000, a.key));
    settle(&mut a, &mut b);
    a.send.expect(CqeOpcode::Requester, &a.qp, 0);
    assert_eq!(a.memory.get(0, 100_000), pattern(3, 100_000));
    b.qp.post_receive(&[]);
    let write = Work::new(WqeOpcode::RDMA_WRITE_IMM).imm(1).remote(b.memory.addr() + 5, b.key);
    a.device.post(&mut a.qp, &write.inline(b"immediate"));
    settle(&mut a, &mut b);
    b.recv.expect(CqeOpcode::ResponderWriteImm, &b.qp, 0);
    assert_eq!(b.memory.get(5, 9), b"immediate");
}

#[test]
fn a_peer_that_dies_is_noticed_and_its_successor_is_not_mistaken_for_it() {
    let (mut a, mut b) = (end("death"), end("death"));
    connect(&mut a, &mut b);
    b.qp.post_receive(&[]);
    a.device.post(&mut a.qp, &Work::send());
    settle(&mut a, &mut b);
    a.send.expect(CqeOpcode::Requester, &a.qp, 0);
    let lid = b.device.nic.port().lid;
    drop(b);
    // The successor has the same LID and the same QP number, but is not connected.
    let mut successor = end("death");
    assert_eq!(successor.device.nic.port().lid, lid);
    successor.qp.post_receive(&[]);
    a.device.post(&mut a.qp, &Work::send().inline(b"are you there?"));
    for _ in 0..100 {
        settle(&mut a, &mut successor);
        a.device.now += 25_000_000;
    }
    a.send.expect_error(CqeOpcode::RequesterError, &a.qp, 1, 0x15);
    successor.recv.expect_nothing();
}

fn step(end: &mut End) {
    while end.device.nic.step(end.device.now) {}
}

// Lets a device work alone until so many of its timers have expired.
fn expire(end: &mut End, timers: u32) {
    for _ in 0..timers {
        step(end);
        let deadline = end.device.nic.next_deadline().expect("a timer runs");
        end.device.now = end.device.now.max(deadline);
    }
    step(end);
}

#[test]
fn a_peer_that_gets_no_processor_is_waited_for() {
    for fabric in [named("stopped"), Fabric::Switch(Switch::new())] {
        let (mut a, mut b) = (end_on(fabric.clone()), end_on(fabric));
        connect(&mut a, &mut b);
        let to = b.memory.addr();
        b.qp.post_receive(&[DataSegment::new(to, 64, b.key)]);
        a.device.post(&mut a.qp, &Work::send().inline(b"no hurry"));
        // Far more time-outs than retries.
        expire(&mut a, 10_000);
        a.send.expect_nothing();
        settle(&mut a, &mut b);
        a.send.expect(CqeOpcode::Requester, &a.qp, 0);
        assert_eq!(b.recv.poll().expect("a message").byte_cnt.get(), 8);
        b.recv.expect_nothing();

        // The next message has all of its retries.
        b.qp.post_receive(&[]);
        a.device.post(&mut a.qp, &Work::send());
        expire(&mut a, 100);
        settle(&mut a, &mut b);
        a.send.expect(CqeOpcode::Requester, &a.qp, 1);
    }
}

#[test]
fn a_peer_that_takes_all_packets_and_answers_none_is_given_up_after_all_retries() {
    for fabric in [named("silent"), Fabric::Switch(Switch::new())] {
        let (mut a, b) = (end_on(fabric.clone()), end_on(fabric));
        let mut b = b;
        let path = Path { timeout: 10, retry_cnt: 3, ..Path::default() };
        // The peer's queue pair is in RESET.
        let lid = b.device.nic.port().lid;
        a.device.connect_with(&a.qp, lid, b.qp.number, path);
        a.device.post(&mut a.qp, &Work::send());
        for _ in 0..3 {
            expire(&mut a, 5);
            settle(&mut a, &mut b);
        }
        a.send.expect_nothing();
        expire(&mut a, 1);
        a.send.expect_nothing();
        assert_eq!(a.device.nic.next_deadline().map(|at| at > a.device.now), Some(true));
        settle(&mut a, &mut b);
        a.send.expect_error(CqeOpcode::RequesterError, &a.qp, 0, 0x15);
    }
}

#[test]
fn a_peer_that_dies_while_it_is_waited_for_is_given_up() {
    for fabric in [named("dying"), Fabric::Switch(Switch::new())] {
        let (mut a, mut b) = (end_on(fabric.clone()), end_on(fabric));
        connect(&mut a, &mut b);
        a.device.post(&mut a.qp, &Work::send());
        expire(&mut a, 100);
        a.send.expect_nothing();
        drop(b);
        while a.device.nic.next_deadline().is_some() {
            expire(&mut a, 1);
        }
        a.send.expect_error(CqeOpcode::RequesterError, &a.qp, 0, 0x15);
    }
}

#[test]
fn a_port_that_is_down_counts_as_time_outs() {
    let fabric = named("down");
    let (mut a, mut b) = (end_on(fabric.clone()), end_on(fabric));
    connect(&mut a, &mut b);
    b.qp.post_receive(&[]);
    a.device.post(&mut a.qp, &Work::send());
    expire(&mut a, 1);
    // The echo is at the peer, too, whose port is down, and goes back all the same.
    b.device.nic.set_link(false);
    settle(&mut a, &mut b);
    b.device.nic.set_link(true);
    b.recv.expect_nothing();
    settle(&mut a, &mut b);
    // The retry came after the port was up again.
    a.device.now += 1 << 24;
    settle(&mut a, &mut b);
    settle(&mut a, &mut b);
    a.device.now += 1 << 24;
    settle(&mut a, &mut b);
    a.send.expect(CqeOpcode::Requester, &a.qp, 0);
}

#[test]
fn the_probable_cause_of_retries_in_vain_is_named() {
    let (mut a, b) = (end("causes"), end("causes"));
    let [lid, other] = [&a, &b].map(|end| end.device.nic.port().lid);
    let Qpn(peer) = b.qp.number;
    let cause = |a: &mut End, lid: u16| {
        a.device.connect_with(&a.qp, lid, Qpn(peer), Path::default());
        let nic = &a.device.nic;
        hints::cause(nic.qps.get(a.qp.number.0).unwrap(), &nic.core)
    };
    assert!(cause(&mut a, 0).contains("--link roce"));
    let own = cause(&mut a, lid);
    assert!(own.contains("this device itself") && own.contains("-causes"), "{own}");
    let missing = cause(&mut a, 999);
    assert!(missing.contains("no device has LID 999") && missing.contains("--fabric"), "{missing}");
    let silent = cause(&mut a, other);
    assert!(silent.contains(&format!("QP {peer:#x} does not receive from this QP")), "{silent}");
    a.device.nic.set_link(false);
    assert_eq!(cause(&mut a, other), "the port is down");
    a.device.nic.set_link(true);
    drop(b);
    assert!(cause(&mut a, other).contains("ended"));
}
