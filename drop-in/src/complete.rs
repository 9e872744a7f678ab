//! The completion of requests by a CQE.

use core::ffi::c_int;

use mlx5_ring::completion::{Cqe, CqeKind};
use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::receive::{ReceiveRing, complete_inline};
use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::srq::SharedReceiveQueue;
use mlx5_wire::be::Be32;
use mlx5_wire::opcode::CqeOpcode;
use rdma_core_sys::{IBV_WC_GENERAL_ERR, IBV_WC_SUCCESS, ibv_wc, ibv_wc_status};

use crate::lock::{Guard, Lock};
use crate::objects::{CqSide, Qp, ReceiveSide, RqSide, SendSide, SrqSide};
use crate::poll;

/// Result of a CQE.
pub(crate) enum Outcome {
    /// A request is over.
    Done { wr_id: u64, status: ibv_wc_status },
    /// The program need not know: a receive that met a page fault was posted again.
    Hidden,
    /// It is taken later: another thread builds a batch on its queue.
    Waits,
    /// No request of this process is over.
    Stray,
}

impl Outcome {
    /// Returns the result of a CQE that ends the request with this `wr_id`, if there is one.
    #[inline(always)]
    fn of(wr_id: Option<u64>, status: ibv_wc_status) -> Self {
        wr_id.map_or(Self::Stray, |wr_id| Self::Done { wr_id, status })
    }
}

/// A queue whose requests are over with a CQE.
pub(crate) trait Side: Sized {
    /// Whether several queue pairs may have one such queue.
    const IS_SHARED: bool;

    /// Returns the queue that `qp` posts to.
    fn of(qp: &Qp) -> Option<&Lock<Option<Self>>>;

