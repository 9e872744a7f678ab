//! Waiting for frames without polling.

use std::time::{Duration, Instant};

use super::FrameReceiver;
use crate::channel::CompletionChannel;
use crate::error::Result;

/// How often a sleeper looks whether a buffer that the queue needs is free again.
const LOOK: Duration = Duration::from_millis(5);

impl FrameReceiver {
    /// Returns the completion channel, which becomes readable when a frame arrives after [`arm`](Self::arm), for `poll(2)` or
    /// the `AsyncFd` of tokio.
    pub fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    /// Makes the [channel](Self::channel) readable at the next frame. Returns `true` if a frame has already arrived:
    /// then poll instead of sleeping. The call also consumes the events of earlier calls, so call it before each
    /// sleep.
    ///
    /// While [taken](crate::frames::Frame::take) frames hold all buffers, no frame arrives, and dropping them does not make the
    /// channel readable. Then sleep with a time-out and [`poll`](Self::poll), which posts free buffers;
    /// [`wait`](Self::wait) looks for them every 5 ms.
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
    /// has arrived. A signal handler does not end the sleep: to stop on a signal, `poll(2)` the
    /// [channel](Self::channel) and a `signalfd(2)`.
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
            // A frame that is dropped elsewhere wakes no thread.
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
