//! Shared receive queue: a linked list of WQEs, of which the free ones are kept as runs.
//!
//! The device follows `next_wqe_index`. A driver that reads that link to find where the next WQE goes
//! pays a dependent load from memory it shares with the device for each post. Here every slot is linked
//! to its successor once; free slots form *runs*, and inside a run the next slot is the next number.
//!
//! - A slot given back in order extends the current run by one.
//! - One out of order is remembered in a [`Bitmap`].
//! - When the current run is down to its last slot, that slot's link is turned to the next run of the
//!   bitmap, and the slot is marked so that its completion turns the link back.
//!
//! Two rules keep the device's view of the list whole. The last slot of the run, the one that the last
//! posted WQE links to, stays unposted: its own link is not decided yet. And no link of a posted WQE is
//! ever written.
//!
//! So one slot is always free, and a buffer can wait in it, the *spare*: then there is a buffer in every
//! slot, and giving back the oldest one in order posts the spare's WQE, which is already written, and makes
//! the oldest the new spare. A buffer waits only while no other slot is free.

use core::mem::{MaybeUninit, offset_of};
use core::num::NonZero;
use core::ptr::NonNull;

use mlx5_wire::be::{Be16, Be32};
use mlx5_wire::dbrec;
use mlx5_wire::next::NextSegment;

use crate::barrier;
use crate::bitmap::{self, Bitmap};
use crate::dbrec::DoorbellRecord;
use crate::post;
use crate::ring::{Expected, Ring, Step, last_word};
use crate::sge::{self, Sge};
use crate::slots::{self, Slots};

pub use crate::post::PostError;

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
    ///
    /// # Errors
    /// See [`LayoutError`].
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

/// Posts to an SRQ; dropping it rings the doorbell once for all WQEs written.
pub type Posting<'a, T> = post::Posting<'a, SharedReceiveQueue<T>>;

