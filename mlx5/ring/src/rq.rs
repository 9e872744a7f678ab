//! Receive queue of one QP: a ring of scatter lists.
//!
//! The device takes WQEs by their running index, so the next WQE always goes to slot `head`, and the ring
//! stands still while that slot is with the device or held by the caller. The empty slots from `head` on
//! are a *run*: posting inside it is counting. A completion in order whose slot is given back empty extends
//! the run; slots that became empty otherwise are found when the run is used up, each once per lap.

use core::mem::MaybeUninit;
use core::num::NonZero;
use core::ptr::NonNull;

use mlx5_wire::be::Be32;
use mlx5_wire::dbrec;

use crate::barrier;
use crate::dbrec::DoorbellRecord;
use crate::post;
use crate::ring::{Expected, Ring, Step, last_word};
use crate::slots::{self, Slots};

pub use crate::post::PostError;

/// Where a receive queue is, as `mlx5dv_init_obj` reports it in `struct mlx5dv_qp`.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// First WQE.
    pub buf: NonNull<u8>,
    /// Receive word of the doorbell record.
    pub dbrec: NonNull<Be32>,
    /// Number of WQEs.
    pub wqe_cnt: u32,
    /// Bytes from one WQE to the next.
    pub stride: u32,
}

/// Why a receive queue cannot be driven directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// The number of WQEs is not a power of two between 1 and 32,768.
    SlotCount,
    /// The stride is not a power of two with room for a data segment.
    Stride,
}

impl Layout {
    /// SGEs that a WQE has room for.
    pub const fn max_sge(&self) -> u32 {
        self.stride / 16
    }

    /// Whether [`ReceiveQueue::new`] can take it.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub const fn check(&self) -> Result<(), LayoutError> {
        // `wqe_counter` has 16 bits and must tell a slot from the same slot one lap later.
        if !self.wqe_cnt.is_power_of_two() || self.wqe_cnt > 1 << 15 {
            return Err(LayoutError::SlotCount);
        }
        if !self.stride.is_power_of_two() || self.stride < 16 {
            return Err(LayoutError::Stride);
        }
        Ok(())
    }
}

/// Memory of the caller's in which a queue of `wqe_cnt` WQEs keeps its books.
#[derive(Clone, Copy, Debug)]
pub struct Storage<T> {
    /// `wqe_cnt` bytes.
    pub states: NonNull<u8>,
    /// `wqe_cnt` values.
    pub data: NonNull<MaybeUninit<T>>,
}

/// Posts to a receive queue; dropping it rings the doorbell once for all WQEs written.
pub type Posting<'a, T> = post::Posting<'a, ReceiveQueue<T>>;

/// A receive queue; `T` is what the caller wants back with each completion.
#[derive(Debug)]
pub struct ReceiveQueue<T> {
    wqes: NonNull<u8>,
    stride: usize,
    max_sge: NonZero<u32>,
    dbrec: DoorbellRecord,
    /// Running index of the next WQE.
    head: u32,
    /// Running index after the run of empty slots that starts at `head`; at most one lap ahead.
    end: u32,
    /// The head that the device knows.
    rung: u32,
    /// Running index of the completion that is expected next; not ahead of `head`.
    tail: u32,
    /// Slots in state [`slots::LOADED`]. While there are any, the ring stands still.
    waiting: u32,
    slots: Slots<T>,
}

// SAFETY: the queue owns its slots by the contract of `new`.
unsafe impl<T: Send> Send for ReceiveQueue<T> {}

impl<T: Copy> ReceiveQueue<T> {
    /// Takes over a fresh receive queue.
    ///
    /// # Errors
    /// See [`LayoutError`].
    ///
    /// # Safety
    /// `layout` describes a receive queue to which nothing was posted since its QP was created or reset,
    /// and to which nobody else posts; its buffer and doorbell record stay mapped, and `storage` valid
    /// and untouched by others, for as long as the queue exists.
    pub unsafe fn new(layout: Layout, storage: Storage<T>) -> Result<Self, LayoutError> {
        layout.check()?;
        let max_sge = NonZero::new(layout.max_sge()).ok_or(LayoutError::Stride)?;
        // SAFETY: forwarded from the caller.
        let (dbrec, slots) = unsafe {
            (
                DoorbellRecord::new(layout.dbrec),
                Slots::new(storage.states, storage.data, layout.wqe_cnt),
            )
        };
        Ok(Self {
            wqes: layout.buf,
            stride: layout.stride as usize,
            max_sge,
            dbrec,
            head: 0,
            end: layout.wqe_cnt,
            rung: 0,
            tail: 0,
            waiting: 0,
            slots,
        })
    }

    /// WQEs that can be posted at once.
    pub const fn slots(&self) -> u32 {
        self.slots.count()
    }

