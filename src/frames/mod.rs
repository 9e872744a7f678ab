//! Ethernet frames, for example market data. They need an Ethernet port; soft-mlx5 has one with `--link roce`.
//!
//! A [`FrameReceiver`] owns a receive queue and its buffers. Each [`Flow`] attached to it directs frames there instead
//! of to the kernel. [`FrameReceiver::poll`] lends each [`Frame`] in place; [`Frame::take`] keeps it. A queue does not
//! receive frames that were sent from its own [`Context`](crate::Context): mlx5 blocks this loopback (`mlx5-abi.h`),
//! and doorbell has no setting for it. Queues of another context receive them, also in the same program.
//!
//! [`Posting::send_frame`](crate::Posting::send_frame) sends frames through the queue pair of
//! [`FrameReceiver::with_sender`]. A program that only sends creates a small plain receiver without a flow:
//!
//! ```no_run
//! use doorbell::frames::{FrameConfig, FrameReceiver};
//! use doorbell::{BufferPool, Completions, CqConfig, PoolConfig, Sender};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
//! let pool = BufferPool::new(&pd, &PoolConfig::new(64, 2048))?;
//! let config = FrameConfig::new().plain(4, 2048);
//! let mut sender = Sender::new(&pd, &CqConfig::for_frame_sends(&config, 1))?;
//! let receiver = FrameReceiver::with_sender(&pd, &config, &mut sender)?;
//! let queue = receiver.send_queue().expect("created with a sender");
//!
//! let mut frame = pool.take().expect("a new pool is full");
//! // Destination, source, type of a local experiment, and padding.
//! frame.extend_from_slice(&[0xff; 6]);
//! frame.extend_from_slice(&[2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
//! frame.extend_from_slice(&[0; 46]);
//! sender.post(queue)?.send_frame(frame, false)?;
//! // Frames that have not completed may be lost when the program ends or drops the receiver.
//! while sender.is_busy(queue) {
//!     sender.wait(None)?;
//!     while sender.poll().next().is_some() {}
//! }
//! # Ok(())
//! # }
//! ```

mod batch;
mod buffers;
mod config;
mod flow;
mod frame;
mod queue;
mod verbs;
mod wq;

use std::fmt;
use std::sync::Arc;

use mlx5_ring::frames::{FrameQueue, Shape};
use mlx5_ring::rq;
use rdma_core_sys as sys;

use crate::clock::Clock;
use crate::cq::{CompletionChannel, Completions, CqCore, Poller, Timestamps, Waiting};
use crate::error::{Error, Result};
use crate::ids::SqId;
use crate::mlx5::{self, layout_error};
use crate::path::{DataPath, NotDirect};
use crate::pd::ProtectionDomain;
use crate::qp::{QpConfig, QueuePair, ReceiveSide, SendSide};
use crate::receiver::MOST_UPKEEP;
use crate::sender::Sender;
use crate::trace::trace_event;

pub use batch::FrameBatch;
pub use config::FrameConfig;
pub use flow::{Flow, FlowRule};
pub use frame::{Frame, TakenFrame};

use buffers::Buffers;
use flow::Target;
use queue::{DirectFrames, Queue};
use verbs::VerbsFrames;
use wq::{HashQp, Wq};

