//! Commands about CQs, SRQs, queue pairs, WQs and tables that verbs made.

use std::ptr;

use mlx5_wire::firmware::command::Opcode;
use mlx5_wire::firmware::cq::{CqContext, ModifyCq, QueryCqReply, modify};
use mlx5_wire::firmware::qp::{ModifyQp, QpContext, QueryQpReply, optional, rq_type, service, state};
use mlx5_wire::firmware::srq::{ModifyRmp, QueryRmpReply, QueryXrqReply, RmpContext};
use mlx5_wire::firmware::transport::{ModifyQueue, QueryRqReply, RqContext, RqTable};
use mlx5_wire::firmware::wq::{WorkQueue, kind, state as wq_state};
use rdma_core_sys::*;
use soft_mlx5::LinkLayer;

use super::bench::*;
use super::{PAGE, page};
use crate::frames::{table, wq};
use crate::tags;
use crate::world::{self, SEND, World, next_async, poll, post_recv, post_send, post_srq_recv, rc, to_init};

const INVALID: Result<(), Refused> = Err((libc::EINVAL, 0, 0));

fn init_obj(object: &mut mlx5dv_obj, kind: u32) {
    // SAFETY: the callers' objects are alive, and their results are writable.
    assert_eq!(unsafe { (dv().init_obj)(object, kind.into()) }, 0);
}

fn cqn(cq: *mut ibv_cq) -> u32 {
    let (mut found, mut object) = (mlx5dv_cq::default(), mlx5dv_obj::default());
    (object.cq.in_, object.cq.out) = (cq, &mut found);
    init_obj(&mut object, MLX5DV_OBJ_CQ);
    found.cqn
}

fn srqn(srq: *mut ibv_srq) -> u32 {
    let mut found = mlx5dv_srq { comp_mask: MLX5DV_SRQ_MASK_SRQN.into(), ..Default::default() };
    let mut object = mlx5dv_obj::default();
    (object.srq.in_, object.srq.out) = (srq, &mut found);
    init_obj(&mut object, MLX5DV_OBJ_SRQ);
    found.srqn
}

fn qpn(qp: *mut ibv_qp) -> u32 {
    // SAFETY: the queue pair is alive.
    unsafe { (*qp).qp_num }
}

fn context_of_cq(cq: *mut ibv_cq) -> CqContext {
    Verbs::Cq(cq).query::<QueryCqReply>(Opcode::QUERY_CQ, cqn(cq)).unwrap().context
}

fn context_of_qp(qp: *mut ibv_qp) -> QpContext {
    Verbs::Qp(qp).query::<QueryQpReply>(Opcode::QUERY_QP, qpn(qp)).unwrap().context
}

fn context_of_wq(wq: *mut ibv_wq) -> RqContext {
    // SAFETY: the WQ is alive.
    let number = unsafe { (*wq).wq_num };
    Verbs::Wq(wq).query::<QueryRqReply>(Opcode::QUERY_RQ, number).unwrap().context
}

#[test]
fn a_cq_of_verbs_has_its_context() {
    let bench = Bench::new();
    let (cq, world) = (bench.world.cq(15), &bench.world);
    let qp = world.connected(cq, ptr::null_mut());
    let mut bytes = [7; 256];
    let mr = world.reg(&mut bytes, IBV_ACCESS_LOCAL_WRITE);
    world.exchange(qp, mr, 64);
    assert!(poll(cq).is_some());
    let context = context_of_cq(cq);
    assert_eq!((context.log_size, context.cqe_size, context.eqn), (4, 0, bench.eqn as u8));
    assert_eq!((context.consumer_counter, context.producer_counter, context.status), (1, 2, 0));
    let moderate = ModifyCq {
        request: request(Opcode::MODIFY_CQ),
        cqn: cqn(cq),
        field_select: 1 << 0 | 1 << 1,
        context: CqContext { period: 7, max_count: 3, ..CqContext::ZERO },
        ..ModifyCq::ZERO
    };
    assert_eq!(Verbs::Cq(cq).modify(&moderate.to_bytes()), Ok(()));
    // SAFETY: the CQ is alive.
    assert_eq!(unsafe { ibv_resize_cq(cq, 100) }, 0);
    let context = context_of_cq(cq);
    assert_eq!((context.log_size, context.period, context.max_count), (7, 7, 3));
}

