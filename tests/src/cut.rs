//! Messages that break off in the middle.

use std::ptr;

use doorbell::{ProtectionDomain, QpState, QueuePair};
use rdma_core_sys as sys;

use crate::by_hand::query;
use crate::receiving::wait;

/// Bytes of a message that breaks off: some packets of any path MTU.
pub const LEN: usize = 64 << 10;

/// Sends messages of which the sender has registered the first half only: some packets of a message arrive, then
/// the sending queue pair fails.
pub struct Cut {
    memory: Box<[u8]>,
    mr: *mut sys::ibv_mr,
    _pd: ProtectionDomain,
}

impl Cut {
    /// Registers memory for half of a message.
    pub fn new(pd: &ProtectionDomain) -> Self {
        let mut memory = vec![0; LEN].into_boxed_slice();
        // SAFETY: memory of ours, which is freed after it was deregistered.
        let mr = unsafe { sys::ibv_reg_mr(pd.as_raw(), memory.as_mut_ptr().cast(), LEN / 2, 0) };
        assert!(!mr.is_null());
        Self { memory, mr, _pd: pd.clone() }
    }

    /// Begins a message with `head` on a connected queue pair, and waits until the queue pair has failed and its
    /// peer `to` is in the middle of the message.
    pub fn send(&mut self, qp: &QueuePair, to: &QueuePair, head: &[u8]) {
        // SAFETY: a live queue pair.
        let next = || unsafe { query(to.as_raw(), sys::IBV_QP_RQ_PSN) }.rq_psn;
        let expected = next();
        self.begin(qp, head);
        wait("the first packet", || next() != expected);
    }

    /// Begins a message with `head` on a connected queue pair, and waits until the queue pair has failed.
    pub fn begin(&mut self, qp: &QueuePair, head: &[u8]) {
        self.memory[..head.len()].copy_from_slice(head);
        let addr = self.memory.as_ptr().expose_provenance() as u64;
        // SAFETY: a live region.
        let lkey = unsafe { (*self.mr).lkey };
        let mut sge = sys::ibv_sge { addr, length: LEN as u32, lkey };
        let mut wr = sys::ibv_send_wr {
            wr_id: u64::MAX,
            sg_list: &mut sge,
            num_sge: 1,
            opcode: sys::IBV_WR_SEND,
            send_flags: sys::IBV_SEND_SIGNALED,
            ..Default::default()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair. The device reads registered memory only, which is not written before the queue
        // pair has failed.
        assert_eq!(unsafe { sys::ibv_post_send(qp.as_raw(), &mut wr, &mut bad) }, 0);
        wait("the message to break off", || qp.state().unwrap() == QpState::Error);
    }
}