    /// WQEs that can be posted now.
    pub fn vacant(&self) -> u32 {
        let mut end = self.end;
        while self.is_empty_at(end) {
            end = end.wrapping_add(1);
        }
        end.wrapping_sub(self.head)
    }

    /// SGEs that a WQE has room for.
    pub const fn max_sge(&self) -> u32 {
        self.max_sge.get()
    }

    /// Running index of the next WQE; its lower 16 bits stand in the doorbell record.
    pub const fn head(&self) -> u32 {
        self.head
    }

    /// What software remembers of the slots.
    pub const fn book(&self) -> &Slots<T> {
        &self.slots
    }

    /// Slot of the next WQE.
    const fn head_slot(&self) -> u32 {
        self.head & self.slots.mask()
    }

    /// Whether index `end` is less than a lap ahead of `head`, and its slot empty.
    fn is_empty_at(&self, end: u32) -> bool {
        end.wrapping_sub(self.head) < self.slots() && self.slots.state(end) == slots::EMPTY
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
        let slot = u32::from(wqe_counter) & self.slots.mask();
        self.slots.set_state(slot, slots::HELD);
        self.tail = self.tail.wrapping_add(1);
        Some(slot)
    }

    /// Gives a completed slot back without its buffer. Posts a buffer that waited for this slot, for which
    /// [`ring`](Self::ring) rings.
    ///
    /// # Safety
    /// `slot` came from [`complete`](Self::complete) and was not given back since.
    pub unsafe fn release(&mut self, slot: u32) {
        debug_assert_eq!(self.slots.state(slot), slots::HELD);
        self.empty(slot);
        if self.waiting > 0 && slot == self.head_slot() {
            self.post_waiting();
        }
    }

    /// Gives a completed slot back with its buffer, and posts what can be posted, for which
    /// [`ring`](Self::ring) rings. Nothing, when the slot at `head` is still with the device or held: the
    /// buffer then follows it.
    ///
    /// # Safety
    /// As [`release`](Self::release); and the buffer is the device's again, as with `Posting::post`.
    pub unsafe fn recycle(&mut self, slot: u32) {
        debug_assert_eq!(self.slots.state(slot), slots::HELD);
        let head = self.head_slot();
        if slot == head {
            self.post_head();
            self.post_waiting();
        } else if self.slots.state(head) == slots::EMPTY {
            self.move_to_head(slot);
        } else {
            self.slots.set_state(slot, slots::LOADED);
            self.waiting += 1;
        }
    }

    /// The slot has no buffer any more.
    fn empty(&mut self, slot: u32) {
        self.slots.set_state(slot, slots::EMPTY);
        if slot == self.end & self.slots.mask() {
            self.end = self.end.wrapping_add(1);
        }
    }

    /// Posts the WQE at the head, which has been written.
    fn post_head(&mut self) {
        self.slots.set_state(self.head, slots::POSTED);
        if self.end == self.head {
            self.end = self.end.wrapping_add(1);
        }
        self.head = self.head.wrapping_add(1);
    }

    /// Posts the buffer of `slot` at the head, another slot, which is empty.
    fn move_to_head(&mut self, slot: u32) {
        // SAFETY: both slots are free and distinct; each has `max_sge` segments. A slot with a buffer has
        // data.
        unsafe {
            let head = self.head_slot();
            let (from, to) = (self.segments(slot), self.segments(head));
            from.copy_to_nonoverlapping(to, self.max_sge.get() as usize);
            let data = self.slots.data(slot);
            self.slots.set_data_at(head as usize, data);
        }
        self.post_head();
        self.empty(slot);
    }

    /// Posts waiting buffers, until there are none or the slot at the head is not free.
    fn post_waiting(&mut self) {
        while self.waiting > 0 {
            match self.slots.state(self.head) {
                slots::LOADED => self.post_head(),
                slots::EMPTY => {
                    let mut slot = self.head.wrapping_add(1);
                    while self.slots.state(slot) != slots::LOADED {
                        slot = slot.wrapping_add(1);
                    }
                    self.move_to_head(slot & self.slots.mask());
                }
                _ => return,
            }
            self.waiting -= 1;
        }
    }

    /// Hands the WQEs posted since the last doorbell to the device.
    #[inline(always)]
    pub fn ring(&mut self) {
        if self.rung == self.head {
            return;
        }
        self.rung = self.head;
        barrier::wqe_before_doorbell_record();
        self.dbrec.write(dbrec::work_queue(self.head));
    }

    /// The QP went to RESET, which zeroes both words of its doorbell record: starts over from index 0.
    /// `f` gets the data of each slot that held a buffer. Slots that the caller holds stay held.
    pub fn reset(&mut self, mut f: impl FnMut(T)) {
        (self.head, self.end, self.rung, self.tail, self.waiting) = (0, 0, 0, 0, 0);
        for slot in 0..self.slots() {
            let state = self.slots.state(slot);
            if state == slots::HELD {
                continue;
            }
            self.slots.set_state(slot, slots::EMPTY);
            if state != slots::EMPTY {
                // SAFETY: a loaded or posted slot has data.
                f(unsafe { self.slots.data(slot) });
            }
        }
    }
}

