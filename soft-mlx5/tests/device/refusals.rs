//! Features that the device lacks: its capabilities say so, and requests for them are refused.

use std::ptr;

use crate::world::{World, create_qp, errno, init_attr, post_recv, statuses};
use rdma_core_sys::*;

#[test]
fn capabilities_promise_nothing_that_is_refused() {
    let world = World::stepped();
    let mut caps = ibv_device_attr::default();
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_query_device(world.ctx, &mut caps) }, 0);
    let missing = IBV_DEVICE_XRC | IBV_DEVICE_MEM_WINDOW_TYPE_2A;
    assert_eq!(caps.device_cap_flags & missing, 0);
}

#[test]
fn xrc_domains_srqs_and_queue_pairs_are_refused() {
    let world = World::stepped();
    let (cq, srq) = (world.cq(4), world.srq(4));
    // SAFETY: context, domain, CQ and SRQ are alive; the handle of a missing domain is not used.
    unsafe {
        let mut init = ibv_xrcd_init_attr { fd: -1, oflags: libc::O_CREAT, comp_mask: 0 };
        init.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        assert!(ibv_open_xrcd(world.ctx, &mut init).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
    }
    let mut init = ibv_qp_init_attr { srq, ..init_attr(IBV_QPT_XRC_SEND, cq, 1) };
    assert_eq!(create_qp(world.pd, &mut init), Err(libc::EOPNOTSUPP));
}

// Makes a QP with a CQ of its own, connected to itself.
fn connected(world: &World) -> (*mut ibv_qp, *mut ibv_cq) {
    let cq = world.cq(8);
    (world.connected(cq, ptr::null_mut()), cq)
}

// Posts a work request that invalidates `rkey`, here or at the peer.
fn invalidate(world: &World, qp: *mut ibv_qp, opcode: ibv_wr_opcode, rkey: u32) {
    let mut wr = ibv_send_wr { opcode, send_flags: IBV_SEND_SIGNALED, ..Default::default() };
    wr.__bindgen_anon_1.invalidate_rkey = rkey;
    // SAFETY: the QP is alive.
    assert_eq!(unsafe { ibv_post_send(qp, &mut wr, &mut ptr::null_mut()) }, 0);
    world.device().settle();
}

#[test]
fn keys_of_regions_are_invalidated_neither_here_nor_by_a_peer() {
    let world = World::stepped();
    let mr = world.reg(Box::leak(vec![0; 4096].into_boxed_slice()), IBV_ACCESS_LOCAL_WRITE);
    // SAFETY: the MR is alive.
    let rkey = unsafe { (*mr).rkey };
    let (qp, cq) = connected(&world);
    invalidate(&world, qp, IBV_WR_LOCAL_INV, rkey);
    assert_eq!(statuses(cq), [IBV_WC_MW_BIND_ERR]);

    let (qp, cq) = connected(&world);
    post_recv(qp, mr, 0, 64);
    invalidate(&world, qp, IBV_WR_SEND_WITH_INV, rkey);
    // The QP is both ends: its error as the receiver stops it before it gets the answer.
    let reported = statuses(cq);
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(reported.contains(&IBV_WC_REM_INV_REQ_ERR), "{reported:?}");

    // The key still names its region.
    let (qp, cq) = connected(&world);
    world.exchange(qp, mr, 64);
    assert_eq!(statuses(cq), [IBV_WC_SUCCESS; 2]);
}
