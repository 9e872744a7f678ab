//! A sum over the messages that a subject received.

/// Sums over messages. Each subject adds up the `wr_id` and the length of every message inside of the
/// measurement, as the least that a program does with a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Sum of `wr_id`.
    pub ids: u64,
    /// Sum of lengths in bytes.
    pub bytes: u64,
}

impl Sum {
    /// Adds a message.
    #[inline(always)]
    pub fn add(&mut self, wr_id: u64, len: u64) {
        self.ids = self.ids.wrapping_add(wr_id);
        self.bytes = self.bytes.wrapping_add(len);
    }
}
