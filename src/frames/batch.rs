//! Receiving frames: a batch of completions whose frames are lent in place.

use mlx5_ring::completion::{Cqe, CqeKind};
use mlx5_ring::receive::ReceiveRing as _;
use mlx5_ring::striding::{Completion, Place};
use rdma_core_sys as sys;

use super::frame::Frame;
use super::queue::FrameQueue;
use super::{EndedSlot, FrameReceiver};
use crate::poller::Poller;
use crate::receiver::{Cause, Failure, wc_status};
use crate::status::WcStatus;

/// Completions that one batch takes at most, unless asked otherwise.
const BUDGET: u32 = 64;

impl FrameReceiver {
    /// Takes what has arrived, at most 64 frames: see [`poll_up_to`](Self::poll_up_to).
    #[inline]
    pub fn poll(&mut self) -> FrameBatch<'_> {
        self.poll_up_to(BUDGET)
    }

    /// Takes what has arrived, at most `budget` frames.
    ///
    /// The batch lends each frame in place. When it is dropped, the CQEs are given back, and the buffers that are free
    /// again are posted with one doorbell.
    #[inline]
    pub fn poll_up_to(&mut self, budget: u32) -> FrameBatch<'_> {
        FrameBatch { receiver: self, left: budget }
    }
}

/// Frames that have arrived. Ends when it is dropped. It is no `Iterator`, for the reason that [`Batch`](crate::Batch) is
/// none: loop with `while let`.
///
/// ```no_run
/// # fn run(receiver: &mut doorbell::FrameReceiver) -> Result<(), Box<dyn std::error::Error>> {
/// let mut batch = receiver.poll_up_to(32);
/// while let Some(frame) = batch.next() {
///     println!("{} bytes", frame?.len());
/// }
/// # Ok(())
/// # }
/// ```
pub struct FrameBatch<'a> {
    receiver: &'a mut FrameReceiver,
    /// Frames that it may still take.
    left: u32,
}

impl FrameBatch<'_> {
    /// Returns the next frame, or what failed; `None` when nothing has arrived or the budget is used up. The memory of the
    /// frame before is the device's again, unless it was taken.
    ///
    /// # Errors
    /// [`Failure`]: of a frame that is longer than its buffer ([`WcStatus::LOC_LEN_ERR`]), after which the next frames
    /// come; or of the receive queue, which is in the error state then, and what is posted fails, too: make another
    /// receiver.
    #[expect(clippy::should_implement_trait, reason = "the item borrows from the batch")]
    #[inline(always)]
    pub fn next(&mut self) -> Option<Result<Frame<'_>, Failure>> {
        self.left = self.left.checked_sub(1)?;
        if let Poller::Direct(direct) = &mut self.receiver.poller {
            // SAFETY: the frame that shows the CQE borrows the batch, which publishes the consumer index when it ends.
            let cqe = unsafe { direct.cq.peek()?.detach() };
            if cqe.kind() == CqeKind::Send {
                if let Some(place) = complete(&mut self.receiver.queue, cqe) {
                    direct.cq.advance();
                    return Some(Ok(self.receiver.lend(place, Some(cqe))));
                }
            }
        }
        self.receiver.next_other()
    }
}

/// Completes the strides, or the receive, of a frame. Returns `None` for all else, of which nothing was completed.
#[inline(always)]
fn complete(queue: &mut FrameQueue, cqe: Cqe<'_>) -> Option<Place> {
    match queue {
        FrameQueue::Striding { ring, .. } if !cqe.stride_count().is_filler() => {
            match ring.complete(cqe) {
                Completion::Frame(place) => Some(place),
                _ => None,
            }
        }
        FrameQueue::Plain { ring, .. } => {
            let slot = ring.complete(cqe.wqe_counter())?;
            Some(Place { slot, offset: 0, len: cqe.byte_count(), is_last: true })
        }
        _ => None,
    }
}

impl Drop for FrameBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.receiver.end_batch();
    }
}

impl FrameReceiver {
    /// Lends the frame at a place that was completed just now.
    #[inline(always)]
    fn lend<'b>(&'b mut self, place: Place, cqe: Option<Cqe<'b>>) -> Frame<'b> {
        let Place { slot, offset, len, is_last } = place;
        // SAFETY: it is posted or held.
        let posted = unsafe { self.queue.posted(slot) };
        self.give_back();
        if is_last {
            self.ended = EndedSlot::new(slot);
        }
        let dropped = std::mem::take(&mut self.dropped);
        // What the device reports is not trusted: strides are inside of the buffer, a plain length may not be.
        let len = len.min(self.buffers.bytes() - offset) as usize;
        // SAFETY: inside the buffer.
        let start = unsafe { posted.start.add(offset as usize) };
        Frame { start, len, buffer: posted.index, dropped, cqe, receiver: self }
    }