/// Receives Ethernet frames: one completion queue, one receive queue and its buffers.
///
/// [Rules](Self::attach) select the frames; matching frames bypass the kernel's network stack. The program needs the
/// capability `CAP_NET_RAW`. The queue belongs to a raw packet queue pair or, for [striding](FrameConfig::striding)
/// queues and receivers that [share](Self::spread) rules, to a work queue with a hash.
///
/// Unlike a [`Receiver`](crate::Receiver) it allocates its buffers itself. A frame is lent in place and recycled when
/// the batch ends, [taken](Frame::take), or copied.
///
/// Dropping it ends the queue and frees its buffers. If rules or a [`Sender`] still use the queue pair, that
/// happens when the rules are dropped, and the sender has returned its requests and is polled once more.
///
/// ```no_run
/// use std::net::Ipv4Addr;
///
/// use doorbell::frames::{Flow, FrameConfig, FrameReceiver};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let config = FrameConfig::new().striding(4, 2048, 64);
/// let mut receiver = FrameReceiver::new(&pd, &config)?;
/// let feed = Flow::udp(Ipv4Addr::new(239, 1, 2, 3), 30_001).tag(1);
/// // The address of a network interface that is to join the group. soft-mlx5 has none: pass `&feed` alone there.
/// let _rule = receiver.attach(&feed.join_on(Ipv4Addr::new(192, 0, 2, 10)))?;
/// loop {
///     let mut batch = receiver.poll();
///     while let Some(frame) = batch.next() {
///         let frame = frame?;
///         if frame.dropped_before().is_some_and(|count| count > 0) {
///             println!("the device has dropped frames");
///         }
///         if frame.checksum_ok() {
///             println!("{} bytes of feed {:?}", frame.len(), frame.tag());
///         }
///     }
/// }
/// # }
/// ```
pub struct FrameReceiver {
    /// `[paths]`: the CQ is driven directly if the queue is.
    cq: CqCore,
    queue: Queue,
    buffers: Buffers,
    /// `[whole]`: unless it is set, every buffer that a WQE has is whole. Taking a frame sets it.
    is_shared: bool,
    /// Frames that CQEs without a frame have counted as dropped since the last frame.
    dropped: u32,
    /// A receive has failed, and with it the queue.
    failed: bool,
    /// CQEs that [`next`](Self::next) takes before it publishes the consumer index.
    upkeep_after: u32,
    owner: Owner,
    port: u8,
    pd: ProtectionDomain,
}

/// The object that has the receive queue.
enum Owner {
    Raw(QueuePair),
    Wq(Arc<Wq>, Arc<HashQp>),
}

impl FrameReceiver {
    /// Creates a receiver. It receives nothing until a rule is [attached](Self::attach).
    ///
    /// # Errors
    /// [`Error::NeedsNetRaw`] without the capability; [`Error::NotDirect`] and [`Error::Unsupported`] if the path
    /// lacks what `config` requests, or on an InfiniBand port; [`Error::OutOfRange`], [`Error::NotPowerOfTwo`];
    /// [`Error::Verbs`].
    pub fn new(pd: &ProtectionDomain, config: &FrameConfig) -> Result<Self> {
        match config.shape {
            Shape::Plain(_) => Self::with_raw_qp(pd, config, None),
            Shape::Striding(_) => {
                let mut receivers = Self::spread(pd, config, 1)?;
                Ok(receivers.pop().expect("as many as were asked for"))
            }
        }
    }

    /// Creates a receiver whose queue pair also sends through `sender`. [`send_queue`](Self::send_queue) is its queue
    /// there, and [`Posting::send_frame`](crate::Posting::send_frame) sends a frame. The paths of the two may differ:
    /// the sender sends on its own.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a sender of another protection domain; [`Error::Unsupported`] for a striding queue, and
    /// if only one of the two CQs has real-time timestamps; the errors of [`new`](Self::new).
    pub fn with_sender(pd: &ProtectionDomain, config: &FrameConfig, sender: &mut Sender) -> Result<Self> {
        if let Shape::Striding(_) = config.shape {
            return Err(Error::Unsupported {
                operation: "FrameReceiver::with_sender",
                when: "with a striding queue, which has no send side: make another receiver for sending",
            });
        }
        let real_time = config.cq.timestamps == Timestamps::RealTime;
        if real_time != sender.is_in_real_time() {
            return Err(Error::Unsupported {
                operation: "FrameReceiver::with_sender",
                when: "with Timestamps::RealTime in the CqConfig of the receiver or the sender only: set it in both (soft-mlx5 has it with --real-time)",
            });
        }
        Self::with_raw_qp(pd, config, Some(sender))
    }

