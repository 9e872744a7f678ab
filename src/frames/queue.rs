//! The receive queue of a receiver of frames, whatever drives it: the one place that asks.

use mlx5_ring::completion::Cqe;
use mlx5_ring::receive::{self, ReceiveRing};
use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::slots::Slot;
use mlx5_ring::striding::{self, Place, StridingQueue};

use super::buffers::{Buffers, Posted};
use super::verbs::VerbsFrames;
use crate::mlx5::Storage;

/// A queue that buffers are posted to.
pub(super) enum FrameQueue {
    /// One frame to a WQE, driven directly.
    Plain { ring: ReceiveQueue<Posted>, _slots: Storage<Slot<Posted>> },
    /// Many frames to a WQE, driven directly.
    Striding { ring: StridingQueue<Posted>, _slots: Storage<Slot<Posted>> },
    /// One frame to a receive, through libibverbs.
    Verbs(VerbsFrames),
}

/// Evaluates an expression on the ring of a direct queue, another on one through verbs.
macro_rules! on_queue {
    ($queue:expr, $ring:ident => $direct:expr, $verbs:ident => $through_verbs:expr) => {
        match $queue {
            FrameQueue::Plain { ring: $ring, .. } => $direct,
            FrameQueue::Striding { ring: striding, .. } => {
                // SAFETY: what is posted are buffers of all strides, and completed by `complete`.
                let $ring = unsafe { striding.ring_mut() };
                $direct
            }
            FrameQueue::Verbs($verbs) => $through_verbs,
        }
    };
}

impl FrameQueue {
    /// Completes what a CQE names, of a queue that is driven directly.
    #[inline(always)]
    pub(super) fn complete(&mut self, cqe: Cqe<'_>) -> striding::Completion {
        use receive::Completion as Plain;
        use striding::Completion;
        match self {
            Self::Striding { ring, .. } => ring.complete(cqe),
            // SAFETY: a CQE of the only queue of its CQ, to which buffers of this process are posted.
            Self::Plain { ring, .. } => match unsafe { receive::complete(ring, cqe) } {
                Plain::Message(slot) => {
                    let len = cqe.byte_count();
                    Completion::Frame(Place { slot, offset: 0, len, is_last: true })
                }
                Plain::Failed(slot) => Completion::Failed(slot),
                Plain::NotAReceive => Completion::NotAReceive,
                Plain::Stray => Completion::Stray,
            },
            Self::Verbs(_) => Completion::Stray,
        }
    }

    /// Returns the buffer of a slot.
    ///
    /// # Safety
    /// `slot` is not free.
    #[inline(always)]
    pub(super) unsafe fn posted(&mut self, slot: u32) -> Posted {
        // SAFETY: the caller's contract.
        on_queue!(self, ring => unsafe { ring.data(slot) }, verbs => verbs.posted(slot))
    }

    /// Gives a slot back with its buffer.
    ///
    /// # Safety
    /// `slot` is held, and nobody uses its buffer.
    #[inline(always)]
    pub(super) unsafe fn recycle(&mut self, slot: u32) {
        // SAFETY: the caller's contract.
        on_queue!(self, ring => unsafe { ring.recycle(slot) }, verbs => verbs.recycle(slot));
    }

    /// Gives a slot back with another buffer.
    ///
    /// # Safety
    /// `slot` is held, and the buffer is the queue's from now on.
    #[cold]
    pub(super) unsafe fn replace(&mut self, slot: u32, buffer: Posted, buffers: &Buffers) {
        let segment = buffers.segment(buffer);
        on_queue!(
            self,
            ring => {
                // SAFETY: the caller's contract.
                unsafe {
                    ring.rewrite(slot, buffer, segment);
                    ring.recycle(slot);
                }
            },
            verbs => {
                verbs.rewrite(slot, buffer);
                verbs.recycle(slot);
            }
        );
    }

    /// Gives a slot back without its buffer.
    ///
    /// # Safety
    /// `slot` is held.
    #[cold]
    pub(super) unsafe fn release(&mut self, slot: u32) {
        // SAFETY: the caller's contract.
        on_queue!(self, ring => unsafe { ring.release(slot) }, verbs => verbs.release(slot));
    }

    /// Posts spare buffers as far as there is room; [`ring_doorbell`](Self::ring_doorbell) hands them over.
    #[cold]
    pub(super) fn fill(&mut self, buffers: &mut Buffers) {
        while let Some(buffer) = buffers.take_spare() {
            let segment = buffers.segment(buffer);
            let posted = on_queue!(
                self,
                // SAFETY: a buffer of the receiver that nobody has, and that is the queue's from now on.
                ring => unsafe { ring.post_segment(buffer, segment) }.is_ok(),
                verbs => verbs.post(buffer)
            );
            if !posted {
                return buffers.put(buffer);
            }
        }
    }

    /// Returns the number of buffers that there is room for.
    pub(super) fn free_slots(&mut self) -> u32 {
        on_queue!(self, ring => ring.free_slots(), verbs => verbs.free_slots())
    }

    /// Hands everything that was posted to the device.
    #[inline(always)]
    pub(super) fn ring_doorbell(&mut self, buffers: &Buffers) {
        on_queue!(self, ring => ring.ring_doorbell(), verbs => verbs.post_chain(buffers));
    }

    /// Calls `each` with the buffers that the device may write: the queue is given up, and never rung again.
    pub(super) fn take_back(&mut self, each: impl FnMut(Posted)) {
        match self {
            Self::Plain { ring, .. } => ring.reset(each),
            Self::Striding { ring, .. } => ring.reset(each),
            Self::Verbs(verbs) => verbs.take_back(each),
        }
    }
}
