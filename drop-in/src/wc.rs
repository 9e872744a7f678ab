//! Completions as `struct ibv_wc`: what libmlx5 writes.

use mlx5_ring::completion::Cqe;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use rdma_core_sys::{
    IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_GRH, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE, IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, IBV_WC_SUCCESS, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, ibv_wc, ibv_wc_opcode,
    ibv_wc_status,
};

use crate::objects::Qp;

/// Bytes that an atomic brings.
const ATOMIC_SIZE: u32 = 8;

/// Writes what libmlx5 writes of a completion.
#[inline(always)]
pub(crate) fn fill(wc: &mut ibv_wc, wr_id: u64, status: ibv_wc_status, cqe: Cqe<'_>) {
    (wc.wr_id, wc.status, wc.qp_num) = (wr_id, status, cqe.qpn());
    match cqe.opcode() {
        CqeOpcode::RequesterError | CqeOpcode::ResponderError => {
            wc.wc_flags = 0;
            wc.vendor_err = cqe.vendor_err_synd().into();
        }
        CqeOpcode::Requester => fill_sent(wc, cqe),
        _ => fill_received(wc, cqe),
    }
}

/// As [`fill`], of a message that was received.
#[inline(always)]
pub(crate) fn fill_message(wc: &mut ibv_wc, wr_id: u64, cqe: Cqe<'_>) {
    (wc.wr_id, wc.status, wc.qp_num) = (wr_id, IBV_WC_SUCCESS, cqe.qpn());
    fill_received(wc, cqe);
}

/// Writes what libmlx5 writes of a send that succeeded.
#[inline(always)]
fn fill_sent(wc: &mut ibv_wc, cqe: Cqe<'_>) {
    (wc.opcode, wc.wc_flags) = request_opcode(cqe);
    match wc.opcode {
        IBV_WC_RDMA_READ => wc.byte_len = cqe.byte_count(),
        IBV_WC_COMP_SWAP | IBV_WC_FETCH_ADD => wc.byte_len = ATOMIC_SIZE,
        _ => {}
    }
}

/// Writes what libmlx5 writes of a receive that succeeded.
#[inline(always)]
fn fill_received(wc: &mut ibv_wc, cqe: Cqe<'_>) {
    wc.byte_len = cqe.byte_count();
    wc.opcode = IBV_WC_RECV;
    fill_route(wc, cqe);
    if cqe.has_imm_or_key() {
        if cqe.opcode() == CqeOpcode::ResponderSendImm {
            wc.wc_flags |= IBV_WC_WITH_IMM;
            wc.__bindgen_anon_1.imm_data = cqe.imm_inval_pkey().to_be();
        } else {
            fill_write_or_key(wc, cqe);
        }
    }
}

/// Writes what differs from a SEND if a write with immediate data was completed, or a SEND has brought a key to
/// invalidate.
#[cold]
fn fill_write_or_key(wc: &mut ibv_wc, cqe: Cqe<'_>) {
    if cqe.opcode() == CqeOpcode::ResponderSendInv {
        wc.wc_flags |= IBV_WC_WITH_INV;
        wc.__bindgen_anon_1.invalidated_rkey = cqe.imm_inval_pkey();
    } else {
        wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
        wc.wc_flags |= IBV_WC_WITH_IMM;
        wc.__bindgen_anon_1.imm_data = cqe.imm_inval_pkey().to_be();
    }
}

/// Writes how a message came: `src_qp`, `wc_flags`, `pkey_index`, `slid`, `sl` and `dlid_path_bits`.
#[inline(always)]
fn fill_route(wc: &mut ibv_wc, cqe: Cqe<'_>) {
    let route = cqe.route();
    wc.src_qp = route.source_qpn();
    wc.wc_flags = if route.has_grh() { IBV_WC_GRH } else { 0 };
    wc.pkey_index = cqe.imm_inval_pkey() as u16;
    wc.slid = cqe.slid();
    wc.sl = route.sl();
    wc.dlid_path_bits = cqe.dlid_path_bits();
}

/// Returns opcode and flags of a send that succeeded; that of a change of a key is [`change_opcode`].
#[inline(always)]
pub(crate) fn request_opcode(cqe: Cqe<'_>) -> (ibv_wc_opcode, u32) {
    match WqeOpcode::new(cqe.send_opcode()) {
        WqeOpcode::RDMA_WRITE => (IBV_WC_RDMA_WRITE, 0),
        WqeOpcode::RDMA_WRITE_IMM => (IBV_WC_RDMA_WRITE, IBV_WC_WITH_IMM),
        WqeOpcode::SEND_IMM => (IBV_WC_SEND, IBV_WC_WITH_IMM),
        WqeOpcode::RDMA_READ => (IBV_WC_RDMA_READ, 0),
        WqeOpcode::ATOMIC_CS => (IBV_WC_COMP_SWAP, 0),
        WqeOpcode::ATOMIC_FA => (IBV_WC_FETCH_ADD, 0),
        _ => (IBV_WC_SEND, 0),
    }
}

/// Returns the opcode of a change of a key that succeeded; `None` if `cqe` is another one.
#[inline(always)]
pub(crate) fn change_opcode(qp: Option<&Qp>, cqe: Cqe<'_>) -> Option<ibv_wc_opcode> {
    #[cold]
    fn of_change(qp: Option<&Qp>, cqe: Cqe<'_>) -> Option<ibv_wc_opcode> {
        let sends = qp.and_then(|qp| qp.send.as_ref())?;
        (cqe.opcode() == CqeOpcode::Requester).then(|| sends.changes.opcode(cqe.wqe_counter()))
    }
    if cqe.send_opcode() == WqeOpcode::UMR.get() { of_change(qp, cqe) } else { None }
}

/// Returns the opcode of a receive.
#[inline(always)]
pub(crate) fn receive_opcode(opcode: CqeOpcode) -> ibv_wc_opcode {
    if opcode == CqeOpcode::ResponderWriteImm { IBV_WC_RECV_RDMA_WITH_IMM } else { IBV_WC_RECV }
}

/// Returns the flags of a receive.
#[inline(always)]
pub(crate) fn receive_flags(opcode: CqeOpcode, cqe: Cqe<'_>) -> u32 {
    let grh = if cqe.has_grh() { IBV_WC_GRH } else { 0 };
    match opcode {
        CqeOpcode::ResponderSendImm | CqeOpcode::ResponderWriteImm => grh | IBV_WC_WITH_IMM,
        CqeOpcode::ResponderSendInv => grh | IBV_WC_WITH_INV,
        _ => grh,
    }
}
