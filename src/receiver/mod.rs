//! Receiving: one completion queue and all the queues that complete on it.

mod batch;
mod completion_info;
mod config;
mod datagram;
mod failure;
mod id;
mod lent;
mod maintain;
mod message;
mod post;
mod qp_table;
mod queue;
mod queues;
mod raw;
mod slot_context;
mod srq;
mod teardown;
mod verbs;
mod verify;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_core_sys::Mlx5dv;

use crate::channel::CompletionChannel;
use crate::clock::Clock;
use crate::cq::{self, Cq, CqInit, Form, Timestamps};
use crate::error::{Error, Result};
use crate::path::Path;
use crate::pd::ProtectionDomain;
use crate::poller::Poller;
use crate::trace::trace_event;

pub use batch::Batch;
pub use completion_info::MessageSource;
pub use config::{Compression, ReceiverConfig, SrqConfig};
pub use datagram::{Datagram, DatagramSource, GRH_SIZE};
pub use failure::{Cause, Failure};
pub use id::{QueueId, RqId, SrqId};
pub use maintain::{SharedPoster, Statistics};
pub use message::Message;
pub use post::{PostError, PostFailure};
pub use raw::DirectQueues;
pub(crate) use slot_context::Bound;
pub use slot_context::SlotContext;
pub use verify::WrongCqe;

pub(crate) use queue::{QueueObject, RecvQueue};
pub(crate) use srq::Srq;
pub(crate) use verbs::{VerbsCq, VerbsQueue};

use maintain::Maintenance;
use qp_table::QpTable;

/// One completion queue and every receive queue that completes on it.
///
/// Polling frees slots and posting fills them. Both change the same state, so one value owns it and moves between
/// threads as a unit. [`SrqId`] and [`RqId`] name its queues.
///
/// Dropping the receiver does not disconnect its queue pairs. The buffers in its queues return to their pools when the queues
/// are destroyed, after the last queue pair was dropped.
///
/// | to | use |
/// |---|---|
/// | create queues | [`create_srq`](Self::create_srq), [`create_qp`](Self::create_qp) |
/// | post buffers | [`fill`](Self::fill), [`post`](Self::post), [`post_scatter`](Self::post_scatter); automatically: [`keep_filled`](Self::keep_filled); from other threads: [`shared_poster`](Self::shared_poster) |
/// | receive messages | [`poll`](Self::poll), [`poll_up_to`](Self::poll_up_to) |
/// | sleep | [`wait`](Self::wait); in an event loop [`arm`](Self::arm) and [`channel`](Self::channel) |
/// | monitor | [`handle_event`](Self::handle_event), [`arm_srq_limit`](Self::arm_srq_limit), [`statistics`](Self::statistics) |
/// | end a connection | as [`QueuePair`](crate::QueuePair) describes; without the peer [`drain_qp`](Self::drain_qp), [`reset_qp`](Self::reset_qp), [`destroy_qp`](Self::destroy_qp); or drop the queue pair |
/// | access the rings | [`as_direct`](Self::as_direct), [`from_raw_cq`](Self::from_raw_cq) |
///
/// ```no_run
/// use doorbell::{BufferPool, QpConfig, Receiver, ReceiverConfig, SrqConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let pool = BufferPool::new(&pd, 512, 4096)?;
/// let mut receiver = Receiver::new(&pd, &ReceiverConfig::new().cq_capacity(512))?;
/// let srq = receiver.create_srq(&SrqConfig::new(511))?;
/// receiver.fill(srq, &pool)?;
/// let mut qp = receiver.create_qp(&QpConfig::rc().srq(srq))?;
/// qp.connect_over(&mut std::net::TcpStream::connect("server:18515")?)?;
/// loop {
///     let mut batch = receiver.poll();
///     while let Some(message) = batch.next() {
///         println!("{} bytes", message?.len());
///     }
/// }
/// # }
/// ```
pub struct Receiver {
    poller: Poller,
    /// By index; a closed one is used again.
    queues: Vec<QueueEntry>,
    /// Indices of the queues of which a batch has taken messages, and not rung for since.
    unrung: Vec<u32>,
    qps: QpTable,
    cq: Arc<Cq>,
    pd: ProtectionDomain,
    id: u32,
    /// Number of the queue that is made next.
    next_number: u32,
    /// Receives that can be outstanding on all queues together.
    committed: u64,
    maintenance: Option<Box<Maintenance>>,
    /// The device has reported that the CQ failed.
    cq_failed: bool,
}

/// A queue of the receiver.
struct QueueEntry {
    queue: RecvQueue,
    /// Number that no other queue with the same index has had.
    number: u32,
    /// The slot of the message that was lent last, until it is given back. `[lent-held]`: it is held, and the queue is
    /// among those to ring for.
    lent: Option<u32>,
    /// It is among those to ring for.
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
    /// use doorbell::{Path, Receiver, ReceiverConfig};
    ///
    /// let receiver = Receiver::new(&pd, &ReceiverConfig::new().path(Path::Direct))?;
    /// assert_eq!(receiver.path(), Path::Direct);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotDirect`] if [`Path::Direct`] is required and not possible; [`Error::OutOfRange`];
    /// [`Error::Verbs`].
    pub fn new(pd: &ProtectionDomain, config: &ReceiverConfig) -> Result<Self> {
        let context = pd.context();
        let mlx5dv = context.choose(config.path)?;
        let init = CqInit {
            entries: config.cq_capacity,
            channel: Some(Arc::new(CompletionChannel::create(context)?)),
            comp_vector: config.comp_vector,
            through_verbs: mlx5dv.is_none(),
        };
        let cq = match (config.form(context, mlx5dv)?, mlx5dv) {
            (Form::Timestamps(form), _) => Cq::create_with_timestamps(context, init, form),
            (Form::Compressed(format), Some(mlx5dv)) => {
                Cq::create_compressed(context, init, format, mlx5dv)
            }
            _ => Cq::create(context, init),
        }?;
        trace_event!(device = context.name(), entries = cq.capacity(), "completion queue created");
        // SAFETY: a fresh CQ that no other code knows.
        unsafe { Self::with_cq(pd, cq, mlx5dv, config) }
    }

