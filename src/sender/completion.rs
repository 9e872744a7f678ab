//! A request that is over.

use std::fmt;

use super::request::Rest;
use crate::clock::Timestamp;
use crate::cq::Cq;
use crate::debug_is_display::debug_is_display;
use crate::ids::SqId;
use crate::memory::{Buffer, Opaque};
use crate::status::WcStatus;

/// A request that succeeded.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let (queue, pool) = (world.queue(), world.pool.clone());
/// # let sender = &mut world.sender;
/// sender.post(queue)?.token(7).send(pool.take().expect("a free buffer"))?;
/// let mut buffer = None;
/// while buffer.is_none() {
///     let mut batch = sender.poll();
///     while let Some(done) = batch.next() {
///         let done = done?;
///         assert_eq!(done.token, 7);
///         // The buffer is the program's again.
///         buffer = done.buffer;
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
pub struct SendCompletion<'a> {
    /// The queue of the request.
    pub queue: SqId,
    /// The number set with [`Request::token`](crate::Request::token), or 0.
    pub token: u64,
    /// The buffer, or the first of several; `None` if the bytes were copied, and for opaque buffers
    /// ([`opaque_buffer`](Self::opaque_buffer)). A READ or an atomic has set its length.
    pub buffer: Option<Buffer>,
    pub(super) rest: Rest<'a>,
    pub(super) time: u64,
    pub(super) cq: &'a Cq,
}

impl SendCompletion<'_> {
    /// Returns the time of the CQE that completed the request, or `None` if the CQ was made without
    /// [`timestamps`](crate::CqConfig::timestamps). [`Sender::clock`](crate::Sender::clock) converts it.
    ///
    /// The device writes the CQE of a datagram or frame when the packet has left, and that of a request of an RC queue
    /// pair when the peer has acknowledged it. A request without a CQE of its own has the time of the next CQE of its
    /// queue; [`Posting::own_cqe`](crate::Posting::own_cqe) asks for a CQE. An
    /// [unsignaled](crate::Request::unsignaled) request that succeeds is not returned, so its time is not known.
    ///
    /// ```
    /// # use doorbell::Completions;
    /// # let config = doorbell::CqConfig::new(4096).timestamps(doorbell::Timestamps::Ticks);
    /// # let mut world = doorbell_doc::World::with(&config);
    /// # let (queue, sender) = (world.queue(), &mut world.sender);
    /// let clock = sender.clock()?;
    /// sender.send(queue, b"order")?;
    /// sender.wait(None)?;
    /// let done = sender.next().expect("one request")?;
    /// let sent = done.timestamp().expect("the sender was made with timestamps");
    /// println!("{} ns", clock.nanoseconds(sent)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn timestamp(&self) -> Option<Timestamp> {
        Some(Timestamp::new(self.time, self.cq.timestamp_clock()?))
    }

    /// Takes the next buffer of a request with several buffers.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (queue, pool) = (world.queue(), world.pool.clone());
    /// # let sender = &mut world.sender;
    /// let (header, payload) = (pool.take().expect("free"), pool.take().expect("free"));
    /// sender.send(queue, [header, payload])?;
    /// let mut back = 0;
    /// while back == 0 {
    ///     if let Some(done) = sender.poll().next() {
    ///         let mut done = done?;
    ///         let mut next = done.buffer.take();
    ///         while let Some(_buffer) = next {
    ///             back += 1;
    ///             next = done.next_buffer();
    ///         }
    ///     }
    /// }
    /// assert_eq!(back, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Buffers that are not taken return to their pools with the next completion, or at the end of the batch.
    pub fn next_buffer(&mut self) -> Option<Buffer> {
        self.rest.take()
    }

    /// Moves all buffers of the request to the end of `to`, in order, unless they are opaque.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (queue, pool) = (world.queue(), world.pool.clone());
    /// # let sender = &mut world.sender;
    /// sender.send(queue, [0; 2].map(|_| pool.take().expect("a free buffer")))?;
    /// let mut back = Vec::new();
    /// while back.is_empty() {
    ///     if let Some(done) = sender.poll().next() {
    ///         done?.take_buffers(&mut back);
    ///     }
    /// }
    /// assert_eq!(back.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_buffers(&mut self, to: &mut Vec<Buffer>) {
        to.extend(self.buffer.take());
        self.rest.take_all(to);
    }

    /// Takes the next buffer of a request with opaque buffers, the first one included.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (pd, queue, remote) = (world.pd.clone(), world.queue(), world.remote());
    /// # let sender = &mut world.sender;
    /// # let descriptor = doorbell_doc::dma_buf(4096);
    /// use doorbell::opaque::OpaqueMemory;
    /// use doorbell::{BufferPool, RemoteAccess};
    ///
    /// let memory = OpaqueMemory::dma_buf(&pd, descriptor, 0, 4096, RemoteAccess::empty())?;
    /// let pool = BufferPool::divide(memory, 1, 4096)?;
    /// sender.post(queue)?.read(pool.take().expect("a new pool is full"), &remote.slice(0, 64)?)?;
    /// let mut read = None;
    /// while read.is_none() {
    ///     if let Some(done) = sender.poll().next() {
    ///         read = done?.opaque_buffer();
    ///     }
    /// }
    /// assert_eq!(read.map(|buffer| buffer.len()), Some(64));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Buffers that are not taken return to their pools with the next completion, or at the end of the batch.
    pub fn opaque_buffer(&mut self) -> Option<Buffer<Opaque>> {
        self.rest.take_opaque()
    }
}

