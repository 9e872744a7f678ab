//! Comparing what the device may read: queue memory, doorbell records, and the CQEs that wait.

use super::Case;
use crate::difference::Result;
use crate::pair::same_completions;

/// Large queues are looked at as a whole once in so many operations.
const SELDOM: u64 = 64;

impl Case<'_> {
    /// Compares all queues; `thorough` also the large ones.
    pub(super) fn compare_queues(&mut self, thorough: bool) -> Result<()> {
        let (theirs, ours) = self.twins.queues();
        let whole = thorough || self.operation % SELDOM == 0;
        for (number, pair) in self.queues.iter().enumerate() {
            pair.compare(number, [&theirs, &ours], whole, self.run.tally)?;
        }
        let diverged = self.queues.iter().any(|pair| pair.diverged);
        let cqs = [&self.cqs[0], &self.cqs[1]];
        same_completions(cqs, [&theirs, &ours], self.run.tally, |cqe| {
            if diverged {
                cqe.wqe_counter = 0.into();
            }
        })
    }
}
