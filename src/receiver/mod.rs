//! Receiving: one completion queue and all the queues that complete on it.

mod batch;
mod completion_info;
mod datagram;
mod failure;
mod lent;
mod maintain;
mod message;
mod post;
mod post_error;
mod qp_table;
mod queue;
mod queues;
mod raw;
mod slot_context;
mod teardown;
mod verbs_queue;
mod verify;

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_core_sys::Mlx5dv;

use crate::clock::Clock;
use crate::cq::{CompletionChannel, Completions, CqConfig, CqCore, Waiting};
use crate::error::{Error, Result};
use crate::memory::{Host, Memory, Opaque};
use crate::path::DataPath;
use crate::pd::ProtectionDomain;

pub use batch::Batch;
pub use datagram::Datagram;
pub use failure::{Cause, Failure};
pub use maintain::{SharedPoster, SrqStatistics, Statistics};
pub use message::Message;
pub use post_error::PostError;
pub use raw::DirectQueues;
pub use slot_context::SlotContext;
pub use verify::WrongCqe;

pub(crate) use queue::DirectSrq;
pub(crate) use queues::MOST_UPKEEP;
pub(crate) use verbs_queue::{QueueObject, VerbsQueue};

use maintain::Maintenance;
use qp_table::QpTable;
use queue::RecvQueue;

/// One completion queue and every receive queue that completes on it.
///
/// Polling frees slots and posting fills them. Both change the same state, so one value owns it and moves between
/// threads as a unit. [`SrqId`](crate::SrqId) and [`RqId`](crate::RqId) name its queues.
///
/// Dropping the receiver does not disconnect its queue pairs. The buffers in its queues return to their pools when the
/// queues are destroyed, after the last queue pair was dropped.
///
/// | to | use |
/// |---|---|
/// | create queues | [`create_srq`](Self::create_srq), [`QueuePair::builder`](crate::QueuePair::builder) |
/// | post buffers | [`fill`](Self::fill), [`post`](Self::post), [`post_scatter`](Self::post_scatter); automatically: [`keep_filled`](Self::keep_filled); from other threads: [`shared_poster`](Self::shared_poster) |
/// | receive messages | [`poll`](Self::poll), [`poll_up_to`](Self::poll_up_to) |
/// | sleep | [`Completions`] |
/// | monitor | [`handle_event`](Self::handle_event), [`arm_srq_limit`](Self::arm_srq_limit), [`statistics`](Self::statistics) |
/// | end a connection | as [`QueuePair`](crate::QueuePair) describes; without the peer [`drain_qp`](Self::drain_qp), [`reset_qp`](Self::reset_qp), [`destroy_qp`](Self::destroy_qp); or drop the queue pair |
/// | access the rings | [`as_direct`](Self::as_direct), [`from_raw_cq`](Self::from_raw_cq) |
///
/// ```no_run
/// use doorbell::{BufferPool, CqConfig, PoolConfig, QpConfig, QueuePair, Receiver, SrqConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let pool = BufferPool::new(&pd, &PoolConfig::new(512, 4096))?;
/// let mut receiver = Receiver::new(&pd, &CqConfig::for_pool(&pool))?;
/// let srq = receiver.create_srq(&SrqConfig::for_pool(&pool))?;
/// receiver.fill(srq, &pool)?;
/// let mut qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, srq).build()?;
/// qp.connect_over(&mut std::net::TcpStream::connect("server:18515")?)?;
/// loop {
///     let mut batch = receiver.poll();
///     while let Some(message) = batch.next() {
///         println!("{} bytes", message?.len());
///     }
/// }
/// # }
/// ```
pub struct Receiver<M: Memory = Host> {
    cq: CqCore,
    /// By index; a closed one is used again.
    queues: Vec<QueueEntry>,
    only: Only,
    /// Indices of the queues of which a batch has taken messages, and not rung for since. The only queue may be
    /// missing while CQEs are not published.
    unrung: Vec<u32>,
    /// CQEs that [`next`](Self::next) takes before it publishes the consumer index, see
    /// [`plan_upkeep`](Self::plan_upkeep).
    upkeep_after: u32,
    /// Polls that may find nothing until no receive waits for an older one, or 0 if none waits.
    idle_left: u32,
    qps: QpTable,
    pd: ProtectionDomain,
    id: u32,
    /// Number of the queue that is made next.
    next_number: u32,
    /// Receives that can be outstanding on all queues together.
    committed: u64,
    maintenance: Option<Box<Maintenance>>,
    /// There is `maintenance`, or `idle_left` is not 0.
    has_more_to_do: bool,
    /// The device has reported that the CQ failed.
    cq_failed: bool,
    kind: PhantomData<M>,
}

