//! CQEs of a send queue.

use core::ptr::NonNull;

use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::syndrome::Syndrome;

use super::{Record, SendQueue};
use crate::completion::Cqe;

/// A CQE of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Number of the QP of the send queue.
    pub qpn: u32,
    /// Index of the first block of the WQE that it names.
    pub wqe_counter: u16,
    /// Opcode of that WQE.
    pub opcode: WqeOpcode,
    /// How the WQE ended: bytes that a READ or atomic has brought, or why it failed.
    pub result: Result<u32, Failure>,
}

/// Why a WQE failed. Those after it are flushed ([`Syndrome::WR_FLUSH`]), with a CQE for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Cause.
    pub syndrome: Syndrome,
    /// Cause in the device's own terms.
    pub vendor: u8,
}

impl Completion {
    /// Reads a CQE; returns `None` if it is not of a send queue, or brings data in its own bytes, which *exclusive*
    /// rules out ([the module](super)).
    #[inline(always)]
    pub fn read(cqe: Cqe<'_>) -> Option<Self> {
        let result = match cqe.opcode() {
            CqeOpcode::Requester if cqe.format() == CqeFormat::Plain => Ok(cqe.byte_count()),
            CqeOpcode::RequesterError => Err(Failure { syndrome: cqe.syndrome(), vendor: cqe.vendor_err_synd() }),
            _ => return None,
        };
        let opcode = WqeOpcode::new(cqe.send_opcode());
        Some(Self { qpn: cqe.qpn(), wqe_counter: cqe.wqe_counter(), opcode, result })
    }
}

/// WQEs of a send queue that are over, oldest first. [`SendQueue::free_returned`] frees the blocks of those that were
/// returned.
#[derive(Debug)]
pub struct Run<T> {
    records: NonNull<Record<T>>,
    mask: u32,
    /// Running counts of blocks: up to the WQEs that were returned, and up to all of them.
    next: u32,
    end: u32,
}

// SAFETY: it reads records, whose values may be sent.
unsafe impl<T: Send> Send for Run<T> {}

impl<T: Copy> Run<T> {
    /// No WQEs, of no queue.
    pub const NONE: Self = Self { records: NonNull::dangling(), mask: 0, next: 0, end: 0 };

    /// The WQEs from running count `next` to `end` of a ring of records, the number of which is a power of two.
    pub const fn new(records: NonNull<[Record<T>]>, next: u32, end: u32) -> Self {
        Self { records: records.cast(), mask: records.len() as u32 - 1, next, end }
    }

    /// Returns `true` if all its WQEs were returned.
    #[inline(always)]
    pub const fn is_over(&self) -> bool {
        self.next == self.end
    }

    /// Returns the running count of blocks up to the end of the WQEs that were returned.
    #[inline(always)]
    pub const fn returned(&self) -> u32 {
        self.next
    }

    /// Returns what the oldest WQE was posted with.
    ///
    /// # Safety
    /// The storage of the queue exists, and its blocks from [`returned`](Self::returned) on have not become free.
    #[inline(always)]
    pub unsafe fn next(&mut self) -> Option<T> {
        // SAFETY: the caller's storage exists, and its blocks have not become free; the run is not over.
        (!self.is_over()).then(|| unsafe { self.take() })
    }

    /// Passes over the oldest WQEs while `is_passed` returns `true` for what they were posted with.
    ///
    /// # Safety
    /// As for [`next`](Self::next).
    #[inline(always)]
    pub unsafe fn pass_over(&mut self, is_passed: impl Fn(&T) -> bool) {
        while !self.is_over() {
            // SAFETY: masked to the array; blocks that are not free hold WQEs, of which each first block has a record.
            let (blocks, data) = unsafe {
                let record = self.records.add((self.next & self.mask) as usize).as_ref();
                (record.blocks, record.data.assume_init_ref())
            };
            if !is_passed(data) {
                return;
            }
            self.next = self.next.wrapping_add(blocks);
        }
    }