/// The command that resizes moves the CQ away from the memory of libmlx5, to UMEMs which stay as long as they are used.
#[test]
fn a_cq_of_verbs_moves_to_a_umem() {
    let bench = Bench::new();
    let cq = bench.world.cq(15);
    let mut before = None;
    for _ in 0..3 {
        let umem = bench.umem(memory(PAGE), PAGE).unwrap();
        let mut head = request(Opcode::MODIFY_CQ);
        head.op_mod = modify::RESIZE;
        // SAFETY: the UMEM is alive.
        let umem_id = unsafe { (*umem).umem_id };
        let context = CqContext { log_size: 6, ..CqContext::ZERO };
        let resize = ModifyCq { request: head, cqn: cqn(cq), context, umem_id, ..ModifyCq::ZERO };
        assert_eq!(Verbs::Cq(cq).modify(&resize.to_bytes()), Ok(()));
        assert_eq!(deregister(umem), libc::EINVAL, "the CQ has its entries there");
        assert_eq!(before.replace(umem).map_or(0, deregister), 0, "nothing uses the old entries");
    }
    // SAFETY: the CQ is alive.
    assert_eq!(unsafe { ibv_destroy_cq(cq) }, 0);
    assert_eq!(before.map(deregister), Some(0));
}

#[test]
fn an_srq_of_verbs_has_its_context() {
    let bench = Bench::new();
    let world = &bench.world;
    let srq = world.srq(31);
    let query = || Verbs::Srq(srq).query::<QueryRmpReply>(Opcode::QUERY_RMP, srqn(srq)).unwrap().context;
    let RmpContext { state, basic_cyclic, queue } = query();
    assert_eq!((state, basic_cyclic, queue.kind), (wq_state::RDY, false, kind::LINKED_LIST));
    // libmlx5 asks for more WQEs than the program.
    assert_eq!((queue.pd, queue.log_stride, queue.lwm), (bench.pdn(), 5, 0));
    assert!(queue.log_size >= 5);
    let (qp, mut bytes) = (world.connected(world.cq(16), srq), [7; 256]);
    let mr = world.reg(&mut bytes, IBV_ACCESS_LOCAL_WRITE);
    (0..2).for_each(|_| post_srq_recv(srq, mr, 0, 64, 64));
    let limit = ModifyRmp {
        request: request(Opcode::MODIFY_RMP),
        rmpn: srqn(srq),
        bitmask: 1,
        context: RmpContext { queue: WorkQueue { lwm: 2, ..WorkQueue::ZERO }, ..RmpContext::ZERO },
        ..ModifyRmp::ZERO
    };
    assert_eq!(Verbs::Srq(srq).modify(&limit.to_bytes()), Ok(()));
    assert_eq!((query().queue.lwm, next_async(world.ctx)), (2, None));
    post_send(qp, mr, 0, 64);
    world.device().settle();
    assert_eq!((query().queue.lwm, next_async(world.ctx)), (0, Some(IBV_EVENT_SRQ_LIMIT_REACHED)));
    assert_eq!(Verbs::Srq(srq).query::<QueryXrqReply>(Opcode::QUERY_XRQ, srqn(srq)).map(drop), INVALID);
}

#[test]
fn an_srq_for_tag_matching_of_verbs_has_its_context() {
    let bench = Bench::new();
    let cq = tags::cq_ex(&bench.world);
    for (tags, log) in [(127, 7), (63, 6), (64, 7), (1, 1)] {
        let srq = tags::create(&bench.world, cq, tags);
        let xrq = Verbs::Srq(srq).query::<QueryXrqReply>(Opcode::QUERY_XRQ, srqn(srq)).unwrap().context;
        assert_eq!((xrq.topology, xrq.offload, xrq.log_list_size, xrq.cqn), (1, 1, log, cqn(cq.cast())));
        assert_eq!((xrq.queue.pd, xrq.queue.log_stride), (bench.pdn(), 5));
        // SAFETY: the SRQ is alive.
        assert_eq!(unsafe { ibv_destroy_srq(srq) }, 0);
    }
}

