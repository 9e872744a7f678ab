//! What tests do to an SRQ from inside.

use super::SharedReceiveQueue;

impl<T: Copy> SharedReceiveQueue<T> {
    /// Puts the running counters where the next post makes them `end`; returns the distance from where they were.
    pub fn count_to(&mut self, end: u32) -> u32 {
        let by = end.wrapping_sub(1).wrapping_sub(self.posted);
        self.posted = self.posted.wrapping_add(by);
        self.rung = self.rung.wrapping_add(by);
        by
    }
}
