//! The completion of requests by a CQE.

use core::ffi::c_int;
use core::hint;

use mlx5_ring::completion::{Cqe, CqeKind};
use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::receive::ReceiveRing;
use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::srq::SharedReceiveQueue;
use mlx5_wire::be::Be32;
use mlx5_wire::opcode::CqeOpcode;
use rdma_core_sys::{IBV_WC_GENERAL_ERR, IBV_WC_SUCCESS, ibv_wc, ibv_wc_status};

use crate::objects::{CqSide, Qp, SendCompleter, SrqSide};
use crate::wc;

/// Result of a CQE.
pub(crate) enum Outcome {
    /// A request is over.
    Done { wr_id: u64, status: ibv_wc_status },
    /// The program need not know: a receive that met a page fault was posted again.
    Hidden,
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

/// Returns `true` if CQEs of this kind are of send queues.
pub(crate) fn is_sent(kind: CqeKind) -> bool {
    kind == CqeKind::NotAReceive
}

/// A form of CQEs of requests that have succeeded. Most polls find completions of one form: functions for each take them without a
/// test of it.
pub(crate) trait Form {
    /// Returns the next CQE, if it has arrived and has this form.
    fn peek(ring: &CompletionQueue) -> Option<Cqe<'_>>;

    /// Ends the request that `cqe` names, and returns its `wr_id`. `None` if no such request is outstanding, or another thread uses its
    /// SRQ.
    ///
    /// # Safety
    /// [polled] The CQE has this form.
    unsafe fn complete(qp: &Qp, cqe: Cqe<'_>) -> Option<u64>;

    /// Writes what libmlx5 writes beside the fields of every completion.
    fn fill(wc: &mut ibv_wc, cqe: Cqe<'_>);
}

/// A message: in the CQE if `INLINE`, else in the posted buffers or written elsewhere.
pub(crate) enum Message<const INLINE: bool> {}

/// A send that has left nothing in the CQE.
pub(crate) enum Request {}

impl<const INLINE: bool> Message<INLINE> {
    /// Returns `true` if CQEs of this kind have this form.
    #[inline(always)]
    pub(crate) const fn has(kind: CqeKind) -> bool {
        match kind {
            CqeKind::Send | CqeKind::Written => !INLINE,
            CqeKind::Inline => INLINE,
            _ => false,
        }
    }
}

impl<const INLINE: bool> Form for Message<INLINE> {
    #[inline(always)]
    fn peek(ring: &CompletionQueue) -> Option<Cqe<'_>> {
        ring.peek_if(Self::has).ok()
    }

    #[inline(always)]
    unsafe fn complete(qp: &Qp, cqe: Cqe<'_>) -> Option<u64> {
        // SAFETY: [polled] The CQE has this form. The compiler leaves the code for others out.
        unsafe {
            hint::assert_unchecked(INLINE == (cqe.kind() == CqeKind::Inline));
            qp.complete_receive(cqe)
        }
    }

    #[inline(always)]
    fn fill(wc: &mut ibv_wc, cqe: Cqe<'_>) {
        wc::fill_received(wc, cqe);
    }
}

impl Form for Request {
    #[inline(always)]
    fn peek(ring: &CompletionQueue) -> Option<Cqe<'_>> {
        ring.peek_requester()
    }

    #[inline(always)]
    unsafe fn complete(qp: &Qp, cqe: Cqe<'_>) -> Option<u64> {
        // SAFETY: [polled].
        unsafe { qp.send_completer.complete(cqe) }
    }

    #[inline(always)]
    fn fill(wc: &mut ibv_wc, cqe: Cqe<'_>) {
        wc::fill_sent(wc, cqe);
    }
}

impl CqSide {
    /// Returns the queue pair of `cqe`, which is of this CQ.
    #[inline(always)]
    pub(crate) fn qp<'a>(&mut self, cqe: Cqe<'_>) -> Option<&'a Qp> {
        let qpn = cqe.qpn();
        if Be32::new(qpn) != self.last_qpn {
            // SAFETY: [record-lives] the CQ exists, so its context does.
            self.last = unsafe { &*self.qps }.get(qpn)?.into();
            self.last_qpn = Be32::new(qpn);
        }
        // SAFETY: [record-lives] `last` is that of a queue pair of this CQ, because it has a number that a CQE has.
        Some(unsafe { self.last.as_ref() })
    }
}

impl Qp {
    /// Ends the receive that a message completes, and returns its `wr_id`. `None` if no such receive is outstanding, or another thread
    /// uses the SRQ.
    ///
    /// # Safety
    /// [polled]
    #[inline(always)]
    pub(crate) unsafe fn complete_receive(&self, cqe: Cqe<'_>) -> Option<u64> {
        // SAFETY: [polled]. Verbs programs post memory of their own.
        unsafe {
            match self.receive_completer.get() {
                Some(completer) => completer.complete(cqe),
                None => self.srq()?.side.try_lock()?.as_mut()?.complete(cqe),
            }
        }
    }

