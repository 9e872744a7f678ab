//! RDMA operations, which queue pairs of doorbell do not offer.

use doorbell::QueuePair;
use rdma_core_sys as sys;

/// Posts a write of a few bytes to memory of the other end.
pub fn write(qp: &mut QueuePair, bytes: &[u8], addr: u64, rkey: u32) {
    let mut sge = sys::ibv_sge {
        addr: bytes.as_ptr().expose_provenance() as u64,
        length: bytes.len() as u32,
        lkey: 0,
    };
    let mut wr = sys::ibv_send_wr {
        sg_list: &mut sge,
        num_sge: 1,
        opcode: sys::IBV_WR_RDMA_WRITE,
        send_flags: sys::IBV_SEND_SIGNALED | sys::IBV_SEND_INLINE,
        ..Default::default()
    };
    wr.wr.rdma.remote_addr = addr;
    wr.wr.rdma.rkey = rkey;
    let mut bad = std::ptr::null_mut();
    // SAFETY: a queue pair in RTS, and an inline request.
    assert_eq!(unsafe { sys::ibv_post_send(qp.as_raw(), &mut wr, &mut bad) }, 0);
}
