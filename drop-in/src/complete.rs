//! What a CQE means for the queue that it names.

use core::ffi::c_int;
use core::ptr;

use mlx5_ring::completion::{Cqe, CqeKind};
use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::receive::{Completion, ReceiveRing, complete};
use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::srq::SharedReceiveQueue;
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::syndrome::Syndrome;
use rdma_core_sys::{IBV_WC_GENERAL_ERR, IBV_WC_SUCCESS, ibv_wc, ibv_wc_status};

use crate::context;
use crate::lock::{Guard, Lock};
use crate::objects::{Cq, CqSide, Qp, ReceiveSide, RqSide, SendSide, SrqSide};
use crate::poll;

/// What became of a CQE.
pub(crate) enum Outcome {
    /// A request is over.
    Done { wr_id: u64, status: ibv_wc_status },
    /// The program need not know: a receive that met a page fault was posted again, or the queue pair is being destroyed.
    Hidden,
    /// No request of this process is over.
    Stray,
}

/// A queue whose requests are over with a CQE.
pub(crate) trait Side: Sized {
    /// Returns the queue that `qp` posts to.
    fn of(qp: &Qp) -> Option<&Lock<Option<Self>>>;

    /// Locks the queue for a poller, which locks one at a time.
    #[inline(always)]
    fn lock(lock: &Lock<Option<Self>>) -> Guard<'_, Option<Self>> {
        lock.lock()
    }

    /// Returns `true` if CQEs of this kind are of such queues.
    fn has(kind: CqeKind) -> bool;

    /// Returns the next CQE if it has arrived and is of the most common form: a request has succeeded, and left nothing in
    /// the CQE.
    fn peek_plain(ring: &CompletionQueue) -> Option<Cqe<'_>>;

    /// Ends the request that such a CQE names, and returns its `wr_id`; `None` if no such request is outstanding.
    fn complete_plain(&mut self, cqe: Cqe<'_>) -> Option<u64>;

    /// Writes the fields of such a CQE that libmlx5 writes beside those of every completion.
    fn fill_plain(wc: &mut ibv_wc, cqe: Cqe<'_>);

    /// Ends the request that `cqe` names.
    ///
    /// # Safety
    /// `cqe` is of this queue.
    unsafe fn complete(&mut self, cqe: Cqe<'_>) -> Outcome;

    /// Writes the fields that libmlx5 writes beside those of every completion.
    fn fill(wc: &mut ibv_wc, cqe: Cqe<'_>);
}

impl CqSide {
    /// Returns the queue pair of a CQE of the CQ of `record`.
    #[inline(always)]
    pub(crate) fn qp<'a>(&mut self, record: &'a Cq, qpn: u32) -> Option<&'a Qp> {
        // SAFETY: [record-lives] `last` is null or that of a queue pair of this CQ.
        match unsafe { self.last.as_ref() } {
            Some(last) if last.qpn == qpn => Some(last),
            _ => {
                // SAFETY: [record-lives].
                let context = unsafe { context::of((*record.ibv).context) };
                let qp = context.qps.get(qpn)?;
                self.last = ptr::from_ref(qp);
                Some(qp)
            }
        }
    }

    /// Ends the request that the next CQE names if that is of the most common form and of the queue pair of the CQE before;
    /// returns the CQE, which was not taken, and the `wr_id`.
    #[inline(always)]
    pub(crate) fn complete_plain(&mut self) -> Option<(Cqe<'_>, u64)> {
        #[inline(always)]
        fn plain<'a, S: Side>(qp: &Qp, cqe: Cqe<'a>) -> Option<(Cqe<'a>, u64)> {
            let wr_id = S::lock(S::of(qp)?).as_mut()?.complete_plain(cqe)?;
            Some((cqe, wr_id))
        }
        // SAFETY: [record-lives] `last` is null or that of a queue pair of this CQ.
        let qp = unsafe { self.last.as_ref() }?;
        match self.ring.peek_send() {
            Some(cqe) if cqe.qpn() != qp.qpn => None,
            Some(cqe) if qp.srq.is_some() => plain::<SrqSide>(qp, cqe),
            Some(cqe) => plain::<RqSide>(qp, cqe),
            None => {
                let cqe = self.ring.peek_requester()?;
                if cqe.qpn() == qp.qpn { plain::<SendSide>(qp, cqe) } else { None }
            }
        }
    }

    /// Ends the request that `cqe`, which is of the CQ of `record`, names.
    pub(crate) fn complete(&mut self, record: &Cq, cqe: Cqe<'_>) -> Outcome {
        let Some(qp) = self.qp(record, cqe.qpn()) else { return Outcome::Stray };
        if SendSide::has(cqe.kind()) {
            complete_one::<SendSide>(qp, cqe)
        } else if qp.srq.is_some() {
            complete_one::<SrqSide>(qp, cqe)
        } else {
            complete_one::<RqSide>(qp, cqe)
        }
    }
}

