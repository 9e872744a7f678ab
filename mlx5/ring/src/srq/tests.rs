use std::vec::Vec;

use super::SharedReceiveQueue;

impl SharedReceiveQueue<u32> {
    /// The fields that decide what happens next, and none that only counts.
    pub(crate) fn fingerprint(&self, key: &mut Vec<u8>) {
        key.extend([self.next, self.end, self.expected, self.scattered.len()].map(|x| x as u8));
    }

    /// As if `index` WQEs had been posted before.
    pub(crate) fn start_at(&mut self, index: u32) {
        (self.posted, self.rung) = (index, index);
    }
}
