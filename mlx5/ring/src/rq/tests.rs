use std::vec::Vec;

use super::ReceiveQueue;
use crate::slots;
use crate::testing::Rig;

impl ReceiveQueue<u32> {
    /// The fields that decide what happens next, and none that only counts. When the tail is more than two laps
    /// behind, nothing is expected, and it does not matter by how much.
    pub(crate) fn fields(&self) -> [u8; 5] {
        let ahead = self.head.wrapping_sub(self.tail).min(2 * self.slots() + 1);
        let run = self.end.wrapping_sub(self.head);
        [self.head_slot(), ahead, run, 0, 0].map(|x| x as u8)
    }

    /// WQEs that the device was not told of.
    pub(crate) const fn unrung(&self) -> u32 {
        self.head.wrapping_sub(self.rung)
    }

    /// Takes over [`fields`](Self::fields) of a queue whose slots are in the same states. Its next lap begins
    /// where the indices wrap.
    pub(crate) fn restore(&mut self, [head, ahead, run, ..]: [u8; 5], unrung: u32) {
        self.head = u32::from(head).wrapping_sub(self.slots());
        self.rung = self.head.wrapping_sub(unrung);
        self.tail = self.head.wrapping_sub(ahead.into());
        self.end = self.head.wrapping_add(run.into());
        self.waiting = self.loaded();
    }

    /// Whether it counts as many waiting buffers as there are.
    pub(crate) fn check(&self) {
        assert_eq!(self.waiting, self.loaded(), "waiting buffers");
    }

    fn loaded(&self) -> u32 {
        (0..self.slots()).map(|slot| u32::from(self.slots.state(slot) == slots::LOADED)).sum()
    }

    /// `wqe_counter` of the completion that the queue expects.
    pub(crate) const fn expected_counter(&self) -> u16 {
        self.tail as u16
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
