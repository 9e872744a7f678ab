//! A shared receive queue whose receives stay neighbours in memory with several queue pairs.
//!
//! An adapter fetches WQEs ahead, and is fast while each link leads to the next slot in memory. With several queue
//! pairs receives complete in another order than that of their slots, and a free list in the order of completion soon
//! leads anywhere. So the list is a ring that waits: giving a slot back marks it, and a doorbell appends the marked
//! slots in the order of memory. Those behind a slot that has not come back wait for it, up to a limit.
//!
//! The tail of the list has a link that is not decided, so the device cannot have it. With a buffer in every slot, one
//! waits there, and no WQE is written. While other slots are free, the buffer of the next slot is copied to the tail,
//! and the free slots move on through the ring.

use core::mem::offset_of;
use core::ptr::NonNull;

use mlx5_wire::be::Be16;
use mlx5_wire::data::DataSegment;
use mlx5_wire::next::NextSegment;

use crate::prefetch;
use crate::receive::{PostError, ReceiveRing, Wqes};
use crate::sge::{self, Sge};
use crate::slots::{Slot, SlotState, Slots};
use crate::srq::{Layout, LayoutError};

/// A shared receive queue that posts in the order of memory; `T` is what the caller gets back with each completion.
///
/// The invariants, which comments cite by name:
/// - `[slot-index]`: `tail`, `next` and every link are below the number of slots.
/// - `[tail]`: the last posted WQE links to `tail`, which is free or loaded. It is posted when its successor is
///   decided, so no link of a posted WQE is ever written.
/// - `[counts]`: `free`, `held` and `ready` are the numbers of slots that are free, held, and loaded but for the tail.
///   All other slots but a loaded tail are posted.
/// - `[free-marked]`: every free slot is marked.
/// - `[rung]`: after a doorbell no more slots are ready than may [wait](Self::with_patience), `next` is not loaded
///   unless a slot became free before, and the tail is not loaded beside a free slot unless that counts as one that
///   waits.
#[derive(Debug)]
pub struct OrderedReceiveQueue<T: Copy> {
    wqes: Wqes<T>,
    tail: u32,
    /// The slot whose return the tail waits for: that after the tail, or the next one that is not free or held. The
    /// tail itself until it is [looked for](Self::seek).
    next: u32,
    ready: u32,
    free: u32,
    held: u32,
    /// A free slot is looked for from here on.
    fill_from: u32,
    /// 2: a slot has become free since slots were given back. 1: when slots were given back last, those that are ready
    /// stayed where they are, because such a slot may be filled soon.
    grace: u8,
    /// Most slots that wait for an older one.
    patience: u32,
    jumps: u32,
}

/// Neighbours that are worth a jump over the slots before them.
const RUN: u32 = 4;
/// Slots among which such neighbours are looked for.
const LOOK: u32 = 64;

