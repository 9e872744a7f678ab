//! Raw packet queue pairs, work queues and flows as libmlx5 makes them, and refusals.

use std::ptr;

use rdma_core_sys::*;
use soft_mlx5::{Device, LinkLayer};

use crate::qp_states;
use crate::world::{World, create_qp, errno, init_attr, modify, next_async, poll, post_recv};

const GROUP: [u8; 6] = [0x01, 0x00, 0x5e, 1, 2, 3];
const KEY: [u8; 40] = [0x5a; 40];

fn world(link: LinkLayer) -> World {
    World::new(Device::builder().stepped().strict(true).link_layer(link))
}

pub fn raw_qp(world: &World, cq: *mut ibv_cq) -> *mut ibv_qp {
    ready(world.qp(IBV_QPT_RAW_PACKET, cq, ptr::null_mut()))
}

fn ready(qp: *mut ibv_qp) -> *mut ibv_qp {
    let attr = ibv_qp_attr { port_num: 1, ..Default::default() };
    // SAFETY: the callers' QPs are alive.
    unsafe { qp_states::to(qp, &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS], attr) }
    qp
}

/// A flow: its attributes, and after them an Ethernet spec and a tag.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Flow {
    attr: ibv_flow_attr,
    eth: ibv_flow_spec_eth,
    tag: ibv_flow_spec_action_tag,
}

pub fn to_group(tag: u32) -> Flow {
    let mut flow = Flow {
        attr: ibv_flow_attr { num_of_specs: 2, port: 1, ..Default::default() },
        eth: ibv_flow_spec_eth {
            type_: IBV_FLOW_SPEC_ETH,
            size: size_of::<ibv_flow_spec_eth>() as u16,
            ..Default::default()
        },
        tag: ibv_flow_spec_action_tag {
            type_: IBV_FLOW_SPEC_ACTION_TAG,
            size: size_of::<ibv_flow_spec_action_tag>() as u16,
            tag_id: tag,
        },
    };
    flow.attr.size = size_of::<Flow>() as u16;
    (flow.eth.val.dst_mac, flow.eth.mask.dst_mac) = (GROUP, [0xff; 6]);
    flow
}

pub fn try_flow(qp: *mut ibv_qp, flow: &Flow) -> Result<*mut ibv_flow, i32> {
    let mut flow = *flow;
    // SAFETY: the QP is alive, and two specs follow the attributes.
    let made = unsafe { ibv_create_flow(qp, (&raw mut flow).cast()) };
    if made.is_null() { Err(errno()) } else { Ok(made) }
}

pub fn wq(world: &World, cq: *mut ibv_cq) -> *mut ibv_wq {
    let mut attr =
        ibv_wq_init_attr { wq_type: IBV_WQT_RQ, max_wr: 4, max_sge: 1, pd: world.pd, cq, ..Default::default() };
    // SAFETY: the context is open, domain and CQ are alive.
    unsafe { ibv_create_wq(world.ctx, &mut attr) }
}

fn set(wq: *mut ibv_wq, state: ibv_wq_state) -> i32 {
    let attr_mask = IBV_WQ_ATTR_STATE;
    let mut attr = ibv_wq_attr { attr_mask, wq_state: state, ..Default::default() };
    // SAFETY: the WQ is alive.
    unsafe { ibv_modify_wq(wq, &mut attr) }
}

pub fn table(world: &World, wqs: &mut [*mut ibv_wq]) -> *mut ibv_rwq_ind_table {
    let log_ind_tbl_size = wqs.len().ilog2();
    let mut attr = ibv_rwq_ind_table_init_attr { log_ind_tbl_size, ind_tbl: wqs.as_mut_ptr(), comp_mask: 0 };
    // SAFETY: the context is open, and the WQs are alive.
    let table = unsafe { ibv_create_rwq_ind_table(world.ctx, &mut attr) };
    assert!(!table.is_null(), "{}", errno());
    table
}

