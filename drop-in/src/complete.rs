//! What a CQE means for the queue that it names.

use core::ptr;

use mlx5_ring::completion::{Cqe, CqeKind};
use mlx5_ring::receive::{Completion, ReceiveRing, complete};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::syndrome::Syndrome;
use rdma_core_sys::{IBV_WC_GENERAL_ERR, IBV_WC_SUCCESS, ibv_wc, ibv_wc_status};

use crate::context::Context;
use crate::lock::Lock;
use crate::objects::{CqSide, Qp, ReceiveSide, SendSide, SrqSide};
use crate::poll;

/// What became of a CQE.
pub(crate) enum Outcome {
    /// A request is over.
    Done { wr_id: u64, status: ibv_wc_status },
    /// The program need not know: a receive that met a page fault was posted again.
    Hidden,
    /// No request of this process is over.
    Stray,
}

/// A queue whose requests are over with a CQE.
pub(crate) trait Side: Sized {
    /// Returns the queue that `qp` posts to.
    fn of(qp: &Qp) -> Option<&Lock<Option<Self>>>;

    /// Returns `true` if CQEs of this kind are of such queues.
    fn has(kind: CqeKind) -> bool;

    /// Ends the request that `cqe` names if it has succeeded and left nothing in the CQE, and returns its `wr_id`.
    ///
    /// # Safety
    /// `cqe` is of this queue.
    unsafe fn complete_plain(&mut self, cqe: Cqe<'_>) -> Option<u64>;

    /// Ends the request that `cqe` names.
    ///
    /// # Safety
    /// As [`complete_plain`](Self::complete_plain), which has returned `None`.
    unsafe fn complete(&mut self, cqe: Cqe<'_>) -> Outcome;

    /// Writes the fields that libmlx5 writes beside those of every completion.
    fn fill(wc: &mut ibv_wc, cqe: Cqe<'_>);
}

impl CqSide {
    /// Returns the queue pair of a CQE.
    #[inline(always)]
    pub(crate) fn qp<'a>(&mut self, context: &'a Context, qpn: u32) -> Option<&'a Qp> {
        // SAFETY: [record-lives] `last` is null or that of a queue pair of this CQ.
        match unsafe { self.last.as_ref() } {
            Some(last) if last.qpn == qpn => Some(last),
            _ => {
                let qp = context.qps.get(qpn)?;
                self.last = ptr::from_ref(qp);
                Some(qp)
            }
        }
    }

    /// Ends the request that `cqe`, which is of this CQ, names, if it is one of the queue pair of the CQE before, has
    /// succeeded and left nothing in the CQE; returns its `wr_id`.
    #[inline(always)]
    pub(crate) fn complete_plain(&mut self, cqe: Cqe<'_>) -> Option<u64> {
        #[inline(always)]
        fn plain<S: Side>(qp: &Qp, cqe: Cqe<'_>) -> Option<u64> {
            // SAFETY: the queue that the CQE names.
            unsafe { S::of(qp)?.lock().as_mut()?.complete_plain(cqe) }
        }
        // SAFETY: [record-lives] `last` is null or that of a queue pair of this CQ.
        let qp = unsafe { self.last.as_ref() }.filter(|last| last.qpn == cqe.qpn())?;
        if SendSide::has(cqe.kind()) {
            plain::<SendSide>(qp, cqe)
        } else if qp.srq.is_some() {
            plain::<SrqSide>(qp, cqe)
        } else {
            plain::<ReceiveSide>(qp, cqe)
        }
    }

    /// Ends the request that `cqe`, which is of this CQ, names.
    pub(crate) fn complete(&mut self, context: &Context, cqe: Cqe<'_>) -> Outcome {
        let Some(qp) = self.qp(context, cqe.qpn()) else { return Outcome::Stray };
        if SendSide::has(cqe.kind()) {
            complete_one::<SendSide>(qp, cqe)
        } else if qp.srq.is_some() {
            complete_one::<SrqSide>(qp, cqe)
        } else {
            complete_one::<ReceiveSide>(qp, cqe)
        }
    }
}

#[inline(always)]
fn complete_one<S: Side>(qp: &Qp, cqe: Cqe<'_>) -> Outcome {
    let Some(lock) = S::of(qp) else { return Outcome::Stray };
    match &mut *lock.lock() {
        // SAFETY: the queue that the CQE names.
        Some(side) => unsafe {
            match side.complete_plain(cqe) {
                Some(wr_id) => Outcome::Done { wr_id, status: IBV_WC_SUCCESS },
                None => side.complete(cqe),
            }
        },
        None => Outcome::Stray,
    }
}

impl Side for ReceiveSide {
    #[inline(always)]
    fn of(qp: &Qp) -> Option<&Lock<Option<Self>>> {
        Some(&qp.receive)
    }

    #[inline(always)]
    fn has(kind: CqeKind) -> bool {
        kind != CqeKind::NotAReceive
    }