/// A shared receive queue; `T` is what the caller wants back with each completion.
#[derive(Debug)]
pub struct SharedReceiveQueue<T> {
    wqes: NonNull<u8>,
    stride: usize,
    max_sge: NonZero<u32>,
    dbrec: DoorbellRecord,
    /// WQEs posted since creation.
    posted: u32,
    /// Those that the device knows.
    rung: u32,
    /// First slot of the current run: where the next WQE goes, and where the last posted one links to.
    next: u32,
    /// The slot after the current run.
    end: u32,
    /// The slot that is expected to complete next.
    expected: u32,
    slots: Slots<T>,
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
        let max_sge = NonZero::new(layout.max_sge()).ok_or(LayoutError::Stride)?;
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
            stride: layout.stride as usize,
            max_sge,
            dbrec,
            posted: 0,
            rung: 0,
            next: 0,
            end: 0,
            expected: 0,
            slots,
            scattered,
        };
        for slot in 0..count {
            queue.set_link(slot, queue.after(slot));
        }
        Ok(queue)
    }

    /// Slots; one fewer can be posted.
    pub const fn slots(&self) -> u32 {
        self.slots.count()
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
        self.max_sge.get()
    }

    /// Running count of WQEs handed over; its lower 16 bits stand in the doorbell record.
    pub const fn counter(&self) -> u32 {
        self.rung
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

    const fn after(&self, slot: u32) -> u32 {
        (slot + 1) & self.slots.mask()
    }

    /// Whether a buffer waits at the cursor.
    fn has_spare(&self) -> bool {
        self.slots.state(self.next) == slots::LOADED
    }

    fn set_link(&mut self, slot: u32, to: u32) {
        // SAFETY: inside the WQE and aligned to two bytes; the slot is not posted, so the device does not read
        // it.
        unsafe {
            let link = self.wqe(slot).add(offset_of!(NextSegment, next_wqe_index));
            link.cast::<Be16>().write_volatile(Be16::new(to as u16));
        }
    }

    /// Starts a batch of posts; the doorbell rings when it is dropped.
    #[inline(always)]
    pub fn posting(&mut self) -> Posting<'_, T> {
        post::Posting::new(self)
    }

    /// The completion of WQE `wqe_counter`: its slot, which is the caller's until
    /// [`release`](Self::release) or [`recycle`](Self::recycle). `None` when no such WQE is posted.
    pub fn complete(&mut self, wqe_counter: u16) -> Option<u32> {
        if !self.expect(wqe_counter) {
            return None;
        }
        let slot = u32::from(wqe_counter);
        self.slots.set_state(slot, slots::HELD);
        self.expected = self.after(slot);
        Some(slot)
    }

    /// Gives a completed slot back without its buffer. Posts the spare, for which [`ring`](Self::ring)
    /// rings.
    ///
    /// # Safety
    /// `slot` came from [`complete`](Self::complete) and was not given back since.
    pub unsafe fn release(&mut self, slot: u32) {
        debug_assert_eq!(self.slots.state(slot), slots::HELD);
        self.slots.set_state(slot, slots::EMPTY);
        // SAFETY: the caller's contract.
        unsafe { self.vacate(slot) }
    }

    /// [`release`](Self::release) of a slot whose state is told already.
    ///
    /// # Safety
    /// As [`release`](Self::release).
    unsafe fn vacate(&mut self, slot: u32) {
        let spare = self.has_spare();
        // SAFETY: the caller's contract.
        unsafe { self.free(slot) }
        if spare {
            self.post_cursor();
        }
    }

    /// Gives a completed slot back with its buffer, and posts one WQE in its place, for which
    /// [`ring`](Self::ring) rings.
    ///
    /// # Safety
    /// As [`release`](Self::release); and the buffer is the device's again, as with
    /// `Posting::post`.
    pub unsafe fn recycle(&mut self, slot: u32) {
        debug_assert_eq!(self.slots.state(slot), slots::HELD);
        // SAFETY: the caller's contract.
        unsafe { self.put_back(slot) }
    }

    /// [`recycle`](Self::recycle), whatever the state of the slot is.
    ///
    /// # Safety
    /// As [`recycle`](Self::recycle).
    #[inline(always)]
    unsafe fn put_back(&mut self, slot: u32) {
        let cursor = self.next;
        let state = if self.has_spare() {
            slots::LOADED
        } else {
            self.copy_to_cursor(slot);
            slots::EMPTY
        };
        self.slots.set_state(slot, state);
        if slot != self.end && self.end == self.after(cursor) && self.scattered.is_empty() {
            // No other slot is free, so the next WQE goes here: nothing is to be searched.
            self.turn_to(cursor, slot, 1);
            self.posted = self.posted.wrapping_add(1);
            return;
        }
        // SAFETY: the caller's contract.
        unsafe { self.free(slot) }
        self.post_cursor();
    }

    /// # Safety
    /// `slot` is in range and not free.
    unsafe fn free(&mut self, slot: u32) {
        if slot == self.end {
            self.end = self.after(slot);
        } else {
            // SAFETY: the caller's contract.
            unsafe { self.scattered.insert(slot) }
        }
    }

    fn copy_to_cursor(&mut self, slot: u32) {
        // SAFETY: both slots are software's and distinct; each has `max_sge` segments. A completed slot has
        // data.
        unsafe {
            let (from, to) = (self.segments(slot), self.segments(self.next));
            from.copy_to_nonoverlapping(to, self.max_sge.get() as usize);
            let data = self.slots.data(slot);
            self.slots.set_data_at(self.next as usize, data);
        }
    }

    /// Posts the WQE at the cursor, which has been written. There is another free slot.
    fn post_cursor(&mut self) {
        let slot = self.next;
        let after = self.after(slot);
        if after != self.end {
            return self.post_cursor_into(after);
        }
        self.turn(slot);
        self.posted = self.posted.wrapping_add(1);
    }

    /// Posts the WQE at the cursor; the slot after it is `after`, which is free.
    #[inline(always)]
    fn post_cursor_into(&mut self, after: u32) {
        self.slots.set_state(self.next, slots::POSTED);
        self.next = after;
        self.posted = self.posted.wrapping_add(1);
    }

    /// The run is down to `slot`, which is posted now: decides where its link leads, to a free slot outside
    /// the run.
    fn turn(&mut self, slot: u32) {
        let natural = self.after(slot);
        // SAFETY: slot numbers in range; the set is not empty.
        unsafe {
            let absorbed = self.scattered.take_run(natural);
            if absorbed > 0 {
                self.slots.set_state(slot, slots::POSTED);
                self.next = natural;
                self.end = (natural + absorbed) & self.slots.mask();
            } else {
                let start = self.scattered.next(natural);
                let run = self.scattered.take_run(start);
                self.turn_to(slot, start, run);
            }
        }
    }

    /// Links `slot`, which is posted now, to the run of `count` slots that starts at another one than its
    /// successor.
    #[inline(always)]
    fn turn_to(&mut self, slot: u32, start: u32, count: u32) {
        self.set_link(slot, start);
        self.slots.set_state(slot, slots::POSTED_TURNED);
        self.next = start;
        self.end = (start + count) & self.slots.mask();
    }

    /// Posts a receive, and rings for it; or, when all slots but the last one are taken, leaves it there to
    /// be posted as soon as a slot is given back. With a buffer in every slot, giving back in order writes
    /// no WQE. Returns the slot.
    ///
    /// # Errors
    /// [`PostError::Full`] when a buffer waits in the last slot already, [`PostError::TooManySges`].
    ///
    /// # Safety
    /// As `Posting::post`.
    pub unsafe fn load(&mut self, data: T, sges: &[Sge]) -> Result<u32, PostError> {
        if self.vacant() > 0 {
            // SAFETY: the caller's contract.
            return unsafe { self.posting().post(data, sges) };
        }
        if sges.len() > self.max_sge.get() as usize {
            return Err(PostError::TooManySges);
        }
        if self.has_spare() {
            return Err(PostError::Full);
        }
        let slot = self.next;
        // SAFETY: the cursor slot is free; the length was checked.
        unsafe {
            sge::scatter(self.segments(slot), self.max_sge.get(), sges);
            self.slots.set_data_at(slot as usize, data);
        }
        self.slots.set_state(slot, slots::LOADED);
        Ok(slot)
    }

    /// Hands the WQEs posted since the last doorbell to the device.
    #[inline(always)]
    pub fn ring(&mut self) {
        if self.rung == self.posted {
            return;
        }
        self.rung = self.posted;
        barrier::wqe_before_doorbell_record();
        self.dbrec.write(dbrec::work_queue(self.posted));
    }

    /// Takes back every slot that the caller does not hold: the SRQ was destroyed. `f` gets the data of
    /// each slot that had a buffer. Nothing must be posted any more.
    pub fn drain(&mut self, mut f: impl FnMut(T)) {
        for slot in 0..self.slots() {
            let state = self.slots.state(slot);
            if matches!(state, slots::LOADED | slots::POSTED | slots::POSTED_TURNED) {
                self.slots.set_state(slot, slots::EMPTY);
                // SAFETY: a loaded or posted slot has data.
                f(unsafe { self.slots.data(slot) });
            }
        }
    }
}

