//! Waiting for completions without polling.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Receiver;
use crate::channel::CompletionChannel;
use crate::cq::Cq;
use crate::error::{Error, Result};

/// How often a sleeper looks whether a pool has got a buffer back that a queue needs.
const LOOK: Duration = Duration::from_millis(5);

impl Receiver {
    /// Returns the completion channel, which becomes readable when a completion arrives after [`arm`](Self::arm), or
    /// `None` if the receiver was created from a CQ without one.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # world.send(b"hello");
    /// # let receiver = &mut world.receiver;
    /// use std::os::fd::AsRawFd;
    ///
    /// let channel = receiver.channel().expect("a receiver has one unless it was made from a CQ without");
    /// println!("for poll(2) and the like: {}", channel.as_raw_fd());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.cq.channel()
    }

    /// Makes the [channel](Self::channel) readable at the next completion. Returns `true` if a completion has already
    /// arrived: then poll instead of sleeping.
    ///
    /// The call also consumes the events of earlier calls, so call it before each sleep:
    ///
    /// ```no_run
    /// use std::os::fd::AsRawFd;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let mut receiver = doorbell::Receiver::new(&pd, &doorbell::ReceiverConfig::new())?;
    /// let fd = receiver.channel().ok_or("no completion channel")?.as_raw_fd();
    /// loop {
    ///     while !receiver.arm()? {
    ///         let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    ///         // Other descriptors could be waited for beside it.
    ///         // SAFETY: one initialised entry.
    ///         unsafe { libc::poll(&mut poll, 1, -1) };
    ///     }
    ///     let mut batch = receiver.poll();
    ///     while let Some(message) = batch.next() {
    ///         println!("{} bytes", message?.len());
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] without a channel; [`Error::CqFailed`] after [`handle_event`](Self::handle_event)
    /// reported it; [`Error::Verbs`].
    pub fn arm(&mut self) -> Result<bool> {
        self.arm_for(false)
    }

    /// Makes the channel readable at the next solicited message (`IBV_SEND_SOLICITED`) or failed receive. Returns
    /// `true` if any completion has already arrived.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # world.send(b"hello");
    /// # let receiver = &mut world.receiver;
    /// // Something has arrived that was not polled: no need to wait.
    /// assert!(receiver.arm_solicited()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`arm`](Self::arm).
    pub fn arm_solicited(&mut self) -> Result<bool> {
        self.arm_for(true)
    }

    fn arm_for(&mut self, solicited_only: bool) -> Result<bool> {
        self.end_batch();
        if self.cq_failed {
            return if self.has_arrived() { Ok(true) } else { Err(Error::CqFailed) };
        }
        let (mut events, own) = (0, self.cq.as_raw());
        self.waking_channel()?.take_events(|cq| events += u32::from(cq == own))?;
        self.arm_cq(events, solicited_only)
    }

    /// Arms the CQ, of which `events` were taken from the channel. Returns `true` if something has arrived already.
    pub(crate) fn arm_cq(&mut self, events: u32, solicited_only: bool) -> Result<bool> {
        // Otherwise a queue that runs dry while other threads have its buffers would never wake this thread.
        while self.park() {
            self.post_all_returned();
        }
        self.poller.arm(&self.cq, events, solicited_only)?;
        Ok(self.has_arrived())
    }

    /// Sleeps until a completion arrives, at most for `timeout`; without a time-out, forever. Returns `true` if a
    /// completion has arrived. A signal handler does not end the sleep: to stop on a signal, `poll(2)` the
    /// [channel](Self::channel) and a `signalfd(2)`.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # world.send(b"hello");
    /// # let receiver = &mut world.receiver;
    /// use std::time::Duration;
    ///
    /// while receiver.wait(Duration::from_millis(10))? {
    ///     let mut batch = receiver.poll();
    ///     while let Some(message) = batch.next() {
    ///         println!("{} bytes", message?.len());
    ///     }
    /// }
    /// println!("nothing for 10 ms");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`arm`](Self::arm).
    pub fn wait(&mut self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        self.end_batch();
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if self.has_arrived() || self.arm()? {
                return Ok(true);
            }
            // A buffer that is dropped into a pool wakes no thread, and a queue that runs dry neither.
            self.post_all_returned();
            let starving = self.is_starving();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let sleep =
                if starving { Some(left.map_or(LOOK, |left| left.min(LOOK))) } else { left };
            let awake = self.waking_channel()?.or_is_readable(self.wake_fd(), sleep);
            self.unpark();
            if !awake? && sleep == left {
                return Ok(self.has_arrived());
            }
        }
    }

    /// The CQ.
    pub(crate) const fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    pub(crate) fn waking_channel(&self) -> Result<&CompletionChannel> {
        self.channel().ok_or(Error::Unsupported {
            operation: "waiting",
            when: "on a CQ without a completion channel: create the CQ with one",
        })
    }

    /// Returns `true` if there is a completion that no batch has taken.
    pub(crate) fn has_arrived(&mut self) -> bool {
        self.poller.has_arrived()
    }
}
