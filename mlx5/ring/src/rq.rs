//! Receive queue of a QP: a ring of WQEs that are posted one after the other.
//!
//! WQE `n` is in slot `n` modulo the number of slots, and the doorbell record has the count of posted WQEs. A slot
//! whose completion came before that of an older one (out-of-order data placement) can be posted again only after the
//! older ones: until then its buffer waits in it.

use core::ptr::NonNull;

use mlx5_wire::be::Be32;
use mlx5_wire::data::DataSegment;

use crate::prefetch;
use crate::receive::{PostError, ReceiveRing, Wqes};
use crate::sge::Sge;
use crate::slots::{Slot, SlotState, Slots};

/// Where a receive queue is, as `mlx5dv_init_obj` reports it in `struct mlx5dv_qp`.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// First WQE (`rq.buf`).
    pub buf: NonNull<u8>,
    /// First word of the QP's doorbell record.
    pub dbrec: NonNull<Be32>,
    /// Number of WQEs.
    pub wqe_cnt: u32,
    /// Bytes from one WQE to the next.
    pub stride: u32,
}

/// Why a receive queue cannot be driven directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// The number of WQEs is not a power of two up to 32,768.
    WqeCount,
    /// The stride is not a power of two with room for a data segment.
    Stride,
}

impl Layout {
    /// Returns the number of SGEs that a WQE has room for.
    pub const fn max_sge(&self) -> u32 {
        self.stride / 16
    }

    /// Checks whether [`ReceiveQueue::new`] can take it.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub const fn check(&self) -> Result<(), LayoutError> {
        // Full and empty must differ in the 16 bits of the doorbell record.
        if !self.wqe_cnt.is_power_of_two() || self.wqe_cnt > 1 << 15 {
            return Err(LayoutError::WqeCount);
        }
        if !self.stride.is_power_of_two() || self.stride < 16 {
            return Err(LayoutError::Stride);
        }
        Ok(())
    }
}

/// The receive queue of a QP; `T` is what the caller gets back with each completion.
///
/// `[waiting-blocked]`: while a buffer waits that was not lent since [`give_back`](ReceiveRing::give_back), the slot at
/// the head is posted or held, so there is no room.
#[derive(Debug)]
pub struct ReceiveQueue<T: Copy> {
    /// The count of posted WQEs is the index of the next one.
    wqes: Wqes<T>,
    mask: u32,
    /// Slots that are not free.
    used: u32,
    /// Slots that are loaded: their turn to be posted has not come.
    waiting: u32,
    /// Index before which no slot is in use, brought up to date by [`next_waiting`](Self::next_waiting).
    oldest: u32,
}

impl<T: Copy> ReceiveQueue<T> {
    /// Takes over a receive queue to which nothing was posted since its QP was created or reset.
    ///
    /// # Errors
    /// See [`LayoutError`].
    ///
    /// # Safety
    /// - `layout` describes such a queue, to which no other code posts; its buffer and doorbell record stay mapped for
    ///   as long as the value exists.
    /// - `slots` is valid for reads and writes of `wqe_cnt` slots for as long, and no other code uses it.
    pub unsafe fn new(layout: Layout, slots: NonNull<Slot<T>>) -> Result<Self, LayoutError> {
        layout.check()?;
        // SAFETY: no other code posts to the caller's queue or uses `slots`, and both stay valid.
        let wqes = unsafe {
            let slots = Slots::new(slots, layout.wqe_cnt);
            Wqes::new(layout.buf, layout.stride, layout.max_sge(), layout.dbrec, slots)
        };
        Ok(Self { wqes, mask: layout.wqe_cnt - 1, used: 0, waiting: 0, oldest: 0 })
    }

    /// Takes every receive back, as the device did: its QP was reset or destroyed. Calls `each` with the value of those
    /// that were posted or waited; held ones are their holders'. No doorbell may ring for a QP that was destroyed.
    pub fn reset(&mut self, each: impl FnMut(T)) {
        self.wqes.slots.clear(each);
        // The reset has zeroed the record.
        (self.wqes.posted, self.used, self.waiting, self.oldest) = (0, 0, 0, 0);
    }

    /// Zeroes the doorbell record of a QP in RESET: a doorbell that came after the reset may have written it.
    pub fn clear_record(&mut self) {
        self.wqes.clear_record();
    }

    /// Returns the slot to post next.
    #[inline(always)]
    const fn head_slot(&self) -> u32 {
        self.wqes.posted & self.mask
    }

    /// Posts the WQE in the slot at the head, which is loaded or held.
    #[inline(always)]
    fn post_head(&mut self) {
        // SAFETY: masked.
        let slot = unsafe { self.wqes.slots.get_mut(self.head_slot()) };
        slot.post(self.wqes.posted as u16);
        self.wqes.posted = self.wqes.posted.wrapping_add(1);
    }

    /// Posts the buffers that wait, as far as the slot at the head is free or has one.
    #[inline(never)]
    fn post_waiting(&mut self) {
        let first = self.wqes.posted;
        let mut posted = first;
        // After a lap no slot is loaded.
        loop {
            // SAFETY: masked.
            let slot = unsafe { self.wqes.slots.get_mut(posted & self.mask) };
            if slot.state != SlotState::Loaded {
                break;
            }
            slot.post(posted as u16);
            posted = posted.wrapping_add(1);
        }
        self.wqes.posted = posted;
        self.waiting -= posted.wrapping_sub(first);
        if self.waiting > 0 {
            self.post_others();
        }
    }

