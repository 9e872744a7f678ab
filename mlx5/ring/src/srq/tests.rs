//! Changes that tests make inside an SRQ.

use super::SharedReceiveQueue;

impl<T: Copy> SharedReceiveQueue<T> {
    /// Puts the running count where the next post makes it `end`; returns the distance from where they were.
    pub fn count_to(&mut self, end: u32) -> u32 {
        let by = end.wrapping_sub(1).wrapping_sub(self.wqes.posted);
        self.wqes.posted = self.wqes.posted.wrapping_add(by);
        by
    }

    /// Checks that nothing is lent, after slots were given back.
    pub fn check_rung(&self) {
        assert_eq!(self.lent, None);
    }

    /// Returns the slot that was lent last.
    pub const fn lent(&self) -> Option<u32> {
        self.lent
    }
}
