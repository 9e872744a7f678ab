//! Waiting for completions without polling.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::channel::CompletionChannel;
use super::cq_core::NO_CHANNEL;
use crate::error::Result;

/// Interval for rechecking an empty pool while waiting.
pub(crate) const LOOK: Duration = Duration::from_millis(5);

/// Waiting for completions, the same for [`Receiver`](crate::Receiver), [`Sender`](crate::Sender),
/// [`FrameReceiver`](crate::frames::FrameReceiver) and [`TagMatchingSrq`](crate::tags::TagMatchingSrq).
///
/// | to | use |
/// |---|---|
/// | sleep in one object | [`wait`](Self::wait) |
/// | sleep for several, in an event loop | [`arm`](Self::arm) each, then `poll(2)` or `epoll(7)` on each [`channel`](Self::channel) |
/// | sleep in a task of tokio | `Async` (feature `tokio`) |
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # world.send(b"hello");
/// # let receiver = &mut world.receiver;
/// use std::time::Duration;
///
/// use doorbell::Completions;
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
#[expect(private_bounds, reason = "the trait is implemented in this crate only")]
pub trait Completions: Waiting {
    /// Returns the completion channel, which becomes readable when a completion arrives after [`arm`](Self::arm), or
    /// `None` if the object was made on a CQ of the program without one.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let receiver = &mut world.receiver;
    /// use std::os::fd::AsRawFd;
    ///
    /// use doorbell::Completions;
    ///
    /// let channel = receiver.channel().expect("a receiver has one unless it was made from a CQ without");
    /// println!("for poll(2) and the like: {}", channel.as_raw_fd());
    /// ```
    fn channel(&self) -> Option<&CompletionChannel>;

    /// Makes the [channel](Self::channel) readable at the next completion. Returns `true` if there is something to
    /// [poll](Self::has_completions) already: then poll instead of sleeping. The call also consumes the events of
    /// earlier calls, so call it before each sleep.
    ///
    /// With a sender, poll, then post, then arm. After [`NotSent::Full`](crate::NotSent::Full) and a poll, post again
    /// before you sleep: nothing may be outstanding, and then nothing ends the sleep.
    ///
    /// ```no_run
    /// use std::os::fd::AsRawFd;
    ///
    /// use doorbell::{Completions, CqConfig};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let mut receiver = doorbell::Receiver::new(&pd, &CqConfig::new(512))?;
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
    /// [`Error::Unsupported`](crate::Error::Unsupported) without a channel; [`Error::CqFailed`](crate::Error::CqFailed)
    /// after [`Receiver::handle_event`](crate::Receiver::handle_event) reported it;
    /// [`Error::Verbs`](crate::Error::Verbs).
    fn arm(&mut self) -> Result<bool>;

    /// Returns `true` if there is something to poll. A sender also returns `true` after unsignaled requests have
    /// completed, and after a queue pair was reset, destroyed or dropped: then a poll may return nothing. Tags return
    /// `true` for an event, and a message that matches no receive is not an event.
    fn has_completions(&mut self) -> bool;

    /// Sleeps until there is [something to poll](Self::has_completions), at most for `timeout`; without a time-out,
    /// forever. Returns `false` if the time is over. Neither a signal handler nor another thread that resets a queue
    /// pair ends the sleep: to stop on a signal, `poll(2)` the [channel](Self::channel) and a `signalfd(2)`.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let queue = world.queue();
    /// # let sender = &mut world.sender;
    /// use doorbell::Completions;
    ///
    /// sender.send(queue, b"hello")?;
    /// assert!(sender.wait(None)?);
    /// assert!(sender.poll().next().is_some());
    /// assert!(!sender.wait(std::time::Duration::ZERO)?, "nothing is outstanding");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`arm`](Self::arm).
    fn wait(&mut self, timeout: impl Into<Option<Duration>>) -> Result<bool>
    where
        Self: Sized,
    {
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if self.has_completions() || self.arm()? {
                return Ok(true);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // A buffer that is dropped into a pool wakes no thread.
            let sleep = if self.is_starving() { Some(left.map_or(LOOK, |left| left.min(LOOK))) } else { left };
            let channel = self.channel().ok_or(NO_CHANNEL)?;
            let awake = channel.or_is_readable(self.wake_fd(), sleep);
            self.woken();
            if !awake? && sleep == left {
                return Ok(self.has_completions());
            }
        }
    }
}

/// The part of waiting in which objects differ.
pub(crate) trait Waiting {
    /// Returns `true` if a queue needs a buffer that no event will announce, after taking those that are free.
    fn is_starving(&mut self) -> bool {
        false
    }

    /// Returns another descriptor that ends the sleep.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The sleep is over.
    fn woken(&mut self) {}
}