pub fn rss_qp(world: &World, table: *mut ibv_rwq_ind_table, key: &[u8], fields: u32) -> *mut ibv_qp {
    let mut key = key.to_vec();
    let mut attr = ibv_qp_init_attr_ex {
        qp_type: IBV_QPT_RAW_PACKET,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
        pd: world.pd,
        rwq_ind_tbl: table,
        rx_hash_conf: ibv_rx_hash_conf {
            rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ as u8,
            rx_hash_key_len: key.len() as u8,
            rx_hash_key: key.as_mut_ptr(),
            rx_hash_fields_mask: fields.into(),
        },
        ..Default::default()
    };
    // SAFETY: the context is open; domain, table and key are alive.
    unsafe { ibv_create_qp_ex(world.ctx, &mut attr) }
}

pub fn send(qp: *mut ibv_qp, mr: *mut ibv_mr, length: u32) {
    // SAFETY: QP and MR are alive.
    unsafe {
        let mut sge = ibv_sge { addr: (*mr).addr as u64, length, lkey: (*mr).lkey };
        let mut wr = ibv_send_wr { sg_list: &mut sge, num_sge: 1, ..Default::default() };
        (wr.opcode, wr.send_flags) = (IBV_WR_SEND, IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM);
        assert_eq!(ibv_post_send(qp, &mut wr, &mut ptr::null_mut()), 0);
    }
}

/// Returns a UDP datagram to the group, without checksums: the device adds them.
pub fn frame() -> Vec<u8> {
    let mut frame = [&GROUP[..], &[2, 0, 0, 0, 0, 9, 8, 0]].concat();
    frame.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 9, 17, 0, 0, 10, 0, 0, 1, 239, 1, 2, 3]);
    frame.extend([0x9c, 0x40, 0x13, 0x89, 0, 26, 0, 0]);
    frame.extend([7; 18]);
    frame
}

/// A raw packet QP of another context. Its frames come to this context.
pub struct Stranger {
    pub ctx: *mut ibv_context,
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub mr: *mut ibv_mr,
}

impl Stranger {
    pub fn new(world: &World, bytes: &mut [u8]) -> Self {
        let ctx = crate::world::open(world.device().name());
        // SAFETY: all objects were just made, and the memory outlives the stranger.
        unsafe {
            let pd = ibv_alloc_pd(ctx);
            let cq = ibv_create_cq(ctx, 16, ptr::null_mut(), ptr::null_mut(), 0);
            let mr = ibv_reg_mr(pd, bytes.as_mut_ptr().cast(), bytes.len(), 0);
            let qp = ready(create_qp(pd, &mut init_attr(IBV_QPT_RAW_PACKET, cq, 4)).unwrap());
            Self { ctx, cq, qp, mr }
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // SAFETY: the context is open since the start; its objects end with it.
        unsafe { ibv_close_device(self.ctx) };
    }
}

#[test]
fn libmlx5_sends_and_receives_frames() {
    let world = world(LinkLayer::Ethernet);
    let cq = world.cq(16);
    let qp = raw_qp(&world, cq);
    try_flow(qp, &to_group(7)).unwrap();
    let mut buffer = vec![0; 2048];
    let mr = world.reg(&mut buffer, IBV_ACCESS_LOCAL_WRITE);
    post_recv(qp, mr, 0, 2048);
    let mut bytes = frame();
    let stranger = Stranger::new(&world, &mut bytes);
    send(stranger.qp, stranger.mr, 60);
    world.device().settle();
    assert_eq!(poll(stranger.cq).map(|wc| wc.status), Some(IBV_WC_SUCCESS));
    let wc = poll(cq).expect("a frame");
    assert_eq!((wc.status, wc.opcode, wc.byte_len), (IBV_WC_SUCCESS, IBV_WC_RECV, 60));
    assert_ne!(wc.wc_flags & IBV_WC_IP_CSUM_OK, 0, "the device filled both checksums in");
    let sums = [24, 25, 40, 41].map(|at| std::mem::take(&mut buffer[at]));
    assert!(sums.iter().all(|byte| *byte != 0));
    assert_eq!(buffer[..60], bytes);
}

#[test]
fn what_is_in_use_is_not_destroyed() {
    let world = world(LinkLayer::Ethernet);
    let cq = world.cq(16);
    let mut wqs = [wq(&world, cq), wq(&world, cq)];
    assert!(wqs.iter().all(|wq| !wq.is_null()), "{}", errno());
    // SAFETY: all objects are alive until their destruction succeeds.
    unsafe {
        let table = table(&world, &mut wqs);
        let ipv4 = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4;
        for (key, fields, expected) in [
            (&KEY[..16], ipv4, libc::EINVAL),
            (&KEY, ipv4 | IBV_RX_HASH_SRC_IPV6, libc::EINVAL),
            (&KEY, IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_SRC_PORT_UDP, libc::EINVAL),
            (&KEY, 0, libc::EINVAL),
            (&KEY, 1 << 8, libc::EOPNOTSUPP),
        ] {
            assert!(rss_qp(&world, table, key, fields).is_null());
            assert_eq!(errno(), expected, "{fields:#x}");
        }
        let qp = rss_qp(&world, table, &KEY, ipv4);
        assert!(!qp.is_null(), "{}", errno());
        assert_eq!((*qp).qp_num, 0);
        let flow = try_flow(qp, &to_group(1)).unwrap();
        assert_eq!(ibv_destroy_qp(qp), libc::EBUSY);
        assert_eq!(ibv_destroy_rwq_ind_table(table), libc::EBUSY);
        assert_eq!(ibv_destroy_wq(wqs[0]), libc::EBUSY);
        assert_eq!(ibv_destroy_cq(cq), libc::EBUSY);
        assert_eq!(ibv_destroy_flow(flow), 0);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_rwq_ind_table(table), 0);
        assert_eq!(wqs.map(|wq| ibv_destroy_wq(wq)), [0, 0]);
        assert_eq!(ibv_destroy_cq(cq), 0);
    }
}

