//! The queues of a receiver of frames: a CQ, and the one receive queue that completes on it. Only this file asks which path
//! drives them.

use mlx5_ring::frames::{FrameBuffer, FrameQueue};
use rdma_core_sys as sys;

use super::buffers::Buffers;
use super::verbs::VerbsFrames;
use crate::cq::Cq;
use crate::error::Result;
use crate::mlx5::Storage;
use crate::poller::DirectCq;

/// A CQ and its receive queue. WQEs complete in the order of posting; those that have completed and were not given back
/// are *held*.
pub(super) enum Queues {
    /// Driven directly.
    Direct(DirectFrames),
    /// Through libibverbs.
    Verbs(VerbsFrames),
}

pub(super) struct DirectFrames {
    pub(super) cq: DirectCq,
    pub(super) ring: FrameQueue,
    pub(super) _slots: Storage<FrameBuffer>,
}

/// Evaluates an expression on the ring of a direct queue, or on a queue through verbs.
macro_rules! on_queue {
    ($queues:expr, $queue:ident => $value:expr) => {
        match $queues {
            Queues::Direct(DirectFrames { ring: $queue, .. }) => $value,
            Queues::Verbs($queue) => $value,
        }
    };
}

impl Queues {
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
    /// So many are held, and no code reads their buffers.
    pub(super) unsafe fn recycle(&mut self, count: u32) {
        // SAFETY: the caller holds `count` WQEs, and no code reads their buffers, which are the receiver's.
        on_queue!(self, queue => unsafe { queue.recycle(count) });
    }

    /// Publishes the consumer index: the receives that the next doorbell hands over need the room on the CQ.
    pub(super) fn publish(&mut self) {
        if let Self::Direct(direct) = self {
            direct.cq.cq.publish();
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

    /// Asks for an event at the next completion. `events` were taken from the channel since the last call.
    pub(super) fn arm(&mut self, cq: &Cq, events: u32) -> Result<()> {
        match self {
            Self::Direct(direct) => direct.cq.arm(events, false),
            Self::Verbs(_) => cq.arm(false)?,
        }
        Ok(())
    }

    /// Returns `true` if there is a completion that was not taken.
    pub(super) fn has_arrived(&mut self) -> bool {
        match self {
            Self::Direct(direct) => !direct.cq.cq.is_empty(),
            Self::Verbs(verbs) => verbs.cq.has_arrived(),
        }
    }

    /// Returns the verdict of verbs on the checksums of the frame that was taken last, and its time.
    pub(super) fn verbs_report(&self) -> Option<(bool, Option<u64>)> {
        let Self::Verbs(verbs) = self else { return None };
        let current = verbs.cq.current();
        Some((current.wc.wc_flags & sys::IBV_WC_IP_CSUM_OK != 0, current.timestamp))
    }
}
