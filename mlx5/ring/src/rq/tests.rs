//! What tests do to a receive queue from inside.

use super::ReceiveQueue;

impl<T: Copy> ReceiveQueue<T> {
    /// Puts the running counters where they wrap in this lap; returns the distance from where they were.
    pub fn wrap_soon(&mut self) -> u32 {
        let by = (self.head_slot() | !self.mask).wrapping_sub(self.head);
        self.head = self.head.wrapping_add(by);
        self.rung = self.rung.wrapping_add(by);
        by
    }
}
