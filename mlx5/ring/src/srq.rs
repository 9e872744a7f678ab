//! Shared receive queue: a linked list of WQEs.
//!
//! The device follows the links (`next_wqe_index`) and takes as many WQEs as the doorbell record counts. The list goes
//! on after the last posted WQE with the free slots, from `head` to `tail`. Posting takes the slot at the head, giving
//! back appends to the tail.
//!
//! - A driver that reads a link to find the next slot pays a dependent load from memory that the device reads, too.
//!   Each slot has a copy of its link instead; a link is stored to the WQE only where it changes, and never read back.
//!   While messages complete in order no link changes.
//! - `[last-free]`: at least one slot stays free: the last posted WQE links to it, and the link of a posted WQE is
//!   never written.
//! - `[loaded-alone]`: the last free slot can be loaded: its WQE describes a buffer that waits. Then every slot has a
//!   buffer, and recycling a slot appends it, loaded, and posts the one that waited. No WQE is written but a link,
//!   where it changes. A slot is loaded only while it is the only free one.

use core::mem::offset_of;
use core::ptr::NonNull;

use mlx5_wire::be::{Be16, Be32};
use mlx5_wire::data::DataSegment;
use mlx5_wire::next::NextSegment;

use crate::prefetch;
use crate::receive::{PostError, ReceiveRing, Wqes};
use crate::sge::{self, Sge};
use crate::slots::{Slot, SlotState, Slots};

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
    /// Returns the number of slots, one more than can be posted.
    pub const fn slots(&self) -> u32 {
        self.tail.wrapping_add(1)
    }

    /// Returns the number of SGEs that a WQE has room for.
    pub const fn max_sge(&self) -> u32 {
        (self.stride / 16).saturating_sub(1)
    }

    /// Checks whether [`SharedReceiveQueue::new`] can take it.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub const fn check(&self) -> Result<(), LayoutError> {
        if self.head != 0 {
            return Err(LayoutError::NotFresh);
        }
        let slots = self.slots();
        if !slots.is_power_of_two() || slots < 2 || slots > 1 << 16 {
            return Err(LayoutError::SlotCount);
        }
        if !self.stride.is_power_of_two() || self.stride < 32 {
            return Err(LayoutError::Stride);
        }
        Ok(())
    }
}

/// A shared receive queue; `T` is what the caller gets back with each completion.
///
/// `[slot-index]`: `head`, `tail` and every link are below the number of slots.
#[derive(Debug)]
pub struct SharedReceiveQueue<T: Copy> {
    wqes: Wqes<T>,
    /// First free slot: the last posted WQE links to it.
    head: u32,
    /// Last free slot, whose link is not decided.
    tail: u32,
    /// Free slots, at least one.
    free: u32,
    /// The slot that was lent last, which is held, until it is given back.
    lent: Option<u32>,
}

impl<T: Copy> SharedReceiveQueue<T> {
    /// Takes over an SRQ to which nothing was posted, and links its slots.
    ///
    /// # Errors
    /// See [`LayoutError`].
    ///
    /// # Safety
    /// - `layout` describes such an SRQ, to which no other code posts; its buffer and doorbell record stay mapped for
    ///   as long as the value exists.
    /// - `slots` is valid for reads and writes of [`Layout::slots`] slots for as long, and no other code uses it.
    pub unsafe fn new(layout: Layout, slots: NonNull<Slot<T>>) -> Result<Self, LayoutError> {
        layout.check()?;
        let count = layout.slots();
        // SAFETY: no other code posts to the caller's SRQ or uses `slots`, and both stay valid; the segments follow the
        // link.
        let wqes = unsafe {
            let segments = layout.buf.add(NextSegment::SIZE);
            let slots = Slots::new(slots, count);
            Wqes::new(segments, layout.stride, layout.max_sge(), layout.dbrec, slots)
        };
        let mut queue = Self { wqes, head: 0, tail: count - 1, free: count, lent: None };
        for slot in 0..count {
            queue.store_link(slot, (slot + 1) % count);
        }
        Ok(queue)
    }

    /// Returns the slot to post next.
    pub const fn head_slot(&self) -> u32 {
        self.head
    }

    /// Returns `true` if a buffer waits in the last free slot.
    #[inline(always)]
    pub fn is_loaded(&self) -> bool {
        // SAFETY: [slot-index].
        unsafe { self.wqes.slots.get(self.head).state == SlotState::Loaded }
    }

    /// Takes every receive back: the SRQ was destroyed, or no code posts to it any more. Calls `each` with the value of
    /// those that were posted or waited; held ones are their holders'.
    pub fn drain(&mut self, each: impl FnMut(T)) {
        self.give_back();
        self.wqes.slots.clear(each);
    }

    fn store_link(&mut self, slot: u32, to: u32) {
        // SAFETY: a slot below the count, which the device does not have; the link is aligned to two bytes.
        unsafe {
            self.wqes.slots.get_mut(slot).index = to as u16;
            let wqe = self.wqes.segments(slot).cast::<NextSegment>().sub(1).cast::<u8>();
            let link = wqe.add(offset_of!(NextSegment, next_wqe_index));
            link.cast::<Be16>().write_volatile(Be16::new(to as u16));
        }
    }

    /// Links the last free slot to `slot`, which becomes the last one.
    #[inline(always)]
    fn append(&mut self, slot: u32) {
        let last = self.tail;
        // SAFETY: [slot-index].
        if unsafe { self.wqes.slots.get(last).index } != slot as u16 {
            self.store_link(last, slot);
        }
        self.tail = slot;
        self.free += 1;
    }

