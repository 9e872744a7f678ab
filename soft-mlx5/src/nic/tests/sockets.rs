//! Devices that reach each other through the kernel's sockets, as those of two processes do.

use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::program::*;
use crate::fabric::Fabric;
use crate::nic::NicConfig;
use crate::nic::objects::*;

fn config(test: &str) -> NicConfig {
    let name = format!("unit-{}-{test}", std::process::id());
    NicConfig { fabric: Fabric::Named(name), ..NicConfig::default() }
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
    let mut device = Device::with(config(test));
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
    // Same LID, same QP number, but not connected.
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
