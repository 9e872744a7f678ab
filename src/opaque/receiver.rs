//! Receiving into opaque buffers.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::message::{OpaqueBatch, OpaqueMessage, failure};
use crate::cq::{CompletionChannel, Completions, CqConfig, Waiting};
use crate::device_event::DeviceEvent;
use crate::error::Result;
use crate::events::DeviceEvents;
use crate::ids::{QueueId, SrqId};
use crate::memory::{OpaqueBuffer, OpaquePool};
use crate::path::DataPath;
use crate::pd::ProtectionDomain;
use crate::qp::QueuePair;
use crate::qp_state::QpEnd;
use crate::receiver::{Failure, PostError, Receiver};
use crate::srq::SrqConfig;

/// A [`Receiver`] whose queues hold opaque buffers only.
///
/// Its queue pairs are made by [`QueuePairBuilder::receive_opaque`](crate::QueuePairBuilder::receive_opaque): the
/// device puts no payload into their CQEs, from where the processor would have to copy it.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let pd = world.pd.clone();
/// # let descriptor = doorbell_doc::dma_buf(1 << 16);
/// use doorbell::opaque::{OpaqueMemory, OpaquePool, OpaqueReceiver};
/// use doorbell::{Completions, CqConfig, QpConfig, QueuePair, RemoteAccess, SrqConfig};
///
/// let memory = OpaqueMemory::dma_buf(&pd, descriptor, 0, 1 << 16, RemoteAccess::empty())?;
/// let pool = OpaquePool::new(memory, 16, 4096)?;
/// let mut receiver = OpaqueReceiver::new(&pd, &CqConfig::new(64))?;
/// let srq = receiver.create_srq(&SrqConfig::new(15))?;
/// receiver.fill(srq, &pool)?;
/// let mut qp = QueuePair::builder(&QpConfig::rc()).receive_opaque(&mut receiver, srq).build()?;
/// # let doorbell_doc::World { peer_sender, .. } = &mut world;
/// # let mut peer = QueuePair::builder(&QpConfig::rc().max_inline(64)).send(peer_sender).build()?;
/// # qp.connect(&peer.address()?)?;
/// # peer.connect(&qp.address()?)?;
/// # peer_sender.send(&peer, b"weights")?;
/// receiver.wait(None)?;
/// let mut batch = receiver.poll();
/// let message = batch.next().expect("a message has arrived")?;
/// let buffer = message.take();
/// println!("{} bytes at offset {} of the GPU memory", buffer.len(), buffer.offset());
/// # assert_eq!(buffer.len(), 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
// `[one-opaque]`: each receive of its queues has one buffer, of an opaque pool, because no other function posts to
// them.
pub struct OpaqueReceiver(pub(crate) Receiver);

impl OpaqueReceiver {
    /// Creates a CQ, see [`Receiver::new`].
    ///
    /// # Errors
    /// The errors of [`Receiver::new`].
    pub fn new(pd: &ProtectionDomain, config: &CqConfig) -> Result<Self> {
        Receiver::new(pd, config).map(Self)
    }

    /// Creates an SRQ, see [`Receiver::create_srq`]. A receive has one buffer.
    ///
    /// # Errors
    /// The errors of [`Receiver::create_srq`].
    pub fn create_srq(&mut self, config: &SrqConfig) -> Result<SrqId> {
        self.0.create_srq(config)
    }

    /// Posts buffers of `pool` until the queue is full or the pool is empty, see [`Receiver::fill`].
    ///
    /// # Errors
    /// The errors of [`Receiver::fill`].
    pub fn fill(&mut self, queue: impl Into<QueueId>, pool: &OpaquePool) -> Result<usize, PostError<OpaqueBuffer>> {
        self.0.fill(queue, pool.pool()).map_err(|error| error.map(OpaqueBuffer::of))
    }

    /// Posts a receive for each buffer, with one doorbell for all, and returns their number, see [`Receiver::post`].
    ///
    /// # Errors
    /// The errors of [`Receiver::post`].
    pub fn post<I>(&mut self, queue: impl Into<QueueId>, buffers: I) -> Result<usize, PostError<OpaqueBuffer>>
    where
        I: IntoIterator<Item = OpaqueBuffer>,
    {
        let buffers = buffers.into_iter().map(OpaqueBuffer::into_inner);
        self.0.post(queue, buffers).map_err(|error| error.map(OpaqueBuffer::of))
    }

