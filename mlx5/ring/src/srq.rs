//! Shared receive queue: a linked list of WQEs, of which the free ones are kept as runs.
//!
//! The device follows `next_wqe_index`. A driver that reads that link to find where the next WQE goes
//! pays a dependent load from memory it shares with the device for each post. Here every slot is linked
//! to its successor once; free slots form *runs*, and inside a run the next slot is the next number.
//!
//! - A completion in order extends the current run by one.
//! - One out of order is remembered in a [`Bitmap`].
//! - When the current run is down to its last slot, that slot's link is turned to the next run of the
//!   bitmap, and the slot is marked so that its completion turns the link back.
//!
//! Two rules keep the device's view of the list whole. The last slot of the run, the one that the last
//! posted WQE links to, stays unposted: its own link is not decided yet. And no link of a posted WQE is
//! ever written.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use mlx5_wire::be::{Be16, Be32};
use mlx5_wire::data::DataSegment;
use mlx5_wire::dbrec;
use mlx5_wire::next::NextSegment;

use crate::barrier;
use crate::bitmap::{self, Bitmap};
use crate::dbrec::DoorbellRecord;
use crate::rq::PostError;
use crate::sge::{self, Sge};
use crate::slots::{self, Slots};

/// Where an SRQ is, as `mlx5dv_init_obj` reports it in `struct mlx5dv_srq`.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// First WQE.
    pub buf: NonNull<u8>,
    /// Doorbell record.
    pub dbrec: NonNull<Be32>,
    /// Bytes from one WQE to the next.
    pub stride: u32,
    /// First slot of the free list.
    pub head: u32,
    /// Last slot of the free list. Slots beyond it belong to libmlx5 and are never touched.
    pub tail: u32,
}

/// Why an SRQ cannot be driven directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// The free list does not start at slot 0: something was posted already.
    NotFresh,
    /// The number of slots is not a power of two between 2 and 65,536.
    SlotCount,
    /// The stride is not a power of two with room for a link and a data segment.
    Stride,
}

impl Layout {
    /// Number of slots, one more than can be posted.
    pub const fn slots(&self) -> u32 {
        self.tail.wrapping_add(1)
    }

    /// SGEs that a WQE has room for.
    pub const fn max_sge(&self) -> u32 {
        (self.stride / 16).saturating_sub(1)
    }

    /// Whether [`SharedReceiveQueue::new`] can take it.
    pub const fn check(&self) -> Result<(), LayoutError> {
        if self.head != 0 {
            return Err(LayoutError::NotFresh);
        }
        let slots = self.slots();
        if !slots.is_power_of_two() || slots < 2 || slots > bitmap::MAX_SLOTS {
            return Err(LayoutError::SlotCount);
        }
        if !self.stride.is_power_of_two() || self.stride < 32 {
            return Err(LayoutError::Stride);
        }
        Ok(())
    }
}

/// Memory of the caller's in which an SRQ of `slots` slots keeps its books.
#[derive(Clone, Copy, Debug)]
pub struct Storage<T> {
    /// `slots` bytes.
    pub states: NonNull<u8>,
    /// `slots` values.
    pub data: NonNull<MaybeUninit<T>>,
    /// [`bitmap::words`]`(slots)` words.
    pub bitmap: NonNull<u64>,
}

/// A shared receive queue; `T` is what the caller wants back with each completion.
#[derive(Debug)]
pub struct SharedReceiveQueue<T> {
    wqes: NonNull<u8>,
    stride_shift: u32,
    max_sge: u32,
    dbrec: DoorbellRecord,
    /// WQEs handed over since creation.
    counter: u32,
    /// WQEs posted and not rung for yet.
    pub(crate) unrung: u32,
    /// First slot of the current run: where the next WQE goes, and where the last posted one links to.
    pub(crate) next: u32,
    /// The slot after the current run.
    pub(crate) end: u32,
    pub(crate) slots: Slots<T>,
    /// Free slots outside the current run.
    scattered: Bitmap,
}

// SAFETY: the queue owns its slots by the contract of `new`.
unsafe impl<T: Send> Send for SharedReceiveQueue<T> {}

