//! Waiting for events without polling.

use std::time::{Duration, Instant};

use super::TagMatchingSrq;
use super::config::MIN_SLOTS;
use crate::channel::CompletionChannel;
use crate::error::Result;

/// How often a sleeper looks whether a pool has got a buffer back that the device needs.
const LOOK: Duration = Duration::from_millis(5);

impl TagMatchingSrq {
    /// Returns the completion channel, which becomes readable after [`arm`](Self::arm) when a message arrives, a send
    /// or a read completes, or a peer fails.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # let doorbell_doc::Tags { tags, .. } = &mut world;
    /// use std::os::fd::AsRawFd;
    ///
    /// println!("for poll(2) and the like: {}", tags.channel().as_raw_fd());
    /// ```
    pub fn channel(&self) -> &CompletionChannel {
        self.engine.cq().channel().expect("every CQ for tags is made with a channel")
    }

    /// Makes the [channel](Self::channel) readable at the next event. Returns `true` if [`poll`](Self::poll) already
    /// has an event: then poll instead of sleeping. A message that matches no receive is not an event, but makes the channel
    /// readable: see [`probe`](Self::probe).
    ///
    /// The call also consumes the events of earlier calls, and covers outstanding sends: call it as the last step
    /// before each sleep.
    ///
    /// ```no_run
    /// use std::os::fd::AsRawFd;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let config = doorbell::tags::TagMatchingConfig::new(64);
    /// # let mut tags = doorbell::tags::TagMatchingSrq::new(&pd, &config)?;
    /// let fd = tags.channel().as_raw_fd();
    /// loop {
    ///     while !tags.arm()? {
    ///         let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    ///         // Other descriptors could be waited for beside it.
    ///         // SAFETY: one initialised entry.
    ///         unsafe { libc::poll(&mut poll, 1, -1) };
    ///     }
    ///     while let Some(event) = tags.poll() {
    ///         println!("{event:?}");
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs).
    pub fn arm(&mut self) -> Result<bool> {
        while self.events.is_empty() {
            self.arm_all()?;
            // Completions from before the CQs were armed make no event, but may post operations, whose completions do.
            if self.progress() == 0 {
                break;
            }
        }
        Ok(!self.events.is_empty())
    }

    /// Arms the CQ of the SRQ and that of the sends, which share the channel.
    fn arm_all(&mut self) -> Result<()> {
        let own = self.engine.cq().as_raw();
        let (mut events, mut of_sends) = (0, 0);
        self.channel().take_events(|cq| match cq == own {
            true => events += 1,
            false => of_sends += 1,
        })?;
        self.engine.arm(events)?;
        self.sender.arm_cq(of_sends).map(drop)
    }

    /// Sleeps until [`poll`](Self::poll) has an event, at most for `timeout`; without a time-out, forever. Returns
    /// `true` if there is an event. A signal handler does not end the sleep, and neither does a message that matches no
    /// receive: see [`probe`](Self::probe).
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # world.send(7, b"hello");
    /// # let doorbell_doc::Tags { tags, pool, .. } = &mut world;
    /// use std::time::Duration;
    ///
    /// use doorbell::tags::TagEvent;
    ///
    /// tags.post(7, u64::MAX, pool.take().expect("a free buffer"))?;
    /// assert!(tags.wait(Duration::from_secs(60))?);
    /// let event = tags.poll();
    /// assert!(matches!(event, Some(TagEvent::Received(_))), "{event:?}");
    /// // Nothing else comes.
    /// assert!(!tags.wait(Duration::from_millis(10))?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`arm`](Self::arm).
    pub fn wait(&mut self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if self.arm()? {
                return Ok(true);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // A buffer that is dropped into a pool wakes no sleeper.
            let sleep = if self.is_short_of_buffers() {
                Some(left.map_or(LOOK, |left| left.min(LOOK)))
            } else {
                left
            };
            if !self.channel().is_readable(sleep)? && sleep == left {
                return Ok(false);
            }
        }
    }

    /// Returns `true` if the device has fewer buffers for messages than it needs, and the pool has none.
    pub(super) fn is_short_of_buffers(&self) -> bool {
        self.pool.is_some() && self.engine.posted() < MIN_SLOTS
    }
}
