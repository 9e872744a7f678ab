//! What tests do to an SRQ from inside.

use super::SharedReceiveQueue;

impl<T: Copy> SharedReceiveQueue<T> {
    /// Puts the running counters where they wrap with the next post; returns the distance from where they were.
    pub fn wrap_soon(&mut self) -> u32 {
        let by = !self.posted;
        self.posted = self.posted.wrapping_add(by);
        self.rung = self.rung.wrapping_add(by);
        by
    }
}
