//! Commands about the parts of raw packet queue pairs, and frames of queues that commands made.

use mlx5_wire::firmware::command::Opcode;
use mlx5_wire::firmware::fields::Value;
use mlx5_wire::firmware::transport::{
    CreateTir, ModifyQueue, ModifyTis, QueryRqReply, QuerySqReply, QueryTisReply, RqContext,
};
use mlx5_wire::firmware::wq::state;
use rdma_core_sys::*;
use soft_mlx5::LinkLayer;

use super::bench::*;
use crate::frames::{raw_qp, rss_qp, table, wq};
use crate::world::open;

const INVALID: Result<(), Refused> = Err((libc::EINVAL, 0, 0));

/// Returns target, TIS, receive queue and send queue of a raw packet queue pair.
pub fn parts(qp: *mut ibv_qp) -> mlx5dv_qp {
    mlx5dv_of(qp, MLX5DV_QP_MASK_RAW_QP_HANDLES.into())
}

/// Returns what libmlx5 knows of a queue pair.
pub fn mlx5dv_of(qp: *mut ibv_qp, comp_mask: u64) -> mlx5dv_qp {
    let mut found = mlx5dv_qp { comp_mask, ..Default::default() };
    let mut object = mlx5dv_obj::default();
    (object.qp.in_, object.qp.out) = (qp, &mut found);
    // SAFETY: the queue pair is alive, and the result is writable.
    assert_eq!(unsafe { (dv().init_obj)(&mut object, MLX5DV_OBJ_QP.into()) }, 0);
    found
}

fn query<T: Value>(qp: *mut ibv_qp, opcode: Opcode, number: u32) -> Result<T, Refused> {
    Verbs::Qp(qp).query(opcode, number)
}

/// More contexts at a time than the firmware has users: the last ones have no DEVX, but frames.
#[test]
fn six_hundred_contexts_have_domains() {
    let bench = Bench::on(LinkLayer::Ethernet);
    let name = bench.world.device().name();
    let contexts: Vec<_> = (0..600).map(|_| open(name)).collect();
    for at in [0, 500] {
        assert!(create_in(contexts[at], &numbered(Opcode::ALLOC_PD, 0)).is_ok(), "context {at}");
    }
    assert_eq!(create_in(contexts[599], &numbered(Opcode::ALLOC_PD, 0)).err(), Some((libc::EINVAL, 0, 0)));
    for ctx in contexts {
        // SAFETY: the context is not used any more.
        assert_eq!(unsafe { ibv_close_device(ctx) }, 0);
    }
}

#[test]
fn commands_ask_about_the_parts_of_a_raw_packet_queue_pair() {
    let bench = Bench::on(LinkLayer::Ethernet);
    let cq = bench.world.cq(16);
    let (qp, other) = (raw_qp(&bench.world, cq), raw_qp(&bench.world, cq));
    let of = parts(qp);
    let tis: QueryTisReply = query(qp, Opcode::QUERY_TIS, of.tisn).unwrap();
    assert_ne!(tis.transport_domain, 0);
    let sq = query::<QuerySqReply>(qp, Opcode::QUERY_SQ, of.sqn).unwrap().context;
    let rq = query::<QueryRqReply>(qp, Opcode::QUERY_RQ, of.rqn).unwrap().context;
    assert_eq!((sq.state, sq.tisn, sq.queue.pd), (state::RDY, of.tisn, bench.pdn()));
    assert_eq!((rq.state, rq.cqn, rq.queue.pd), (state::RDY, sq.cqn, bench.pdn()));
    let tir: CreateTir = query(qp, Opcode::QUERY_TIR, of.tirn).unwrap();
    assert_eq!((tir.inline_rqn, tir.transport_domain), (of.rqn, tis.transport_domain));

    assert_eq!(query::<QueryTisReply>(qp, Opcode::QUERY_TIS, parts(other).tisn).map(drop), INVALID);
    assert_eq!(query::<QueryTisReply>(qp, Opcode::QUERY_TIS, of.rqn).map(drop), INVALID);
    assert_eq!(query::<QuerySqReply>(qp, Opcode::QUERY_QP, of.sqn).map(drop), INVALID, "it is no queue pair there");
}

#[test]
fn commands_change_the_parts_of_a_raw_packet_queue_pair() {
    let bench = Bench::on(LinkLayer::Ethernet);
    let qp = raw_qp(&bench.world, bench.world.cq(16));
    let of = parts(qp);
    let tis = ModifyTis { request: request(Opcode::MODIFY_TIS), tisn: of.tisn, bitmask: 1, priority: 3 };
    assert_eq!(Verbs::Qp(qp).modify(&tis.to_bytes()), Ok(()));
    assert_eq!(query::<QueryTisReply>(qp, Opcode::QUERY_TIS, of.tisn).unwrap().priority, 3);
    let change = |from, to| {
        let head = ModifyQueue { request: request(Opcode::MODIFY_RQ), state: from, number: of.rqn, bitmask: 0 };
        Verbs::Qp(qp).modify(&[&head.to_bytes()[..], &RqContext { state: to, ..RqContext::ZERO }.to_bytes()].concat())
    };
    assert_eq!(change(state::RDY, state::ERR), Ok(()));
    bench.world.device().settle();
    let now = || query::<QueryRqReply>(qp, Opcode::QUERY_RQ, of.rqn).unwrap().context.state;
    assert_eq!(now(), state::ERR, "the queue pair does not bring it back");
    assert_eq!((change(state::ERR, state::RST), change(state::RST, state::RDY)), (Ok(()), Ok(())));
    assert_eq!(now(), state::RDY);
}

#[test]
fn a_queue_pair_stays_while_a_target_of_a_command_uses_its_queue() {
    let bench = Bench::on(LinkLayer::Ethernet);
    let qp = raw_qp(&bench.world, bench.world.cq(16));
    let tir = CreateTir { request: request(Opcode::CREATE_TIR), inline_rqn: parts(qp).rqn, ..CreateTir::ZERO };
    let (target, _) = bench.create(&tir.to_bytes()).expect("domain 0 needs no object");
    // SAFETY: the queue pair is alive.
    let destroy_qp = || unsafe { ibv_destroy_qp(qp) };
    assert_eq!(destroy_qp(), libc::EBUSY);
    assert_eq!((destroy(target), destroy_qp()), (0, 0));
}

#[test]
fn the_target_of_a_hash_queue_pair_names_its_table_and_fields() {
    let bench = Bench::on(LinkLayer::Ethernet);
    let cq = bench.world.cq(16);
    let table = table(&bench.world, &mut [wq(&bench.world, cq), wq(&bench.world, cq)]);
    let fields = IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_PORT_UDP;
    let qp = rss_qp(&bench.world, table, &[0x5a; 40], fields);
    assert!(!qp.is_null());
    // The first target of the device: libmlx5 44 reads no parts of a queue pair without queues.
    let tir: CreateTir = query(qp, Opcode::QUERY_TIR, 1).unwrap();
    // SAFETY: the table is alive.
    assert_eq!((tir.disp_type, tir.indirect_table), (1, unsafe { (*table).ind_tbl_num } as u32));
    assert_eq!((tir.ipv6, tir.udp, tir.hash_fields, tir.key), (true, true, 1 << 0 | 1 << 3, [0x5a; 40]));
}