#[test]
fn flows_are_refused_as_the_kernel_refuses_them() {
    let world = world(LinkLayer::Ethernet);
    let cq = world.cq(16);
    let (qp, second) = (raw_qp(&world, cq), raw_qp(&world, cq));
    let refused = |change: fn(&mut Flow)| {
        let mut flow = to_group(7);
        change(&mut flow);
        try_flow(qp, &flow).err()
    };
    assert_eq!(refused(|flow| flow.attr.port = 2), Some(libc::EINVAL));
    assert_eq!(refused(|flow| flow.tag.tag_id = 1 << 24), Some(libc::EINVAL));
    assert_eq!(refused(|flow| flow.attr.priority = 16), Some(libc::ENOMEM));
    assert_eq!(refused(|flow| flow.attr.flags = 1), Some(libc::EINVAL));
    assert_eq!(refused(|flow| flow.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS), Some(libc::EOPNOTSUPP));
    assert_eq!(refused(|flow| flow.attr.type_ = IBV_FLOW_ATTR_SNIFFER), Some(libc::EOPNOTSUPP));
    assert_eq!(refused(|flow| flow.attr.type_ = IBV_FLOW_ATTR_ALL_DEFAULT), Some(libc::EINVAL), "a tag");
    assert_eq!(refused(|flow| flow.attr.type_ = 4), Some(libc::EINVAL));
    let flow = try_flow(qp, &to_group(7)).unwrap();
    assert_eq!(try_flow(second, &to_group(8)).err(), Some(libc::EEXIST), "another tag");
    // Priorities do not count among rules for multicast only.
    let mut later = to_group(8);
    later.attr.priority = 3;
    assert_eq!(try_flow(second, &later).err(), Some(libc::EEXIST));
    try_flow(second, &to_group(7)).unwrap();
    // SAFETY: both are alive.
    unsafe {
        assert_eq!(ibv_destroy_qp(qp), libc::EBUSY);
        assert_eq!((ibv_destroy_flow(flow), ibv_destroy_qp(qp)), (0, 0));
    }
    let rc = world.qp(IBV_QPT_RC, cq, ptr::null_mut());
    assert_eq!(try_flow(rc, &to_group(1)).err(), Some(libc::EINVAL));
}

