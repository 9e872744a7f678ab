use super::{EXPECTED, LAST, SharedReceiveQueue};
use crate::slots;

impl SharedReceiveQueue<u32> {
    /// The fields that decide what happens next, and none that only counts.
    pub(crate) fn fields(&self) -> [u8; 5] {
        let [next, end, expected] = [self.next, self.end, self.expected].map(|x| x as u8);
        let (closed, recent) = self.scattered.fields();
        [next, end, expected, self.loose | u8::from(closed) << 2, recent]
    }

    /// WQEs that the device was not told of.
    pub(crate) const fn unrung(&self) -> u32 {
        self.posted.wrapping_sub(self.rung)
    }

    /// Takes over [`fields`](Self::fields) of a queue whose slots are in the same states. Of the empty ones those
    /// in `unsettled` were not given back yet. The count of WQEs is about to wrap.
    pub(crate) fn restore(
        &mut self,
        [next, end, expected, loose, recent]: [u8; 5],
        unrung: u32,
        unsettled: impl Fn(u32) -> bool,
    ) {
        (self.next, self.end, self.expected) = (next.into(), end.into(), expected.into());
        self.loose = loose & (LAST | EXPECTED);
        self.scattered.restore(loose & 4 != 0, recent);
        self.posted = 0u32.wrapping_sub(1).wrapping_add(unrung);
        self.rung = u32::MAX;
        for slot in 0..self.slots() {
            // SAFETY: in range, and each is inserted when it is not a member.
            unsafe {
                let sorted = self.scattered.sorted();
                sorted.take_run(slot);
                if self.is_sorted(slot) && !unsettled(slot) {
                    self.scattered.sorted().insert(slot);
                }
            }
        }
    }

    /// Whether the bitmap has the slots that [`restore`](Self::restore) puts there.
    pub(crate) fn check(&mut self, unsettled: impl Fn(u32) -> bool) {
        for slot in 0..self.slots() {
            let expected = self.is_sorted(slot) && !unsettled(slot);
            // SAFETY: in range.
            let found = unsafe { self.scattered.sorted().contains(slot) };
            assert_eq!(found, expected, "slot {slot} in the bitmap");
        }
    }

    /// Whether a slot is free, outside of the run, and was not freed lately.
    fn is_sorted(&self, slot: u32) -> bool {
        let mask = self.slots.mask();
        let run = (self.end.wrapping_sub(self.next).wrapping_sub(1) & mask) + 1;
        self.slots.state(slot) == slots::EMPTY
            && slot.wrapping_sub(self.next) & mask >= run
            && !self.scattered.is_recent(slot)
    }

    /// Whether the link of a slot that is not posted is decided when it is.
    pub(crate) fn may_lead_elsewhere(&self, slot: u32) -> bool {
        self.loose & LAST != 0 && self.after(slot) == self.end
            || self.loose & EXPECTED != 0
                && slot == self.expected
                && self.slots.state(slot) != slots::HELD
            || self.scattered.is_recent(slot)
    }

    /// `wqe_counter` of the completion that the queue expects.
    pub(crate) const fn expected_counter(&self) -> u16 {
        self.expected as u16
    }

    /// As if `index` WQEs had been posted before.
    pub(crate) fn start_at(&mut self, index: u32) {
        (self.posted, self.rung) = (index, index);
    }
}
