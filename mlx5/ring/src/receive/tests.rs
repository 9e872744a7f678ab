use std::vec::Vec;

use super::{Queue, Receiving};

mod explorer;
mod random;

impl<Q: Queue> Receiving<'_, Q> {
    /// What of a batch decides what happens next, beside its queue, and nothing that only counts.
    pub(crate) fn fingerprint(&mut self, key: &mut Vec<u8>) {
        let (to_go, lent) = (self.at.to_go, self.lent);
        let (recycled_from, taken_from) = (self.recycled_from, self.taken_from);
        let (_, cq) = self.parts();
        let batch = &cq.batch;
        key.extend([
            to_go as u8,
            batch.slot(to_go) as u8,
            (to_go - batch.settled) as u8,
            u8::from(recycled_from == batch.settled) | u8::from(taken_from == batch.settled) << 1,
            u8::from(lent),
            batch.until.wrapping_sub(batch.stop).min(255) as u8,
        ]);
    }
}
