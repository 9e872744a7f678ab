//! Shared receive queue: a linked list of WQEs, of which the free ones are kept as runs.
//!
//! The device follows `next_wqe_index`. A driver that reads that link to find where the next WQE goes
//! pays a dependent load from memory it shares with the device for each post. Here every slot is linked
//! to its successor once; free slots form *runs*, and inside a run the next slot is the next number.
//!
//! - A slot given back in order extends the current run by one.
//! - One out of order is remembered.
//! - When the current run is down to its last slot, that slot's link is turned to the next slot or run that was
//!   remembered. When the slot has completed and is to lead to its successor again, the link is turned back.
//!
//! Two rules keep the device's view of the list whole. The last slot of the run, the one that the last
//! posted WQE links to, stays unposted: its own link is not decided yet. And no link of a posted WQE is
//! ever written.
//!
//! So one slot is always free, and a buffer can wait in it, the *spare*: then there is a buffer in every
//! slot, and giving back the oldest one in order posts the spare's WQE, which is already written, and makes
//! the oldest the new spare. A buffer waits only while no other slot is free.
//!
//! Where completions come in no order, each slot that is given back with its buffer becomes the spare, and what was
//! the spare is linked to it and posted: one link is written for a message, and nothing searched.

use core::mem::{MaybeUninit, offset_of};
use core::num::NonZero;
use core::ptr::NonNull;

use mlx5_wire::be::{Be16, Be32};
use mlx5_wire::dbrec;
use mlx5_wire::next::NextSegment;

use crate::barrier;
use crate::bitmap;
use crate::dbrec::DoorbellRecord;
use crate::post;
use crate::ring::{Expected, Ring, Step, last_word};
use crate::scattered::Scattered;
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