    /// Ends the request that `cqe`, of any form, names.
    ///
    /// # Safety
    /// [polled]
    pub(crate) unsafe fn complete_any(&self, cqe: Cqe<'_>) -> Outcome {
        // SAFETY: [polled].
        unsafe {
            if is_sent(cqe.kind()) {
                return self.send_completer.complete_any(cqe);
            }
            let Some(completer) = self.receive_completer.get() else {
                let Some(srq) = self.srq() else { return Outcome::Stray };
                return srq
                    .side
                    .lock()
                    .as_mut()
                    .map_or(Outcome::Stray, |side| side.complete_any(cqe));
            };
            match cqe.kind() {
                CqeKind::Send | CqeKind::Written | CqeKind::Inline => {
                    Outcome::of(completer.complete(cqe), IBV_WC_SUCCESS)
                }
                CqeKind::Failed => Outcome::of(completer.complete(cqe), cqe.syndrome().status()),
                _ => Outcome::Stray,
            }
        }
    }
}

impl SendCompleter {
    /// Ends the request that `cqe` names, and those before it; returns its `wr_id`, or `None` if no such request is outstanding.
    ///
    /// # Safety
    /// [polled]
    #[inline(always)]
    pub(crate) unsafe fn complete(&self, cqe: Cqe<'_>) -> Option<u64> {
        // SAFETY: [polled].
        let request = unsafe { self.completer.get()?.complete(&self.progress, cqe.wqe_counter()) }?;
        self.retire(request.number.wrapping_add(1));
        Some(request.wr_id)
    }

    /// As [`complete`](Self::complete), for a CQE of any form.
    ///
    /// # Safety
    /// [polled]
    unsafe fn complete_any(&self, cqe: Cqe<'_>) -> Outcome {
        let is_plain = cqe.is_plain_requester();
        // SAFETY: [polled]. Verbs programs post memory of their own.
        unsafe {
            let status = match cqe.opcode() {
                CqeOpcode::Requester if is_plain || self.scatter_inline(cqe) => IBV_WC_SUCCESS,
                // Its payload had no place.
                CqeOpcode::Requester => IBV_WC_GENERAL_ERR,
                CqeOpcode::RequesterError => cqe.syndrome().status(),
                _ => return Outcome::Stray,
            };
            Outcome::of(self.complete(cqe), status)
        }
    }

    /// Copies what a READ or an atomic has brought inside its CQE; returns `false` if there is nothing, or no such request.
    ///
    /// # Safety
    /// [polled]
    unsafe fn scatter_inline(&self, cqe: Cqe<'_>) -> bool {
        // SAFETY: [polled].
        self.completer
            .get()
            .is_some_and(|completer| unsafe { completer.scatter_inline(&self.progress, cqe) })
    }
}

impl SrqSide {
    /// As [`Qp::complete_receive`].
    ///
    /// # Safety
    /// `cqe` is of this queue.
    #[inline(always)]
    unsafe fn complete(&mut self, cqe: Cqe<'_>) -> Option<u64> {
        // SAFETY: no buffer is loaded: a receive that is recycled is posted at once. `cqe` is of this queue. Verbs programs post memory
        // of their own.
        unsafe { self.queue.complete_and_release(cqe) }
    }

    /// As [`Qp::complete_any`].
    ///
    /// # Safety
    /// `cqe` is of this queue.
    unsafe fn complete_any(&mut self, cqe: Cqe<'_>) -> Outcome {
        let status = match cqe.kind() {
            CqeKind::Send | CqeKind::Written | CqeKind::Inline => IBV_WC_SUCCESS,
            // libmlx5 posts a receive of an SRQ again that has met an on-demand page fault.
            CqeKind::Failed if cqe.is_odp_page_fault() => {
                let Some(slot) = self.queue.complete(cqe.wqe_counter()) else {
                    return Outcome::Stray;
                };
                // To the program its buffer still belongs to the device.
                // SAFETY: the slot is held, and its buffer is as it was posted.
                unsafe { self.queue.recycle(slot) };
                self.queue.ring_doorbell();
                return Outcome::Hidden;
            }
            CqeKind::Failed => cqe.syndrome().status(),
            _ => return Outcome::Stray,
        };
        // SAFETY: `cqe` is of this queue.
        Outcome::of(unsafe { self.complete(cqe) }, status)
    }
}

/// A queue of receives.
pub(crate) trait Receives: ReceiveRing<Data = u64> + Sized {
    /// Whether it is an SRQ, whose record is found only if doorbell drives it.
    const IS_SHARED: bool;

    /// The errno of libmlx5 for a request that has too many SGEs and finds the queue full.
    const FULL_AND_TOO_MANY_SGES: c_int;
}

impl Receives for ReceiveQueue<u64, true> {
    const IS_SHARED: bool = false;
    const FULL_AND_TOO_MANY_SGES: c_int = libc::ENOMEM;
}

impl Receives for SharedReceiveQueue<u64> {
    const IS_SHARED: bool = true;
    const FULL_AND_TOO_MANY_SGES: c_int = libc::EINVAL;
}