#[test]
fn a_queue_pair_of_verbs_has_the_context_that_modify_gave() {
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let bench = Bench::on(link);
        let world = &bench.world;
        let (cq, srq) = (world.cq(16), world.srq(31));
        let [one, other] = [ptr::null_mut(), srq].map(|srq| world.qp(IBV_QPT_RC, cq, srq));
        let fresh = context_of_qp(one);
        assert_eq!((fresh.state, fresh.service, fresh.rq_type), (state::RST, service::RC, rq_type::OWN));
        assert_eq!((fresh.cqn_snd, fresh.cqn_rcv, fresh.pd), (cqn(cq), cqn(cq), bench.pdn()));
        assert_eq!((fresh.log_rq_size, fresh.no_sq, fresh.path.port), (4, false, 0));
        let shared = context_of_qp(other);
        assert_eq!((shared.rq_type, shared.srqn, shared.log_rq_size), (rq_type::SRQ, srqn(srq), 0));
        world.connect(one, other);
        let now = context_of_qp(one);
        assert_eq!((now.state, now.remote_qpn, now.mtu, now.path.port), (state::RTS, qpn(other), 3, 1));
        assert_eq!((now.rwe, now.rre, now.rae), (true, false, false));
        assert_eq!((now.retry_count, now.rnr_retry, now.min_rnr_nak, now.path.ack_timeout), (7, 7, 1, 14));
        let mut gid = ibv_gid::default();
        // SAFETY: the context is open, and every form of a GID is bytes.
        let gid = unsafe {
            assert_eq!(ibv_query_gid(world.ctx, 1, 0, &mut gid), 0);
            gid.raw
        };
        match link {
            LinkLayer::InfiniBand => assert_eq!((now.path.grh, now.path.rlid), (false, world.to_rtr(0).ah_attr.dlid)),
            LinkLayer::Ethernet => {
                assert_eq!((now.path.grh, now.path.rgid, now.path.rlid), (true, gid, 0));
                assert_eq!(now.path.rmac >> 40, 2, "a MAC address of local administration");
            }
        }
        let reset = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..Default::default() };
        assert_eq!(world::modify(one, &reset, IBV_QP_STATE), 0);
        assert_eq!(context_of_qp(one), QpContext { retry_count: 7, rnr_retry: 7, min_rnr_nak: 1, ..fresh });
    }
}

#[test]
fn commands_connect_a_queue_pair_of_verbs() {
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let bench = Bench::on(link);
        let (world, cq) = (&bench.world, bench.world.cq(16));
        let qp = world.qp(IBV_QPT_RC, cq, ptr::null_mut());
        let modify = |opcode, optional, context| {
            let modify = ModifyQp { request: request(opcode), qpn: qpn(qp), optional, context };
            Verbs::Qp(qp).modify(&modify.to_bytes())
        };
        bench.connect_by(qpn(qp), |opcode, context| assert_eq!(modify(opcode, 0, context), Ok(())));
        let mut bytes = [7; 256];
        let mr = world.reg(&mut bytes, IBV_ACCESS_LOCAL_WRITE);
        world.exchange(qp, mr, 64);
        let done: Vec<_> = std::iter::from_fn(|| poll(cq)).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(0, IBV_WC_SUCCESS), (SEND, IBV_WC_SUCCESS)]);
        assert_eq!(world::query(qp).qp_state, IBV_QPS_RTS);
        let timer = QpContext { min_rnr_nak: 9, ..QpContext::ZERO };
        assert_eq!(modify(Opcode::RTS2RTS_QP, optional::RNR_TIMEOUT, timer), Ok(()));
        assert_eq!(context_of_qp(qp).min_rnr_nak, 9);
        assert_eq!(Verbs::Qp(qp).modify(&numbered(Opcode::MOVE_QP_TO_ERR, qpn(qp))), Ok(()));
        assert_eq!((context_of_qp(qp).state, world::query(qp).qp_state), (state::ERR, IBV_QPS_ERR));
    }
}