impl<T: Copy> SharedReceiveQueue<T> {
    /// Takes over a fresh SRQ and links its slots.
    ///
    /// # Errors
    /// See [`LayoutError`].
    ///
    /// # Safety
    /// `layout` describes an SRQ to which nothing was posted, and which nobody else posts to or links;
    /// its buffer and doorbell record stay mapped, and `storage` valid and untouched by others, for as
    /// long as the queue exists.
    pub unsafe fn new(layout: Layout, storage: Storage<T>) -> Result<Self, LayoutError> {
        layout.check()?;
        let count = layout.slots();
        // SAFETY: forwarded from the caller.
        let (dbrec, slots, scattered) = unsafe {
            (
                DoorbellRecord::new(layout.dbrec),
                Slots::new(storage.states, storage.data, count),
                Bitmap::new(storage.bitmap, count),
            )
        };
        let mut queue = Self {
            wqes: layout.buf,
            stride_shift: layout.stride.trailing_zeros(),
            max_sge: layout.max_sge(),
            dbrec,
            counter: 0,
            unrung: 0,
            next: 0,
            end: 0,
            slots,
            scattered,
        };
        for slot in 0..count {
            queue.link(slot, (slot + 1) & queue.slots.mask());
        }
        Ok(queue)
    }

    /// Slots; one fewer can be posted.
    pub const fn slots(&self) -> u32 {
        self.slots.mask() + 1
    }

    /// WQEs that can be posted now.
    pub fn vacant(&self) -> u32 {
        let mask = self.slots.mask();
        // A run has at least one slot, so equal ends mean that all slots are in it.
        let run = (self.end.wrapping_sub(self.next).wrapping_sub(1) & mask) + 1;
        run + self.scattered.len() - 1
    }

    /// SGEs that a WQE has room for.
    pub const fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Running count of WQEs handed over; its lower 16 bits stand in the doorbell record.
    pub const fn counter(&self) -> u32 {
        self.counter
    }

    /// What software remembers of the slots.
    pub const fn book(&self) -> &Slots<T> {
        &self.slots
    }

    /// Where the next WQE goes.
    #[inline(always)]
    pub const fn cursor(&self) -> u32 {
        self.next
    }

    #[inline(always)]
    fn wqe(&self, slot: u32) -> NonNull<u8> {
        let offset = (slot as usize) << self.stride_shift;
        // SAFETY: every slot number in this file is masked or checked against the slot count.
        unsafe { self.wqes.add(offset) }
    }

    #[inline(always)]
    pub(crate) fn segments(&self, slot: u32) -> NonNull<DataSegment> {
        // SAFETY: a WQE starts with a next segment of 16 bytes, and the stride is at least 32.
        unsafe { self.wqe(slot).add(NextSegment::SIZE).cast() }
    }

    fn link(&mut self, slot: u32, to: u32) {
        let link = self
            .wqe(slot)
            .as_ptr()
            .wrapping_add(core::mem::offset_of!(NextSegment, next_wqe_index));
        // SAFETY: inside the WQE, aligned to two bytes; the slot is not posted, so the device does not
        // read it.
        unsafe { link.cast::<Be16>().write_volatile(Be16::new(to as u16)) }
    }