    /// Posts the buffers that wait in other slots than that at the head, as far as it is free.
    #[cold]
    fn post_others(&mut self) {
        while self.waiting > 0 {
            let to = self.head_slot();
            // SAFETY: masked.
            match unsafe { self.wqes.slots.get(to).state } {
                SlotState::Posted | SlotState::Held => return,
                SlotState::Loaded => {}
                SlotState::Free => {
                    let from = self.next_waiting();
                    self.move_wqe(from, to);
                }
            }
            self.post_head();
            self.waiting -= 1;
        }
    }

    /// Returns the oldest slot in which a buffer waits; there is one.
    fn next_waiting(&mut self) -> u32 {
        let lap = self.wqes.slots.count();
        if self.wqes.posted.wrapping_sub(self.oldest) > lap {
            self.oldest = self.wqes.posted.wrapping_sub(lap);
        }
        // SAFETY: masked.
        let state = |index: u32| unsafe { self.wqes.slots.get(index & self.mask).state };
        while state(self.oldest) == SlotState::Free {
            self.oldest = self.oldest.wrapping_add(1);
        }
        let mut waiting = self.oldest;
        while state(waiting) != SlotState::Loaded {
            waiting = waiting.wrapping_add(1);
        }
        waiting & self.mask
    }

    /// Puts the buffer of slot `from` into slot `to`, which is free, and frees `from`.
    #[cold]
    fn move_wqe(&mut self, from: u32, to: u32) {
        // SAFETY: both slots exist and are not the device's; `from` has data.
        unsafe { self.wqes.copy(from, to, SlotState::Loaded) };
    }
}

impl<T: Copy> ReceiveRing for ReceiveQueue<T> {
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
        self.wqes.slots.count() - self.used
    }

    // Then no buffer waits: [waiting-blocked].
    #[inline(always)]
    fn has_room(&self) -> bool {
        // SAFETY: masked.
        unsafe { self.wqes.slots.get(self.head_slot()).state == SlotState::Free }
    }

    #[inline(always)]
    unsafe fn post_with(&mut self, data: T, write: impl FnOnce(NonNull<DataSegment>, u32)) -> Result<u32, PostError> {
        if !self.has_room() {
            return Err(PostError::Full);
        }
        debug_assert_eq!(self.waiting, 0, "[waiting-blocked]");
        let (index, slot) = (self.wqes.posted, self.head_slot());
        // SAFETY: masked; a free slot is not the device's.
        unsafe {
            let segments = self.wqes.segments(slot);
            prefetch::ahead(segments, 1);
            write(segments, self.wqes.max_sge);
            let slot = self.wqes.slots.get_mut(slot);
            slot.set_data(data);
            slot.post(index as u16);
        }
        self.wqes.posted = index.wrapping_add(1);
        self.used += 1;
        Ok(index)
    }

    unsafe fn load(&mut self, _: T, _: &[Sge]) -> Result<(), PostError> {
        Err(PostError::Full)
    }

    #[inline(always)]
    fn posted_slot(&self, wqe_counter: u16) -> Option<u32> {
        let slot = u32::from(wqe_counter) & self.mask;
        // SAFETY: masked.
        let posted = unsafe { self.wqes.slots.get(slot) };
        // A counter of another lap names the same slot.
        posted.is_posted_as(wqe_counter).then_some(slot)
    }

    #[inline(always)]
    unsafe fn lend(&mut self, slot: u32) {
        // SAFETY: a slot that was posted exists.
        unsafe { self.wqes.slots.get_mut(slot).state = SlotState::Loaded };
        self.waiting += 1;
    }

    #[inline(always)]
    unsafe fn lend_held(&mut self, slot: u32) {
        // SAFETY: a slot that is held exists.
        unsafe { self.lend(slot) }
    }

    #[inline(always)]
    unsafe fn release_lent(&mut self, slot: u32) {
        // SAFETY: a slot that is lent exists.
        unsafe { self.wqes.slots.get_mut(slot).state = SlotState::Free };
        self.waiting -= 1;
        self.used -= 1;
    }

    #[inline(always)]
    fn give_back(&mut self) {
        if self.waiting > 0 {
            self.post_waiting();
        }
    }

    #[inline(always)]
    unsafe fn recycle(&mut self, slot: u32) {
        let to = self.head_slot();
        if slot == to {
            self.post_head();
            if self.waiting > 0 {
                self.post_waiting();
            }
        } else if self.has_room() {
            self.move_wqe(slot, to);
            self.post_head();
        } else {
            // SAFETY: a slot that is held exists.
            unsafe { self.wqes.slots.get_mut(slot).state = SlotState::Loaded };
            self.waiting += 1;
            self.post_waiting();
        }
    }

    #[inline(always)]
    unsafe fn release(&mut self, slot: u32) {
        // SAFETY: a slot that is held exists.
        unsafe { self.wqes.slots.get_mut(slot).state = SlotState::Free };
        self.used -= 1;
        if self.waiting > 0 {
            self.post_waiting();
        }
    }
}

#[cfg(test)]
mod tests;
