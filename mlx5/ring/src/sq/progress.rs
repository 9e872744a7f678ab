//! Completions of a send queue while another thread posts to it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use mlx5_wire::be::Be64;
use mlx5_wire::ctrl::{ControlSegment, UNITS_PER_BB};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::WqeOpcode;

use super::blocks::block_at;
use super::{Record, SendQueue};
use crate::completion::Cqe;
use crate::inline;

/// Bytes that an atomic brings.
const ATOMIC_SIZE: u32 = 8;

/// The counts that a thread that posts and a thread that takes CQEs share, so that neither waits for the other, as in
/// libmlx5. The thread that takes CQEs owns the blocks from `retired` to `posted` and their records; the thread that
/// posts owns all others.
///
/// `Progress` takes the place of [`SendQueue::complete`].
#[derive(Debug)]
pub struct Progress<T> {
    buf: NonNull<u8>,
    records: NonNull<Record<T>>,
    mask: u32,
    /// Running count of blocks that were posted. The thread that posts stores it.
    posted: AtomicU32,
    /// Running count of blocks that are retired. The thread that takes CQEs stores it.
    retired: AtomicU32,
}

// SAFETY: any thread may have either side; one thread at a time has it, by the contracts of the functions.
unsafe impl<T: Send> Send for Progress<T> {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl<T: Send> Sync for Progress<T> {}

impl<T: Copy> SendQueue<T> {
    /// Returns what the side that takes CQEs needs of an empty queue.
    pub const fn progress(&self) -> Progress<T> {
        Progress {
            buf: self.blocks.start(),
            records: self.records,
            mask: self.blocks.mask,
            posted: AtomicU32::new(self.posted()),
            retired: AtomicU32::new(self.retired()),
        }
    }

    /// Frees the blocks of the WQEs that are retired.
    ///
    /// # Safety
    /// `progress` is that of this queue.
    #[inline(always)]
    pub unsafe fn free_retired(&mut self, progress: &Progress<T>) {
        // The thread that takes CQEs has read their records before.
        self.blocks.retire(progress.retired.load(Ordering::Acquire));
    }
}

impl<T: Copy> Progress<T> {
    /// Takes note that the queue has posted up to this running count of blocks, before the doorbell rings for them.
    #[inline(always)]
    pub fn note_posted(&self, posted: u32) {
        // Who takes their CQEs finds their records.
        self.posted.store(posted, Ordering::Release);
    }

    /// Retires the WQEs up to the one that starts at the block `wqe_counter`, and returns what that one was posted
    /// with. Returns `None` if no WQE which is outstanding starts there: nothing has changed.
    ///
    /// # Safety
    /// The storage of the queue exists. One thread at a time takes CQEs.
    #[inline(always)]
    pub unsafe fn complete(&self, wqe_counter: u16) -> Option<T> {
        let start = self.outstanding(wqe_counter)?;
        // SAFETY: the caller's storage has a record for each block; the block is outstanding, so that the queue does
        // not write its record.
        let record = unsafe { self.records.add((start & self.mask) as usize).as_ref() };
        if record.blocks == 0 {
            return None;
        }
        // SAFETY: a WQE starts at the block.
        let data = unsafe { record.data.assume_init() };
        self.retired.store(start.wrapping_add(record.blocks), Ordering::Release);
        Some(data)
    }

    /// Copies what a READ or an atomic has brought inside its CQE to the buffers of its WQE, which is outstanding.
    /// Returns `false` if the CQE has no payload or names no such WQE.
    ///
    /// # Safety
    /// As for [`complete`](Self::complete). `cqe` is of this queue, and the addresses of the buffers are those where
    /// this process sees the memory.
    #[cold]
    pub unsafe fn scatter_inline(&self, cqe: Cqe<'_>) -> bool {
        let (Some(payload), Some(start)) = (cqe.inline_payload(), self.outstanding(cqe.wqe_counter())) else {
            return false;
        };
        let (head, len) = match WqeOpcode::new(cqe.send_opcode()) {
            WqeOpcode::RDMA_READ => (2, cqe.byte_count()),
            WqeOpcode::ATOMIC_CS | WqeOpcode::ATOMIC_FA => (3, ATOMIC_SIZE),
            _ => return false,
        };
        // SAFETY: the caller's storage has a record for each block, which the queue does not write while the block is
        // outstanding. The WQE that the CQE names has the units that its control segment counts and no inline segment:
        // its data segments name writable memory.
        unsafe {
            if self.records.add((start & self.mask) as usize).as_ref().blocks == 0 {
                return false;
            }
            self.scatter(start, head, &payload[..payload.len().min(len as usize)]);
        }
        true
    }

    /// Copies `payload` to the buffers of the WQE that starts at block `start`, whose data segments begin at unit
    /// `head`.
    ///
    /// # Safety
    /// Such a WQE is outstanding, its units from `head` on are data segments, and what the segments name is writable
    /// memory of this process.
    unsafe fn scatter(&self, start: u32, head: u32, mut payload: &[u8]) {
        // SAFETY: the ring of the queue; the first word of the control segment, which nothing writes.
        let units = unsafe { block_at(self.buf, self.mask, start).cast::<Be64>().read_volatile() }.get();
        for unit in head..ControlSegment::units_of(units).into() {
            let (block, unit) = (start.wrapping_add(unit / UNITS_PER_BB), unit % UNITS_PER_BB);
            // SAFETY: a unit of the block. The caller's WQE has data segments from `head` on, which name writable
            // memory.
            unsafe {
                let segment = block_at(self.buf, self.mask, block).cast::<DataSegment>().add(unit as usize);
                payload = inline::scatter(payload, segment, 1);
            }
        }
    }

    /// Returns the running index of the block `wqe_counter`, if it is outstanding.
    #[inline(always)]
    fn outstanding(&self, wqe_counter: u16) -> Option<u32> {
        let (retired, posted) = (self.retired.load(Ordering::Relaxed), self.posted.load(Ordering::Acquire));
        let ahead = u32::from(wqe_counter.wrapping_sub(retired as u16));
        (ahead < posted.wrapping_sub(retired)).then(|| retired.wrapping_add(ahead))
    }

    /// Returns the running count of blocks that are retired.
    #[inline(always)]
    pub fn retired(&self) -> u32 {
        self.retired.load(Ordering::Relaxed)
    }

    /// Starts again, as [`SendQueue::reset`] does.
    ///
    /// # Safety
    /// The queue was reset, and no thread takes CQEs or posts meanwhile.
    pub unsafe fn reset(&self) {
        self.posted.store(0, Ordering::Relaxed);
        self.retired.store(0, Ordering::Release);
    }
}