/// The kind of the only queue of a receiver, so that a message needs no look at the list of queues. `[only]`: with
/// [`Ordered`](Self::Ordered) or [`Rq`](Self::Rq) the receiver has one queue, of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Only {
    /// The SRQ whose receives wait for older ones.
    Ordered,
    /// The receive queue of a queue pair, driven directly.
    Rq,
    /// Another kind of queue, several queues, or none.
    Other,
}

/// A queue of the receiver.
struct QueueEntry {
    queue: RecvQueue,
    /// Number that no other queue with the same index has had.
    number: u32,
    /// The queue is among those to ring for.
    unrung: bool,
    /// A queue pair for datagrams receives from it.
    datagrams: bool,
}

impl Receiver {
    /// Creates a CQ, and chooses the path of the CQ and its queues.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::{CqConfig, DataPath, Receiver};
    ///
    /// let receiver = Receiver::new(&pd, &CqConfig::new(512).path(DataPath::Direct))?;
    /// assert_eq!(receiver.path(), DataPath::Direct);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotDirect`] if [`DataPath::Direct`] is required and not possible; [`Error::OutOfRange`];
    /// [`Error::Unsupported`] if the path or the device lacks what `config` requests; [`Error::Verbs`].
    pub fn new(pd: &ProtectionDomain, config: &CqConfig) -> Result<Self> {
        Ok(Self::on(pd, CqCore::create(pd.context(), config)?))
    }
}

impl Receiver<Opaque> {
    /// Creates a CQ like [`new`](Receiver::new), for queues whose buffers are in [opaque memory](crate::opaque).
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let descriptor = doorbell_doc::dma_buf(4096);
    /// use doorbell::opaque::OpaqueMemory;
    /// use doorbell::{BufferPool, CqConfig, Receiver, RemoteAccess, SrqConfig};
    ///
    /// let memory = OpaqueMemory::dma_buf(&pd, descriptor, 0, 4096, RemoteAccess::empty())?;
    /// let pool = BufferPool::divide(memory, 4, 1024)?;
    /// let mut receiver = Receiver::opaque(&pd, &CqConfig::for_pool(&pool))?;
    /// let srq = receiver.create_srq(&SrqConfig::for_pool(&pool))?;
    /// assert_eq!(receiver.fill(srq, &pool)?, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`new`](Receiver::new).
    pub fn opaque(pd: &ProtectionDomain, config: &CqConfig) -> Result<Self> {
        Ok(Self::on(pd, CqCore::create(pd.context(), config)?))
    }
}

impl<M: Memory> Receiver<M> {
    fn on(pd: &ProtectionDomain, cq: CqCore) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self {
            cq,
            queues: Vec::new(),
            only: Only::Other,
            unrung: Vec::new(),
            upkeep_after: 0,
            idle_left: 0,
            qps: QpTable::default(),
            pd: pd.clone(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            next_number: 0,
            committed: 0,
            maintenance: None,
            has_more_to_do: false,
            cq_failed: false,
            kind: PhantomData,
        }
    }

    /// Returns the path of the queues: [`DataPath::Direct`] or [`DataPath::Verbs`].
    pub const fn path(&self) -> DataPath {
        self.cq.path()
    }

    /// Returns a clock that converts the [timestamps](crate::Message::timestamp) of this receiver. For ticks it reads
    /// the clock of the device.
    ///
    /// # Errors
    /// The errors of [`Context::clock`](crate::Context::clock).
    pub fn clock(&self) -> Result<Clock> {
        self.cq.clock()
    }

    /// Returns the protection domain.
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Returns the number of entries of the CQ. An mlx5 device rounds the requested number up to a power of two.
    pub fn cq_capacity(&self) -> u32 {
        self.cq.object.capacity()
    }

