//! Dynamic connections, as verbs and as firmware commands make them.

use std::ptr;

use mlx5_wire::firmware::command::{CreatePathMapping, Opcode, Request};
use mlx5_wire::firmware::dct::{CreateDct, DctContext, QueryDctReply};
use mlx5_wire::firmware::qp::{QueryQpReply, service, state};
use rdma_core_sys::*;
use soft_mlx5::LinkLayer;

use super::bench::*;
use crate::world::{errno, modify, to_rts};

const KEY: u64 = 0x1ee7_a330_0bad_c0de;
const BAD_PARAM: u8 = 3;
const BAD_INDEX: u8 = 0xa;
const IN_USE: u32 = 0x1104;

fn dct() -> mlx5dv_dc_init_attr {
    let key = mlx5dv_dc_init_attr__bindgen_ty_1 { dct_access_key: KEY };
    mlx5dv_dc_init_attr { dc_type: MLX5DV_DCTYPE_DCT, __bindgen_anon_1: key }
}

fn dci(log_num_concurent: u8, log_num_errored: u8) -> mlx5dv_dc_init_attr {
    let dci_streams = mlx5dv_dci_streams { log_num_concurent, log_num_errored };
    mlx5dv_dc_init_attr {
        dc_type: MLX5DV_DCTYPE_DCI,
        __bindgen_anon_1: mlx5dv_dc_init_attr__bindgen_ty_1 { dci_streams },
    }
}

/// Makes an initiator or a target; returns the errno if it is refused.
fn create(
    bench: &Bench,
    cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    attr: mlx5dv_dc_init_attr,
    more: u32,
    max_recv_wr: u32,
) -> Result<*mut ibv_qp, i32> {
    let mut init = ibv_qp_init_attr_ex {
        send_cq: cq,
        recv_cq: cq,
        srq,
        qp_type: IBV_QPT_DRIVER,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd: bench.world.pd,
        ..Default::default()
    };
    if attr.dc_type == MLX5DV_DCTYPE_DCI {
        (init.cap.max_send_wr, init.cap.max_send_sge, init.cap.max_recv_wr) = (16, 1, max_recv_wr);
        init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.send_ops_flags = IBV_QP_EX_WITH_SEND.into();
    }
    let comp_mask = (MLX5DV_QP_INIT_ATTR_MASK_DC | more).into();
    let mut mlx5 = mlx5dv_qp_init_attr { comp_mask, dc_init_attr: attr, ..Default::default() };
    // SAFETY: live objects of one device and initialised structures.
    let qp = unsafe { (dv().create_qp)(bench.world.ctx, &mut init, &mut mlx5) };
    if qp.is_null() { Err(errno()) } else { Ok(qp) }
}

fn number(qp: *mut ibv_qp) -> u32 {
    // SAFETY: the queue pair is alive.
    unsafe { (*qp).qp_num }
}

fn state_of(qp: *mut ibv_qp) -> Result<ibv_qp_state, i32> {
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    // SAFETY: the queue pair is alive.
    let failed = unsafe { ibv_query_qp(qp, &mut attr, IBV_QP_STATE as i32, &mut init) };
    if failed == 0 { Ok(attr.qp_state) } else { Err(failed) }
}

#[test]
fn a_target_of_verbs_has_its_number_when_it_listens() {
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let bench = Bench::on(link);
        let (cq, srq) = (bench.world.cq(16), bench.world.srq(8));
        assert_eq!(create(&bench, cq, ptr::null_mut(), dct(), 0, 0).err(), Some(libc::EINVAL), "without an SRQ");
        let target = create(&bench, cq, srq, dct(), 0, 0).unwrap();
        assert_eq!((number(target), state_of(target)), (0, Err(libc::EINVAL)));
        // SAFETY: both are alive.
        assert_eq!(unsafe { [ibv_destroy_srq(srq), ibv_destroy_cq(cq)] }, [libc::EBUSY; 2]);

        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, qp_access_flags: 0xf, ..Default::default() };
        let to_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
        assert_eq!(modify(target, &attr, to_init), libc::EINVAL, "without rights");
        assert_eq!(modify(target, &attr, to_init | IBV_QP_ACCESS_FLAGS), 0);
        (attr.qp_state, attr.path_mtu, attr.min_rnr_timer) = (IBV_QPS_RTR, IBV_MTU_1024, 12);
        (attr.ah_attr.is_global, attr.ah_attr.port_num, attr.ah_attr.grh.hop_limit) = (1, 1, 64);
        let to_rtr = IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV | IBV_QP_PATH_MTU;
        assert_eq!(modify(target, &attr, to_rtr), 0);
        assert_ne!(number(target), 0);
        assert_eq!(state_of(target), Ok(IBV_QPS_RTR));
        let reply = Verbs::Qp(target).query::<QueryDctReply>(Opcode::QUERY_DCT, number(target)).unwrap();
        let DctContext { pd, mtu, port, min_rnr_nak, hop_limit, .. } = reply.context;
        assert_eq!((pd, mtu, port, min_rnr_nak, hop_limit), (bench.pdn(), 3, 1, 12, 64));
        for state in [IBV_QPS_RTS, IBV_QPS_ERR, IBV_QPS_RESET] {
            let attr = ibv_qp_attr { qp_state: state, ..attr };
            assert_eq!(modify(target, &attr, IBV_QP_STATE), libc::EINVAL, "to {state}");
        }
        // SAFETY: nothing refers to the target.
        assert_eq!(unsafe { [ibv_destroy_qp(target), ibv_destroy_srq(srq), ibv_destroy_cq(cq)] }, [0; 3]);
    }
}