#[test]
fn a_command_is_about_the_object_of_verbs_of_its_handle() {
    let bench = Bench::on(LinkLayer::Ethernet);
    let world = &bench.world;
    let cqs = [world.cq(16), world.cq(16)];
    let srqs = [world.srq(31), world.srq(31)];
    let qps = [(); 2].map(|()| world.qp(IBV_QPT_RC, cqs[0], ptr::null_mut()));
    let wqs = [(); 2].map(|()| wq(world, cqs[0]));
    let tables = wqs.map(|wq| table(world, &mut [wq]));
    // SAFETY: the objects are alive.
    let numbers = unsafe { [(*wqs[1]).wq_num, (*tables[1]).ind_tbl_num as u32] };
    for (object, opcode, other) in [
        (Verbs::Cq(cqs[0]), Opcode::QUERY_CQ, cqn(cqs[1])),
        (Verbs::Srq(srqs[0]), Opcode::QUERY_RMP, srqn(srqs[1])),
        (Verbs::Qp(qps[0]), Opcode::QUERY_QP, qpn(qps[1])),
        (Verbs::Wq(wqs[0]), Opcode::QUERY_RQ, numbers[0]),
        (Verbs::Table(tables[0]), Opcode::QUERY_RQT, numbers[1]),
        (Verbs::Qp(qps[0]), Opcode::QUERY_CQ, cqn(cqs[0])),
        (Verbs::Qp(qps[0]), Opcode::QUERY_RQ, numbers[0]),
    ] {
        assert_eq!(object.query_bytes(opcode, other, 0x210).map(drop), INVALID, "{opcode:?}");
    }
    let init = ModifyQp { request: request(Opcode::RST2INIT_QP), qpn: qpn(qps[1]), ..ModifyQp::ZERO };
    assert_eq!(Verbs::Qp(qps[0]).modify(&init.to_bytes()), INVALID);
    assert_eq!(world::modify(qps[1], &to_init(), rc(IBV_QPS_INIT)), 0, "it was left alone");
    // The part of an object of libmlx5 that a query reads.
    #[repr(C)]
    struct Named(*mut ibv_context, u32, [u64; 4]);
    let (_, key) = page(world);
    let mut bytes = [0; 64];
    let mr = world.reg(&mut bytes, IBV_ACCESS_LOCAL_WRITE);
    // SAFETY: the region is alive.
    let (handle, index) = unsafe { ((*mr).handle, (*mr).lkey >> 8) };
    assert_ne!(index, key >> 8);
    let mut named = Named(world.ctx, handle, [0; 4]);
    let query = query_object((&raw mut named).cast(), &numbered(Opcode::QUERY_MKEY, index), 0x210);
    assert_eq!(query.map(drop), INVALID, "the kernel knows no command about a region");
}