    /// Resizes the CQ to at least `entries` entries (`ibv_resize_cq(3)`). Verbs path only.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::{CqConfig, Error, DataPath, Receiver};
    ///
    /// let config = CqConfig::new(100);
    /// let mut receiver = Receiver::new(&pd, &config.clone().path(DataPath::Verbs))?;
    /// receiver.resize_cq(1000)?;
    /// assert!(receiver.cq_capacity() >= 1000);
    /// let refused = Receiver::new(&pd, &config.path(DataPath::Direct))?.resize_cq(1000);
    /// assert!(matches!(refused, Err(Error::Unsupported { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the direct path, where libmlx5 would free the memory that doorbell polls: create a
    /// larger CQ, or another receiver. [`Error::CqTooSmall`] if the queues need more entries; [`Error::OutOfRange`];
    /// [`Error::Verbs`].
    pub fn resize_cq(&mut self, entries: u32) -> Result<()> {
        let capacity = u64::from(entries);
        if self.path() == DataPath::Verbs && capacity < self.committed {
            let needed = self.committed;
            return Err(Error::CqTooSmall { setting: "number of entries", capacity, needed, new: 0 });
        }
        self.cq.resize(entries)
    }

    fn mlx5dv(&self) -> Option<&'static Mlx5dv> {
        self.cq.mlx5dv()
    }

    /// Makes the [channel](Completions::channel) readable at the next solicited message (`IBV_SEND_SOLICITED`) or
    /// failed receive. Returns `true` if any completion has already arrived.
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
    /// The errors of [`arm`](Completions::arm).
    pub fn arm_solicited(&mut self) -> Result<bool> {
        self.arm_for(true)
    }

    fn arm_for(&mut self, solicited_only: bool) -> Result<bool> {
        self.stop_waiting();
        if self.cq_failed {
            return if self.cq.poller.has_arrived() { Ok(true) } else { Err(Error::CqFailed) };
        }
        self.park_until_quiet();
        self.cq.arm(solicited_only)?;
        Ok(self.cq.poller.has_arrived())
    }

    /// Arms the CQ, of which `events` were taken from the channel that it shares. Returns `true` if something has
    /// arrived already.
    pub(crate) fn arm_after(&mut self, events: u32) -> Result<bool> {
        self.stop_waiting();
        self.park_until_quiet();
        self.cq.arm_after(events, false)?;
        Ok(self.cq.poller.has_arrived())
    }

    /// Has the next buffer that another thread returns wake this thread, and posts those that were returned before.
    /// Otherwise a queue that runs dry while other threads have its buffers would never wake it.
    fn park_until_quiet(&mut self) {
        while self.park() {
            self.post_all_returned();
        }
    }

    pub(crate) const fn core(&self) -> &CqCore {
        &self.cq
    }

    fn check_cq(&self) -> Result<()> {
        if self.cq_failed { Err(Error::CqFailed) } else { Ok(()) }
    }
}

impl<M: Memory> Completions for Receiver<M> {
    fn channel(&self) -> Option<&CompletionChannel> {
        self.cq.channel()
    }

    fn arm(&mut self) -> Result<bool> {
        self.arm_for(false)
    }

    fn has_completions(&mut self) -> bool {
        self.end_batch();
        self.cq.poller.has_arrived()
    }
}

impl<M: Memory> Waiting for Receiver<M> {
    fn is_starving(&mut self) -> bool {
        self.post_all_returned();
        self.is_short_of_buffers()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Self::wake_fd(self)
    }

    fn woken(&mut self) {
        self.unpark();
    }
}

impl<M: Memory> Drop for Receiver<M> {
    /// Leaves posted buffers with the queues, which exist until their last queue pair is dropped.
    fn drop(&mut self) {
        // The queues are the parent's in a forked child, where their memory may not even be mapped.
        if self.pd.context().owner().is_this_process() {
            self.end_batch();
        }
        for entry in &mut self.queues {
            entry.queue.defer();
        }
    }
}

impl<M: Memory> fmt::Debug for Receiver<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cq.debug("Receiver", f)
    }
}