    /// Locks the queue for a poller, which locks one at a time. Returns `None` if another thread builds a batch, because that
    /// thread may wait for the poller.
    #[inline(always)]
    fn lock(lock: &Lock<Option<Self>>) -> Option<Guard<'_, Option<Self>>> {
        Some(lock.lock())
    }

    /// Returns `true` if CQEs of this kind are of such queues.
    fn has(kind: CqeKind) -> bool;

    /// Returns the next CQE if it has arrived and is plain: a request of such a queue has succeeded, and its CQE has no payload.
    fn peek_plain(ring: &CompletionQueue) -> Option<Cqe<'_>>;

    /// Ends the request that a plain CQE names, and returns its `wr_id`; `None` if no such request is outstanding.
    fn complete_plain(&mut self, cqe: Cqe<'_>) -> Option<u64>;

    /// Ends the request that `cqe` names if it has succeeded, and returns its `wr_id`; `None` otherwise, and if no such request
    /// is outstanding.
    ///
    /// # Safety
    /// `cqe` is of this queue.
    unsafe fn complete_succeeded(&mut self, cqe: Cqe<'_>) -> Option<u64>;

    /// Writes what libmlx5 writes of a request that has succeeded, beside the fields of every completion.
    fn fill(wc: &mut ibv_wc, cqe: Cqe<'_>);

    /// Ends the request that `cqe` names.
    ///
    /// # Safety
    /// `cqe` is of this queue.
    unsafe fn complete(&mut self, cqe: Cqe<'_>) -> Outcome;
}

impl CqSide {
    /// Returns the queue pair of `cqe`, which is of this CQ.
    #[inline(always)]
    pub(crate) fn qp<'a>(&mut self, cqe: Cqe<'_>) -> Option<&'a Qp> {
        let qpn = cqe.qpn();
        match self.same_qp(qpn) {
            Some(qp) => Some(qp),
            None => self.other_qp(qpn),
        }
    }

    /// Returns the queue pair with this number, which is not that of the CQE before.
    #[inline(always)]
    pub(crate) fn other_qp<'a>(&mut self, qpn: u32) -> Option<&'a Qp> {
        // SAFETY: [record-lives] the CQ exists, so its context does.
        let qp = unsafe { &*self.qps }.get(qpn)?;
        (self.last, self.last_qpn) = (qp, Be32::new(qpn));
        Some(qp)
    }

    /// Returns the queue pair with this number if it is that of the CQE before.
    #[inline(always)]
    pub(crate) fn same_qp<'a>(&self, qpn: u32) -> Option<&'a Qp> {
        // SAFETY: [record-lives] `last` is that of a queue pair of this CQ, if it has a number that a CQE has.
        (Be32::new(qpn) == self.last_qpn).then(|| unsafe { &*self.last })
    }

    /// As [`complete`](Self::complete), if the request has succeeded and no other thread uses its queue; returns its `wr_id`.
    #[inline(always)]
    pub(crate) fn complete_succeeded(&mut self, cqe: Cqe<'_>) -> Option<u64> {
        let qp = self.qp(cqe)?;
        if SendSide::has(cqe.kind()) {
            complete_succeeded_one::<SendSide>(qp, cqe)
        } else if qp.srq.is_some() {
            complete_succeeded_one::<SrqSide>(qp, cqe)
        } else {
            complete_succeeded_one::<RqSide>(qp, cqe)
        }
    }

    /// Ends the request that `cqe`, which is of this CQ, names.
    #[inline(always)]
    pub(crate) fn complete(&mut self, cqe: Cqe<'_>) -> Outcome {
        let Some(qp) = self.qp(cqe) else { return Outcome::Stray };
        if SendSide::has(cqe.kind()) {
            complete_one::<SendSide>(qp, cqe)
        } else if qp.srq.is_some() {
            complete_one::<SrqSide>(qp, cqe)
        } else {
            complete_one::<RqSide>(qp, cqe)
        }
    }
}

/// Ends the request that `cqe`, which is plain and of a queue `S` of `qp`, names, unless another thread uses the queue; returns
/// its `wr_id`.
#[inline(always)]
pub(crate) fn complete_plain_one<S: Side>(qp: &Qp, cqe: Cqe<'_>) -> Option<u64> {
    S::of(qp)?.try_lock()?.as_mut()?.complete_plain(cqe)
}

#[inline(always)]
fn complete_succeeded_one<S: Side>(qp: &Qp, cqe: Cqe<'_>) -> Option<u64> {
    // SAFETY: `cqe` is of this queue.
    unsafe { S::of(qp)?.try_lock()?.as_mut()?.complete_succeeded(cqe) }
}

#[inline(always)]
fn complete_one<S: Side>(qp: &Qp, cqe: Cqe<'_>) -> Outcome {
    let Some(lock) = S::of(qp) else { return Outcome::Stray };
    let Some(mut guard) = S::lock(lock) else { return Outcome::Waits };
    match &mut *guard {
        // SAFETY: `cqe` is of this queue.
        Some(side) => unsafe { side.complete(cqe) },
        None => Outcome::Stray,
    }
}

/// A queue of receives.
pub(crate) trait Receives: ReceiveRing<Data = u64> + Sized {
    /// Whether it is an SRQ. Then libmlx5 posts a receive again that has met an on-demand page fault.
    const IS_SHARED: bool;

    /// The errno of libmlx5 for a request that has too many SGEs and finds the queue full.
    const FULL_AND_TOO_MANY_SGES: c_int;

    /// Returns the queue that `qp` receives from.
    fn of(qp: &Qp) -> Option<&Lock<Option<ReceiveSide<Self>>>>;
}

impl Receives for ReceiveQueue<u64> {
    const IS_SHARED: bool = false;
    const FULL_AND_TOO_MANY_SGES: c_int = libc::ENOMEM;

    #[inline(always)]
    fn of(qp: &Qp) -> Option<&Lock<Option<ReceiveSide<Self>>>> {
        Some(&qp.receive)
    }
}

impl Receives for SharedReceiveQueue<u64> {
    const IS_SHARED: bool = true;
    const FULL_AND_TOO_MANY_SGES: c_int = libc::EINVAL;

    #[inline(always)]
    fn of(qp: &Qp) -> Option<&Lock<Option<ReceiveSide<Self>>>> {
        qp.srq().map(|srq| &srq.side)
    }
}

impl<Q: Receives> Side for ReceiveSide<Q> {
    const IS_SHARED: bool = Q::IS_SHARED;

    #[inline(always)]
    fn of(qp: &Qp) -> Option<&Lock<Option<Self>>> {
        Q::of(qp)
    }

    #[inline(always)]
    fn has(kind: CqeKind) -> bool {
        kind != CqeKind::NotAReceive
    }

    #[inline(always)]
    fn peek_plain(ring: &CompletionQueue) -> Option<Cqe<'_>> {
        ring.peek_message()
    }

    #[inline(always)]
    fn complete_plain(&mut self, cqe: Cqe<'_>) -> Option<u64> {
        // SAFETY: no buffer waits: none is loaded, and only an SRQ recycles one, which it posts at once.
        unsafe { self.queue.complete_and_release(cqe.wqe_counter()) }
    }

    #[inline(always)]
    unsafe fn complete_succeeded(&mut self, cqe: Cqe<'_>) -> Option<u64> {
        match cqe.kind() {
            CqeKind::Send | CqeKind::Written => self.complete_plain(cqe),
            // SAFETY: `cqe` is of this queue. Verbs programs post memory of their own. See `complete_plain`.
            CqeKind::Inline => unsafe { complete_inline(&mut self.queue, cqe) },
            _ => None,
        }
    }

    #[inline(always)]
    fn fill(wc: &mut ibv_wc, cqe: Cqe<'_>) {
        poll::fill_received(wc, cqe);
    }

    #[inline(always)]
    unsafe fn complete(&mut self, cqe: Cqe<'_>) -> Outcome {
        if cqe.kind() != CqeKind::Failed {
            // SAFETY: `cqe` is of this queue.
            return Outcome::of(unsafe { self.complete_succeeded(cqe) }, IBV_WC_SUCCESS);
        }
        if Q::IS_SHARED && cqe.is_odp_page_fault() {
            let Some(slot) = self.queue.complete(cqe.wqe_counter()) else {
                return Outcome::Stray;
            };
            // To the program its buffer still belongs to the device.
            // SAFETY: the slot is held, and its buffer is as it was posted.
            unsafe { self.queue.recycle(slot) };
            self.queue.ring_doorbell();
            return Outcome::Hidden;
        }
        Outcome::of(self.complete_plain(cqe), cqe.syndrome().status())
    }
}

