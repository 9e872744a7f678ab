//! Receiving frames: a batch of completions whose frames are lent in place.

use std::hint::unreachable_unchecked;

use mlx5_ring::completion::{Cqe, SEND};
use mlx5_ring::frames::{Completion, Frame as Place};
use rdma_core_sys as sys;

use super::FrameReceiver;
use super::frame::Frame;
use super::queue::{DirectFrames, Queue};
use crate::cq::{DirectCq, Poller};
use crate::receiver::{Cause, Failure};
use crate::status::WcStatus;

/// Completions that one batch takes at most, unless asked otherwise.
const BUDGET: u32 = 64;

impl FrameReceiver {
    /// Returns the next frame or failure, or `None` if nothing has arrived.
    ///
    /// Use it where frames are handled one at a time. The call that finds nothing frees the CQEs and posts the free
    /// buffers, so that no frame waits for that. The call after every 16 frames, or a quarter of the WQEs of the
    /// queue, does so, too. A program that handles bursts uses [`poll`](Self::poll).
    ///
    /// ```no_run
    /// # fn run(receiver: &mut doorbell::frames::FrameReceiver) -> Result<(), Box<dyn std::error::Error>> {
    /// loop {
    ///     if let Some(frame) = receiver.next() {
    ///         println!("{} bytes", frame?.len());
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`FrameBatch::next`].
    #[expect(clippy::should_implement_trait, reason = "the item borrows from the receiver")]
    #[inline(always)]
    pub fn next(&mut self) -> Option<Result<Frame<'_>, Failure>> {
        let Self { cq, queue, is_shared, .. } = &mut *self;
        if let Queue::Direct(DirectFrames { ring, .. }) = queue {
            let Poller::Direct(DirectCq { cq, .. }) = &mut cq.poller else {
                // SAFETY: [paths].
                unsafe { unreachable_unchecked() }
            };
            if !cq.is_at_stop() {
                // SAFETY: the frame that shows the CQE borrows the receiver, which publishes the consumer index in a
                // later call.
                if let Some(cqe) = cq.peek_only(SEND).map(|cqe| unsafe { cqe.detach() }) {
                    if let Some(frame) = ring.frame(cqe) {
                        // SAFETY: it was asked above.
                        unsafe { cq.advance_before_stop() }
                        return Some(Ok(self.lend(frame, Some(cqe), 0)));
                    }
                } else if cq.is_empty() {
                    // With every buffer whole, nothing is held that was published.
                    if cq.unpublished() > 0 || *is_shared {
                        self.upkeep();
                    }
                    return None;
                }
            }
        }
        self.upkeep();
        self.next_other()
    }

    /// Polls at most 64 frames, see [`poll_up_to`](Self::poll_up_to).
    #[inline]
    pub fn poll(&mut self) -> FrameBatch<'_> {
        self.poll_up_to(BUDGET)
    }

    /// Polls at most `budget` frames.
    ///
    /// The batch lends each frame in place. Dropping the batch frees the CQEs and posts the free buffers with one
    /// doorbell.
    #[inline]
    pub fn poll_up_to(&mut self, budget: u32) -> FrameBatch<'_> {
        FrameBatch { receiver: self, left: budget }
    }
}

/// Frames that have arrived, from [`FrameReceiver::poll`](crate::frames::FrameReceiver::poll). Dropping it ends the
/// batch. Like [`Batch`](crate::Batch) it is not an `Iterator`: loop with `while let`.
///
/// ```no_run
/// # fn run(receiver: &mut doorbell::frames::FrameReceiver) -> Result<(), Box<dyn std::error::Error>> {
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
    /// Returns the next frame or failure, or `None` if no frame is left or the budget is used.
    ///
    /// # Errors
    /// [`Failure`] with [`WcStatus::LOC_LEN_ERR`] if a frame is longer than its buffer; later frames still arrive.
    /// Any other failure puts the receive queue into the error state, and all its receives fail: create another
    /// receiver.
    #[expect(clippy::should_implement_trait, reason = "the item borrows from the batch")]
    #[inline(always)]
    pub fn next(&mut self) -> Option<Result<Frame<'_>, Failure>> {
        self.left = self.left.checked_sub(1)?;
        let FrameReceiver { cq, queue, .. } = &mut *self.receiver;
        if let Poller::Direct(direct) = &mut cq.poller {
            // SAFETY: the frame that shows the CQE borrows the batch, which publishes the consumer index when it ends.
            let next = direct.cq.peek_only(SEND).map(|cqe| unsafe { cqe.detach() });
            if let (Some(cqe), Queue::Direct(DirectFrames { ring, .. })) = (next, queue) {
                if let Some(frame) = ring.frame(cqe) {
                    direct.cq.advance();
                    return Some(Ok(self.receiver.lend(frame, Some(cqe), 0)));
                }
            }
        }
        self.receiver.next_other()
    }
}

impl Drop for FrameBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.receiver.end_batch();
    }
}

impl FrameReceiver {
    /// Lends a frame that was completed just now.
    #[inline(always)]
    fn lend<'b>(&'b mut self, frame: Place, cqe: Option<Cqe<'b>>, dropped: u32) -> Frame<'b> {
        let Place { wqe, start, len } = frame;
        Frame { start, len, wqe, dropped, cqe, receiver: self }
    }