impl<T: Copy> Ring for ReceiveQueue<T> {
    type Data = T;
    const LEAD: usize = 0;

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
        let slot = self.head_slot();
        let limit = slot + self.end.wrapping_sub(self.head);
        (slot, limit.min(self.slots()))
    }

    #[inline(always)]
    fn commit(&mut self, upto: u32) {
        let from = self.head_slot();
        if upto != from {
            // SAFETY: `upto` is a running slot after the head.
            unsafe { self.slots.set_states(from, upto, slots::POSTED) }
            self.head = self.head.wrapping_add(upto - from);
        }
    }

    fn step(&mut self, upto: u32) -> Step {
        self.commit(upto);
        if self.end == self.head {
            while self.is_empty_at(self.end) {
                self.end = self.end.wrapping_add(1);
            }
        }
        let (slot, limit) = self.span();
        if slot == limit {
            return Step { slot: Step::FULL, next: slot, limit };
        }
        Step { slot, next: slot + 1, limit }
    }

    #[inline(always)]
    fn posted(&self) -> u32 {
        self.head
    }

    #[inline(always)]
    fn index(&self, slot: u32) -> u32 {
        self.head.wrapping_add(slot - self.head_slot())
    }

    #[inline(always)]
    fn expected(&self) -> Expected {
        let slot = self.tail & self.slots.mask();
        // With out-of-order placement the tail can fall more than a lap behind.
        let outstanding = self.head.wrapping_sub(self.tail);
        if outstanding.wrapping_sub(1) > self.slots.mask() {
            return Expected::none(slot);
        }
        let count = outstanding.min(self.slots.until_block_end(slot));
        Expected { slot, word: last_word(self.tail as u16, 0).into(), count }
    }

    fn expect(&mut self, wqe_counter: u16) -> bool {
        // Of the indices that share a slot only the one posted last can complete.
        let age = u32::from((self.head as u16).wrapping_sub(wqe_counter));
        if age.wrapping_sub(1) > self.slots.mask()
            || self.slots.state(wqe_counter.into()) != slots::POSTED
        {
            return false;
        }
        self.tail = self.head.wrapping_sub(age);
        true
    }

    #[inline(always)]
    fn settle(&mut self, count: u32, recycled: bool, taken: bool) -> bool {
        // The run ends one lap after them.
        if self.end.wrapping_sub(self.tail) != self.slots() || self.waiting > 0 {
            return count == 0;
        }
        if recycled && self.end == self.head {
            // Each slot is where the next WQE goes when it is given back, and has that WQE already.
            self.head = self.head.wrapping_add(count);
        } else if !taken {
            return count == 0;
        }
        // They extend the run.
        self.end = self.end.wrapping_add(count);
        self.tail = self.tail.wrapping_add(count);
        true
    }

    fn reused(&self, count: u32) -> u32 {
        self.head.wrapping_sub(self.tail).saturating_sub(self.slots()).min(count)
    }

    fn settle_each(&mut self, count: u32) {
        let from = self.tail & self.slots.mask();
        let reused = self.reused(count);
        self.tail = self.tail.wrapping_add(count);
        let (from, to) = (from + reused, from + count);
        // What is posted meanwhile must not go to a slot whose turn has not come: its state would be taken for
        // its message's.
        for slot in from..to {
            if self.slots.state(slot) == slots::EMPTY {
                self.slots.set_state(slot, slots::LEAVING);
            }
        }
        for slot in from..to {
            let state = self.slots.state(slot);
            self.slots.set_state(slot, slots::HELD);
            // SAFETY: the slot has completed, and is given back here.
            unsafe {
                match state {
                    slots::POSTED => self.recycle(slot),
                    slots::LEAVING => self.release(slot),
                    _ => {}
                }
            }
        }
        // Where a reused slot was, others may have waited for it.
        self.post_waiting();
    }

    fn complete(&mut self, wqe_counter: u16) -> Option<u32> {
        ReceiveQueue::complete(self, wqe_counter)
    }

    unsafe fn release(&mut self, slot: u32) {
        // SAFETY: the caller's contract.
        unsafe { ReceiveQueue::release(self, slot) }
    }

    unsafe fn recycle(&mut self, slot: u32) {
        // SAFETY: the caller's contract.
        unsafe { ReceiveQueue::recycle(self, slot) }
    }

    #[inline(always)]
    fn hold(&mut self, slot: u32) {
        self.slots.set_state(slot, slots::HELD);
    }

    #[inline(always)]
    fn ring(&mut self) {
        ReceiveQueue::ring(self);
    }
}

#[cfg(test)]
mod tests;
