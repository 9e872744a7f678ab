//! Waiting in tasks of tokio.

use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::error::{Error, Result};
use crate::events::{AsyncEvent, AsyncEvents};
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::tags::{TagEvent, TagMatchingSrq};

/// A [`Receiver`] that a tokio task waits for. It dereferences to the receiver. Needs the feature `tokio`.
///
/// A task does not wake when a buffer returns to an empty pool of [`keep_filled`](Receiver::keep_filled): return buffers
/// through a [`shared_poster`](Receiver::shared_poster), which wakes it.
///
/// ```no_run
/// use doorbell::AsyncReceiver;
///
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// # let receiver = doorbell::Receiver::new(&pd, &doorbell::ReceiverConfig::new())?;
/// let mut receiver = AsyncReceiver::new(receiver)?;
/// loop {
///     receiver.ready().await?;
///     let mut batch = receiver.poll();
///     while let Some(message) = batch.next() {
///         println!("{} bytes", message?.len());
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncReceiver {
    /// Copies of the receiver's descriptors, which are registered once.
    channel: AsyncFd<OwnedFd>,
    returns: Option<AsyncFd<OwnedFd>>,
    receiver: Receiver,
}

impl AsyncReceiver {
    /// Registers the receiver with the runtime of the task that calls.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when its CQ has no completion channel; [`Error::Io`] when the process has no
    /// descriptors left.
    ///
    /// # Panics
    /// Outside of a runtime of tokio, or in one without I/O.
    pub fn new(receiver: Receiver) -> Result<Self> {
        let channel = registered(receiver.waking_channel()?)?;
        Ok(Self { channel, returns: None, receiver })
    }

    /// Waits until a completion has arrived. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Error::CqFailed`]; [`Error::Verbs`]; [`Error::Io`].
    pub async fn ready(&mut self) -> Result<()> {
        if let (None, Some(returns)) = (&self.returns, self.receiver.wake_fd()) {
            self.returns = Some(registered(returns)?);
        }
        self.receiver.end_batch();
        while !self.receiver.has_arrived() && !self.receiver.arm()? {
            // The future holds the descriptors while it waits, and not the receiver, which is not `Sync`: so it can
            // move between threads.
            let fds = [Some(&self.channel), self.returns.as_ref()];
            let woken = poll_fn(|cx| poll_readable(&fds, cx)).await;
            self.receiver.unpark();
            woken?;
        }
        Ok(())
    }

    /// Takes the receiver out of the runtime.
    pub fn into_inner(self) -> Receiver {
        self.receiver
    }
}

/// A [`Sender`] that a tokio task waits for. It dereferences to the sender. Needs the feature `tokio`.
///
/// ```no_run
/// use doorbell::AsyncSender;
///
/// # async fn finish(sender: doorbell::Sender) -> doorbell::Result<()> {
/// let mut sender = AsyncSender::new(sender)?;
/// loop {
///     // Beside the `ready` of a receiver, in a `select!`, if there is one.
///     sender.ready().await?;
///     let mut batch = sender.poll();
///     while let Some(done) = batch.next() {
///         println!("request {}: {}", done.token, done.status);
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncSender {
    /// A copy of the sender's descriptor, which is registered once.
    channel: AsyncFd<OwnedFd>,
    sender: Sender,
}

impl AsyncSender {
    /// Registers the sender with the runtime of the task that calls.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when its CQ has no completion channel; [`Error::Io`] when the process has no
    /// descriptors left.
    ///
    /// # Panics
    /// Outside of a runtime of tokio, or in one without I/O.
    pub fn new(sender: Sender) -> Result<Self> {
        Ok(Self { channel: registered(sender.waking_channel()?)?, sender })
    }

    /// Waits until a request has completed. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Error::Verbs`]; [`Error::Io`].
    pub async fn ready(&mut self) -> Result<()> {
        while !self.sender.has_arrived() && !self.sender.arm()? {
            let fds = [Some(&self.channel)];
            poll_fn(|cx| poll_readable(&fds, cx)).await?;
        }
        Ok(())
    }

    /// Takes the sender out of the runtime.
    pub fn into_inner(self) -> Sender {
        self.sender
    }
}

impl Deref for AsyncSender {
    type Target = Sender;

    fn deref(&self) -> &Sender {
        &self.sender
    }
}

impl DerefMut for AsyncSender {
    fn deref_mut(&mut self) -> &mut Sender {
        &mut self.sender
    }
}

