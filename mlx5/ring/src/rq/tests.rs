//! Changes that tests make inside a receive queue.

use super::ReceiveQueue;
use crate::slots::SlotState;

impl<T: Copy> ReceiveQueue<T> {
    /// Puts the running count into the lap before `end`; returns the distance from where they were.
    pub fn count_to(&mut self, end: u32) -> u32 {
        let head = end.wrapping_sub(self.wqes.slots.count()).wrapping_add(self.head_slot());
        let by = head.wrapping_sub(self.wqes.posted);
        self.wqes.posted = head;
        self.oldest = self.oldest.wrapping_add(by);
        for slot in 0..self.wqes.slots.count() {
            // SAFETY: below the count.
            let slot = unsafe { self.wqes.slots.get_mut(slot) };
            slot.index = slot.index.wrapping_add(by as u16);
        }
        by
    }

    /// Checks that no buffer waits whose turn has come, after slots were given back.
    pub fn check_rung(&self) {
        // SAFETY: masked.
        let next = unsafe { self.wqes.slots.get(self.head_slot()).state };
        let stands = matches!(next, SlotState::Posted | SlotState::Held);
        assert!(self.waiting == 0 || stands, "a buffer waits for a slot that is {next:?}");
    }
}