    fn with_raw_qp(pd: &ProtectionDomain, config: &FrameConfig, mut sender: Option<&mut Sender>) -> Result<Self> {
        let cq = Self::create_cq(pd, config)?;
        let qp_config = QpConfig::raw_packet(config.vlan_stripping).port(config.port);
        let object = Arc::clone(&cq.object);
        let (qp_config, send) = match &mut sender {
            None => {
                config.check_without_sender()?;
                (qp_config.idle(), SendSide::idle(Arc::clone(&object)))
            }
            Some(sender) => (config.send_side(qp_config), sender.send_side(pd)?),
        };
        let receive = ReceiveSide { own: (config.wqes, 1), ..ReceiveSide::idle(object) };
        let mut qp = QueuePair::create(pd, &qp_config, receive, send)?;
        let (queue, buffers) = match &cq.poller {
            Poller::Direct(direct) => {
                let layout = mlx5::receive_queue_layout(direct.mlx5dv, qp.as_raw());
                // SAFETY: the layout of a fresh queue pair, which the receiver keeps.
                unsafe { direct_queue(pd, config, &cq, layout) }?
            }
            Poller::Verbs(_) => {
                let buffers = Buffers::new(pd, config, config.wqes)?;
                let posted = (0..config.wqes).map(|index| buffers.get(index)).collect();
                (Queue::Verbs(VerbsFrames::new(qp.object(), posted)), buffers)
            }
        };
        let sends = sender.is_some();
        if let Some(sender) = sender {
            // SAFETY: a fresh queue pair that no other code knows.
            unsafe { sender.enter(&mut qp, &qp_config) }?;
        }
        qp.activate_raw_packet(sends)?;
        trace_event!(device = pd.context().name(), qp_num = qp.qp_num(), wqes = config.wqes, "frame receiver created");
        Ok(Self::from_parts(pd, config, cq, queue, buffers, Owner::Raw(qp)))
    }

    /// Checks the configuration, and creates the CQ.
    fn create_cq(pd: &ProtectionDomain, config: &FrameConfig) -> Result<CqCore> {
        let context = pd.context();
        config.check(context, context.choose(config.cq.path)?)?;
        CqCore::create(context, &config.cq_config())
    }

    /// Creates `count` receivers, a power of two, for as many threads. A rule attached to one of them serves all: a
    /// hash of addresses and ports selects the receiver, so frames of one source, group and port stay in order on one
    /// receiver. Direct path only.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn spread(pd: &ProtectionDomain, config: &FrameConfig, count: u32) -> Result<Vec<Self>> {
        Error::check_power_of_two("number of receivers", count, 1, 1 << 15)?;
        config.check_without_sender()?;
        let mut made = Vec::new();
        for _ in 0..count {
            let cq = Self::create_cq(pd, config)?;
            let Some(mlx5dv) = cq.mlx5dv() else {
                return Err(Error::Unsupported {
                    operation: "FrameReceiver::spread",
                    when: "on the verbs path: make one receiver with FrameReceiver::new",
                });
            };
            let wq = Arc::new(Wq::create(pd, config, &cq.object, mlx5dv)?);
            let layout = mlx5::work_queue_layout(mlx5dv, wq.as_raw());
            // SAFETY: the layout of a fresh work queue, which the receiver keeps.
            let (queue, buffers) = unsafe { direct_queue(pd, config, &cq, layout) }?;
            made.push((cq, queue, buffers, wq));
        }
        let wqs = made.iter().map(|(.., wq)| Arc::clone(wq)).collect();
        let hash = Arc::new(HashQp::create(pd, wqs)?);
        trace_event!(device = pd.context().name(), count, wqes = config.wqes, "frame receivers created");
        let whole = |(cq, queue, buffers, wq)| {
            let owner = Owner::Wq(wq, Arc::clone(&hash));
            Self::from_parts(pd, config, cq, queue, buffers, owner)
        };
        Ok(made.into_iter().map(whole).collect())
    }

    /// Hands all buffers to the device.
    fn from_parts(
        pd: &ProtectionDomain,
        config: &FrameConfig,
        cq: CqCore,
        queue: Queue,
        buffers: Buffers,
        owner: Owner,
    ) -> Self {
        let mut this = Self {
            cq,
            queue,
            buffers,
            is_shared: false,
            dropped: 0,
            failed: false,
            upkeep_after: (config.wqes / 4).clamp(1, MOST_UPKEEP),
            owner,
            port: config.port,
            pd: pd.clone(),
        };
        this.end_batch();
        this
    }

    /// Directs matching frames to this receiver, or to the receivers [created with it](Self::spread), until the
    /// returned rule is dropped.
    ///
    /// # Errors
    /// [`Error::NeedsNetRaw`] without the capability; [`Error::OutOfRange`]; [`Error::NotMulticast`];
    /// [`Error::Unsupported`] if the path lacks what `flow` requests; [`Error::Verbs`], with `EEXIST` if another
    /// receiver or program has the same rule with another tag.
    pub fn attach(&self, flow: &Flow) -> Result<FlowRule> {
        let target = match &self.owner {
            Owner::Raw(qp) => Target::Raw(qp.object()),
            Owner::Wq(_, hash) => Target::Hash(Arc::clone(hash)),
        };
        FlowRule::create(&self.pd, target, flow, self.port, self.path() == DataPath::Verbs)
    }

    /// Returns the send queue, or `None` if the receiver was created without a sender.
    pub fn send_queue(&self) -> Option<SqId> {
        match &self.owner {
            Owner::Raw(qp) => qp.send_queue(),
            Owner::Wq(..) => None,
        }
    }

    /// Returns the handle of libibverbs of the raw packet queue pair, or `None` for a work queue.
    pub fn as_raw(&self) -> Option<*mut sys::ibv_qp> {
        match &self.owner {
            Owner::Raw(qp) => Some(qp.as_raw()),
            Owner::Wq(..) => None,
        }
    }

    /// Number of the queue pair; 0 for a work queue.
    fn qp_num(&self) -> u32 {
        match &self.owner {
            Owner::Raw(qp) => qp.qp_num(),
            Owner::Wq(..) => 0,
        }
    }

    /// Returns the path of the queue: [`DataPath::Direct`] or [`DataPath::Verbs`].
    pub const fn path(&self) -> DataPath {
        self.cq.path()
    }

    /// Returns whether the CQEs of a striding queue number its WQEs modulo the size of the queue, and not up to 2^16.
    /// doorbell reads both. `None` until the queue has gone round, for plain queues and on the verbs path.
    pub fn has_masked_wqe_ids(&self) -> Option<bool> {
        self.queue.has_masked_ids()
    }

    /// Returns a clock that converts the [timestamps](Frame::timestamp), see
    /// [`Receiver::clock`](crate::Receiver::clock).
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
}