/// A [`TagMatchingSrq`] that a tokio task waits for. It dereferences to the queue. Needs the feature `tokio`.
///
/// ```no_run
/// use doorbell::AsyncTagMatchingSrq;
/// use doorbell::tags::{TagEvent, TagMatchingConfig, TagMatchingSrq};
///
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let tags = TagMatchingSrq::new(&pd, &TagMatchingConfig::new(64))?;
/// let mut tags = AsyncTagMatchingSrq::new(tags)?;
/// loop {
///     match tags.event().await? {
///         TagEvent::Received(got) => println!("{:#x}: {} bytes", got.tag, got.buffer.len()),
///         other => println!("{other:?}"),
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncTagMatchingSrq {
    /// A copy of the queue's descriptor, which is registered once.
    channel: AsyncFd<OwnedFd>,
    tags: TagMatchingSrq,
}

impl AsyncTagMatchingSrq {
    /// Registers the queue with the runtime of the task that calls.
    ///
    /// # Errors
    /// [`Error::Io`] when the process has no descriptors left.
    ///
    /// # Panics
    /// Outside of a runtime of tokio, or in one without I/O.
    pub fn new(tags: TagMatchingSrq) -> Result<Self> {
        Ok(Self { channel: registered(tags.channel())?, tags })
    }

    /// Waits for the next event. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Error::Verbs`]; [`Error::Io`].
    pub async fn event(&mut self) -> Result<TagEvent> {
        loop {
            if self.tags.arm()? {
                if let Some(event) = self.tags.poll() {
                    return Ok(event);
                }
            }
            let fds = [Some(&self.channel)];
            poll_fn(|cx| poll_readable(&fds, cx)).await?;
        }
    }

    /// Takes the queue out of the runtime.
    pub fn into_inner(self) -> TagMatchingSrq {
        self.tags
    }
}

impl Deref for AsyncTagMatchingSrq {
    type Target = TagMatchingSrq;

    fn deref(&self) -> &TagMatchingSrq {
        &self.tags
    }
}

impl DerefMut for AsyncTagMatchingSrq {
    fn deref_mut(&mut self) -> &mut TagMatchingSrq {
        &mut self.tags
    }
}

/// Returns ready when arming has an event to take, and clears the readiness: from then on the next event counts.
fn poll_readable(fds: &[Option<&AsyncFd<OwnedFd>>], cx: &mut Context<'_>) -> Poll<Result<()>> {
    let mut readable = Poll::Pending;
    for fd in fds.iter().flatten() {
        if let Poll::Ready(guard) = fd.poll_read_ready(cx)? {
            { guard }.clear_ready();
            readable = Poll::Ready(Ok(()));
        }
    }
    readable
}

impl Deref for AsyncReceiver {
    type Target = Receiver;

    fn deref(&self) -> &Receiver {
        &self.receiver
    }
}

impl DerefMut for AsyncReceiver {
    fn deref_mut(&mut self) -> &mut Receiver {
        &mut self.receiver
    }
}

/// The asynchronous events of a device as a stream. The stream ends when the device was removed. Needs the feature `tokio`.
///
/// ```no_run
/// use std::future::poll_fn;
/// use std::pin::Pin;
///
/// use doorbell::EventStream;
/// use futures_core::Stream;
///
/// # async fn watch() -> doorbell::Result<()> {
/// let mut events = EventStream::new(doorbell::open("mlx5_0")?.events()?)?;
/// // `StreamExt::next` of a crate like tokio-stream is the same.
/// while let Some(event) = poll_fn(|cx| Pin::new(&mut events).poll_next(cx)).await {
///     println!("{:?}", event?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EventStream {
    fd: AsyncFd<OwnedFd>,
    events: AsyncEvents,
}

impl EventStream {
    /// Registers the events with the runtime of the task that calls.
    ///
    /// # Errors
    /// [`Error::Io`] when the process has no descriptors left.
    ///
    /// # Panics
    /// Outside of a runtime of tokio, or in one without I/O.
    pub fn new(events: AsyncEvents) -> Result<Self> {
        Ok(Self { fd: registered(&events)?, events })
    }
}

impl Stream for EventStream {
    type Item = Result<AsyncEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            // First, because only what becomes readable after the last read wakes the task.
            match self.events.try_next() {
                Ok(None) if self.events.has_ended() => return Poll::Ready(None),
                Ok(None) => {}
                found => return Poll::Ready(found.transpose()),
            }
            ready!(self.fd.poll_read_ready(cx)).map_err(Error::Io)?.clear_ready();
        }
    }
}

/// A copy of a descriptor that wakes the current task when it becomes readable.
fn registered(fd: impl AsFd) -> Result<AsyncFd<OwnedFd>> {
    let copy = fd.as_fd().try_clone_to_owned()?;
    // SAFETY: the descriptor is owned, and open until the value is dropped.
    let registered = unsafe { AsyncFd::register_with_interest(copy, Interest::READABLE) };
    registered.map_err(|error| Error::Io(error.into()))
}
