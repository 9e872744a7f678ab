//! Sending: one completion queue and all the send queues that complete on it.

mod batch;
mod blue_flame;
mod completion;
mod dc;
mod frames;
mod one;
mod opaque;
mod operation;
mod payload;
mod posting;
mod queue;
mod queues;
mod raw;
mod request;
mod settling;
mod target;
mod teardown;
mod unsent;
mod verbs;
mod window;

use std::fmt;
use std::sync::Arc;

use rdma_core_sys::Mlx5dv;

use crate::clock::Clock;
use crate::cq::{CompletionChannel, Completions, CqConfig, CqCore, Waiting};
use crate::error::Result;
use crate::path::DataPath;
use crate::pd::ProtectionDomain;
use crate::routes::Routes;
use crate::thread_domain::ThreadDomain;

pub use batch::SendBatch;
pub use completion::{SendCompletion, SendFailure};
pub use dc::{DcPosting, DcRequest};
pub use one::Request;
pub use payload::{BufferPart, Payload};
pub use posting::Posting;
pub use request::WorkRequest;
pub use target::Target;
pub use unsent::Unsent;

use batch::Run;
use queue::Entry;

/// One completion queue and every send queue that completes on it.
///
/// Polling frees slots and posting fills them. Both change the same state, so one value owns it and moves between
/// threads as a unit. [`QueuePair::builder`](crate::QueuePair::builder) makes queue pairs that send through it; a queue
/// pair, or its [`send_queue`](crate::QueuePair::send_queue), names its queue here.
///
/// | to | use |
/// |---|---|
/// | send one message | [`send`](Self::send) |
/// | post one request with a token, or of another kind | [`post`](Self::post): [`Request`] |
/// | send without a completion | [`Request::unsignaled`] |
/// | post many with one doorbell | [`post_many`](Self::post_many): [`Posting`] |
/// | get buffers back | [`poll`](Self::poll), [`poll_up_to`](Self::poll_up_to) |
/// | sleep | [`Completions`] |
///
/// A request owns its buffers until `poll` returns its completion, in the order of posting for each queue. The last
/// request before a doorbell has a CQE, which completes all requests before it.
///
/// Requests of a failed queue pair complete with an error. After a [reset](crate::Receiver::reset_qp) or the
/// [end](crate::Receiver::destroy_qp) of a queue pair, its requests that had not completed do so with
/// [`WcStatus::WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR), and the others with their own status. Poll until
/// [`is_busy`](Self::is_busy) returns `false` before connecting it again; [`QueuePair`](crate::QueuePair) lists all
/// steps. Dropping the sender returns outstanding buffers to their pools once their queue pair is destroyed. When the
/// device was removed ([`Context::events`](crate::Context::events) have ended), drop its queue pairs, and poll: their
/// requests come flushed.
///
/// In a loop poll the sender first, then post: if the queue was full or the pool empty, a completion ends the sleep.
/// The program `rpc_server` in `examples` replies to many clients that way.
///
/// ```no_run
/// use doorbell::{BufferPool, Completions, CqConfig, PoolConfig, QpConfig, QueuePair, Sender};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let pool = BufferPool::new(&pd, &PoolConfig::new(64, 1024))?;
/// let config = QpConfig::rc().max_send_wr(64);
/// let mut sender = Sender::new(&pd, &CqConfig::for_sends(&config, 1))?;
/// let mut qp = QueuePair::builder(&config).send(&mut sender).build()?;
/// qp.connect_over(&mut std::net::TcpStream::connect("server:18515")?)?;
///
/// let mut message = pool.take().ok_or("a new pool is full")?;
/// message.extend_from_slice(b"hello");
/// sender.send(&qp, message)?;
/// while sender.is_busy(&qp) {
///     sender.wait(None)?;
///     while let Some(done) = sender.next() {
///         // The buffer returns to its pool.
///         done?;
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Sender {
    cq: CqCore,
    /// By index; `None` is free for another queue.
    queues: Vec<Option<Box<Entry>>>,
    /// Requests that the last CQE has completed and no batch has returned.
    run: Run,
    /// Offset of the half of the register that the next posting takes, where queues share it.
    half: usize,
    /// Which queue a completion belongs to, by the number of its queue pair.
    routes: Routes<u32>,
    /// Resets and drops of queue pairs that were taken note of.
    ended: u32,
    /// A queue pair was dropped with requests outstanding.
    has_departing: bool,
    /// The register that all queues share and no other code has; `None` where there is none to be had.
    register: Option<Arc<ThreadDomain>>,
    pd: ProtectionDomain,
    /// Requests that can be outstanding on all queues together.
    committed: u64,
}

