//! Work requests that reach the memory of a peer.

use std::ptr;

use crate::world::*;
use rdma_core_sys::*;

/// All rights that memory or a QP can give.
pub const ALL: u32 =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// Memory that a work request names: address, length and key.
pub type Place = (u64, u32, u32);

/// Posts a signaled request with one SGE, or none, to a peer's memory.
fn post(qp: *mut ibv_qp, opcode: ibv_wr_opcode, local: Option<Place>, to: (u64, u32)) {
    let mut sge = local.map(|(addr, length, lkey)| ibv_sge { addr, length, lkey });
    let mut wr = ibv_send_wr { opcode, send_flags: IBV_SEND_SIGNALED, ..Default::default() };
    if let Some(sge) = &mut sge {
        (wr.sg_list, wr.num_sge) = (sge, 1);
    }
    if matches!(opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD) {
        (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey) = to;
        (wr.wr.atomic.compare_add, wr.wr.atomic.swap) = (5, 0);
    } else {
        (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = to;
    }
    // SAFETY: the QP is alive, and the list outlives the call.
    assert_eq!(unsafe { ibv_post_send(qp, &mut wr, &mut ptr::null_mut()) }, 0);
}

/// Two RC QPs connected to each other, each with a CQ of its own.
#[derive(Clone, Copy)]
pub struct Pair {
    pub near: *mut ibv_qp,
    pub near_cq: *mut ibv_cq,
    pub far: *mut ibv_qp,
    pub far_cq: *mut ibv_cq,
}

impl Pair {
    pub fn new(world: &World) -> Self {
        Self::with(world, |_| {})
    }

    /// Makes a pair with these changes to the attributes with which the far QP goes to INIT and RTR.
    pub fn with(world: &World, change: impl Fn(&mut ibv_qp_attr)) -> Self {
        let [near_cq, far_cq] = [world.cq(16), world.cq(16)];
        let [near, far] = [near_cq, far_cq].map(|cq| world.qp(IBV_QPT_RC, cq, ptr::null_mut()));
        for (qp, peer) in [(near, far), (far, near)] {
            // SAFETY: the QP is alive.
            let mut rtr = world.to_rtr(unsafe { (*peer).qp_num });
            let mut init = ibv_qp_attr { qp_access_flags: ALL, ..to_init() };
            if qp == far {
                change(&mut init);
                change(&mut rtr);
            }
            assert_eq!(modify(qp, &init, rc(IBV_QPS_INIT)), 0);
            assert_eq!(modify(qp, &rtr, rc(IBV_QPS_RTR)), 0);
            assert_eq!(modify(qp, &to_rts(), rc(IBV_QPS_RTS)), 0);
        }
        Self { near, near_cq, far, far_cq }
    }

    /// Posts a receive to the far QP.
    pub fn receive(&self, to: Option<Place>) {
        let mut sge = to.map(|(addr, length, lkey)| ibv_sge { addr, length, lkey });
        let mut wr = ibv_recv_wr::default();
        if let Some(sge) = &mut sge {
            (wr.sg_list, wr.num_sge) = (sge, 1);
        }
        // SAFETY: the QP is alive, and the list outlives the call.
        assert_eq!(unsafe { ibv_post_recv(self.far, &mut wr, &mut ptr::null_mut()) }, 0);
    }

    /// Lets the near QP run one request; returns its status.
    pub fn run(&self, world: &World, opcode: ibv_wr_opcode, local: Option<Place>, to: (u64, u32)) -> ibv_wc_status {
        post(self.near, opcode, local, to);
        self.outcome(world)
    }

    /// Lets the device work; returns the status of the only request of the near QP.
    pub fn outcome(&self, world: &World) -> ibv_wc_status {
        world.device().settle();
        let found = statuses(self.near_cq);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]
    }
}
