use std::vec::Vec;

use super::ReceiveQueue;
use crate::testing::Rig;

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

#[test]
fn a_reset_starts_over_and_gives_back_what_was_posted() {
    let mut rig = Rig::<ReceiveQueue<u32>>::new(4, 5, 8);
    let buffers = rig.free_buffers(3);
    rig.post(&buffers);
    let mut back = Vec::new();
    rig.queue.reset(|buffer| back.push(buffer));
    assert_eq!(back, buffers);
    assert_eq!((rig.queue.head(), rig.queue.vacant()), (0, 4));
}