#[test]
fn work_queues_and_tables_of_verbs_have_their_contexts() {
    let bench = Bench::on(LinkLayer::Ethernet);
    let (world, cq) = (&bench.world, bench.world.cq(16));
    let wqs = [(); 4].map(|()| wq(world, cq));
    let context = context_of_wq(wqs[0]);
    assert_eq!((context.state, context.cqn, context.queue.kind), (wq_state::RST, cqn(cq), kind::CYCLIC));
    assert_eq!((context.queue.pd, context.queue.log_size, context.vlan_strip_disable), (bench.pdn(), 2, true));
    // SAFETY: the WQs are alive.
    let numbers = wqs.map(|wq| unsafe { (*wq).wq_num });
    let head = ModifyQueue { request: request(Opcode::MODIFY_RQ), state: 0, number: numbers[0], bitmask: 1 << 1 };
    let strips = RqContext { state: wq_state::RDY, vlan_strip_disable: false, ..RqContext::ZERO };
    assert_eq!(Verbs::Wq(wqs[0]).modify(&[&head.to_bytes()[..], &strips.to_bytes()].concat()), Ok(()));
    let context = context_of_wq(wqs[0]);
    assert_eq!((context.state, context.vlan_strip_disable), (wq_state::RDY, false));

    let table = table(world, &mut [wqs[2], wqs[0], wqs[1], wqs[0]]);
    // SAFETY: the table is alive.
    let number = unsafe { (*table).ind_tbl_num } as u32;
    let list = |count: usize| {
        let answer = Verbs::Table(table).query_bytes(Opcode::QUERY_RQT, number, RqTable::SIZE + 4 * count)?;
        let (head, list) = answer.split_at(RqTable::SIZE);
        let head = RqTable::from_prefix(head).unwrap();
        assert_eq!((usize::from(head.actual_size), head.max_size), (count, head.actual_size));
        Ok::<_, Refused>(list.chunks(4).map(|rqn| u32::from_be_bytes(rqn.try_into().unwrap())).collect::<Vec<_>>())
    };
    assert_eq!(list(4), Ok([2, 0, 1, 0].map(|at| numbers[at]).to_vec()));
    assert_eq!(list(3).err(), Some((libc::EREMOTEIO, 0x51, 0x1005)), "the answer has no room for the fourth");
    let change = RqTable { request: request(Opcode::MODIFY_RQT), rqtn: number, actual_size: 2, ..RqTable::ZERO };
    let queues = [numbers[3], numbers[2]].map(u32::to_be_bytes).concat();
    assert_eq!(Verbs::Table(table).modify(&[&change.to_bytes()[..], &queues].concat()), Ok(()));
    assert_eq!(list(2), Ok(vec![numbers[3], numbers[2]]));
}

fn striding_wq(world: &World, log_stride: u32, log_strides: u32) -> *mut ibv_wq {
    let cq = world.cq(16);
    let mut attr =
        ibv_wq_init_attr { wq_type: IBV_WQT_RQ, max_wr: 4, max_sge: 1, pd: world.pd, cq, ..Default::default() };
    let mut mlx5 = mlx5dv_wq_init_attr {
        comp_mask: MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ.into(),
        striding_rq_attrs: mlx5dv_striding_rq_init_attr {
            single_stride_log_num_of_bytes: log_stride,
            single_wqe_log_num_of_strides: log_strides,
            two_byte_shift_en: 1,
        },
    };
    // SAFETY: the context is open, domain and CQ are alive.
    let wq = unsafe { (dv().create_wq)(world.ctx, &mut attr, &mut mlx5) };
    assert!(!wq.is_null());
    wq
}

#[test]
fn a_striding_work_queue_of_verbs_names_its_strides() {
    let bench = Bench::on(LinkLayer::Ethernet);
    for (log_stride, log_strides) in [(6, 9), (11, 12)] {
        let queue = context_of_wq(striding_wq(&bench.world, log_stride, log_strides)).queue;
        let strides = (queue.kind, queue.log_stride_size, queue.log_strides, queue.two_byte_shift);
        assert_eq!(strides, (kind::CYCLIC_STRIDING, log_stride as u8 - 6, log_strides as u8 - 9, true));
    }
}

#[test]
fn a_datagram_queue_pair_of_verbs_keeps_its_queue_key() {
    let bench = Bench::new();
    let (world, cq) = (&bench.world, bench.world.cq(16));
    let qp = world.qp(IBV_QPT_UD, cq, ptr::null_mut());
    let attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, qkey: 0x1234, ..Default::default() };
    assert_eq!(world::modify(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
    let mut bytes = [7; 64];
    post_recv(qp, world.reg(&mut bytes, IBV_ACCESS_LOCAL_WRITE), 0, 64);
    let context = context_of_qp(qp);
    assert_eq!((context.state, context.service, context.q_key), (state::INIT, service::UD, 0x1234));
}