    /// As [`next`](Self::next), when the run is not over.
    ///
    /// # Safety
    /// As for [`next`](Self::next), and the run is not over.
    #[inline(always)]
    pub unsafe fn take(&mut self) -> T {
        // SAFETY: masked to the array; blocks that are not free hold WQEs, of which each first block has a record.
        unsafe {
            let record = self.records.add((self.next & self.mask) as usize).as_ref();
            self.next = self.next.wrapping_add(record.blocks);
            record.data.assume_init()
        }
    }
}

/// The WQEs that a CQE retires, oldest first; the last one is the one that it names. Dropping it retires the rest.
#[derive(Debug)]
pub struct Completed<'a, T: Copy> {
    queue: &'a mut SendQueue<T>,
    run: Run<T>,
}

impl<T: Copy> SendQueue<T> {
    /// Retires the WQEs up to the one that starts at the block `wqe_counter`. Returns `None` if no WQE which is
    /// outstanding starts there: the CQE cannot be true, and nothing has changed.
    #[inline(always)]
    pub fn complete(&mut self, wqe_counter: u16) -> Option<Completed<'_, T>> {
        let (run, _) = self.run_to(wqe_counter)?;
        Some(Completed { run, queue: self })
    }

    /// Returns the WQEs up to the one that starts at the block `wqe_counter`, and what that one was posted with; those
    /// before it have succeeded, also if it has failed. `None` if no outstanding WQE starts there.
    #[inline(always)]
    pub fn run_to(&self, wqe_counter: u16) -> Option<(Run<T>, &T)> {
        let (end, data) = self.find(wqe_counter)?;
        Some((self.run(self.blocks.retired(), end), data))
    }

    /// Returns the WQEs before the one that starts at the block `wqe_counter`. `None` if no outstanding WQE starts
    /// there.
    pub fn run_before(&self, wqe_counter: u16) -> Option<Run<T>> {
        self.find(wqe_counter)?;
        let retired = self.blocks.retired();
        let before = wqe_counter.wrapping_sub(retired as u16);
        Some(self.run(retired, retired.wrapping_add(before.into())))
    }

    /// Returns all WQEs that are outstanding.
    pub fn run_of_all(&self) -> Run<T> {
        self.run(self.blocks.retired(), self.blocks.posted())
    }

    /// Takes back the blocks of the WQEs that `run` has returned.
    ///
    /// # Safety
    /// The run is of this queue, and no newer one has freed more blocks.
    #[inline(always)]
    pub unsafe fn free_returned(&mut self, run: &Run<T>) {
        self.blocks.retire(run.next);
    }

    /// As [`free_returned`](Self::free_returned), when the caller wants none of the others returned.
    ///
    /// # Safety
    /// As for [`free_returned`](Self::free_returned).
    #[inline(always)]
    pub unsafe fn free_all(&mut self, run: &Run<T>) {
        self.blocks.retire(run.end);
    }

    #[inline(always)]
    const fn run(&self, next: u32, end: u32) -> Run<T> {
        Run { records: self.records, mask: self.blocks.mask, next, end }
    }

    /// Returns the running count of blocks up to the end of the WQE that starts at the block `wqe_counter`, and what it
    /// was posted with; `None` if no outstanding WQE starts there.
    #[inline(always)]
    fn find(&self, wqe_counter: u16) -> Option<(u32, &T)> {
        let (retired, posted) = (self.blocks.retired(), self.blocks.posted());
        let ahead = u32::from(wqe_counter.wrapping_sub(retired as u16));
        if ahead >= posted.wrapping_sub(retired) {
            return None;
        }
        let start = retired.wrapping_add(ahead);
        // SAFETY: [exclusive] `new` has filled the array; the block is outstanding.
        let Record { blocks, data } = unsafe { self.record(start).as_ref() };
        if *blocks == 0 {
            return None;
        }
        // SAFETY: the record of a block at which a WQE starts has its data.
        Some((start.wrapping_add(*blocks), unsafe { data.assume_init_ref() }))
    }
}

impl<T: Copy> Iterator for Completed<'_, T> {
    type Item = T;

    #[inline(always)]
    fn next(&mut self) -> Option<T> {
        // SAFETY: the queue is borrowed, and this is all that frees blocks.
        let data = unsafe { self.run.next() };
        self.queue.blocks.retire(self.run.next);
        data
    }
}

impl<T: Copy> Drop for Completed<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.blocks.retire(self.run.end);
    }
}
