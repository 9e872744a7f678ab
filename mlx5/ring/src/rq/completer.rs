//! Completing receives beside the thread that posts them, without a lock.

use core::ptr::NonNull;

use crate::completion::{Cqe, CqeKind};
use crate::inline;
use crate::receive::Wqes;
use crate::slots::Slot;

/// Completes the receives of a [`ReceiveQueue`](super::ReceiveQueue) that is `CONCURRENT`, and gives their slots back without a
/// buffer. The state of a slot says which of the two threads has the slot and its WQE. The contract is that of
/// [`ReceiveQueue::completer`](super::ReceiveQueue::completer).
#[derive(Debug)]
pub struct Completer<T: Copy> {
    slots: NonNull<Slot<T>>,
    mask: u32,
    max_sge: u32,
    segments: NonNull<u8>,
    stride: usize,
}

// SAFETY: the contract of `ReceiveQueue::completer` lets any thread complete, one at a time, and `T` may move between threads.
unsafe impl<T: Copy + Send> Send for Completer<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Send> Sync for Completer<T> {}

impl<T: Copy> Completer<T> {
    pub(super) const fn new(wqes: &Wqes<T>, mask: u32) -> Self {
        let (segments, stride) = wqes.place();
        Self { slots: wqes.slots.start(), mask, max_sge: wqes.max_sge, segments, stride }
    }

    /// Completes the WQE that `cqe` names, and returns the caller's value. A message in the CQE is copied to the buffers of the WQE.
    /// `None` if the CQE cannot be true: the device does not have such a WQE, or the CQ has no such form.
    ///
    /// # Safety
    /// The contract of [`ReceiveQueue::completer`](super::ReceiveQueue::completer). `cqe` is of this queue, whose WQEs were posted under
    /// the [contract of posting](crate::receive::ReceiveRing#contract-of-posting).
    #[inline(always)]
    pub unsafe fn complete(&self, cqe: Cqe<'_>) -> Option<T> {
        let index = (u32::from(cqe.wqe_counter()) & self.mask) as usize;
        // SAFETY: masked; the contract of the completer. The addresses of a posted WQE are this process's.
        unsafe {
            let slot = self.slots.add(index);
            if !Slot::is_outstanding(slot, cqe.wqe_counter()) {
                return None;
            }
            if cqe.kind() == CqeKind::Inline {
                let segments = self.segments.add(index * self.stride).cast();
                inline::scatter(cqe.inline_message()?, segments, self.max_sge);
            }
            Some(Slot::complete(slot))
        }
    }
}
