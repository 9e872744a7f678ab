//! The states of a QP as the driver guards them.

use std::ptr;
use std::time::{Duration, Instant};

use crate::world::*;
use rdma_core_sys::*;
use soft_mlx5::{Device, Timing};

#[test]
fn each_state_of_an_rc_qp_is_reported() {
    let world = World::stepped();
    let qp = world.qp(IBV_QPT_RC, world.cq(4), ptr::null_mut());
    assert_eq!(query(qp).qp_state, IBV_QPS_RESET);
    assert_eq!(modify(qp, &world.to_rtr(1), rc(IBV_QPS_RTR)), libc::EINVAL, "not from RESET");
    assert_eq!(modify(qp, &to_init(), rc(IBV_QPS_INIT) & !IBV_QP_PORT), libc::EINVAL);
    assert_eq!(modify(qp, &to_init(), rc(IBV_QPS_INIT)), 0);
    assert_eq!(query(qp).qp_state, IBV_QPS_INIT);
    assert_eq!(query(qp).qp_access_flags, IBV_ACCESS_REMOTE_WRITE);

    let mut rtr = world.to_rtr(0x123456);
    (rtr.rq_psn, rtr.min_rnr_timer) = (0xabcdef, 7);
    assert_eq!(modify(qp, &rtr, rc(IBV_QPS_RTR) & !IBV_QP_AV), libc::EINVAL);
    assert_eq!(modify(qp, &rtr, rc(IBV_QPS_RTR) | IBV_QP_QKEY), libc::EINVAL);
    assert_eq!(modify(qp, &rtr, rc(IBV_QPS_RTR)), 0);
    let now = query(qp);
    assert_eq!((now.qp_state, now.dest_qp_num, now.rq_psn), (IBV_QPS_RTR, 0x123456, 0xabcdef));
    assert_eq!((now.path_mtu, now.min_rnr_timer), (IBV_MTU_1024, 7));
    assert_eq!(now.ah_attr.dlid, rtr.ah_attr.dlid);

    let rts = ibv_qp_attr { sq_psn: 0x111111, ..to_rts() };
    assert_eq!(modify(qp, &rts, rc(IBV_QPS_RTS)), 0);
    let now = query(qp);
    assert_eq!((now.qp_state, now.sq_psn), (IBV_QPS_RTS, 0x111111));
    assert_eq!((now.timeout, now.retry_cnt, now.rnr_retry, now.max_rd_atomic), (14, 7, 7, 1));

    let back = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..Default::default() };
    assert_eq!(modify(qp, &back, IBV_QP_STATE), 0);
    let now = query(qp);
    assert_eq!((now.qp_state, now.dest_qp_num, now.qp_access_flags), (IBV_QPS_RESET, 0, 0));
}

#[test]
fn values_that_the_device_does_not_have_are_refused() {
    let world = World::stepped();
    let qp = world.qp(IBV_QPT_RC, world.cq(4), ptr::null_mut());
    let refused = |attr: ibv_qp_attr, mask| assert_eq!(modify(qp, &attr, mask), libc::EINVAL);
    refused(ibv_qp_attr { port_num: 2, ..to_init() }, rc(IBV_QPS_INIT));
    refused(ibv_qp_attr { port_num: 0, ..to_init() }, rc(IBV_QPS_INIT));
    refused(ibv_qp_attr { pkey_index: 128, ..to_init() }, rc(IBV_QPS_INIT));
    assert_eq!(modify(qp, &to_init(), rc(IBV_QPS_INIT)), 0);
    refused(ibv_qp_attr { path_mtu: 6, ..world.to_rtr(1) }, rc(IBV_QPS_RTR));
    refused(ibv_qp_attr { max_dest_rd_atomic: 17, ..world.to_rtr(1) }, rc(IBV_QPS_RTR));
    let mut route = world.to_rtr(1);
    route.ah_attr.port_num = 2;
    refused(route, rc(IBV_QPS_RTR));
    let mut route = world.to_rtr(1);
    (route.ah_attr.is_global, route.ah_attr.grh.sgid_index) = (1, 200);
    refused(route, rc(IBV_QPS_RTR));
    let mut empty = world.to_rtr(1);
    (empty.ah_attr.is_global, empty.ah_attr.grh.sgid_index) = (1, 1);
    assert_eq!(modify(qp, &empty, rc(IBV_QPS_RTR)), libc::ENODATA, "an entry without a GID");
    refused(ibv_qp_attr { qp_state: 7, ..Default::default() }, IBV_QP_STATE);
    assert_eq!(query(qp).qp_state, IBV_QPS_INIT, "a refused change changes nothing");
}

#[test]
fn on_ethernet_a_path_needs_a_gid() {
    let builder = soft_mlx5::Device::builder().stepped();
    let world = World::new(builder.link_layer(soft_mlx5::LinkLayer::Ethernet));
    let qp = world.qp(IBV_QPT_RC, world.cq(4), ptr::null_mut());
    assert_eq!(modify(qp, &to_init(), rc(IBV_QPS_INIT)), 0);
    assert_eq!(modify(qp, &world.to_rtr(1), rc(IBV_QPS_RTR)), libc::EINVAL);
    let mut route = world.to_rtr(1);
    route.ah_attr.is_global = 1;
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_query_gid(world.ctx, 1, 0, &mut route.ah_attr.grh.dgid) }, 0);
    assert_eq!(modify(qp, &route, rc(IBV_QPS_RTR)), 0);
}

#[test]
fn the_state_after_an_error_of_the_device_is_seen_and_can_be_left() {
    let world = World::stepped();
    let cq = world.cq(16);
    let qp = world.connected(cq, ptr::null_mut());
    let mr = world.reg(Box::leak(vec![0; 64].into_boxed_slice()), IBV_ACCESS_LOCAL_WRITE);
    post_recv(qp, mr, 0, 8);
    post_send(qp, mr, 32, 32);
    world.device().settle();
    let statuses = statuses(cq);
    assert!(statuses.contains(&IBV_WC_LOC_LEN_ERR), "{statuses:?}");
    // According to the driver's commands, the QP is in RTS, where this change is legal.
    let stay = ibv_qp_attr { qp_state: IBV_QPS_RTS, ..Default::default() };
    assert_eq!(modify(qp, &stay, IBV_QP_STATE), libc::EINVAL);
    assert_eq!(query(qp).qp_state, IBV_QPS_ERR);
    let back = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..Default::default() };
    assert_eq!(modify(qp, &back, IBV_QP_STATE), 0);
    assert_eq!(modify(qp, &to_init(), rc(IBV_QPS_INIT)), 0);
}

#[test]
fn the_driver_cannot_drain_a_send_queue() {
    let world = World::stepped();
    let qp = world.connected(world.cq(4), ptr::null_mut());
    let drain = ibv_qp_attr { qp_state: IBV_QPS_SQD, ..Default::default() };
    assert_eq!(modify(qp, &drain, IBV_QP_STATE), libc::EINVAL);
}

#[test]
fn a_change_of_state_takes_a_millisecond_at_the_pace_of_an_adapter() {
    let world = World::new(Device::builder().timing(Timing::Adapter));
    let qp = world.qp(IBV_QPT_RC, world.cq(4), ptr::null_mut());
    let start = Instant::now();
    assert_eq!(modify(qp, &to_init(), rc(IBV_QPS_INIT)), 0);
    assert!(start.elapsed() >= Duration::from_millis(1));
}
