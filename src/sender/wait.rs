//! Waiting for completions without polling.

use std::time::{Duration, Instant};

use super::Sender;
use crate::channel::CompletionChannel;
use crate::error::{Error, Result};

impl Sender {
    /// Returns the completion channel, which becomes readable when a CQE arrives after [`arm`](Self::arm), or `None`
    /// if the sender was created from a CQ without one.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.cq.channel()
    }

    /// Makes the [channel](Self::channel) readable when the next request completes. Returns `true` if a request has
    /// already completed, or if a queue pair was reset, destroyed or dropped since the last poll: then poll instead of
    /// sleeping. The call also consumes the events of earlier calls, so call it before each sleep.
    ///
    /// In a loop poll, then post, then arm. If a poll returned completions after [`NotSent::Full`](crate::NotSent::Full), post
    /// again before you sleep: nothing may be outstanding, and then nothing ends the sleep.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let queue = world.queue();
    /// # let sender = &mut world.sender;
    /// use std::os::fd::AsRawFd;
    ///
    /// sender.post(queue)?.send(b"hello")?;
    /// let fd = sender.channel().ok_or("no completion channel")?.as_raw_fd();
    /// while !sender.arm()? {
    ///     let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    ///     // Other descriptors could be waited for beside it, such as that of a receiver.
    ///     // SAFETY: one structure.
    ///     unsafe { libc::poll(&mut poll, 1, -1) };
    /// }
    /// assert!(sender.poll().next().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] without a channel; [`Error::Verbs`].
    pub fn arm(&mut self) -> Result<bool> {
        let (mut events, own) = (0, self.cq.as_raw());
        self.waking_channel()?.take_events(|cq| events += u32::from(cq == own))?;
        self.arm_cq(events)
    }

    /// The same, when `events` of the CQ were taken from its channel since the last call.
    pub(crate) fn arm_cq(&mut self, events: u32) -> Result<bool> {
        self.poller.arm(&self.cq, events, false)?;
        Ok(self.has_arrived())
    }

    /// Sleeps until a request completes, at most for `timeout`; without a time-out, forever. Returns `true` if a request has
    /// completed, or if a queue pair was reset, destroyed or dropped since the last poll: then poll, which may return nothing.
    /// Returns `false` if the time is over. Neither a signal handler nor another thread that resets a queue pair ends the
    /// sleep: to stop on a signal, `poll(2)` the [channel](Self::channel) and a `signalfd(2)`.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let queue = world.queue();
    /// # let sender = &mut world.sender;
    /// sender.post(queue)?.send(b"hello")?;
    /// assert!(sender.wait(None)?);
    /// assert!(sender.poll().next().is_some());
    /// assert!(!sender.wait(std::time::Duration::ZERO)?, "nothing is outstanding");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`arm`](Self::arm).
    pub fn wait(&mut self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if self.has_arrived() || self.arm()? {
                return Ok(true);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if !self.waking_channel()?.is_readable(left)? {
                return Ok(self.has_arrived());
            }
        }
    }

    pub(crate) fn waking_channel(&self) -> Result<&CompletionChannel> {
        self.channel().ok_or(Error::Unsupported {
            operation: "waiting",
            when: "on a CQ without a completion channel: create the CQ with one",
        })
    }

    /// Returns `true` if there is something to poll.
    pub(crate) fn has_arrived(&mut self) -> bool {
        let has_ended = self.cq.ended() != self.ended;
        !self.run.is_over() || has_ended || self.poller.has_arrived()
    }
}