    /// Starts a batch of posts; the doorbell rings when it is dropped.
    #[inline(always)]
    pub fn posting(&mut self) -> Posting<'_, T> {
        Posting { next: self.next, posted: 0, queue: self }
    }

    /// The run is down to `slot`: finds where its link leads. Returns that slot, and the state that
    /// `slot` has once posted.
    #[cold]
    #[inline(never)]
    fn turn(&mut self, slot: u32) -> Option<(u32, u8)> {
        if self.scattered.is_empty() {
            return None;
        }
        let mask = self.slots.mask();
        let natural = (slot + 1) & mask;
        // SAFETY: masked slot numbers; the set is not empty.
        unsafe {
            let absorbed = self.scattered.take_run(natural);
            if absorbed > 0 {
                self.end = (natural + absorbed) & mask;
                return Some((natural, slots::POSTED));
            }
            let start = self.scattered.next(natural);
            let run = self.scattered.take_run(start);
            self.end = (start + run) & mask;
            self.link(slot, start);
            Some((start, slots::POSTED_TURNED))
        }
    }

    /// Posts the WQE at the cursor, which has been written.
    #[inline(always)]
    fn advance(&mut self, slot: u32) -> Option<u32> {
        let after = (slot + 1) & self.slots.mask();
        if after != self.end {
            self.slots.set_state(slot, slots::POSTED);
            return Some(after);
        }
        let (next, state) = self.turn(slot)?;
        self.slots.set_state(slot, state);
        Some(next)
    }

    /// The completion of WQE `wqe_counter`: its slot, which is the caller's until
    /// [`release`](Self::release) or [`recycle`](Self::recycle). `None` when no such WQE is posted.
    pub fn complete(&mut self, wqe_counter: u16) -> Option<u32> {
        let slot = u32::from(wqe_counter);
        if slot > self.slots.mask() {
            return None;
        }
        match self.slots.state(slot) {
            slots::POSTED => {}
            slots::POSTED_TURNED => self.restore(slot),
            _ => return None,
        }
        self.slots.set_state(slot, slots::HELD);
        Some(slot)
    }

    fn restore(&mut self, slot: u32) {
        self.link(slot, (slot + 1) & self.slots.mask());
    }

    /// Gives a completed slot back without its buffer.
    ///
    /// # Safety
    /// `slot` came from [`complete`](Self::complete) and was not given back since.
    pub unsafe fn release(&mut self, slot: u32) {
        debug_assert_eq!(self.slots.state(slot), slots::HELD);
        self.slots.set_state(slot, slots::EMPTY);
        if slot == self.end {
            self.end = (slot + 1) & self.slots.mask();
        } else {
            // SAFETY: a completed slot is in range and not free.
            unsafe { self.scattered.insert(slot) }
        }
    }

    /// Gives a completed slot back with its buffer, and posts one WQE in its place, for which
    /// [`ring`](Self::ring) rings.
    ///
    /// # Safety
    /// As [`release`](Self::release); and the buffer is the device's again, as with
    /// [`Posting::post`].
    pub unsafe fn recycle(&mut self, slot: u32) {
        // SAFETY: the caller's contract.
        unsafe { self.release(slot) }
        let cursor = self.next;
        if self.slots.state(cursor) == slots::LOADED {
            self.slots.set_state(slot, slots::LOADED);
        } else {
            self.copy_wqe(slot, cursor);
        }
        // The slot just released is free beside the cursor, so there is a successor.
        if let Some(next) = self.advance(cursor) {
            self.next = next;
            self.unrung += 1;
        }
    }

    fn copy_wqe(&mut self, from: u32, to: u32) {
        // SAFETY: both slots are free and distinct; each has `max_sge` segments. `from` was posted, so
        // its data is initialised.
        unsafe {
            let (source, target) = (self.segments(from), self.segments(to));
            source.copy_to_nonoverlapping(target, self.max_sge as usize);
            self.slots.set_data(to, self.slots.data(from));
        }
    }

    /// Writes a WQE into the cursor slot without posting it: the queue then recycles without writing
    /// WQEs, because every slot has a buffer of its own.
    ///
    /// # Errors
    /// [`PostError::Full`] when the cursor slot has a buffer already, [`PostError::TooManySges`].
    ///
    /// # Safety
    /// As [`Posting::post`]: the slot is posted when a completion makes room.
    pub unsafe fn load(&mut self, data: T, sges: &[Sge]) -> Result<u32, PostError> {
        if sges.len() > self.max_sge as usize {
            return Err(PostError::TooManySges);
        }
        let slot = self.next;
        if self.slots.state(slot) == slots::LOADED {
            return Err(PostError::Full);
        }
        // SAFETY: the cursor slot is free; the length was checked.
        unsafe { sge::scatter(self.segments(slot), self.max_sge, sges) }
        self.slots.set_data(slot, data);
        self.slots.set_state(slot, slots::LOADED);
        Ok(slot)
    }

    /// Posts loaded slots from `next` on, then a new WQE into the first empty one. When the loaded slot
    /// takes the last place, the new WQE is loaded in its stead. Returns the cursor, how many WQEs were
    /// posted, and what became of the new one.
    #[cold]
    #[inline(never)]
    fn post_behind_loaded(
        &mut self,
        mut next: u32,
        data: T,
        sges: &[Sge],
    ) -> (u32, u32, Result<u32, PostError>) {
        let mut posted = 0;
        while self.slots.state(next) == slots::LOADED {
            match self.advance(next) {
                Some(after) => next = after,
                None => return (next, posted, Err(PostError::Full)),
            }
            posted += 1;
        }
        let slot = next;
        // SAFETY: the slot is empty and not posted; the caller checked the length.
        unsafe { sge::scatter(self.segments(slot), self.max_sge, sges) }
        self.slots.set_data(slot, data);
        self.slots.set_state(slot, slots::LOADED);
        if let Some(after) = self.advance(slot) {
            next = after;
            posted += 1;
        }
        (next, posted, Ok(slot))
    }

    /// Hands the WQEs posted since the last doorbell to the device.
    #[inline(always)]
    pub fn ring(&mut self) {
        if self.unrung == 0 {
            return;
        }
        self.counter = self.counter.wrapping_add(self.unrung);
        self.unrung = 0;
        barrier::wqe_before_doorbell_record();
        self.dbrec.write(dbrec::work_queue(self.counter));
    }

    /// Takes back every slot: the SRQ was destroyed. `f` gets the data of each slot that held a buffer.
    pub fn drain(&mut self, mut f: impl FnMut(T)) {
        for slot in 0..self.slots() {
            let state = self.slots.state(slot);
            self.slots.set_state(slot, slots::EMPTY);
            if matches!(state, slots::LOADED | slots::POSTED | slots::POSTED_TURNED) {
                // SAFETY: a loaded or posted slot has data.
                f(unsafe { self.slots.data(slot) });
            }
        }
    }
}