impl Side for SendSide {
    const IS_SHARED: bool = false;

    #[inline(always)]
    fn of(qp: &Qp) -> Option<&Lock<Option<Self>>> {
        Some(&qp.send)
    }

    #[inline(always)]
    fn lock(lock: &Lock<Option<Self>>) -> Option<Guard<'_, Option<Self>>> {
        // SAFETY: [batch] this thread has no reference to the queue.
        unsafe { lock.lock_unless_kept() }
    }

    #[inline(always)]
    fn has(kind: CqeKind) -> bool {
        kind == CqeKind::NotAReceive
    }

    #[inline(always)]
    fn peek_plain(ring: &CompletionQueue) -> Option<Cqe<'_>> {
        ring.peek_requester()
    }

    #[inline(always)]
    fn complete_plain(&mut self, cqe: Cqe<'_>) -> Option<u64> {
        let request = self.queue.complete_named(cqe.wqe_counter())?;
        self.retired = request.number.wrapping_add(1);
        Some(request.wr_id)
    }

    #[inline(always)]
    unsafe fn complete_succeeded(&mut self, cqe: Cqe<'_>) -> Option<u64> {
        let is_sent = cqe.opcode() == CqeOpcode::Requester;
        // SAFETY: `cqe` is of this queue. Verbs programs post memory of their own.
        if cqe.is_plain_requester() || is_sent && unsafe { self.queue.scatter_inline(cqe) } {
            self.complete_plain(cqe)
        } else {
            None
        }
    }

    #[inline(always)]
    fn fill(wc: &mut ibv_wc, cqe: Cqe<'_>) {
        poll::fill_sent(wc, cqe);
    }

    #[inline(always)]
    unsafe fn complete(&mut self, cqe: Cqe<'_>) -> Outcome {
        // SAFETY: `cqe` is of this queue.
        if let Some(wr_id) = unsafe { self.complete_succeeded(cqe) } {
            return Outcome::Done { wr_id, status: IBV_WC_SUCCESS };
        }
        let status = match cqe.opcode() {
            // Its payload had no place.
            CqeOpcode::Requester if !cqe.is_plain_requester() => IBV_WC_GENERAL_ERR,
            CqeOpcode::RequesterError => cqe.syndrome().status(),
            _ => return Outcome::Stray,
        };
        Outcome::of(self.complete_plain(cqe), status)
    }
}
