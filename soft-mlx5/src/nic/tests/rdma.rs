//! RDMA WRITE and READ.

use mlx5_wire::ctrl::{CQ_UPDATE, FENCE, SMALL_FENCE};
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::program::*;
use crate::nic::objects::*;

struct Setup {
    device: Device,
    send: Cq,
    recv: Cq,
    a: Qp,
    b: Qp,
    local: Memory,
    lkey: u32,
    remote: Memory,
    rkey: u32,
}

fn setup(path: Path) -> Setup {
    let mut device = Device::new();
    let (send, recv) = (device.cq(256), device.cq(256));
    let (a, b) = device.pair_with(|attr| attr, &send, &recv, path);
    let (local, remote) = (Memory::new(1 << 18), Memory::new(1 << 18));
    let lkey = device.register(&local, ALL_ACCESS);
    let rkey = device.register(&remote, ALL_ACCESS);
    Setup { device, send, recv, a, b, local, lkey, remote, rkey }
}

#[test]
fn write_places_bytes_without_a_completion() {
    let mut s = setup(Path::default());
    for len in [1u32, 1023, 1024, 1025, 100_000] {
        let bytes = pattern(len.into(), len as usize);
        s.local.set(3, &bytes);
        let work =
            Work::new(WqeOpcode::RDMA_WRITE).remote(s.remote.addr() + 17, s.rkey).data(s.local.addr() + 3, len, s.lkey);
        let index = s.device.post(&mut s.a, &work);
        s.device.settle();
        assert_eq!(s.remote.get(17, len as usize), bytes);
        let cqe = s.send.expect(CqeOpcode::Requester, &s.a, index);
        assert_eq!(cqe.send_opcode(), WqeOpcode::RDMA_WRITE.get());
    }
    s.recv.expect_nothing();
}

#[test]
fn write_with_immediate_takes_a_receive() {
    let mut s = setup(Path::default());
    for len in [0u32, 5, 5000] {
        let counter = s.b.post_receive(&[]);
        let mut work = Work::new(WqeOpcode::RDMA_WRITE_IMM).imm(7).remote(s.remote.addr(), s.rkey);
        if len > 0 {
            work = work.data(s.local.addr(), len, s.lkey);
        }
        s.device.post(&mut s.a, &work);
        s.device.settle();
        let cqe = s.recv.expect(CqeOpcode::ResponderWriteImm, &s.b, counter);
        assert_eq!((cqe.byte_cnt.get(), cqe.imm_inval_pkey.get()), (len, 7));
    }
}

#[test]
fn read_brings_bytes() {
    let mut s = setup(Path::default());
    for len in [1u32, 1024, 1025, 200_000] {
        let bytes = pattern(len.into(), len as usize);
        s.remote.set(9, &bytes);
        let work = Work::new(WqeOpcode::RDMA_READ)
            .remote(s.remote.addr() + 9, s.rkey)
            .data(s.local.addr(), len / 2, s.lkey)
            .data(s.local.addr() + 150_000, len - len / 2, s.lkey);
        // A length of 0 would mean 2 GiB.
        if len == 1 {
            continue;
        }
        let index = s.device.post(&mut s.a, &work);
        s.device.settle();
        let cqe = s.send.expect(CqeOpcode::Requester, &s.a, index);
        assert_eq!((cqe.byte_cnt.get(), cqe.send_opcode()), (len, WqeOpcode::RDMA_READ.get()));
        let half = (len / 2) as usize;
        assert_eq!(s.local.get(0, half), bytes[..half]);
        assert_eq!(s.local.get(150_000, len as usize - half), bytes[half..]);
    }
    s.recv.expect_nothing();
}

/// Posts eight reads, of which two are answered at a time, and a WRITE with these flags from the memory that the reads
/// fill. Returns `true` if the WRITE took the data of all reads.
fn write_after_reads(flags: u8) -> bool {
    let mut s = setup(Path { reads: 2, ..Path::default() });
    s.remote.set(0, &pattern(1, 65536));
    let mut order = Vec::new();
    for i in 0..8 {
        let at = i * 8192;
        let work = Work::new(WqeOpcode::RDMA_READ).remote(s.remote.addr() + at, s.rkey).data(
            s.local.addr() + at,
            8192,
            s.lkey,
        );
        order.push(s.device.post(&mut s.a, &work));
    }
    let work = Work::new(WqeOpcode::RDMA_WRITE)
        .flags(CQ_UPDATE | flags)
        .remote(s.remote.addr() + 100_000, s.rkey)
        .data(s.local.addr(), 65536, s.lkey);
    order.push(s.device.post(&mut s.a, &work));
    s.device.settle();
    for index in order {
        s.send.expect(CqeOpcode::Requester, &s.a, index);
    }
    s.remote.get(100_000, 65536) == pattern(1, 65536)
}

#[test]
fn many_reads_wait_for_their_turn_and_a_fence_waits_for_them() {
    // UCX and the kernel use the first value, libmlx5 the last; the second is strong ordering.
    for fence in [0x40, 0x60, FENCE] {
        assert!(write_after_reads(fence), "{fence:#x}");
    }
    // No fence, and a fence that waits for local operations only.
    for none in [0, SMALL_FENCE] {
        assert!(!write_after_reads(none), "{none:#x}");
    }
}

#[test]
fn operations_of_all_kinds_complete_in_order() {
    let mut s = setup(Path::default());
    let mut order = Vec::new();
    for round in 0..20 {
        let (raddr, laddr) = (s.remote.addr(), s.local.addr());
        let write = Work::new(WqeOpcode::RDMA_WRITE);
        let read = Work::new(WqeOpcode::RDMA_READ);
        order.push(s.device.post(&mut s.a, &write.remote(raddr, s.rkey).data(laddr, 3000, s.lkey)));
        order.push(s.device.post(&mut s.a, &read.remote(raddr, s.rkey).data(laddr, 3000, s.lkey)));
        s.b.post_receive(&[]);
        order.push(s.device.post(&mut s.a, &Work::send()));
        if round % 4 == 0 {
            s.device.settle();
        }
    }
    s.device.settle();
    for index in order {
        s.send.expect(CqeOpcode::Requester, &s.a, index);
    }
    assert_eq!(s.recv.drain().len(), 20);
}

#[test]
fn a_zero_based_region_is_named_by_offset() {
    let mut s = setup(Path::default());
    let attr = MkeyAttr { pd: s.device.pd, va: s.remote.addr() + 64, iova: 0, length: 128, access: ALL_ACCESS };
    let rkey = s.device.nic.create_mkey(attr).unwrap().0;
    let work = Work::new(WqeOpcode::RDMA_WRITE).remote(120, rkey).inline(b"the end!");
    s.device.post(&mut s.a, &work);
    s.device.settle();
    s.send.expect(CqeOpcode::Requester, &s.a, 0);
    assert_eq!(s.remote.get(64 + 120, 8), b"the end!");
}