    /// Gives a held slot back whose buffer is posted in the slot at the head, which has none.
    ///
    /// # Safety
    /// As [`recycle`](ReceiveRing::recycle).
    #[cold]
    unsafe fn recycle_copied(&mut self, slot: u32) {
        let to = self.head;
        // SAFETY: two slots, neither of which is the device's; the held one has data.
        unsafe { self.wqes.copy(slot, to, SlotState::Posted) };
        self.append(slot);
        self.advance(to);
    }

    /// Takes note that the WQE in the slot at the head, which `head` is, was written. There is another free slot.
    #[inline(always)]
    fn advance(&mut self, head: u32) {
        debug_assert!(self.has_room(), "[last-free]");
        // SAFETY: [slot-index].
        let slot = unsafe { self.wqes.slots.get_mut(head) };
        // Read first: a load waits for a store to the same eight bytes.
        self.head = slot.index.into();
        slot.state = SlotState::Posted;
        self.free -= 1;
        self.wqes.posted = self.wqes.posted.wrapping_add(1);
    }
}

impl<T: Copy> ReceiveRing for SharedReceiveQueue<T> {
    type Data = T;

    #[inline(always)]
    fn wqes(&self) -> &Wqes<T> {
        &self.wqes
    }

    #[inline(always)]
    unsafe fn wqes_mut(&mut self) -> &mut Wqes<T> {
        &mut self.wqes
    }

    fn free_slots(&self) -> u32 {
        self.free - 1
    }

    // The last free slot is never posted.
    #[inline(always)]
    fn has_room(&self) -> bool {
        self.head != self.tail
    }

    #[inline(always)]
    unsafe fn post_with(&mut self, data: T, write: impl FnOnce(NonNull<DataSegment>, u32)) -> Result<u32, PostError> {
        if !self.has_room() {
            return Err(PostError::Full);
        }
        let slot = self.head;
        // SAFETY: [slot-index]; the slot is not the device's.
        unsafe {
            let segments = self.wqes.segments(slot);
            prefetch::ahead(segments, 1);
            write(segments, self.wqes.max_sge);
            self.advance(slot);
            self.wqes.slots.get_mut(slot).set(data, SlotState::Posted);
        }
        Ok(slot)
    }

    // Into the last free slot, from where `recycle` and `release` post it.
    unsafe fn load(&mut self, data: T, sges: &[Sge]) -> Result<(), PostError> {
        if self.has_room() || self.is_loaded() {
            return Err(PostError::Full);
        }
        if sges.len() > self.max_sge() as usize {
            return Err(PostError::TooManySges);
        }
        let slot = self.head;
        // SAFETY: [slot-index]; the slot is not the device's; the number of SGEs was checked.
        unsafe {
            sge::scatter(self.wqes.segments(slot), self.wqes.max_sge, sges);
            self.wqes.slots.get_mut(slot).set(data, SlotState::Loaded);
        }
        Ok(())
    }

    #[inline(always)]
    fn posted_slot(&self, wqe_counter: u16) -> Option<u32> {
        let slot = u32::from(wqe_counter);
        self.wqes.slots.is_posted(slot).then_some(slot)
    }

    #[inline(always)]
    unsafe fn lend(&mut self, slot: u32) {
        // SAFETY: the caller's slot was returned by `posted_slot`.
        unsafe {
            self.hold(slot);
            self.lend_held(slot);
        }
    }

    #[inline(always)]
    unsafe fn lend_held(&mut self, slot: u32) {
        if let Some(before) = self.lent.replace(slot) {
            // SAFETY: it is held, and its buffer is the queue's from this call on.
            unsafe { self.recycle(before) }
        }
    }

    #[inline(always)]
    unsafe fn release_lent(&mut self, slot: u32) {
        self.lent = None;
        // SAFETY: a slot that is lent is held.
        unsafe { self.release(slot) }
    }

    #[inline(always)]
    fn give_back(&mut self) {
        if let Some(slot) = self.lent.take() {
            // SAFETY: it is held, and its buffer is the queue's from this call on.
            unsafe { self.recycle(slot) }
        }
    }

    #[inline(always)]
    unsafe fn recycle(&mut self, slot: u32) {
        let tail = self.tail;
        // SAFETY: [slot-index]; a slot that is held exists; the two differ, because the tail is not held.
        let [last, given] = unsafe { self.wqes.slots.pair_mut(tail, slot) };
        if last.state != SlotState::Loaded {
            // SAFETY: the caller's `slot` is held, and the contract of posting holds again for its buffer.
            return unsafe { self.recycle_copied(slot) };
        }
        // [loaded-alone]: the tail is the head, too. It is posted, and this one waits in its place.
        last.state = SlotState::Posted;
        given.state = SlotState::Loaded;
        if last.index != slot as u16 {
            self.store_link(tail, slot);
        }
        (self.head, self.tail) = (slot, slot);
        self.wqes.posted = self.wqes.posted.wrapping_add(1);
    }

    #[inline(always)]
    unsafe fn release(&mut self, slot: u32) {
        self.append(slot);
        // SAFETY: a slot that is held exists.
        unsafe { self.wqes.slots.get_mut(slot).state = SlotState::Free };
        if self.is_loaded() {
            // [loaded-alone]: now another slot is free.
            self.advance(self.head);
        }
    }
}

#[cfg(test)]
mod tests;