impl Completions for FrameReceiver {
    fn channel(&self) -> Option<&CompletionChannel> {
        self.cq.channel()
    }

    fn arm(&mut self) -> Result<bool> {
        self.end_batch();
        self.cq.arm(false)?;
        Ok(self.cq.poller.has_arrived())
    }

    fn has_completions(&mut self) -> bool {
        self.end_batch();
        self.cq.poller.has_arrived()
    }
}

impl Waiting for FrameReceiver {
    /// A frame that is dropped elsewhere wakes no thread.
    fn is_starving(&mut self) -> bool {
        self.is_short_of_buffers()
    }
}

/// Takes over a receive queue, and makes its buffers.
///
/// # Safety
/// `layout` is that of a queue to which nothing was posted and no other code posts, that cuts its buffers as `config`
/// says, and that lives for as long as the value.
unsafe fn direct_queue(
    pd: &ProtectionDomain,
    config: &FrameConfig,
    cq: &CqCore,
    layout: Result<rq::Layout, NotDirect>,
) -> Result<(Queue, Buffers)> {
    let not_direct = |error| pd.context().not_direct(error);
    let layout = layout.map_err(not_direct)?;
    let needed = u64::from(layout.wqe_cnt) * u64::from(config.shape.completions());
    cq.check_room(0, needed, "capacity with FrameConfig::cq")?;
    let buffers = Buffers::new(pd, config, layout.wqe_cnt)?;
    let slots = mlx5::Storage::uninit(layout.wqe_cnt as usize);
    let posted = (0..layout.wqe_cnt).map(|index| buffers.get(index));
    // SAFETY: the caller passes the layout of a fresh queue, to which no other code posts. The slots live as long as
    // the ring, and the receiver keeps the buffers, which have as many bytes as the shape says, until the queue is
    // destroyed.
    let ring = unsafe { FrameQueue::new(layout, config.shape, buffers.lkey(), slots.start(), posted) };
    let ring = ring.map_err(layout_error).map_err(not_direct)?;
    Ok((Queue::Direct(DirectFrames { ring, _slots: slots }), buffers))
}

impl Drop for FrameReceiver {
    /// The queue may live on: what is posted stays its own, until it is destroyed.
    fn drop(&mut self) {
        // The queue is the parent's in a forked child, where its memory may not even be mapped.
        if !self.pd.context().owner().is_this_process() {
            return;
        }
        let object;
        let deferred = match &self.owner {
            Owner::Raw(qp) => {
                object = qp.object();
                object.deferred()
            }
            Owner::Wq(wq, _) => wq.deferred(),
        };
        let buffers = &self.buffers;
        self.queue.posted(|posted| deferred.keep_shared(buffers.share(posted.index)));
    }
}

impl fmt::Debug for FrameReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cq.debug("FrameReceiver", f)
    }
}