impl<T: Copy> Ring for SharedReceiveQueue<T> {
    type Data = T;
    const LEAD: usize = NextSegment::SIZE;

    #[inline(always)]
    fn book(&self) -> &Slots<T> {
        &self.slots
    }

    #[inline(always)]
    fn book_mut(&mut self) -> &mut Slots<T> {
        &mut self.slots
    }

    #[inline(always)]
    fn max_sge(&self) -> NonZero<u32> {
        self.max_sge
    }

    #[inline(always)]
    fn wqe(&self, slot: u32) -> NonNull<u8> {
        // SAFETY: a running slot is inside the buffer or at its end.
        unsafe { self.wqes.add(slot as usize * self.stride) }
    }

    #[inline(always)]
    fn stride(&self) -> usize {
        self.stride
    }

    #[inline(always)]
    fn span(&self) -> (u32, u32) {
        let last = self.end.wrapping_sub(1) & self.slots.mask();
        (self.next, if last >= self.next { last } else { self.slots() })
    }

    #[inline(always)]
    fn commit(&mut self, upto: u32) {
        let from = self.next;
        if upto != from {
            // SAFETY: `upto` is a running slot after the cursor.
            unsafe { self.slots.set_states(from, upto, slots::POSTED) }
            self.next = upto & self.slots.mask();
            self.posted = self.posted.wrapping_add(upto - from);
        }
    }