#[test]
fn an_initiator_of_verbs_has_no_receive_side() {
    let bench = Bench::new();
    let (cq, none) = (bench.world.cq(16), ptr::null_mut());
    assert_eq!(create(&bench, cq, none, dci(0, 0), 0, 4).err(), Some(libc::EINVAL), "receives");
    let streams = MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS;
    assert_eq!(
        create(&bench, cq, none, dci(6, 2), streams, 0).err(),
        Some(libc::EINVAL),
        "more streams than there are"
    );
    let qp = create(&bench, cq, none, dci(3, 2), streams, 0).unwrap();
    let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, path_mtu: IBV_MTU_1024, ..Default::default() };
    let to_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    assert_eq!(modify(qp, &attr, to_init | IBV_QP_ACCESS_FLAGS), libc::EINVAL, "rights");
    assert_eq!(modify(qp, &attr, to_init), 0);
    attr.qp_state = IBV_QPS_RTR;
    assert_eq!(modify(qp, &attr, IBV_QP_STATE | IBV_QP_PATH_MTU), 0);
    let to_send =
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_SQ_PSN;
    assert_eq!(modify(qp, &to_rts(), to_send), 0);
    assert_eq!(state_of(qp), Ok(IBV_QPS_RTS));
    // SAFETY: the queue pair is alive.
    let reply = Verbs::Qp(qp).query::<QueryQpReply>(Opcode::QUERY_QP, unsafe { (*qp).qp_num }).unwrap();
    assert_eq!((reply.context.service, reply.context.state, reply.context.mtu), (service::DCI, state::RTS, 3));
}

#[test]
fn a_target_of_commands() {
    let bench = Bench::new();
    let (cq, srq) = (bench.cq(), bench.world.srq(8));
    let mut found = mlx5dv_srq { comp_mask: MLX5DV_SRQ_MASK_SRQN.into(), ..Default::default() };
    let mut object = mlx5dv_obj::default();
    (object.srq.in_, object.srq.out) = (srq, &mut found);
    // SAFETY: the SRQ is alive, and the result is writable.
    assert_eq!(unsafe { (dv().init_obj)(&mut object, MLX5DV_OBJ_SRQ.into()) }, 0);
    let context = DctContext {
        cqn: cq.number,
        srqn_xrqn: found.srqn,
        pd: bench.pdn(),
        dc_access_key: KEY,
        mtu: 3,
        port: 1,
        rwe: true,
        ..DctContext::ZERO
    };
    let command = |context| CreateDct { request: request(Opcode::CREATE_DCT), context }.to_bytes();
    let refused = bench.create(&command(DctContext { mtu: 6, ..context })).map(drop);
    assert_eq!(refused, Err((libc::EREMOTEIO, BAD_PARAM, 0x1307)));
    let refused = bench.create(&command(DctContext { my_addr_index: 200, ..context })).map(drop);
    assert_eq!(refused, Err((libc::EREMOTEIO, BAD_INDEX, 0x1306)));
    let (target, dctn) = bench.create(&command(context)).unwrap();
    assert_eq!(destroy(cq.object), libc::EINVAL, "in use: {IN_USE:#x}");
    let query = || {
        let reply = query_object(target, &numbered(Opcode::QUERY_DCT, dctn), QueryDctReply::SIZE).unwrap();
        QueryDctReply::from_prefix(&reply).unwrap().context
    };
    assert_eq!(query(), context);
    modify_object(target, &numbered(Opcode::ARM_DCT_FOR_KEY_VIOLATION, dctn)).unwrap();
    let drain = modify_object(target, &numbered(Opcode::DRAIN_DCT, dctn));
    assert_eq!(drain, Err((libc::EINVAL, 0, 0)), "the kernel drains a target when it destroys the target");
    assert_eq!([target, cq.object].map(destroy), [0, 0]);
}

#[test]
fn a_path_is_mapped_to_a_queue_pair() {
    let bench = Bench::new();
    let cq = bench.cq();
    let qp = bench.qp(&cq);
    let command = |op_mod, qpn| {
        let request = Request { op_mod, ..request(Opcode::CREATE_GENERAL_OBJECT) };
        CreatePathMapping { request, qpn }.to_bytes()
    };
    assert_eq!(bench.create(&command(0x3b, qp.number)).map(drop), Err((libc::EREMOTEIO, BAD_PARAM, 0x130f)));
    let (mapping, _) = bench.create(&command(0x3a, qp.number)).unwrap();
    assert_eq!([qp.object, mapping].map(destroy), [0, 0], "the queue pair may go first");
}