impl Sender {
    /// Creates a CQ, and chooses the path of the CQ and its queues.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::{CqConfig, DataPath, Sender};
    ///
    /// let sender = Sender::new(&pd, &CqConfig::new(1024).path(DataPath::Direct))?;
    /// assert_eq!(sender.path(), DataPath::Direct);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotDirect`](crate::Error::NotDirect) if [`DataPath::Direct`] is required and not possible;
    /// [`Error::Unsupported`](crate::Error::Unsupported) with [compression](CqConfig::compression), and if the device
    /// lacks what `config` requests; [`Error::OutOfRange`](crate::Error::OutOfRange);
    /// [`Error::Verbs`](crate::Error::Verbs).
    pub fn new(pd: &ProtectionDomain, config: &CqConfig) -> Result<Self> {
        config.uncompressed("for a Sender")?;
        Ok(Self::on(pd, CqCore::create(pd.context(), config)?))
    }

    /// Creates a sender whose completion channel other CQs may have, too.
    pub(crate) fn on_channel(
        pd: &ProtectionDomain,
        config: &CqConfig,
        channel: Arc<CompletionChannel>,
    ) -> Result<Self> {
        Ok(Self::on(pd, CqCore::create_on(pd.context(), config, channel)?))
    }

    fn on(pd: &ProtectionDomain, cq: CqCore) -> Self {
        Self {
            queues: Vec::new(),
            run: Run::NONE,
            half: 0,
            routes: Routes::default(),
            ended: 0,
            has_departing: false,
            register: cq.mlx5dv().and_then(|_| ThreadDomain::create(pd)),
            cq,
            pd: pd.clone(),
            committed: 0,
        }
    }

    /// Returns the path of the queues: [`DataPath::Direct`] or [`DataPath::Verbs`].
    pub const fn path(&self) -> DataPath {
        self.cq.path()
    }

    /// Returns a clock that converts the [timestamps](SendCompletion::timestamp) of this sender. For ticks it reads the
    /// clock of the device.
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

    /// Returns the number of entries of the CQ.
    pub fn cq_capacity(&self) -> u32 {
        self.cq.object.capacity()
    }

    pub(crate) fn is_in_real_time(&self) -> bool {
        self.cq.object.is_in_real_time()
    }

    fn mlx5dv(&self) -> Option<&'static Mlx5dv> {
        self.cq.mlx5dv()
    }

    /// Arms the CQ, of which `events` were taken from the channel that it shares.
    pub(crate) fn arm_after(&mut self, events: u32) -> Result<()> {
        self.cq.arm_after(events, false)
    }
}

impl Completions for Sender {
    fn channel(&self) -> Option<&CompletionChannel> {
        self.cq.channel()
    }

    fn arm(&mut self) -> Result<bool> {
        self.cq.arm(false)?;
        Ok(self.has_completions())
    }

    fn has_completions(&mut self) -> bool {
        let has_ended = self.cq.object.ended() != self.ended;
        !self.run.is_over() || has_ended || self.cq.poller.has_arrived()
    }
}

impl Waiting for Sender {}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cq.debug("Sender", f)
    }
}
