//! Receives and sends that fail, and their buffers.

use std::mem::zeroed;

use doorbell::{Cause, QpConfig, QpState, RqConfig, WcStatus};
use doorbell_tests::peers::{join, known_state};
use doorbell_tests::world::{Shared, Single, World};
use doorbell_tests::{Peers, device, direct_only, receiving};
use mlx5_wire::cqe::{CqeFormat, ErrorCqe, op_own};
use mlx5_wire::opcode::CqeOpcode;
use rdma_core_sys as sys;

/// Statuses of a receive that is too short, and of its send: as the specification and mlx5 have them. Soft-RoCE reports
/// general errors.
pub fn too_long(context: &doorbell::Context) -> (WcStatus, WcStatus) {
    match context.name().starts_with("rxe") {
        true => (WcStatus::LOC_QP_OP_ERR, WcStatus::REM_OP_ERR),
        false => (WcStatus::LOC_LEN_ERR, WcStatus::REM_INV_REQ_ERR),
    }
}

/// Connects the first queue pair to a far end that can send more than its receives take.
fn connect_to_longer<Q>(w: &mut World<Q>) -> Peers {
    let mut receiver = device::receiver(&w.pd, 64);
    let config = QpConfig::rc();
    let (_, mut long) = Peers::connect(&w.pd, &mut receiver, &config, RqConfig::new(1), 1, 4096);
    long.reset(0);
    w.receiver.reset_qp(&mut w.near[0]).unwrap();
    join(&mut w.near[0], &mut long.qps[0]);
    long
}

#[test]
fn a_message_longer_than_its_buffer_fails_on_both_sides() {
    let mut w = Single::new(8, 64);
    let mut long = connect_to_longer(&mut w);
    let posted = w.fill();

    long.send(0, 65);
    let failures = receiving::failures(&mut w.receiver, posted);
    let (received, sent) = too_long(w.pd.context());
    assert_eq!(failures[0].cause, Cause::Status(received));
    let words = failures[0].to_string();
    let clear = words.contains("the message was longer than the buffers of the receive");
    assert!(clear || received != WcStatus::LOC_LEN_ERR, "{words}");
    let flushed = Cause::Status(WcStatus::WR_FLUSH_ERR);
    assert!(failures[1..].iter().all(|failure| failure.cause == flushed), "{failures:?}");
    assert_eq!(failures.iter().map(|failure| failure.buffers.len()).sum::<usize>(), posted);
    drop(failures);
    assert_eq!(w.pool.available(), w.pool.count() as usize);
    assert_eq!(known_state(&mut w.near[0]), QpState::Error);
    assert_eq!(long.qps[0].ended(), sent);
}

#[test]
fn a_queue_pair_that_fails_takes_nothing_from_the_others_on_its_srq() {
    let mut w = Shared::new(15, 2, 64);
    let mut long = connect_to_longer(&mut w);
    w.fill();

    long.send(0, 100);
    let failures = receiving::failures(&mut w.receiver, 1);
    assert_eq!(failures.len(), 1, "an SRQ is not flushed");
    assert_eq!(failures[0].cause, Cause::Status(too_long(w.pd.context()).0));
    assert_eq!(failures[0].qp_num, w.near[0].qp_num());
    assert!(failures[0].buffers.is_empty(), "it is with the SRQ");

    // The library knows the state without a query.
    assert_eq!(known_state(&mut w.near[0]), QpState::Error);
    assert_eq!(known_state(&mut w.near[1]), QpState::Rts);

    assert_eq!(w.free_slots(), 0);
    w.peers.exchange(&mut w.receiver, 1, 50);
}

#[test]
fn receives_posted_after_the_queue_pair_failed_come_back() {
    let mut w = Single::new(8, 64);
    w.near[0].to_error().unwrap();
    receiving::nothing(&mut w.receiver);
    for _ in 0..3 {
        let buffers = [w.pool.take().unwrap(), w.pool.take().unwrap()];
        match w.receiver.post(w.queue, buffers) {
            Ok(2) => {
                let failures = receiving::failures(&mut w.receiver, 2);
                assert_eq!(failures.len(), 2);
                for failure in failures {
                    assert_eq!(failure.cause, Cause::Status(WcStatus::WR_FLUSH_ERR));
                    assert_eq!(failure.buffers.len(), 1);
                }
            }
            Ok(posted) => panic!("{posted} posted"),
            // Other drivers refuse at once.
            Err(error) => assert_eq!((error.posted, error.buffers.len()), (0, 2)),
        }
        assert_eq!(w.pool.available(), w.pool.count() as usize);
    }
}

#[test]
fn a_send_to_a_dead_peer_ends_within_its_retries() {
    let mut w = Single::new(8, 64);
    w.receiver.destroy_qp(w.near.remove(0)).unwrap();
    let far = &mut w.peers.qps[0];
    far.send_inline(b"anybody there?", None).unwrap();
    assert_eq!(far.ended(), WcStatus::RETRY_EXC_ERR);
    assert_eq!(far.state().unwrap(), QpState::Error);
}

/// Posted again, the buffer that the device did not find would fail the next message, too.
#[test]
fn a_receive_of_an_srq_whose_memory_was_not_found_gives_its_buffer_back() {
    let mut w = Shared::new(7, 1, 64);
    direct_only!(w.pd.context());
    let posted = 7;
    w.post(posted);
    let mut cqe = ErrorCqe::zeroed();
    [cqe.vendor_err_synd, cqe.syndrome] = [0x93, 0x22];
    cqe.s_wqe_opcode_qpn = w.near[0].qp_num().into();
    cqe.op_own = op_own(CqeOpcode::ResponderError, CqeFormat::Plain, false, 0);
    let bytes = cqe.to_bytes();
    // SAFETY: live objects. Nothing else writes the first entry of the CQ: nothing is sent.
    unsafe {
        let (mut memory, mut obj): (sys::mlx5dv_cq, sys::mlx5dv_obj) = (zeroed(), zeroed());
        (obj.cq.in_, obj.cq.out) = ((*w.near[0].as_raw()).recv_cq, &mut memory);
        let init_obj = sys::Mlx5dv::get().unwrap().init_obj;
        assert_eq!(init_obj(&mut obj, sys::MLX5DV_OBJ_CQ.into()), 0);
        let entry = memory.buf.cast::<u8>().add(memory.cqe_size as usize - bytes.len());
        entry.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
    }
    let failures = receiving::failures(&mut w.receiver, 1);
    assert_eq!((failures[0].cause, failures[0].buffers.len()), (Cause::PageFault, 1));
    assert_eq!(w.receiver.capacity(w.queue) - w.receiver.free_slots(w.queue), posted as u32 - 1);
}
