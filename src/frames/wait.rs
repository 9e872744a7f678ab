//! Waiting for frames without polling.

use std::time::{Duration, Instant};

use super::FrameReceiver;
use crate::channel::CompletionChannel;
use crate::error::Result;

/// How often a sleeper looks whether a buffer that the queue needs is free again.
const LOOK: Duration = Duration::from_millis(5);

impl FrameReceiver {
    /// Returns the completion channel, which becomes readable when a frame arrives after [`arm`](Self::arm).
    pub fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    /// Makes the [channel](Self::channel) readable at the next frame. Returns `true` if a frame has already arrived:
    /// then poll instead of sleeping. The call also consumes the events of earlier calls, so call it before each
    /// sleep.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs).
    pub fn arm(&mut self) -> Result<bool> {
        self.end_batch();
        let mut events = 0;
        self.channel.take_events(|_| events += 1)?;
        self.queues.arm(&self.cq, events)?;
        Ok(self.queues.has_arrived())
    }

    /// Sleeps until a frame arrives, at most for `timeout`; without a time-out, forever. Returns `true` if a frame
    /// has arrived.
    ///
    /// # Errors
    /// The errors of [`arm`](Self::arm).
    pub fn wait(&mut self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        self.end_batch();
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if self.queues.has_arrived() || self.arm()? {
                return Ok(true);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // A frame that is dropped elsewhere wakes nobody.
            let sleep = if self.is_starving() {
                Some(left.map_or(LOOK, |left| left.min(LOOK)))
            } else {
                left
            };
            if !self.channel.is_readable(sleep)? && sleep == left {
                return Ok(self.queues.has_arrived());
            }
        }
    }
}
