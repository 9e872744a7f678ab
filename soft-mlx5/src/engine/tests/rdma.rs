//! RDMA WRITE and READ.

use mlx5_wire::ctrl::{CQ_UPDATE, FENCE, SMALL_FENCE};
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use super::program::*;
use crate::objects::*;

struct Setup {
    device: Device,
    send: Cq,
    // The queues of the CQ belong to the device.
    _recv: Cq,
    a: Qp,
    _b: Qp,
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
    Setup { device, send, _recv: recv, a, _b: b, local, lkey, remote, rkey }
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