    fn step(&mut self, upto: u32) -> Step {
        self.commit(upto);
        let (slot, limit) = self.span();
        if slot != limit {
            return Step { slot, next: slot + 1, limit };
        }
        if self.scattered.is_empty() {
            return Step { slot: Step::FULL, next: slot, limit };
        }
        self.turn(slot);
        self.posted = self.posted.wrapping_add(1);
        let (next, limit) = self.span();
        Step { slot, next, limit }
    }

    #[inline(always)]
    fn posted(&self) -> u32 {
        self.posted
    }

    #[inline(always)]
    fn index(&self, slot: u32) -> u32 {
        slot
    }

    #[inline(always)]
    fn expected(&self) -> Expected {
        let slot = self.expected;
        let word = last_word(slot as u16, 0).into();
        Expected { slot, word, count: self.slots.until_block_end(slot) }
    }

    fn expect(&mut self, wqe_counter: u16) -> bool {
        let slot = u32::from(wqe_counter);
        if slot > self.slots.mask() {
            return false;
        }
        match self.slots.state(slot) {
            slots::POSTED => {}
            slots::POSTED_TURNED => {
                self.set_link(slot, self.after(slot));
                self.slots.set_state(slot, slots::POSTED);
            }
            _ => return false,
        }
        self.expected = slot;
        true
    }

    #[inline(always)]
    fn settle(&mut self, count: u32, recycled: bool, taken: bool) -> bool {
        if count == 0 {
            return true;
        }
        if self.expected != self.end {
            return false;
        }
        let upto = self.end + count;
        if self.has_spare() {
            // There is another free slot, so the spare is posted.
            if recycled {
                // Then each slot after the one before it; the last one is the new spare.
                self.slots.set_state(self.next, slots::POSTED);
                self.slots.set_state(upto - 1, slots::LOADED);
                self.next = upto - 1;
                self.posted = self.posted.wrapping_add(count);
            } else if taken {
                self.post_cursor_into(self.end);
            } else {
                return false;
            }
        } else if !taken {
            return false;
        }
        // They extend the run.
        self.end = upto & self.slots.mask();
        self.expected = self.end;
        true
    }

    fn settle_each(&mut self, count: u32) {
        let from = self.expected;
        self.expected = (from + count) & self.slots.mask();
        for slot in from..from + count {
            // SAFETY: the slot has completed, and is given back here.
            unsafe {
                match self.slots.state(slot) {
                    slots::POSTED => self.put_back(slot),
                    slots::EMPTY => self.vacate(slot),
                    _ => {}
                }
            }
        }
    }

    fn complete(&mut self, wqe_counter: u16) -> Option<u32> {
        SharedReceiveQueue::complete(self, wqe_counter)
    }

    unsafe fn release(&mut self, slot: u32) {
        // SAFETY: the caller's contract.
        unsafe { SharedReceiveQueue::release(self, slot) }
    }

    unsafe fn recycle(&mut self, slot: u32) {
        // SAFETY: the caller's contract.
        unsafe { SharedReceiveQueue::recycle(self, slot) }
    }

    fn hold(&mut self, slot: u32) {
        self.slots.set_state(slot, slots::HELD);
    }

    #[inline(always)]
    fn ring(&mut self) {
        SharedReceiveQueue::ring(self);
    }
}

#[cfg(test)]
mod tests;