    /// Gives the slot back that ended with the frame before: posts its buffer again, or another one if frames were taken
    /// out of it.
    #[inline(always)]
    fn give_back(&mut self) {
        if let Some(slot) = self.ended.replace(EndedSlot::NONE) {
            // SAFETY: [ended-held].
            let posted = unsafe { self.queue.posted(slot) };
            if self.buffers.is_whole(posted.index) {
                // SAFETY: [ended-held], and nobody uses its buffer: who was lent a frame of it has borrowed the receiver.
                unsafe { self.queue.recycle(slot) };
            } else {
                self.exchange(slot);
            }
        }
    }

    /// Gives a held slot back with another buffer, or without one.
    #[cold]
    fn exchange(&mut self, slot: u32) {
        // SAFETY: the slot is held, here and below.
        let posted = unsafe { self.queue.posted(slot) };
        match self.buffers.take_spare() {
            // SAFETY: nobody has the spare buffer.
            Some(buffer) => unsafe { self.queue.replace(slot, buffer, &self.buffers) },
            None => {
                // SAFETY: as above.
                unsafe { self.queue.release(slot) };
                self.starving = true;
            }
        }
        self.buffers.put(posted);
    }

    /// Publishes the consumer index, then rings for what was given back: the receives that the doorbell hands over need the
    /// room on the CQ. A batch that was forgotten left that to this.
    #[inline(never)]
    pub(super) fn end_batch(&mut self) {
        if let Poller::Direct(direct) = &mut self.poller {
            direct.cq.publish();
        }
        self.give_back();
        if self.starving && !self.failed {
            self.queue.fill(&mut self.buffers);
            self.starving = self.queue.free_slots() > 0;
        }
        self.queue.ring_doorbell(&self.buffers);
    }

    /// Takes the next completion, whatever it is.
    #[inline(never)]
    fn next_other(&mut self) -> Option<Result<Frame<'_>, Failure>> {
        loop {
            let Poller::Direct(direct) = &mut self.poller else { return self.next_verbs() };
            // SAFETY: as in `FrameBatch::next`.
            let cqe = unsafe { direct.cq.next()?.detach() };
            let completion = self.queue.complete(cqe);
            if let Completion::Frame(place) = completion {
                return Some(Ok(self.lend(place, Some(cqe))));
            }
            self.give_back();
            match completion {
                Completion::Filler(slot) => {
                    self.dropped += u32::from(cqe.dropped());
                    if let Some(slot) = slot {
                        self.ended = EndedSlot::new(slot);
                    }
                }
                Completion::Failed(slot) => {
                    let status = WcStatus::from_raw(wc_status(cqe.syndrome()));
                    let vendor_err = cqe.vendor_err_synd().into();
                    return Some(Err(self.fail(slot, Cause::Status(status), vendor_err)));
                }
                Completion::NotAReceive => return Some(Err(self.failure(Cause::NotAReceive, 0))),
                _ => return Some(Err(self.failure(Cause::Stray, 0))),
            }
        }
    }

    /// Takes the next completion through verbs.
    fn next_verbs(&mut self) -> Option<Result<Frame<'_>, Failure>> {
        let (Poller::Verbs(cq), FrameQueue::Verbs(verbs)) = (&mut self.poller, &mut self.queue)
        else {
            return None;
        };
        let sys::ibv_wc { wr_id, status, byte_len, vendor_err, .. } = cq.next()?.wc;
        let slot = verbs.complete(wr_id);
        self.give_back();
        let Some(slot) = slot else { return Some(Err(self.failure(Cause::Stray, 0))) };
        if status != sys::IBV_WC_SUCCESS {
            let cause = Cause::Status(WcStatus::from_raw(status));
            return Some(Err(self.fail(slot, cause, vendor_err)));
        }
        let place = Place { slot, offset: 0, len: byte_len, is_last: true };
        Some(Ok(self.lend(place, None)))
    }

    /// Takes note that the receive in a slot, which is held, failed.
    fn fail(&mut self, slot: u32, cause: Cause, vendor_err: u32) -> Failure {
        if cause == Cause::Status(WcStatus::LOC_LEN_ERR) {
            // The frame was too long for its buffer, and the queue goes on; if it does not, the buffer comes back flushed.
            self.ended = EndedSlot::new(slot);
            return self.failure(cause, vendor_err);
        }
        // A queue that has failed takes no buffers.
        self.failed = true;
        // SAFETY: the slot is held, here and below.
        let posted = unsafe { self.queue.posted(slot) };
        // SAFETY: as above.
        unsafe { self.queue.release(slot) };
        self.buffers.put(posted);
        self.failure(cause, vendor_err)
    }

    fn failure(&self, cause: Cause, vendor_err: u32) -> Failure {
        Failure { qp_num: self.qp_num(), cause, vendor_err, buffers: Vec::new() }
    }
}