    #[inline(always)]
    unsafe fn complete_plain(&mut self, cqe: Cqe<'_>) -> Option<u64> {
        let is_plain = cqe.kind() == CqeKind::Send;
        if is_plain { self.queue.complete_and_release(cqe.wqe_counter()) } else { None }
    }

    #[inline(never)]
    unsafe fn complete(&mut self, cqe: Cqe<'_>) -> Outcome {
        // SAFETY: the caller's contract.
        unsafe { complete_receive(&mut self.queue, cqe, failed) }
    }

    #[inline(always)]
    fn fill(wc: &mut ibv_wc, cqe: Cqe<'_>) {
        poll::fill_receive(wc, cqe);
    }
}

impl Side for SrqSide {
    #[inline(always)]
    fn of(qp: &Qp) -> Option<&Lock<Option<Self>>> {
        qp.srq().map(|srq| &srq.side)
    }

    #[inline(always)]
    fn has(kind: CqeKind) -> bool {
        kind != CqeKind::NotAReceive
    }

    #[inline(always)]
    unsafe fn complete_plain(&mut self, cqe: Cqe<'_>) -> Option<u64> {
        let is_plain = cqe.kind() == CqeKind::Send;
        if is_plain { self.queue.complete_and_release(cqe.wqe_counter()) } else { None }
    }

    #[inline(never)]
    unsafe fn complete(&mut self, cqe: Cqe<'_>) -> Outcome {
        // SAFETY: the caller's contract.
        unsafe {
            complete_receive(&mut self.queue, cqe, |queue, slot, cqe| {
                if !cqe.is_odp_page_fault() {
                    return failed(queue, slot, cqe);
                }
                // Its buffer is still the device's as far as the program knows.
                queue.recycle(slot);
                queue.ring_doorbell();
                Outcome::Hidden
            })
        }
    }

    #[inline(always)]
    fn fill(wc: &mut ibv_wc, cqe: Cqe<'_>) {
        poll::fill_receive(wc, cqe);
    }
}

/// Ends a receive. `failed` is called with the slot, which is held, of one that has failed.
///
/// # Safety
/// `cqe` is of this queue.
#[inline(always)]
unsafe fn complete_receive<Q: ReceiveRing<Data = u64>>(
    queue: &mut Q,
    cqe: Cqe<'_>,
    failed: impl FnOnce(&mut Q, u32, Cqe<'_>) -> Outcome,
) -> Outcome {
    // SAFETY: the caller's contract. Verbs programs post memory of their own.
    match unsafe { complete(queue, cqe) } {
        // SAFETY: the slot is held.
        Completion::Message(slot) => unsafe { done(queue, slot, IBV_WC_SUCCESS) },
        Completion::Failed(slot) => failed(queue, slot, cqe),
        Completion::NotAReceive | Completion::Stray => Outcome::Stray,
    }
}

/// Gives the slot of a receive back that has failed.
#[cold]
fn failed<Q: ReceiveRing<Data = u64>>(queue: &mut Q, slot: u32, cqe: Cqe<'_>) -> Outcome {
    // SAFETY: the slot is held: `complete_receive` calls with such a one.
    unsafe { done(queue, slot, status_of(cqe.syndrome())) }
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

impl Side for SendSide {
    #[inline(always)]
    fn of(qp: &Qp) -> Option<&Lock<Option<Self>>> {
        Some(&qp.send)
    }

    #[inline(always)]
    fn has(kind: CqeKind) -> bool {
        kind == CqeKind::NotAReceive
    }

    #[inline(always)]
    unsafe fn complete_plain(&mut self, cqe: Cqe<'_>) -> Option<u64> {
        if !cqe.is_plain_requester() {
            return None;
        }
        let request = self.queue.complete_named(cqe.wqe_counter())?;
        self.retired = request.number.wrapping_add(1);
        Some(request.wr_id)
    }

    #[inline(never)]
    unsafe fn complete(&mut self, cqe: Cqe<'_>) -> Outcome {
        let status = match cqe.opcode() {
            CqeOpcode::Requester if cqe.is_plain_requester() => return Outcome::Stray,
            CqeOpcode::Requester => {
                // SAFETY: the caller's contract. Verbs programs post memory of their own.
                if unsafe { self.queue.scatter_inline(cqe) } {
                    IBV_WC_SUCCESS
                } else {
                    IBV_WC_GENERAL_ERR
                }
            }
            CqeOpcode::RequesterError => status_of(cqe.syndrome()),
            _ => return Outcome::Stray,
        };
        match self.queue.complete_named(cqe.wqe_counter()) {
            Some(request) => {
                self.retired = request.number.wrapping_add(1);
                Outcome::Done { wr_id: request.wr_id, status }
            }
            None => Outcome::Stray,
        }
    }

    #[inline(always)]
    fn fill(wc: &mut ibv_wc, cqe: Cqe<'_>) {
        poll::fill_send(wc, cqe);
    }
}

#[cold]
pub(crate) fn status_of(syndrome: Syndrome) -> ibv_wc_status {
    syndrome.names().map_or(IBV_WC_GENERAL_ERR, |names| names.status)
}