impl<T: Copy> OrderedReceiveQueue<T> {
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
        let mut queue = Self {
            wqes,
            tail: 0,
            next: 1,
            ready: 0,
            free: count,
            held: 0,
            fill_from: 0,
            grace: 0,
            patience: u32::MAX,
            jumps: 0,
        };
        for slot in 0..count {
            queue.store_link(slot, (slot + 1) % count);
            // SAFETY: below the count.
            unsafe { queue.wqes.slots.free(slot) };
        }
        Ok(queue)
    }

    /// Lets at most `patience` slots that were given back wait for an older one, and no more than a quarter of those
    /// that the device has, which is the default.
    #[must_use]
    pub const fn with_patience(mut self, patience: u32) -> Self {
        self.patience = patience;
        self
    }

    /// Returns the slot to which the last posted WQE links.
    pub const fn tail(&self) -> u32 {
        self.tail
    }

    /// Returns `true` if every slot has a buffer.
    #[inline(always)]
    pub const fn is_loaded(&self) -> bool {
        self.free == 0
    }

    /// Returns `true` if receives were given back, and the last doorbell left them [waiting](Self::waiting).
    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        self.ready > 0 || self.free > 0 && self.state(self.tail) == SlotState::Loaded
    }

    /// Returns the number of receives that were given back, and that the last doorbell left waiting for an older one.
    pub fn waiting(&self) -> u32 {
        // The tail waits, too, if another slot could be the last.
        self.ready + u32::from(self.free > 0 && self.state(self.tail) == SlotState::Loaded)
    }

    /// Returns how many WQEs were posted whose link leads to another slot than the next in memory, modulo 2^32.
    pub const fn jumps(&self) -> u32 {
        self.jumps
    }

    /// Takes every receive back: the SRQ was destroyed, or no code posts to it any more. Calls `each` with the value of
    /// those that were posted or waited; held ones are their holders'.
    pub fn drain(&mut self, each: impl FnMut(T)) {
        self.wqes.slots.clear(each);
    }

    /// Appends every slot that waits, in the order of memory. The next doorbell hands them over.
    pub fn stop_waiting(&mut self) {
        self.append_all();
        if self.free > 0 && self.state(self.tail) == SlotState::Loaded {
            let free = self.free_slot(self.after(self.tail));
            self.append(free);
        }
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

    #[inline(always)]
    fn state(&self, slot: u32) -> SlotState {
        // SAFETY: [slot-index].
        unsafe { self.wqes.slots.get(slot).state }
    }

    #[inline(always)]
    fn set_state(&mut self, slot: u32, state: SlotState) {
        // SAFETY: [slot-index].
        unsafe { self.wqes.slots.get_mut(slot).state = state };
    }

    /// Returns the slot after this one in memory.
    #[inline(always)]
    fn after(&self, slot: u32) -> u32 {
        (slot + 1) & (self.wqes.slots.count() - 1)
    }

    /// Posts the tail, which is loaded, and makes `slot` the tail, which is free or loaded.
    #[inline(always)]
    fn append(&mut self, slot: u32) {
        debug_assert!(self.state(self.tail) == SlotState::Loaded && slot != self.tail, "[tail]");
        let last = self.tail;
        self.jumps = self.jumps.wrapping_add(u32::from(slot != self.after(last)));
        // SAFETY: [slot-index].
        if unsafe { self.wqes.slots.get(last).index } != slot as u16 {
            self.store_link(last, slot);
        }
        self.set_state(last, SlotState::Posted);
        if self.next == last {
            self.next = slot;
        }
        self.tail = slot;
        self.wqes.posted = self.wqes.posted.wrapping_add(1);
    }

    /// Returns the next free slot from this one on. There is one.
    #[inline(always)]
    fn free_slot(&mut self, from: u32) -> u32 {
        let mut slot = from;
        for _ in 0..LOOK {
            if self.state(slot) == SlotState::Free {
                return slot;
            }
            slot = self.after(slot);
        }
        self.far_free_slot(slot)
    }

    #[cold]
    #[inline(never)]
    fn far_free_slot(&mut self, from: u32) -> u32 {
        // SAFETY: [slot-index].
        let free = unsafe { self.wqes.slots.next_free(from) };
        free.expect("[free-marked]")
    }

    /// Moves the buffer of `slot` to the tail, which is free.
    #[cold]
    fn fill_tail(&mut self, slot: u32) {
        // SAFETY: two slots, neither of which is the device's; the first has a receive.
        unsafe {
            self.wqes.copy(slot, self.tail, SlotState::Loaded);
            self.wqes.slots.free(slot);
        }
    }

    /// Puts a receive into a free slot, of which there is one, and returns the slot.
    ///
    /// # Safety
    /// As [`post_with`](ReceiveRing::post_with).
    #[inline(always)]
    unsafe fn fill(&mut self, data: T, write: impl FnOnce(NonNull<DataSegment>, u32)) -> u32 {
        let is_tail = self.state(self.tail) == SlotState::Free;
        let slot = if is_tail { self.tail } else { self.free_slot(self.fill_from) };
        // SAFETY: [slot-index]; the slot is not the device's.
        unsafe {
            let segments = self.wqes.segments(slot);
            prefetch::ahead(segments, 1);
            write(segments, self.wqes.max_sge);
            self.wqes.slots.get_mut(slot).set(data, SlotState::Loaded);
        }
        self.free -= 1;
        let neighbour = self.after(slot);
        self.fill_from = neighbour;
        if is_tail {
            if self.state(neighbour) == SlotState::Free {
                self.append(neighbour);
            }
        } else {
            self.ready += 1;
        }
        slot
    }

    /// Returns `true` if so many slots may wait.
    #[inline(always)]
    fn may_wait(&self, waiting: u32) -> bool {
        let with_device = self.wqes.slots.count() - self.free - self.held - self.ready;
        waiting <= self.patience && 4 * waiting < with_device
    }

    /// Appends the neighbours of the tail as far as they were given back.
    #[inline(always)]
    fn append_neighbours(&mut self) {
        let tail = self.tail;
        // SAFETY: [slot-index].
        let last = unsafe { self.wqes.slots.post_run(tail) };
        self.wqes.posted = self.wqes.posted.wrapping_add(last - tail);
        self.ready -= last - tail;
        (self.tail, self.next) = (last, if last == tail { self.next } else { last });
    }

    /// Posts the tail if it is loaded and a free slot may follow.
    #[inline(never)]
    fn post_tail(&mut self) {
        if self.state(self.tail) != SlotState::Loaded {
            return;
        }
        let neighbour = self.after(self.tail);
        if self.state(neighbour) == SlotState::Free {
            self.append(neighbour);
        } else if !self.may_wait(self.waiting()) {
            let free = self.free_slot(neighbour);
            self.append(free);
        }
    }

    /// Appends the slots that were given back and are not neighbours of the tail, as far as it is their turn.
    #[inline(never)]
    fn append_others(&mut self) {
        let waits = self.state(self.next) == SlotState::Posted && self.may_wait(self.ready);
        if !waits || self.free > 0 {
            self.append_ready();
        }
    }

    #[inline(never)]
    fn append_ready(&mut self) {
        self.fill_from = self.tail;
        self.grace /= 2;
        if self.grace == 1 && self.free > 0 {
            // Else buffers would move to the free slots, though the program may post others there next.
            self.post_tail();
            if self.may_wait(self.waiting()) {
                return;
            }
        }
        while self.ready > 0 {
            self.seek();
            if self.state(self.next) == SlotState::Loaded {
                self.take_turn();
            } else if self.may_wait(self.waiting()) {
                break;
            } else if let Some(run) = self.find_run() {
                self.next = run;
            } else {
                self.append_all();
            }
        }
        if self.free > 0 {
            self.post_tail();
        }
    }

    /// Passes over slots that will not come back soon, until `next` is ready or with the device.
    #[inline(always)]
    fn seek(&mut self) {
        while self.next == self.tail || matches!(self.state(self.next), SlotState::Free | SlotState::Held) {
            self.next = self.after(self.next);
        }
    }

    /// Appends `next`, which is ready, and its neighbours as far as they are, too.
    #[inline(always)]
    fn take_turn(&mut self) {
        let (slot, neighbour, tail) = (self.next, self.after(self.tail), self.tail);
        if slot == neighbour {
            self.append_neighbours();
        }
        if self.tail == tail {
            self.take_turn_alone(slot, neighbour);
        }
    }

    /// Appends `slot`, which is ready, where a link changes or a slot is free.
    fn take_turn_alone(&mut self, slot: u32, neighbour: u32) {
        self.next = self.after(slot);
        self.ready -= 1;
        if self.state(self.tail) == SlotState::Loaded {
            if self.state(neighbour) != SlotState::Free {
                return self.append(slot);
            }
            self.append(neighbour);
        }
        // The free slots before this one stay between it and the tail, and links lead to neighbours.
        self.fill_tail(slot);
        let neighbour = self.after(self.tail);
        let free = if self.state(neighbour) == SlotState::Free { neighbour } else { slot };
        self.append(free);
    }

    /// Returns the first of some neighbours that are ready, if there are such a little after `next`.
    fn find_run(&self) -> Option<u32> {
        let (mut slot, mut run) = (self.next, 0);
        for _ in 0..LOOK {
            slot = self.after(slot);
            if slot == self.tail {
                return None;
            }
            run = if self.state(slot) == SlotState::Loaded { run + 1 } else { 0 };
            if run == RUN {
                return Some(slot.wrapping_sub(RUN - 1) & (self.wqes.slots.count() - 1));
            }
        }
        None
    }

    /// Appends every ready slot, in the order of memory from the tail on.
    fn append_all(&mut self) {
        let mut slot = self.tail;
        while self.ready > 0 {
            slot = self.after(slot);
            if slot != self.tail && self.state(slot) == SlotState::Loaded {
                let neighbour = self.after(self.tail);
                self.take_turn_alone(slot, neighbour);
            }
        }
    }
}

