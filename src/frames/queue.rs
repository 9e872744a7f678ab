//! The receive queue of a receiver of frames. Only this file asks which path drives it.

use mlx5_ring::frames::{FrameBuffer, FrameQueue};

use super::buffers::Buffers;
use super::verbs::VerbsFrames;
use crate::mlx5::Storage;

/// A receive queue. WQEs complete in the order of posting; those that have completed and were not given back are
/// *held*.
// The enum has a tag of its own, and none inside a field: each frame reads it.
#[repr(u8)]
pub(super) enum Queue {
    /// Driven directly.
    Direct(DirectFrames),
    /// Through libibverbs.
    Verbs(VerbsFrames),
}

pub(super) struct DirectFrames {
    pub(super) ring: FrameQueue,
    pub(super) _slots: Storage<FrameBuffer>,
}

/// Evaluates an expression on the ring of a direct queue, or on a queue through verbs.
macro_rules! on_queue {
    ($queues:expr, $queue:ident => $value:expr) => {
        match $queues {
            Queue::Direct(DirectFrames { ring: $queue, .. }) => $value,
            Queue::Verbs($queue) => $value,
        }
    };
}

impl Queue {
    /// Returns the buffer of the WQE with this running index.
    pub(super) fn buffer(&self, wqe: u32) -> FrameBuffer {
        on_queue!(self, queue => queue.buffer(wqe))
    }

    /// Returns the running index of the WQE that the device fills.
    pub(super) fn completed(&self) -> u32 {
        on_queue!(self, queue => queue.completed())
    }

    /// Returns the number of held WQEs.
    pub(super) fn held(&self) -> u32 {
        on_queue!(self, queue => queue.held())
    }

    /// Returns `true` if a WQE is held, or was given back and not posted.
    #[inline(always)]
    pub(super) fn has_unposted(&self) -> bool {
        on_queue!(self, queue => queue.has_unposted())
    }

    /// Returns the buffer of a held WQE, of which 0 is the oldest.
    pub(super) fn held_buffer(&self, at: u32) -> FrameBuffer {
        on_queue!(self, queue => queue.held_buffer(at))
    }

    /// Puts another buffer into a held WQE.
    pub(super) fn replace(&mut self, at: u32, buffer: FrameBuffer) {
        on_queue!(self, queue => queue.replace(at, buffer));
    }

    /// Gives the oldest `count` of the held WQEs back.
    ///
    /// # Safety
    /// At least `count` WQEs are held, and no code reads their buffers.
    pub(super) unsafe fn recycle(&mut self, count: u32) {
        // SAFETY: the caller holds `count` WQEs, and no code reads their buffers, which are the receiver's.
        on_queue!(self, queue => unsafe { queue.recycle(count) });
    }

    /// See [`FrameReceiver::has_masked_wqe_ids`](super::FrameReceiver::has_masked_wqe_ids).
    pub(super) fn has_masked_ids(&self) -> Option<bool> {
        match self {
            Self::Direct(direct) => direct.ring.has_masked_ids(),
            Self::Verbs(_) => None,
        }
    }

    /// Hands what was given back to the device.
    pub(super) fn ring_doorbell(&mut self, buffers: &Buffers) {
        match self {
            Self::Direct(direct) => direct.ring.ring_doorbell(),
            Self::Verbs(verbs) => verbs.post(buffers),
        }
    }

    /// Calls `each` with the buffers that the device may write.
    pub(super) fn posted(&self, each: impl FnMut(FrameBuffer)) {
        on_queue!(self, queue => queue.posted(each));
    }
}
