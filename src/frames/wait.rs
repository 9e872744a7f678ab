//! Waiting for frames without polling.

use std::time::{Duration, Instant};

use super::FrameReceiver;
use crate::channel::CompletionChannel;
use crate::error::Result;

/// How often a sleeper looks whether a buffer that the queue needs is free again.
const LOOK: Duration = Duration::from_millis(5);

impl FrameReceiver {
    /// What becomes readable when the receiver was armed and something arrives.
    pub fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    /// Asks for the [channel](Self::channel) to become readable when something arrives. `true` when something has arrived
    /// already: poll, and do not wait. It takes the events of earlier calls from the channel, so call it before each wait.
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

    /// Sleeps until something has arrived, at most for `timeout`; whether something has. For ever without a time.
    ///
    /// # Errors
    /// Those of [`arm`](Self::arm).
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
