use super::CompletionQueue;

impl CompletionQueue {
    /// As if `by` more CQEs, which is a multiple of two laps, had been taken.
    pub fn shift(&mut self, by: u32) {
        self.consumer_index = self.consumer_index.wrapping_add(by);
        self.published = self.published.wrapping_add(by);
    }
}