impl<T: Copy> ReceiveRing for OrderedReceiveQueue<T> {
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
        self.free.saturating_sub(1)
    }

    // The tail is never posted before another slot follows.
    #[inline(always)]
    fn has_room(&self) -> bool {
        self.free > 1
    }

    #[inline(always)]
    unsafe fn post_with(&mut self, data: T, write: impl FnOnce(NonNull<DataSegment>, u32)) -> Result<u32, PostError> {
        let slot = self.tail;
        // SAFETY: [slot-index]; a slot that leads on has a neighbour. The tail is not the device's.
        unsafe {
            let slots = &mut self.wqes.slots;
            if slots.is_free_before(slot + 1) && slots.get(slot + 1).state == SlotState::Free {
                let segments = self.wqes.segments(slot);
                prefetch::ahead(segments, 1);
                write(segments, self.wqes.max_sge);
                self.wqes.slots.get_mut(slot).set(data, SlotState::Posted);
                self.free -= 1;
                self.tail = slot + 1;
                if self.next == slot {
                    self.next = slot + 1;
                }
                self.wqes.posted = self.wqes.posted.wrapping_add(1);
                return Ok(slot);
            }
        }
        if !self.has_room() {
            return Err(PostError::Full);
        }
        // SAFETY: the caller's `write` and contract of posting.
        Ok(unsafe { self.fill(data, write) })
    }

    // Into the only free slot.
    unsafe fn load(&mut self, data: T, sges: &[Sge]) -> Result<(), PostError> {
        if self.free != 1 {
            return Err(PostError::Full);
        }
        if sges.len() > self.max_sge() as usize {
            return Err(PostError::TooManySges);
        }
        // SAFETY: a free slot; the number of SGEs was checked, and the caller keeps the contract of posting.
        unsafe { self.fill(data, |segments, room| sge::scatter(segments, room, sges)) };
        Ok(())
    }

    #[inline(always)]
    fn posted_slot(&self, wqe_counter: u16) -> Option<u32> {
        let slot = u32::from(wqe_counter);
        self.wqes.slots.is_posted(slot).then_some(slot)
    }

    #[inline(always)]
    unsafe fn hold(&mut self, slot: u32) {
        self.set_state(slot, SlotState::Held);
        self.held += 1;
    }

    #[inline(always)]
    unsafe fn lend(&mut self, slot: u32) {
        self.set_state(slot, SlotState::Loaded);
        self.ready += 1;
    }

    #[inline(always)]
    unsafe fn release_lent(&mut self, slot: u32) {
        self.grace = 2;
        self.ready -= 1;
        self.free += 1;
        // SAFETY: a slot that is lent exists.
        unsafe { self.wqes.slots.free(slot) };
    }

    #[inline(always)]
    unsafe fn lend_held(&mut self, slot: u32) {
        self.held -= 1;
        // SAFETY: a slot that is held exists.
        unsafe { self.lend(slot) }
    }

    #[inline(always)]
    fn give_back(&mut self) {
        self.append_neighbours();
        if self.ready | self.free != 0 {
            self.append_others();
        }
    }

    // The turn of a recycled slot comes with those that are lent.
    #[inline(always)]
    unsafe fn recycle(&mut self, slot: u32) {
        // SAFETY: the slot is the caller's, and is given back.
        unsafe { self.lend_held(slot) }
    }

    #[inline(always)]
    unsafe fn release(&mut self, slot: u32) {
        // SAFETY: a slot that is held exists.
        unsafe { self.wqes.slots.free(slot) };
        self.grace = 2;
        self.held -= 1;
        self.free += 1;
    }
}

#[cfg(test)]
mod tests;
