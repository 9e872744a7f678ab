//! `ibv_poll_cq`.

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use std::sync::PoisonError;

use mlx5_ring::completion::Cqe;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use rdma_core_sys::{
    IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_GRH, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE,
    IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, ibv_cq,
    ibv_wc, ibv_wc_opcode, ibv_wc_status,
};

use crate::complete::Outcome;
use crate::context::{self, Context};
use crate::decide;
use crate::log::LIBMLX5;
use crate::objects::{Cq, CqSide, Path};

/// What libmlx5 returns for a CQE that is of no request.
pub(crate) const STRAY: c_int = -2;

/// Bytes that an atomic brings.
const ATOMIC_SIZE: u32 = 8;

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*cq).context);
        if let Some(record) = context.cqs.get((*cq).handle) {
            if let Some(side) = &mut *record.side.lock() {
                return side.poll(context, record, count, wc);
            }
        }
        poll_undecided(cq, count, wc)
    }
}

/// Polls a CQ that doorbell does not drive, or not yet.
#[cold]
unsafe fn poll_undecided(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*cq).context);
        let record = context.cqs.get((*cq).handle);
        let polled = match record.filter(|record| record.status.path() == Path::Undecided) {
            None => (context.original.poll_cq)(cq, count, wc),
            Some(record) => {
                // Nobody decides meanwhile, so libmlx5 does not take a CQE that is doorbell's.
                let undecided = context.undecided.lock().unwrap_or_else(PoisonError::into_inner);
                if record.status.path() == Path::Doorbell {
                    return 0;
                }
                let polled = (context.original.poll_cq)(cq, count, wc);
                drop(undecided);
                if polled != 0 {
                    decide::against(context, record, UNSEEN);
                }
                polled
            }
        };
        LIBMLX5.add_polls(polled.try_into().unwrap_or(0));
        polled
    }
}

/// Why a CQ has completions before anything was posted.
pub(crate) const UNSEEN: &str = "a queue that was made past libibverbs completes on it";

impl CqSide {
    /// # Safety
    /// `wc` has room for `count` completions.
    #[inline(always)]
    unsafe fn poll(
        &mut self,
        context: &Context,
        record: &Cq,
        count: c_int,
        wc: *mut ibv_wc,
    ) -> c_int {
        let mut polled = 0;
        let mut result = 0;
        while polled < count {
            let Some(cqe) = self.ring.peek() else { break };
            // SAFETY: the consumer index is published after the loop.
            let cqe = unsafe { cqe.detach() };
            match self.complete(context, cqe) {
                Outcome::Done { wr_id, status } => {
                    // SAFETY: the caller's contract.
                    unsafe { fill(&mut *wc.add(polled as usize), cqe, wr_id, status) };
                    polled += 1;
                }
                Outcome::Hidden => {}
                // Completions before it are not lost: it is found again.
                Outcome::Stray if polled > 0 => break,
                Outcome::Stray => {
                    result = STRAY;
                    self.ring.advance();
                    break;
                }
            }
            self.ring.advance();
        }
        self.publish(record);
        record.polls.add(polled as u64);
        if result < 0 { result } else { polled }
    }

    /// Gives the CQEs that were taken back to the device.
    #[inline(always)]
    pub(crate) fn publish(&mut self, record: &Cq) {
        self.ring.publish();
        record.consumer_index.store(self.ring.consumer_index(), Ordering::Relaxed);
    }
}

/// Writes the fields that libmlx5 writes.
#[inline(always)]
fn fill(wc: &mut ibv_wc, cqe: Cqe<'_>, wr_id: u64, status: ibv_wc_status) {
    wc.wr_id = wr_id;
    wc.status = status;
    wc.qp_num = cqe.qpn();
    wc.wc_flags = 0;
    match cqe.opcode() {
        CqeOpcode::Requester => {
            let (opcode, flags) = request_opcode(cqe);
            wc.opcode = opcode;
            wc.wc_flags = flags;
            match opcode {
                IBV_WC_RDMA_READ => wc.byte_len = cqe.byte_count(),
                IBV_WC_COMP_SWAP | IBV_WC_FETCH_ADD => wc.byte_len = ATOMIC_SIZE,
                _ => {}
            }
        }
        CqeOpcode::RequesterError | CqeOpcode::ResponderError => {
            wc.vendor_err = cqe.vendor_err_synd().into();
        }
        opcode => {
            wc.opcode = receive_opcode(opcode);
            wc.byte_len = cqe.byte_count();
            let imm = cqe.imm_inval_pkey();
            match opcode {
                CqeOpcode::ResponderSendInv => wc.__bindgen_anon_1.invalidated_rkey = imm,
                CqeOpcode::ResponderSend => {}
                _ => wc.__bindgen_anon_1.imm_data = imm.to_be(),
            }
            wc.wc_flags = receive_flags(opcode, cqe);
            wc.src_qp = cqe.source_qpn();
            wc.sl = cqe.sl();
            wc.slid = cqe.slid();
            wc.dlid_path_bits = cqe.dlid_path_bits();
            wc.pkey_index = imm as u16;
        }
    }
}

/// Returns opcode and flags of a send that succeeded.
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

/// Returns the opcode of a receive.
#[inline(always)]
pub(crate) fn receive_opcode(opcode: CqeOpcode) -> ibv_wc_opcode {
    if opcode == CqeOpcode::ResponderWriteImm { IBV_WC_RECV_RDMA_WITH_IMM } else { IBV_WC_RECV }
}

/// Returns the flags of a receive.
#[inline(always)]
pub(crate) fn receive_flags(opcode: CqeOpcode, cqe: Cqe<'_>) -> u32 {
    let grh = if cqe.has_grh() { IBV_WC_GRH } else { 0 };
    grh | match opcode {
        CqeOpcode::ResponderSendImm | CqeOpcode::ResponderWriteImm => IBV_WC_WITH_IMM,
        CqeOpcode::ResponderSendInv => IBV_WC_WITH_INV,
        _ => 0,
    }
}