fn complete_one<S: Side>(qp: &Qp, cqe: Cqe<'_>) -> Outcome {
    let Some(lock) = S::of(qp) else { return Outcome::Stray };
    match &mut *S::lock(lock) {
        // SAFETY: the queue that the CQE names.
        Some(side) => unsafe { side.complete(cqe) },
        // The queue pair is being destroyed.
        None => Outcome::Hidden,
    }
}

/// A queue of receives.
pub(crate) trait Receives: ReceiveRing<Data = u64> + Sized {
    /// Whether libmlx5 posts a receive again that has met an on-demand page fault.
    const HIDES_PAGE_FAULTS: bool;

    /// The errno of libmlx5 for a request that has too many SGEs and finds the queue full.
    const FULL_AND_TOO_MANY_SGES: c_int;

    /// Returns the queue that `qp` receives from.
    fn of(qp: &Qp) -> Option<&Lock<Option<ReceiveSide<Self>>>>;
}

impl Receives for ReceiveQueue<u64> {
    const HIDES_PAGE_FAULTS: bool = false;
    const FULL_AND_TOO_MANY_SGES: c_int = libc::ENOMEM;

    #[inline(always)]
    fn of(qp: &Qp) -> Option<&Lock<Option<ReceiveSide<Self>>>> {
        Some(&qp.receive)
    }
}

impl Receives for SharedReceiveQueue<u64> {
    const HIDES_PAGE_FAULTS: bool = true;
    const FULL_AND_TOO_MANY_SGES: c_int = libc::EINVAL;

    #[inline(always)]
    fn of(qp: &Qp) -> Option<&Lock<Option<ReceiveSide<Self>>>> {
        qp.srq().map(|srq| &srq.side)
    }
}

impl<Q: Receives> Side for ReceiveSide<Q> {
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
        ring.peek_send()
    }

    #[inline(always)]
    fn complete_plain(&mut self, cqe: Cqe<'_>) -> Option<u64> {
        self.queue.complete_and_release(cqe.wqe_counter())
    }

    #[inline(always)]
    fn fill_plain(wc: &mut ibv_wc, cqe: Cqe<'_>) {
        poll::fill_message(wc, cqe);
    }

    #[inline(never)]
    unsafe fn complete(&mut self, cqe: Cqe<'_>) -> Outcome {
        let queue = &mut self.queue;
        // SAFETY: the caller's contract. Verbs programs post memory of their own.
        let (slot, status) = match unsafe { complete(queue, cqe) } {
            Completion::Message(slot) => (slot, IBV_WC_SUCCESS),
            Completion::Failed(slot) if Q::HIDES_PAGE_FAULTS && cqe.is_odp_page_fault() => {
                // Its buffer is still the device's as far as the program knows.
                // SAFETY: the slot is held, and its buffer is as it was posted.
                unsafe { queue.recycle(slot) };
                queue.ring_doorbell();
                return Outcome::Hidden;
            }
            Completion::Failed(slot) => (slot, status_of(cqe.syndrome())),
            Completion::NotAReceive | Completion::Stray => return Outcome::Stray,
        };
        // SAFETY: the slot is held.
        unsafe {
            let wr_id = queue.data(slot);
            queue.release(slot);
            Outcome::Done { wr_id, status }
        }
    }

    #[inline(always)]
    fn fill(wc: &mut ibv_wc, cqe: Cqe<'_>) {
        poll::fill_receive(wc, cqe);
    }
}

impl Side for SendSide {
    #[inline(always)]
    fn of(qp: &Qp) -> Option<&Lock<Option<Self>>> {
        Some(&qp.send)
    }

    #[inline(always)]
    fn lock(lock: &Lock<Option<Self>>) -> Guard<'_, Option<Self>> {
        // SAFETY: [batch].
        unsafe { lock.lock_or_reenter() }
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
    fn fill_plain(wc: &mut ibv_wc, cqe: Cqe<'_>) {
        poll::fill_sent(wc, cqe);
    }

    #[inline(never)]
    unsafe fn complete(&mut self, cqe: Cqe<'_>) -> Outcome {
        let status = match cqe.opcode() {
            CqeOpcode::Requester if cqe.is_plain_requester() => IBV_WC_SUCCESS,
            // SAFETY: the caller's contract. Verbs programs post memory of their own.
            CqeOpcode::Requester if unsafe { self.queue.scatter_inline(cqe) } => IBV_WC_SUCCESS,
            CqeOpcode::Requester => IBV_WC_GENERAL_ERR,
            CqeOpcode::RequesterError => status_of(cqe.syndrome()),
            _ => return Outcome::Stray,
        };
        match self.complete_plain(cqe) {
            Some(wr_id) => Outcome::Done { wr_id, status },
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
