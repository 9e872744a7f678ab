//! Work requests in lists, as the functions of libibverbs take them.

use crate::sum::Sum;

/// A queue that is posted to in lists.
pub trait Lists {
    /// A work request.
    type Wr;

    /// The work request of every buffer. The work requests of a batch are a list.
    fn wrs(&mut self) -> &mut [Self::Wr];

    /// Posts a list.
    fn post_list(&self, first: *mut Self::Wr);

    /// Takes at most `batch` messages, and returns how many that were.
    fn poll_batch(&mut self, batch: u32, each: impl FnMut(u64, u32)) -> u32;

    /// Takes `count` messages.
    #[inline(always)]
    fn poll_all(&mut self, count: u32, batch: u32) -> Sum {
        let mut sum = Sum::default();
        let mut left = count;
        while left > 0 {
            left -= self.poll_batch(batch, |wr_id, len| sum.add(wr_id, len.into()));
        }
        sum
    }

    /// Posts all buffers.
    #[inline(always)]
    fn post_all(&mut self, batch: u32) {
        let (wrs, count) = (self.wrs().as_mut_ptr(), self.wrs().len());
        for first in (0..count).step_by(batch as usize) {
            // SAFETY: inside the array.
            self.post_list(unsafe { wrs.add(first) });
        }
    }
}
