//! Access of tests to the inside of an ordered queue.

use super::OrderedReceiveQueue;
use crate::slots::SlotState;

impl<T: Copy> OrderedReceiveQueue<T> {
    /// Puts the running count where the next post makes it `end`; returns the distance from where they were.
    pub fn count_to(&mut self, end: u32) -> u32 {
        let by = end.wrapping_sub(1).wrapping_sub(self.wqes.posted);
        self.wqes.posted = self.wqes.posted.wrapping_add(by);
        by
    }

    fn count(&self, state: SlotState) -> u32 {
        (0..self.wqes.slots.count()).filter(|slot| self.state(*slot) == state).count() as u32
    }

    /// Checks the invariants.
    pub fn check(&self) {
        let loaded = u32::from(self.state(self.tail) == SlotState::Loaded);
        assert!(loaded == 1 || self.state(self.tail) == SlotState::Free, "[tail]");
        let counts = [SlotState::Free, SlotState::Held, SlotState::Loaded].map(|state| self.count(state));
        assert_eq!([self.free, self.held, self.ready + loaded], counts, "[counts]");
        let is_marked = |slot| self.state(slot) != SlotState::Free || self.wqes.slots.is_marked(slot);
        assert!((0..self.wqes.slots.count()).all(is_marked), "[free-marked]");
    }

    /// Checks that no more slots wait than may, after slots were given back.
    pub fn check_rung(&self) {
        let with_device = self.count(SlotState::Posted);
        assert!(self.waiting() <= self.patience.min(with_device / 4), "[rung] {} wait", self.waiting());
        let waits = self.next == self.tail || self.ready == 0 || self.state(self.next) == SlotState::Posted;
        let has_grace = self.free > 0 && self.grace == 1;
        assert!(waits || has_grace, "[rung] the next slot is {:?}", self.state(self.next));
    }

    /// Returns where the next buffer is put, and whether those that are ready will stay where they are.
    pub fn filling(&self) -> [u32; 2] {
        if self.free == 0 {
            return [self.tail, 0];
        }
        let mut slot = self.fill_from;
        while self.state(slot) != SlotState::Free {
            slot = self.after(slot);
        }
        let is_tail = self.state(self.tail) == SlotState::Free;
        [if is_tail { self.tail } else { slot }, u32::from(self.grace == 2)]
    }

    /// Returns the slot that the tail waits for.
    pub fn next(&self) -> u32 {
        if self.next == self.tail { self.after(self.tail) } else { self.next }
    }
}
