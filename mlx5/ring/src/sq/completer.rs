//! Completing WQEs beside the thread that posts them, without a lock.

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use crossbeam_utils::CachePadded;
use mlx5_wire::opcode::WqeOpcode;

use super::blocks::scatter;
use super::completion::end_of;
use super::{Record, SendQueue, record_at};
use crate::barrier;
use crate::completion::Cqe;

/// Bytes of the operand of an atomic.
const ATOMIC_SIZE: u32 = 8;

/// How far a send queue is: what the thread that posts and the one that completes tell each other.
#[derive(Debug, Default)]
pub struct Progress {
    /// Running count of blocks that the thread which posts has handed over.
    posted: CachePadded<AtomicU32>,
    /// Running count of blocks that the thread which completes has handed back.
    retired: CachePadded<AtomicU32>,
}

/// Completes the WQEs of a [`SendQueue`] that another thread posts: see [`SendQueue::completer`].
#[derive(Debug)]
pub struct Completer<T> {
    records: NonNull<Record<T>>,
    buf: NonNull<u8>,
    mask: u32,
}

// SAFETY: the contract of `SendQueue::completer` lets any thread complete, one at a time, and `T` may move between threads.
unsafe impl<T: Send> Send for Completer<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Completer<T> {}

impl<T: Copy> SendQueue<T> {
    /// Returns what completes WQEs beside the thread that posts them.
    ///
    /// # Safety
    /// - No other method of the queue completes WQEs from now on. One thread at a time completes. The queue and its storage outlive
    ///   the completer.
    /// - [`reset`](Self::reset) is called after [`take_back`](Self::take_back), while no code completes.
    /// - The two threads use one [`Progress`] for it, which was new. The one that posts calls
    ///   [`hand_over`](Self::hand_over) before each doorbell, and [`take_back`](Self::take_back) to get room. Both are called with
    ///   that value, which [`Progress::reset`] starts again together with the queue.
    pub const unsafe fn completer(&self) -> Completer<T> {
        Completer { records: self.records, buf: self.blocks.start(), mask: self.blocks.mask }
    }

    /// Hands what was posted to the thread that completes.
    #[inline(always)]
    pub fn hand_over(&self, progress: &Progress) {
        barrier::hand_over(&progress.posted, self.posted());
    }

    /// Takes the blocks of completed WQEs back from the thread that completes.
    ///
    /// # Safety
    /// The contract of [`completer`](Self::completer).
    #[inline(always)]
    pub unsafe fn take_back(&mut self, progress: &Progress) {
        self.blocks.retire(barrier::take_over(&progress.retired));
    }
}

impl Progress {
    /// Starts again with the queue, when no WQE is outstanding and no thread completes.
    pub fn reset(&self) {
        self.posted.store(0, Ordering::Relaxed);
        self.retired.store(0, Ordering::Relaxed);
    }

    #[inline(always)]
    fn outstanding(&self) -> Range<u32> {
        // In this order: what was posted after a reset tells that `retired` was set back.
        let posted = barrier::take_over(&self.posted);
        self.retired.load(Ordering::Relaxed)..posted
    }
}

impl<T: Copy> Completer<T> {
    /// Retires the WQEs up to the one that starts at the block `wqe_counter`, and returns what that was posted with. `None` if
    /// no WQE which is outstanding starts there: the CQE cannot be true, and nothing has changed.
    ///
    /// # Safety
    /// The contract of [`SendQueue::completer`], whose `progress` this is.
    #[inline(always)]
    pub unsafe fn complete(&self, progress: &Progress, wqe_counter: u16) -> Option<T> {
        // SAFETY: the storage of the queue; the other thread writes no record of a WQE that is outstanding.
        unsafe {
            let end = end_of(self.records, self.mask, progress.outstanding(), wqe_counter)?;
            let record = record_at(self.records, self.mask, wqe_counter.into());
            let data = (*record.as_ptr()).data.assume_init();
            barrier::hand_over(&progress.retired, end);
            Some(data)
        }
    }

    /// Copies what a READ or an atomic has brought inside its CQE to the buffers of its WQE, which is outstanding. Returns
    /// `false` if the CQE has no payload or names no such WQE.
    ///
    /// # Safety
    /// As [`complete`](Self::complete). `cqe` is of this queue, and the addresses of the buffers are those where this process sees
    /// the memory.
    #[cold]
    pub unsafe fn scatter_inline(&self, progress: &Progress, cqe: Cqe<'_>) -> bool {
        let Some(payload) = cqe.inline_payload() else { return false };
        let start = cqe.wqe_counter();
        // SAFETY: as in `complete`.
        if unsafe { end_of(self.records, self.mask, progress.outstanding(), start) }.is_none() {
            return false;
        }
        let (head, len) = match WqeOpcode::new(cqe.send_opcode()) {
            WqeOpcode::RDMA_READ => (2, cqe.byte_count()),
            WqeOpcode::ATOMIC_CS | WqeOpcode::ATOMIC_FA => (3, ATOMIC_SIZE),
            _ => return false,
        };
        // SAFETY: the WQE that the CQE names, with the units that its control segment counts and no inline segment.
        unsafe { scatter(self.buf, self.mask, start.into(), head, payload, len as usize) };
        true
    }
}

#[cfg(test)]
impl Progress {
    /// For a queue that starts at this count of blocks.
    pub(super) fn at(index: u32) -> Self {
        let [posted, retired] = [index; 2].map(|index| CachePadded::new(AtomicU32::new(index)));
        Self { posted, retired }
    }
}