/// Posts to an SRQ; dropping it rings the doorbell once for all WQEs written.
#[derive(Debug)]
pub struct Posting<'a, T: Copy> {
    queue: &'a mut SharedReceiveQueue<T>,
    next: u32,
    posted: u32,
}

impl<T: Copy> Posting<'_, T> {
    /// Posts one receive and returns its slot, which is also the `wqe_counter` of its completion.
    ///
    /// # Errors
    /// [`PostError::Full`] or [`PostError::TooManySges`]; nothing was written then, and the WQEs posted
    /// before stay posted.
    ///
    /// # Safety
    /// Each SGE names memory that its `lkey` covers and that nobody reads or writes until the WQE has
    /// completed or the SRQ is destroyed. When a QP of this SRQ has scatter-to-CQE on, each `addr` is
    /// also where this process sees that memory.
    #[inline(always)]
    pub unsafe fn post(&mut self, data: T, sges: &[Sge]) -> Result<u32, PostError> {
        if sges.len() > self.queue.max_sge as usize {
            return Err(PostError::TooManySges);
        }
        let slot = self.next;
        if self.queue.slots.state(slot) != slots::EMPTY {
            let (next, posted, result) = self.queue.post_behind_loaded(self.next, data, sges);
            self.next = next;
            self.posted += posted;
            return result;
        }
        let Some(next) = self.queue.advance(slot) else {
            return Err(PostError::Full);
        };
        // SAFETY: the slot was free and the doorbell has not been rung; the length was checked.
        unsafe { sge::scatter(self.queue.segments(slot), self.queue.max_sge, sges) }
        self.queue.slots.set_data(slot, data);
        self.next = next;
        self.posted += 1;
        Ok(slot)
    }

    /// Posts the cursor slot as it stands, when it is loaded. Returns whether it was.
    pub fn post_loaded(&mut self) -> bool {
        let slot = self.next;
        if self.queue.slots.state(slot) != slots::LOADED {
            return false;
        }
        match self.queue.advance(slot) {
            Some(next) => {
                self.next = next;
                self.posted += 1;
                true
            }
            None => false,
        }
    }

    /// WQEs written so far, which the doorbell will cover.
    pub const fn posted(&self) -> u32 {
        self.posted
    }
}

impl<T: Copy> Drop for Posting<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.next = self.next;
        self.queue.unrung += self.posted;
        self.queue.ring();
    }
}

#[cfg(test)]
mod tests;