#[test]
fn frames_need_ethernet_and_a_privilege() {
    let refused = |world: &World| {
        let cq = world.cq(16);
        create_qp(world.pd, &mut init_attr(IBV_QPT_RAW_PACKET, cq, 0)).unwrap_err()
    };
    let infiniband = world(LinkLayer::InfiniBand);
    // SAFETY: no arguments, no memory.
    let root = unsafe { libc::geteuid() } == 0;
    assert_eq!(refused(&infiniband), if root { libc::EOPNOTSUPP } else { libc::EPERM });
    assert!(wq(&infiniband, infiniband.cq(16)).is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    drop(infiniband);
    let builder = Device::builder().stepped().link_layer(LinkLayer::Ethernet).refuse_raw(true);
    assert_eq!(refused(&World::new(builder)), libc::EPERM);
}

#[test]
fn a_queue_pair_takes_no_limit_of_its_rate() {
    let world = world(LinkLayer::Ethernet);
    let cq = world.cq(16);
    let init = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, ..Default::default() };
    let rtr = ibv_qp_attr { qp_state: IBV_QPS_RTR, ..Default::default() };
    let rts = |rate_limit| ibv_qp_attr { qp_state: IBV_QPS_RTS, rate_limit, ..Default::default() };
    let raw = world.qp(IBV_QPT_RAW_PACKET, cq, ptr::null_mut());
    assert_eq!(modify(raw, &init, IBV_QP_STATE | IBV_QP_PORT), 0);
    assert_eq!(modify(raw, &rtr, IBV_QP_STATE), 0);
    assert_eq!(modify(raw, &rts(5000), IBV_QP_STATE | IBV_QP_RATE_LIMIT), libc::EOPNOTSUPP);
    assert_eq!(modify(raw, &rts(0), IBV_QP_STATE | IBV_QP_RATE_LIMIT), 0);
    let rc = world.qp(IBV_QPT_RC, cq, ptr::null_mut());
    assert_eq!(modify(rc, &rts(0), IBV_QP_STATE | IBV_QP_RATE_LIMIT), libc::EINVAL);
}

#[test]
fn a_work_queue_has_states_and_an_event() {
    let world = world(LinkLayer::Ethernet);
    let cq = world.cq(16);
    let queue = wq(&world, cq);
    assert_eq!(set(queue, IBV_WQS_ERR), libc::EINVAL, "from reset");
    assert_eq!(set(queue, IBV_WQS_RDY), 0);
    assert_eq!(set(queue, IBV_WQS_ERR), 0);
    assert_eq!(set(queue, IBV_WQS_RDY), libc::EINVAL, "it must be reset first");
    assert_eq!((set(queue, IBV_WQS_RESET), set(queue, IBV_WQS_RDY)), (0, 0));
    let own = raw_qp(&world, world.cq(16));
    let mut bytes = frame();
    let mr = world.reg(&mut bytes, 0);
    let stranger = Stranger::new(&world, &mut bytes);
    // SAFETY: all objects are alive. The key of the receive does not exist.
    unsafe {
        let qp = rss_qp(&world, table(&world, &mut [queue]), &KEY, 0);
        assert!(!qp.is_null(), "{}", errno());
        try_flow(qp, &to_group(1)).unwrap();
        let mut sge = ibv_sge { addr: 4096, length: 2048, lkey: 0x1234 };
        let mut wr = ibv_recv_wr { sg_list: &mut sge, num_sge: 1, ..Default::default() };
        assert_eq!(ibv_post_wq_recv(queue, &mut wr, &mut ptr::null_mut()), 0);
    }
    send(own, mr, 60);
    world.device().settle();
    assert!(poll(cq).is_none(), "own frames do not come back");
    assert_eq!(next_async(world.ctx), None);
    send(stranger.qp, stranger.mr, 60);
    world.device().settle();
    assert_eq!(poll(cq).map(|wc| wc.status), Some(IBV_WC_LOC_PROT_ERR));
    assert_eq!(next_async(world.ctx), Some(IBV_EVENT_WQ_FATAL));
}