    /// Keeps a queue filled from `pool`, see [`Receiver::keep_filled`].
    ///
    /// # Errors
    /// The errors of [`Receiver::keep_filled`].
    pub fn keep_filled(&mut self, queue: impl Into<QueueId>, pool: &OpaquePool) -> Result<u32> {
        self.0.keep_filled(queue, pool.pool())
    }

    /// Returns the next message or failed receive, or `None` if nothing has arrived, see [`Receiver::next`].
    ///
    /// # Errors
    /// [`Failure`] with the buffers of a receive of a queue pair's own queue.
    #[expect(clippy::should_implement_trait, reason = "the item borrows from the receiver")]
    #[inline]
    pub fn next(&mut self) -> Option<Result<OpaqueMessage<'_>, Failure<OpaqueBuffer>>> {
        Some(self.0.next()?.map(OpaqueMessage).map_err(failure))
    }

    /// Polls at most 64 completions, see [`Receiver::poll`].
    #[inline]
    pub fn poll(&mut self) -> OpaqueBatch<'_> {
        OpaqueBatch(self.0.poll())
    }

    /// Polls at most `budget` completions, see [`Receiver::poll_up_to`].
    #[inline]
    pub fn poll_up_to(&mut self, budget: u32) -> OpaqueBatch<'_> {
        OpaqueBatch(self.0.poll_up_to(budget))
    }

    /// Returns the number of receives that a queue can have posted.
    pub fn capacity(&self, queue: impl Into<QueueId>) -> u32 {
        self.0.capacity(queue)
    }

    /// Returns the number of receives that can be posted to a queue now.
    pub fn free_slots(&self, queue: impl Into<QueueId>) -> u32 {
        self.0.free_slots(queue)
    }

    /// Returns the path of the queues.
    pub const fn path(&self) -> DataPath {
        self.0.path()
    }

    /// Returns the protection domain.
    pub const fn pd(&self) -> &ProtectionDomain {
        self.0.pd()
    }

    /// Handles an event of the device, see [`Receiver::handle_event`].
    ///
    /// # Errors
    /// The errors of [`Receiver::handle_event`].
    pub fn handle_event(&mut self, event: &DeviceEvent) -> Result<bool> {
        self.0.handle_event(event)
    }

    /// Ends a connection whose peer is gone, see [`Receiver::drain_qp`].
    ///
    /// # Errors
    /// The errors of [`Receiver::drain_qp`].
    pub fn drain_qp(&mut self, qp: &QueuePair, events: &mut DeviceEvents, patience: Duration) -> Result<()> {
        self.0.drain_qp(qp, events, patience)
    }

    /// Resets a queue pair, see [`Receiver::reset_qp`].
    ///
    /// # Errors
    /// The errors of [`Receiver::reset_qp`].
    pub fn reset_qp(&mut self, qp: &mut QueuePair) -> Result<QpEnd> {
        self.0.reset_qp(qp)
    }

    /// Destroys a queue pair, see [`Receiver::destroy_qp`].
    ///
    /// # Errors
    /// The errors of [`Receiver::destroy_qp`].
    pub fn destroy_qp(&mut self, qp: QueuePair) -> Result<QpEnd> {
        self.0.destroy_qp(qp)
    }

    /// Returns the buffers of a removed device, see [`Receiver::reclaim`].
    ///
    /// # Errors
    /// The errors of [`Receiver::reclaim`].
    pub fn reclaim(&mut self) -> Result<Vec<Failure<OpaqueBuffer>>> {
        Ok(self.0.reclaim()?.into_iter().map(failure).collect())
    }
}

impl Completions for OpaqueReceiver {
    fn channel(&self) -> Option<&CompletionChannel> {
        self.0.channel()
    }

    fn arm(&mut self) -> Result<bool> {
        self.0.arm()
    }

    fn has_completions(&mut self) -> bool {
        self.0.has_completions()
    }
}

impl Waiting for OpaqueReceiver {
    fn is_starving(&mut self) -> bool {
        self.0.is_starving()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Waiting::wake_fd(&self.0)
    }

    fn woken(&mut self) {
        self.0.woken();
    }
}

impl fmt::Debug for OpaqueReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpaqueReceiver").field(&self.0).finish()
    }
}
