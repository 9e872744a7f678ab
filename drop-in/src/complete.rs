//! What a CQE means for the queue that it names.

use core::ptr;

use mlx5_ring::completion::{Cqe, CqeKind};
use mlx5_ring::receive::{Completion, ReceiveRing, complete};
use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::syndrome::Syndrome;
use rdma_core_sys::{IBV_WC_GENERAL_ERR, IBV_WC_SUCCESS, ibv_wc_status};

use crate::context::Context;
use crate::objects::{CqSide, Qp, Srq};

/// What became of a CQE.
pub(crate) enum Outcome {
    /// A request is over.
    Done { wr_id: u64, status: ibv_wc_status },
    /// The program need not know: a receive that met a page fault was posted again.
    Hidden,
    /// No request of this process is over.
    Stray,
}

impl CqSide {
    /// Completes the request that `cqe`, which is of this CQ, names.
    #[inline(always)]
    pub(crate) fn complete(&mut self, context: &Context, cqe: Cqe<'_>) -> Outcome {
        let qpn = cqe.qpn();
        // SAFETY: [record-lives] `last` is null or that of a queue pair of this CQ.
        let qp = match unsafe { self.last.as_ref() } {
            Some(last) if last.qpn == qpn => last,
            _ => match context.qps.get(qpn) {
                Some(qp) => {
                    self.last = ptr::from_ref(qp);
                    qp
                }
                None => return Outcome::Stray,
            },
        };
        match (cqe.kind(), qp.srq()) {
            (CqeKind::NotAReceive, _) => request_of(qp, cqe),
            (_, None) => {
                let mut side = qp.receive.lock();
                let Some(side) = &mut *side else { return Outcome::Stray };
                // SAFETY: a CQE of this queue. Verbs programs post memory of their own.
                match unsafe { complete(&mut side.queue, cqe) } {
                    Completion::Message(slot) => {
                        // SAFETY: the slot is held.
                        unsafe { done(&mut side.queue, slot, IBV_WC_SUCCESS) }
                    }
                    Completion::Failed(slot) => {
                        // SAFETY: the slot is held.
                        unsafe { done(&mut side.queue, slot, status_of(cqe.syndrome())) }
                    }
                    Completion::NotAReceive | Completion::Stray => Outcome::Stray,
                }
            }
            (_, Some(srq)) => receive_of(srq, cqe),
        }
    }
}

/// Completes a receive of an SRQ.
#[inline(always)]
fn receive_of(srq: &Srq, cqe: Cqe<'_>) -> Outcome {
    let mut side = srq.side.lock();
    let Some(side) = &mut *side else { return Outcome::Stray };
    // SAFETY: a CQE of this queue. Verbs programs post memory of their own.
    match unsafe { complete(&mut side.queue, cqe) } {
        Completion::Message(slot) => {
            // SAFETY: the slot is held.
            unsafe { done(&mut side.queue, slot, IBV_WC_SUCCESS) }
        }
        Completion::Failed(slot) if cqe.is_odp_page_fault() => {
            // SAFETY: the slot is held, and its buffer is still the device's as far as the program knows.
            unsafe { side.queue.recycle(slot) };
            side.queue.ring_doorbell();
            Outcome::Hidden
        }
        Completion::Failed(slot) => {
            // SAFETY: the slot is held.
            unsafe { done(&mut side.queue, slot, status_of(cqe.syndrome())) }
        }
        Completion::NotAReceive | Completion::Stray => Outcome::Stray,
    }
}

/// Gives the slot of a receive back.
///
/// # Safety
/// `slot` is held.
#[inline(always)]
unsafe fn done<Q: ReceiveRing<Data = u64>>(
    queue: &mut Q,
    slot: u32,
    status: ibv_wc_status,
) -> Outcome {
    // SAFETY: the caller's contract.
    unsafe {
        let wr_id = queue.data(slot);
        queue.release(slot);
        Outcome::Done { wr_id, status }
    }
}

/// Completes a send request.
#[inline(always)]
fn request_of(qp: &Qp, cqe: Cqe<'_>) -> Outcome {
    let mut side = qp.send.lock();
    let Some(side) = &mut *side else { return Outcome::Stray };
    let status = match cqe.opcode() {
        CqeOpcode::Requester if cqe.format() == CqeFormat::Plain => IBV_WC_SUCCESS,
        CqeOpcode::Requester => {
            // SAFETY: a CQE of this queue. Verbs programs post memory of their own.
            if unsafe { side.queue.scatter_inline(cqe) } {
                IBV_WC_SUCCESS
            } else {
                IBV_WC_GENERAL_ERR
            }
        }
        CqeOpcode::RequesterError => status_of(cqe.syndrome()),
        _ => return Outcome::Stray,
    };
    match side.queue.complete_named(cqe.wqe_counter()) {
        Some(request) => {
            side.retired = request.number.wrapping_add(1);
            Outcome::Done { wr_id: request.wr_id, status }
        }
        None => Outcome::Stray,
    }
}

#[cold]
pub(crate) fn status_of(syndrome: Syndrome) -> ibv_wc_status {
    syndrome.names().map_or(IBV_WC_GENERAL_ERR, |names| names.status)
}