    /// Publishes the consumer index, then rings for what was read. A forgotten batch leaves both to the next call, and
    /// [`next`](Self::next) to a later one.
    #[inline(always)]
    pub(super) fn end_batch(&mut self) {
        if self.cq.poller.has_unpublished() || self.queue.has_unposted() {
            self.upkeep();
        }
    }

    /// Does the work of [`end_batch`](Self::end_batch).
    #[inline(never)]
    fn upkeep(&mut self) {
        self.cq.poller.publish();
        if let Poller::Direct(direct) = &mut self.cq.poller {
            direct.cq.stop_after(self.upkeep_after);
        }
        if self.failed {
            return;
        }
        if self.is_shared {
            self.give_back_whole();
        } else {
            // SAFETY: [whole], and a lent frame borrows the receiver.
            unsafe { self.queue.recycle(self.queue.held()) };
        }
        self.queue.ring_doorbell(&self.buffers);
    }

    /// Gives back the held WQEs, with spare buffers in place of those of which frames were taken. When no spare buffer
    /// is left, the WQEs with whole buffers are given back, and the others stay held.
    #[cold]
    #[inline(never)]
    fn give_back_whole(&mut self) {
        let mut given = 0;
        for at in 0..self.queue.held() {
            let buffer = self.queue.held_buffer(at);
            if self.buffers.is_whole(buffer.index) {
                if at != given {
                    self.queue.replace(at, self.queue.held_buffer(given));
                    self.queue.replace(given, buffer);
                }
                given += 1;
            } else if at == given {
                if let Some(spare) = self.buffers.exchange(buffer.index) {
                    self.queue.replace(at, spare);
                    given += 1;
                }
            }
        }
        // SAFETY: so many whole buffers are in front, and a lent frame borrows the receiver.
        unsafe { self.queue.recycle(given) };
        // A WQE that has strides left may have lost some.
        let current = self.queue.buffer(self.queue.completed());
        self.is_shared = self.queue.held() > 0 || !self.buffers.is_whole(current.index);
    }

    /// Returns `true` if a WQE waits for a buffer.
    pub(super) fn is_short_of_buffers(&self) -> bool {
        self.is_shared && !self.failed && self.queue.held() > 0
    }

    /// Takes the next completion, whatever it is.
    #[cold]
    #[inline(never)]
    fn next_other(&mut self) -> Option<Result<Frame<'_>, Failure>> {
        loop {
            let (Poller::Direct(direct), Queue::Direct(DirectFrames { ring, .. })) =
                (&mut self.cq.poller, &mut self.queue)
            else {
                return self.next_verbs();
            };
            // SAFETY: as in `FrameBatch::next`.
            let cqe = unsafe { direct.cq.next()?.detach() };
            return Some(Err(match ring.complete(cqe) {
                Completion::Frame(frame) => {
                    // The frame after a filler comes here, see `FrameQueue::frame`.
                    let dropped = std::mem::take(&mut self.dropped);
                    return Some(Ok(self.lend(frame, Some(cqe), dropped)));
                }
                Completion::Filler => {
                    self.dropped += u32::from(cqe.dropped());
                    continue;
                }
                Completion::Failed => {
                    let status = WcStatus::from_raw(cqe.syndrome().status());
                    self.fail(status, cqe.vendor_err_synd().into())
                }
                Completion::NotAReceive => self.failure(Cause::NotAReceive, 0),
                Completion::Stray => self.failure(Cause::Stray, 0),
            }));
        }
    }

    /// Takes the next completion through verbs.
    fn next_verbs(&mut self) -> Option<Result<Frame<'_>, Failure>> {
        let (Poller::Verbs(cq), Queue::Verbs(verbs)) = (&mut self.cq.poller, &mut self.queue) else {
            return None;
        };
        let sys::ibv_wc { wr_id, status, byte_len, vendor_err, .. } = cq.next()?.wc;
        let is_success = status == sys::IBV_WC_SUCCESS;
        // The length of a failed receive is undefined.
        let len = if is_success { byte_len } else { 0 };
        if len > self.buffers.bytes() {
            return Some(Err(self.failure(Cause::Stray, 0)));
        }
        match verbs.complete(wr_id, len as usize) {
            None => Some(Err(self.failure(Cause::Stray, 0))),
            Some(frame) if is_success => Some(Ok(self.lend(frame, None, 0))),
            Some(_) => Some(Err(self.fail(WcStatus::from_raw(status), vendor_err))),
        }
    }

    /// Takes note that a receive failed.
    fn fail(&mut self, status: WcStatus, vendor_err: u32) -> Failure {
        // After a frame that was too long for its buffer the queue goes on; if it does not, the buffer comes back
        // flushed. A queue that has failed takes no buffers.
        self.failed |= status != WcStatus::LOC_LEN_ERR;
        self.failure(Cause::Status(status), vendor_err)
    }

    fn failure(&self, cause: Cause, vendor_err: u32) -> Failure {
        Failure { qp_num: self.qp_num(), cause, first: None, vendor_err, buffers: Vec::new() }
    }
}