impl fmt::Debug for SendCompletion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, token, buffer, .. } = self;
        let mut shown = f.debug_struct("SendCompletion");
        shown.field("queue", queue).field("token", token).field("buffer", buffer);
        shown.field("timestamp", &self.timestamp()).finish_non_exhaustive()
    }
}

/// A request that failed, with its buffers.
///
/// [`WcStatus::WR_FLUSH_ERR`] is a consequence: [`first`](Self::first), the first failed completion of the queue pair,
/// has the cause. It may be one of its [`Receiver`](crate::Receiver). The queue pair is in state ERROR: see
/// [`QueuePair`](crate::QueuePair).
///
/// On a connection the requests before the first that failed have succeeded: the peer's adapter has their messages, and
/// its program may not have read them. The failed request and those flushed after it may have arrived, too: their
/// acknowledgements can be lost. Send such a message again only if the peer detects a copy, for example by a number in
/// the message. `buffers` does not have bytes that were copied.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let (queue, pool) = (world.queue(), world.pool.clone());
/// # let doorbell_doc::World { sender, qp, peer, .. } = &mut world;
/// use doorbell::Completions;
///
/// peer.to_error()?;
/// sender.post(queue)?.token(7).send(pool.take().expect("a free buffer"))?;
/// sender.wait(None)?;
/// let failure = sender.poll().next().expect("one request").expect_err("no peer answers");
/// println!("{failure}");
/// assert_eq!((failure.token, failure.qp_num), (7, qp.qp_num()));
/// // Nothing is lost.
/// assert_eq!(failure.buffers.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
#[error("request {token} on QP {qp_num:#x}: {}{}", WcStatus::explained(.status, *.first), vendor(*.vendor_err))]
pub struct SendFailure {
    /// The queue of the request.
    pub queue: SqId,
    /// Number of the queue pair.
    pub qp_num: u32,
    /// The number set with [`Request::token`](crate::Request::token), or 0.
    pub token: u64,
    /// The status of the request.
    pub status: WcStatus,
    /// The status of the completion that failed the queue pair, if this request was flushed and that completion was
    /// polled, from the sender or from the receiver. `None` after [`QueuePair::to_error`](crate::QueuePair::to_error),
    /// a reset or the end of the queue pair.
    pub first: Option<WcStatus>,
    /// The device's own error code; 0 for a reset.
    pub vendor_err: u32,
    /// The buffers of the request, in order; empty if its bytes were copied, and if it was flushed on a DC initiator:
    /// [`Sender::take_unsent`](crate::Sender::take_unsent) returns it whole. A READ or an atomic has set the length,
    /// and the device may have written some of the bytes or none. Opaque buffers have returned to their pool.
    pub buffers: Vec<Buffer>,
}

debug_is_display!(SendFailure);

fn vendor(code: u32) -> String {
    match code {
        0 => String::new(),
        code => format!(" (vendor error {code:#x})"),
    }
}