    /// # Safety
    /// Nothing was polled from the CQ, and no other code polls, arms or resizes it.
    unsafe fn with_cq(
        pd: &ProtectionDomain,
        cq: Cq,
        mlx5dv: Option<&'static Mlx5dv>,
        config: &ReceiverConfig,
    ) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let cq = Arc::new(cq);
        let mut receiver = Self {
            // SAFETY: nothing was polled from the caller's CQ, and no other code polls, arms or resizes it.
            poller: unsafe { Poller::new(&cq, mlx5dv) }?,
            queues: Vec::new(),
            unrung: Vec::new(),
            qps: QpTable::default(),
            cq,
            pd: pd.clone(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            next_number: 0,
            committed: 0,
            maintenance: None,
            cq_failed: false,
        };
        if config.verify_cqes {
            receiver.verify_cqes(config)?;
        }
        Ok(receiver)
    }

    /// Returns the path of the queues: [`Path::Direct`] or [`Path::Verbs`].
    pub const fn path(&self) -> Path {
        match self.poller {
            Poller::Direct(_) => Path::Direct,
            Poller::Verbs(_) => Path::Verbs,
        }
    }

    /// Returns a clock that converts the [timestamps](crate::Message::timestamp) of this receiver. For ticks it reads
    /// the clock of the device.
    ///
    /// # Errors
    /// The errors of [`Context::clock`](crate::Context::clock).
    pub fn clock(&self) -> Result<Clock> {
        match self.cq.with_timestamps() {
            Some((_, Timestamps::RealTime)) => Ok(Clock::REAL_TIME),
            _ => self.pd.context().clock(),
        }
    }

    /// Returns the protection domain.
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Returns the number of entries of the CQ. An mlx5 device rounds the requested number up to a power of two.
    pub fn cq_capacity(&self) -> u32 {
        self.cq.capacity()
    }

    /// Resizes the CQ to at least `entries` entries (`ibv_resize_cq(3)`). Verbs path only.
    ///
    /// ```
    /// # use doorbell::{Receiver, ReceiverConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::{Error, Path};
    ///
    /// let config = ReceiverConfig::new().cq_capacity(100);
    /// let mut receiver = Receiver::new(&pd, &config.clone().path(Path::Verbs))?;
    /// receiver.resize_cq(1000)?;
    /// assert!(receiver.cq_capacity() >= 1000);
    /// let refused = Receiver::new(&pd, &config.path(Path::Direct))?.resize_cq(1000);
    /// assert!(matches!(refused, Err(Error::Unsupported { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the direct path, where libmlx5 would free the memory that doorbell polls: create a
    /// larger CQ, or another receiver. [`Error::CqTooSmall`] if the queues need more entries; [`Error::OutOfRange`];
    /// [`Error::Verbs`].
    pub fn resize_cq(&mut self, entries: u32) -> Result<()> {
        if let Poller::Direct(_) = self.poller {
            return Err(Error::Unsupported {
                operation: "resize_cq",
                when: "on the direct path: choose the size with ReceiverConfig::cq_capacity",
            });
        }
        let context = self.pd.context();
        let max = context.attr().max_cqe.max(0) as u64;
        Error::check_range("entries", entries.into(), 1, max)?;
        if u64::from(entries) < self.committed {
            return Err(Error::CqTooSmall {
                setting: "number of entries",
                capacity: entries.into(),
                needed: self.committed,
            });
        }
        let asked = cq::to_ask_for(context, entries, true) as i32;
        // SAFETY: a live CQ, which this thread alone polls.
        let errno = unsafe { rdma_core_sys::ibv_resize_cq(self.cq.as_raw(), asked) };
        match errno {
            0 => Ok(()),
            _ => Err(Error::returned("ibv_resize_cq", context.name(), errno)),
        }
    }

    fn mlx5dv(&self) -> Option<&'static Mlx5dv> {
        match &self.poller {
            Poller::Direct(direct) => Some(direct.mlx5dv),
            Poller::Verbs(_) => None,
        }
    }

    /// Completions taken, modulo 2^32.
    fn completions_taken(&self) -> u32 {
        match &self.poller {
            Poller::Direct(direct) => direct.cq.consumer_index(),
            Poller::Verbs(cq) => cq.taken(),
        }
    }

    fn check_cq(&self) -> Result<()> {
        if self.cq_failed { Err(Error::CqFailed) } else { Ok(()) }
    }
}

impl Drop for Receiver {
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

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("path", &self.path())
            .field("device", &self.pd.context().name())
            .field("cq_capacity", &self.cq_capacity())
            .finish_non_exhaustive()
    }
}
