//! Waiting in tasks of tokio.

use std::future::poll_fn;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use crate::cq::{CompletionChannel, Completions};
use crate::device_event::DeviceEvent;
use crate::error::{Error, Result};
use crate::events::DeviceEvents;
use crate::poll::{self, Readiness};
use crate::tags::{TagEvent, TagMatchingSrq};

/// A [`Receiver`](crate::Receiver), [`Sender`](crate::Sender), [`FrameReceiver`](crate::frames::FrameReceiver) or
/// [`TagMatchingSrq`] that a tokio task waits for. It dereferences to that object. Needs the feature `tokio`.
///
/// A task does not wake when a buffer returns to an empty pool of [`keep_filled`](crate::Receiver::keep_filled), or
/// when a taken frame is dropped. A receiver's buffers return through a
/// [`shared_poster`](crate::Receiver::shared_poster), which wakes it; otherwise wait with a time-out.
///
/// ```no_run
/// use doorbell::Async;
///
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// # let receiver = doorbell::Receiver::new(&pd, &doorbell::CqConfig::new(512))?;
/// let mut receiver = Async::new(receiver)?;
/// loop {
///     // Beside the `ready` of a sender, in a `select!`, if there is one.
///     receiver.ready().await?;
///     let mut batch = receiver.poll();
///     while let Some(message) = batch.next() {
///         println!("{} bytes", message?.len());
///     }
/// }
/// # }
/// ```
///
/// The events of a [`TagMatchingSrq`] are a stream, which does not end.
///
/// ```no_run
/// use std::future::poll_fn;
/// use std::pin::Pin;
///
/// use doorbell::Async;
/// use doorbell::tags::{TagEvent, TagMatchingConfig, TagMatchingSrq};
/// use futures_core::Stream;
///
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let mut tags = Async::new(TagMatchingSrq::new(&pd, &TagMatchingConfig::new(64))?)?;
/// // `StreamExt::next` of a crate like tokio-stream is the same.
/// while let Some(event) = poll_fn(|cx| Pin::new(&mut tags).poll_next(cx)).await {
///     match event? {
///         TagEvent::Received(got) => println!("{:#x}: {} bytes", got.tag, got.buffer.len()),
///         other => println!("{other:?}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Async<T> {
    readiness: Readiness,
    /// The readiness knows the other descriptor that wakes the object.
    has_wake: bool,
    inner: T,
}

impl<T: Completions> Async<T> {
    /// Registers the object with the runtime of the task that calls. A task of another runtime that waits for it moves
    /// it there.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if its CQ has no completion channel; [`Error::Verbs`] if the process has no descriptors
    /// left.
    ///
    /// # Panics
    /// Outside of a runtime of tokio, or in one without I/O.
    pub fn new(inner: T) -> Result<Self> {
        let channel = inner.channel().ok_or(Error::Unsupported {
            operation: "waiting",
            when: "on a CQ without a completion channel: create the CQ with one",
        })?;
        let made = poll::epoll(&[channel.as_fd()]).and_then(Readiness::new);
        let readiness = made.map_err(|error| failed(channel, error))?;
        Ok(Self { readiness, has_wake: false, inner })
    }

    /// Waits until there is [something to poll](Completions::has_completions). Dropping the future loses nothing.
    ///
    /// # Errors
    /// The errors of [`Completions::arm`], also when the device is removed while the task waits.
    pub async fn ready(&mut self) -> Result<()> {
        if let (false, Some(wake)) = (self.has_wake, self.inner.wake_fd()) {
            self.readiness.add(wake).map_err(|error| self.failed(error))?;
            self.has_wake = true;
        }
        while !self.inner.has_completions() && !self.inner.arm()? {
            let woken = poll_fn(|cx| self.readiness.poll(cx)).await;
            self.inner.woken();
            woken.map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    fn failed(&self, error: io::Error) -> Error {
        failed(self.inner.channel().expect("an object that waits has one"), error)
    }

    /// Takes the object out of the runtime.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl<T> Deref for Async<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Async<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl Stream for Async<TagMatchingSrq> {
    type Item = Result<TagEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match self.inner.arm() {
                Err(error) => return Poll::Ready(Some(Err(error))),
                Ok(true) => {
                    if let Some(event) = self.inner.next() {
                        return Poll::Ready(Some(Ok(event)));
                    }
                }
                Ok(false) => {}
            }
            ready!(self.readiness.poll(cx)).map_err(|error| self.failed(error))?;
        }
    }
}

fn failed(channel: &CompletionChannel, error: io::Error) -> Error {
    Error::verbs("epoll_create1", channel.context().name(), error)
}

/// The asynchronous events of a device as a stream. The stream ends when the device was removed. Needs the feature
/// `tokio`.
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
    readiness: Readiness,
    events: DeviceEvents,
}

impl EventStream {
    /// Registers the events with the runtime of the task that calls.
    ///
    /// # Errors
    /// [`Error::Verbs`] when the process has no descriptors left.
    ///
    /// # Panics
    /// Outside of a runtime of tokio, or in one without I/O.
    pub fn new(events: DeviceEvents) -> Result<Self> {
        let made = events.as_fd().try_clone_to_owned().and_then(Readiness::new);
        Ok(Self {
            readiness: made.map_err(|error| Error::verbs("epoll_create1", events.context().name(), error))?,
            events,
        })
    }
}

impl Stream for EventStream {
    type Item = Result<DeviceEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            // First, because only what becomes readable after the last read wakes the task.
            match self.events.try_next() {
                Ok(None) if self.events.has_ended() => return Poll::Ready(None),
                Ok(None) => {}
                found => return Poll::Ready(found.transpose()),
            }
            let woken = ready!(self.readiness.poll(cx));
            woken.map_err(|error| Error::verbs("epoll_create1", self.events.context().name(), error))?;
        }
    }
}