/// The last slot of the run.
const LAST: u8 = 1;
/// The expected slot, which has completed, and completes alone.
const EXPECTED: u8 = 2;

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
    /// Whose links may lead elsewhere than to the successor, though they are going to: [`LAST`] and [`EXPECTED`].
    loose: u8,
    /// The slot that is expected to complete next.
    expected: u32,
    slots: Slots<T>,
    /// Free slots outside the current run.
    scattered: Scattered,
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
                Scattered::new(storage.bitmap, count),
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
            loose: 0,
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
    pub const fn head_slot(&self) -> u32 {
        self.next
    }

    const fn after(&self, slot: u32) -> u32 {
        (slot + 1) & self.slots.mask()
    }

    /// Whether a buffer waits at the head.
    #[inline(always)]
    fn has_spare(&self) -> bool {
        // SAFETY: a slot.
        unsafe { self.slots.state_at(self.next as usize) == slots::LOADED }
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
        Ring::hold(self, slot);
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
        unsafe { self.vacate(slot, false) }
    }

    /// [`release`](Self::release) of a slot whose state is told already; its link may lead elsewhere if `loose`.
    ///
    /// # Safety
    /// As [`release`](Self::release).
    unsafe fn vacate(&mut self, slot: u32, loose: bool) {
        let spare = self.has_spare();
        // SAFETY: the caller's contract.
        unsafe { self.free(slot, loose) }
        if spare {
            self.post_head();
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
        unsafe { self.put_back(slot, false) }
    }

    /// [`recycle`](Self::recycle), whatever the state of the slot is; its link may lead elsewhere if `loose`.
    ///
    /// # Safety
    /// As [`recycle`](Self::recycle).
    #[inline(always)]
    unsafe fn put_back(&mut self, slot: u32, loose: bool) {
        let state = if self.has_spare() {
            slots::LOADED
        } else {
            self.copy_to_head(slot);
            slots::EMPTY
        };
        self.slots.set_state(slot, state);
        let is_last = self.end == self.after(self.next) && self.scattered.is_empty();
        if slot != self.end && is_last {
            return self.post_last(slot, 1);
        }
        // SAFETY: the caller's contract.
        unsafe { self.free(slot, loose) }
        self.post_head();
    }

    /// Posts the WQE at the head, which is written and the last free slot, and links it to the `count` slots from
    /// `start` on, which are free now: nothing is to be searched.
    #[inline(always)]
    fn post_last(&mut self, start: u32, count: u32) {
        self.turn_to(self.next, start, count);
        self.loose = LAST;
        self.posted = self.posted.wrapping_add(1);
    }

    /// # Safety
    /// `slot` is in range and not free; its link leads to its successor, unless `loose`.
    unsafe fn free(&mut self, slot: u32, loose: bool) {
        if slot == self.end {
            self.tie();
            self.end = self.after(slot);
            self.loose |= if loose { LAST } else { 0 };
        } else if !self.scattered.push(slot) {
            // SAFETY: the caller's contract.
            unsafe { self.sort(slot) }
        }
    }

    /// Links the last slot of the run to its successor, which is going to follow it there.
    #[inline(always)]
    fn tie(&mut self) {
        if self.loose & LAST != 0 {
            self.loose &= !LAST;
            self.straighten(self.end.wrapping_sub(1) & self.slots.mask());
        }
    }

    fn straighten(&mut self, slot: u32) {
        self.set_link(slot, self.after(slot));
    }

    /// Puts the slots outside the run in order, among them `slot`, which is free now.
    ///
    /// # Safety
    /// `slot` is in range and not free.
    #[cold]
    #[inline(never)]
    unsafe fn sort(&mut self, slot: u32) {
        let mut next = Some(slot);
        while let Some(slot) = next {
            self.straighten(slot);
            // SAFETY: the caller's contract; or it was a member, and is no more.
            next = unsafe { self.scattered.sort(slot) };
        }
    }

    fn copy_to_head(&mut self, slot: u32) {
        // SAFETY: both slots are software's and distinct; each has `max_sge` segments. A completed slot has
        // data.
        unsafe {
            let (from, to) = (self.segments(slot), self.segments(self.next));
            from.copy_to_nonoverlapping(to, self.max_sge.get() as usize);
            let data = self.slots.data(slot);
            self.slots.set_data_at(self.next as usize, data);
        }
    }

    /// Posts the WQE at the head, which has been written. There is another free slot.
    fn post_head(&mut self) {
        let slot = self.next;
        let after = self.after(slot);
        if after != self.end {
            return self.post_head_into(after);
        }
        self.turn(slot);
        self.posted = self.posted.wrapping_add(1);
    }

    /// Posts the WQE at the head; the slot after it is `after`, which is free.
    #[inline(always)]
    fn post_head_into(&mut self, after: u32) {
        self.slots.set_state(self.next, slots::POSTED);
        self.next = after;
        self.posted = self.posted.wrapping_add(1);
    }

    /// The run is down to `slot`, which is posted now: decides where its link leads, to a free slot outside
    /// the run.
    #[inline(always)]
    fn turn(&mut self, slot: u32) {
        let natural = self.after(slot);
        // SAFETY: a slot number in range; the set is not empty.
        let (start, run, in_order) = unsafe { self.scattered.take(natural) };
        self.turn_to(slot, start, run);
        if start == natural {
            self.slots.set_state(slot, slots::POSTED);
        }
        self.loose = self.loose & !LAST | if in_order { 0 } else { LAST };
    }

    /// Links `slot`, which is posted now, to the run of `count` slots from `start` on.
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
        // SAFETY: the head is free; the length was checked.
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
            // SAFETY: `upto` is a running slot after the head.
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
    fn hop(&mut self, upto: u32) -> Option<u32> {
        if upto != self.next {
            return None;
        }
        let after = self.after(upto);
        debug_assert_eq!(after, self.end, "the slot to post next ends its span");
        let next = self.scattered.pop()?;
        self.set_link(upto, next);
        let state = if next == after { slots::POSTED } else { slots::POSTED_TURNED };
        // SAFETY: the slot to post next.
        unsafe { self.slots.set_state_at(upto as usize, state) }
        self.next = next;
        self.end = self.after(next);
        self.loose |= LAST;
        self.posted = self.posted.wrapping_add(1);
        Some(next)
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

    #[inline(always)]
    fn completes_alone(&mut self) -> bool {
        // SAFETY: a slot.
        let turned = unsafe { self.slots.state_at(self.expected as usize) == slots::POSTED_TURNED };
        if turned {
            self.loose |= EXPECTED;
        }
        turned
    }

    #[inline(always)]
    fn expect(&mut self, wqe_counter: u16) -> bool {
        let slot = u32::from(wqe_counter);
        // SAFETY: a slot.
        let posted = slot <= self.slots.mask()
            && slots::is_posted(unsafe { self.slots.state_at(slot as usize) });
        if posted {
            self.expected = slot;
        }
        posted
    }

    #[inline(always)]
    fn settle(&mut self, count: u32, recycled: bool, taken: bool) -> bool {
        if count == 0 {
            return true;
        }
        if self.expected != self.end || self.loose != 0 {
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
                self.post_head_into(self.end);
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

    #[inline(always)]
    fn settle_apart(&mut self, count: u32, recycled: bool, taken: bool) -> bool {
        let start = self.expected;
        if start == self.end {
            return false;
        }
        let upto = start + count;
        if recycled {
            if !self.has_spare() {
                return false;
            }
            // The spare is posted, and each slot after the one before it; the last one is the new spare.
            let (spare, last) = (self.next, upto - 1);
            self.set_link(spare, start);
            // SAFETY: slots.
            unsafe {
                self.slots.set_state_at(spare as usize, slots::POSTED_TURNED);
                self.slots.set_state_at(last as usize, slots::LOADED);
            }
            self.next = last;
            self.end = upto & self.slots.mask();
            self.loose = LAST;
            self.posted = self.posted.wrapping_add(count);
        } else if !taken {
            return false;
        } else if self.has_spare() {
            self.post_last(start, count);
        } else if count == 1 && self.scattered.push(start) {
            self.loose &= !EXPECTED;
        } else {
            return false;
        }
        self.expected = upto & self.slots.mask();
        true
    }

    fn settle_each(&mut self, count: u32) {
        let from = self.expected;
        let turned = self.loose & EXPECTED != 0;
        self.loose &= !EXPECTED;
        self.expected = (from + count) & self.slots.mask();
        for slot in from..from + count {
            // SAFETY: the slot has completed, and is given back here.
            unsafe {
                match self.slots.state(slot) {
                    slots::POSTED => self.put_back(slot, false),
                    slots::POSTED_TURNED => self.put_back(slot, true),
                    // What it was is not known any more. One that was turned completes alone.
                    slots::EMPTY => self.vacate(slot, turned && count == 1),
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

    #[inline(always)]
    fn hold(&mut self, slot: u32) {
        if self.slots.state(slot) == slots::POSTED_TURNED {
            self.straighten(slot);
        }
        self.slots.set_state(slot, slots::HELD);
    }

    #[inline(always)]
    fn ring(&mut self) {
        SharedReceiveQueue::ring(self);
    }
}

#[cfg(test)]
mod tests;
