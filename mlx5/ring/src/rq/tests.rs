use std::vec::Vec;

use super::ReceiveQueue;

impl ReceiveQueue<u32> {
    /// The fields that decide what happens next, and none that only counts.
    pub(crate) fn fingerprint(&self, key: &mut Vec<u8>) {
        let ahead = self.head.wrapping_sub(self.tail).min(2 * self.slots() + 1);
        let run = self.end.wrapping_sub(self.head);
        key.extend([self.cursor(), ahead, run, self.waiting].map(|x| x as u8));
    }

    /// As if `index` WQEs had been posted before, have completed and were given back empty.
    pub(crate) fn start_at(&mut self, index: u32) {
        (self.head, self.rung, self.tail) = (index, index, index);
        self.end = index.wrapping_add(self.slots());
    }
}
