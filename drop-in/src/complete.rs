//! The completion of requests by a CQE.

use core::sync::atomic::Ordering;

use mlx5_ring::completion::{Cqe, CqeKind};
use mlx5_ring::receive::{self, Completion, ReceiveRing};
use mlx5_wire::opcode::CqeOpcode;
use rdma_core_sys::{IBV_WC_GENERAL_ERR, IBV_WC_SUCCESS, ibv_wc_status};

use crate::objects::{Qp, ReceiveSide, Request, Sends};

/// Result of a CQE.
pub(crate) enum Outcome {
    /// A request is over.
    Done { wr_id: u64, status: ibv_wc_status },
    /// The program need not know: a receive that met a page fault was posted again.
    Hidden,
    /// No request of this process is over.
    Stray,
}

impl Qp {
    /// Ends the receive of a message that is not in its CQE, and returns its `wr_id`; `None` if `cqe` is another one.
    #[inline(always)]
    pub(crate) fn complete_message(&self, cqe: Cqe<'_>) -> Option<u64> {
        if !matches!(cqe.kind(), CqeKind::Send | CqeKind::Invalidated | CqeKind::Written) {
            return None;
        }
        match self.srq() {
            Some(srq) => srq.side.lock().as_mut()?.complete_message(cqe.wqe_counter()),
            None => self.receive.lock().as_mut()?.complete_message(cqe.wqe_counter()),
        }
    }

    /// Ends the request that `cqe` names.
    ///
    /// # Safety
    /// [polled]
    #[inline(never)]
    pub(crate) unsafe fn complete(&self, cqe: Cqe<'_>) -> Outcome {
        // SAFETY: [polled].
        let outcome = unsafe {
            if cqe.kind() == CqeKind::NotAReceive {
                self.send.as_ref().map(|sends| sends.complete(cqe))
            } else if let Some(srq) = self.srq() {
                srq.side.lock().as_mut().map(|side| side.complete(cqe, true))
            } else {
                self.receive.lock().as_mut().map(|side| side.complete(cqe, false))
            }
        };
        outcome.unwrap_or(Outcome::Stray)
    }
}

impl Sends {
    /// Ends the request that `cqe` names, and those before it.
    ///
    /// # Safety
    /// [polled] `cqe` is of this queue.
    #[inline(always)]
    unsafe fn complete(&self, cqe: Cqe<'_>) -> Outcome {
        let status = match cqe.opcode() {
            CqeOpcode::Requester if cqe.is_plain_requester() => IBV_WC_SUCCESS,
            // SAFETY: [polled] `cqe` is of this queue. Verbs programs post memory of their own.
            CqeOpcode::Requester if unsafe { self.progress.scatter_inline(cqe) } => IBV_WC_SUCCESS,
            // The payload of the CQE had no place.
            CqeOpcode::Requester => IBV_WC_GENERAL_ERR,
            CqeOpcode::RequesterError => cqe.syndrome().status(),
            _ => return Outcome::Stray,
        };
        // SAFETY: [polled] the lock of the CQ: one thread takes CQEs. The record has the storage of the queue.
        let Some(Request { wr_id, number }) = (unsafe { self.progress.complete(cqe.wqe_counter()) }) else {
            return Outcome::Stray;
        };
        // The thread that posts reads the running count of blocks after it.
        self.retired.store(number.wrapping_add(1), Ordering::Release);
        Outcome::Done { wr_id, status }
    }
}

impl<Q: ReceiveRing<Data = u64>> ReceiveSide<Q> {
    /// As [`Qp::complete_message`].
    #[inline(always)]
    fn complete_message(&mut self, wqe_counter: u16) -> Option<u64> {
        let slot = self.queue.complete(wqe_counter)?;
        // SAFETY: `complete` has returned the slot, which is held.
        unsafe {
            let wr_id = self.queue.data(slot);
            self.queue.release(slot);
            Some(wr_id)
        }
    }

    /// Ends the receive that `cqe` names.
    ///
    /// # Safety
    /// `cqe` is of this queue.
    #[inline(always)]
    unsafe fn complete(&mut self, cqe: Cqe<'_>, is_shared: bool) -> Outcome {
        // SAFETY: `cqe` is of this queue. Verbs programs post memory of their own. `complete` returns a slot that is
        // held, whose buffer is as it was posted.
        unsafe {
            let (slot, status) = match receive::complete(&mut self.queue, cqe) {
                Completion::Message(slot) => (slot, IBV_WC_SUCCESS),
                // libmlx5 posts a receive of an SRQ again that has met an on-demand page fault: to the program its
                // buffer still belongs to the device.
                Completion::Failed(slot) if is_shared && cqe.is_odp_page_fault() => {
                    self.queue.recycle(slot);
                    self.queue.ring_doorbell();
                    return Outcome::Hidden;
                }
                Completion::Failed(slot) => (slot, cqe.syndrome().status()),
                Completion::NotAReceive | Completion::Stray => return Outcome::Stray,
            };
            let wr_id = self.queue.data(slot);
            self.queue.release(slot);
            Outcome::Done { wr_id, status }
        }
    }
}
