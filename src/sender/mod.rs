//! Sending: one completion queue and all the send queues that complete on it.

mod batch;
mod config;
mod error;
mod id;
mod operation;
mod payload;
mod posting;
mod queue;
mod queues;
mod raw;
mod register;
mod request;
mod teardown;
mod verbs;
mod wait;

use std::fmt;
use std::sync::Arc;

use rdma_core_sys::Mlx5dv;

use crate::channel::CompletionChannel;
use crate::cq::{Cq, CqInit, Timestamps};
use crate::error::{Error, Result};
use crate::path::Path;
use crate::pd::ProtectionDomain;
use crate::poller::Poller;
use crate::routes::Routes;
use crate::trace::trace_event;

pub use batch::{SendBatch, SendCompletion};
pub use config::SenderConfig;
pub use error::{NotSent, SendError};
pub use id::SqId;
pub use payload::{BufferPart, Payload};
pub use posting::Posting;

pub(crate) use register::ThreadDomain;
pub use request::WorkRequest;

use batch::Run;
use queue::Entry;

/// One completion queue and every send queue that completes on it.
///
/// Polling frees slots and posting fills them. Both change the same state, so one value owns it and moves between
/// threads as a unit. A queue pair from [`Receiver::create_qp_with_sender`] sends through it;
/// [`QueuePair::send_queue`] names its queue.
///
/// | to | use |
/// |---|---|
/// | send | [`post`](Self::post), with one doorbell for all requests of a [`Posting`] |
/// | get buffers back | [`poll`](Self::poll), [`poll_up_to`](Self::poll_up_to) |
/// | sleep | [`wait`](Self::wait); in an event loop [`arm`](Self::arm) and [`channel`](Self::channel) |
///
/// A request owns its buffers until `poll` returns its completion, in the order of posting for each queue. The last
/// request of each posting has a CQE, which completes all requests before it.
///
/// Requests of a failed queue pair complete with an error. After a [reset](crate::Receiver::reset_qp) or the
/// [end](crate::Receiver::destroy_qp) of a queue pair, its requests that had not completed do so with
/// [`WcStatus::WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR), and the others with their own status. Poll until
/// [`is_busy`](Self::is_busy) returns `false` before connecting it again; [`QueuePair`](crate::QueuePair) lists all steps.
/// Dropping the sender returns outstanding buffers to their pools once their queue pair is destroyed.
///
/// A server that replies to many clients, with one doorbell for all replies to a client:
///
/// ```no_run
/// use std::collections::VecDeque;
/// use std::io::{ErrorKind, Read};
/// use std::net::{TcpListener, TcpStream};
/// use std::time::Duration;
///
/// use doorbell::{Buffer, BufferPool, Error, NotSent, QpConfig, QueuePair, Receiver};
/// use doorbell::{ReceiverConfig, Sender, SenderConfig, SrqConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let pool = BufferPool::new(&pd, 4096, 1024)?;
/// let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
/// let mut sender = Sender::new(&pd, &SenderConfig::new())?;
/// let srq = receiver.create_srq(&SrqConfig::new(1023))?;
/// receiver.fill(srq, &pool)?;
///
/// struct Client {
///     qp: QueuePair,
///     stream: TcpStream,
///     answers: VecDeque<Buffer>,
/// }
/// let listener = TcpListener::bind("0.0.0.0:18515")?;
/// listener.set_nonblocking(true)?;
/// let mut clients: Vec<Client> = Vec::new();
/// loop {
///     // This server is busy. To sleep, call `arm` of receiver and sender here. If both return `false`, call `poll(2)` for
///     // both channels, the listener and the streams of the clients.
///     if let Ok((mut stream, _)) = listener.accept() {
///         // Each client reserves 64 entries of the sender's CQ, which has 4,096. More clients are refused.
///         let config = QpConfig::rc().srq(srq).sends(64);
///         let mut qp = match receiver.create_qp_with_sender(&config, &mut sender) {
///             Err(Error::CqTooSmall { .. }) => continue,
///             made => made?,
///         };
///         stream.set_read_timeout(Some(Duration::from_secs(1)))?;
///         // A client that does not answer in time is not taken.
///         if qp.connect_over(&mut stream).is_ok() {
///             stream.set_nonblocking(true)?;
///             clients.push(Client { qp, stream, answers: VecDeque::new() });
///         }
///     }
///
///     // Numbers of queue pairs. Without an answer, only the end of its stream shows that a client is dead: see `QueuePair`.
///     let mut failed = Vec::new();
///     for Client { qp, stream, .. } in &mut clients {
///         match stream.read(&mut [0]) {
///             Err(error) if error.kind() == ErrorKind::WouldBlock => {}
///             _ => failed.push(qp.qp_num()),
///         }
///     }
///     // Poll the sender before posting. Then, if the queue is full or the pool is empty, a completion will end the sleep.
///     let mut batch = sender.poll();
///     while let Some(done) = batch.next() {
///         // The buffer returns to its pool.
///         if !done.status.is_success() {
///             let failing = clients.iter().find(|client| client.qp.send_queue() == Some(done.queue));
///             failed.extend(failing.map(|client| client.qp.qp_num()));
///         }
///     }
///     drop(batch);
///     let mut batch = receiver.poll();
///     while let Some(next) = batch.next() {
///         match next {
///             Ok(message) => {
///                 let number = message.qp_num();
///                 if let Some(client) = clients.iter_mut().find(|client| client.qp.qp_num() == number) {
///                     // The received buffer is the answer.
///                     client.answers.push_back(message.take());
///                 }
///             }
///             Err(failure) => failed.push(failure.qp_num),
///         }
///     }
///     drop(batch);
///     receiver.fill(srq, &pool)?;
///
///     for Client { qp, answers, .. } in clients.iter_mut().filter(|client| !client.answers.is_empty()) {
///         let queue = qp.send_queue().expect("created with a sender");
///         let Ok(mut posting) = sender.post(queue) else {
///             failed.push(qp.qp_num());
///             continue;
///         };
///         while let Some(answer) = answers.pop_front() {
///             match posting.send(answer) {
///                 Ok(()) => {}
///                 Err(error) if matches!(error.reason, NotSent::Full) => {
///                     // Again after the next poll of the sender.
///                     answers.push_front(error.payload);
///                     break;
///                 }
///                 Err(error) => return Err(error.into()),
///             }
///         }
///         // The doorbell rings here, once.
///     }
///
///     for number in failed {
///         if let Some(at) = clients.iter().position(|client| client.qp.qp_num() == number) {
///             receiver.destroy_qp(clients.swap_remove(at).qp)?;
///         }
///     }
/// }
/// # }
/// ```
///
/// [`Receiver::create_qp_with_sender`]: crate::Receiver::create_qp_with_sender
/// [`QueuePair::send_queue`]: crate::QueuePair::send_queue
pub struct Sender {
    poller: Poller,
    /// By index; `None` is free for another queue.
    queues: Vec<Option<Box<Entry>>>,
    /// Requests that the last CQE has completed and no batch has returned.
    run: Run,
    /// Offset of the half of the register that the next posting takes.
    half: usize,
    /// Which queue a completion belongs to, by the number of its queue pair.
    routes: Routes<u32>,
    /// Resets and drops of queue pairs that were taken note of.
    ended: u32,
    /// A queue pair was dropped with requests outstanding.
    has_departing: bool,
    max_unsignaled: u32,
    /// The register that all queues share and no other code has; `None` where there is none to be had.
    register: Option<Arc<ThreadDomain>>,
    cq: Arc<Cq>,
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
    /// use doorbell::{Path, Sender, SenderConfig};
    ///
    /// let sender = Sender::new(&pd, &SenderConfig::new().path(Path::Direct))?;
    /// assert_eq!(sender.path(), Path::Direct);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotDirect`] if [`Path::Direct`] is required and not possible; [`Error::OutOfRange`];
    /// [`Error::Verbs`].
    pub fn new(pd: &ProtectionDomain, config: &SenderConfig) -> Result<Self> {
        Self::on_channel(pd, config, Arc::new(CompletionChannel::create(pd.context())?))
    }

    /// The same, with a completion channel that other CQs may have, too.
    pub(crate) fn on_channel(
        pd: &ProtectionDomain,
        config: &SenderConfig,
        channel: Arc<CompletionChannel>,
    ) -> Result<Self> {
        let context = pd.context();
        let mlx5dv = context.choose(config.path)?;
        let init = CqInit {
            entries: config.cq_capacity,
            channel: Some(channel),
            comp_vector: config.comp_vector,
            through_verbs: mlx5dv.is_none(),
        };
        let cq = if config.real_time {
            Cq::create_with_timestamps(context, init, Timestamps::RealTime)?
        } else {
            Cq::create(context, init)?
        };
        let cq = Arc::new(cq);
        trace_event!(device = context.name(), entries = cq.capacity(), "completion queue created");
        // SAFETY: a fresh CQ that no other code knows.
        unsafe { Self::with_cq(pd, config, cq, mlx5dv) }
    }

    /// # Safety
    /// Nothing was polled from the CQ, and no other code polls, arms or resizes it.
    unsafe fn with_cq(
        pd: &ProtectionDomain,
        config: &SenderConfig,
        cq: Arc<Cq>,
        mlx5dv: Option<&'static Mlx5dv>,
    ) -> Result<Self> {
        Ok(Self {
            // SAFETY: nothing was polled from the caller's CQ, and no other code polls, arms or resizes it.
            poller: unsafe { Poller::new(&cq, mlx5dv) }?,
            queues: Vec::new(),
            run: Run::NONE,
            half: 0,
            routes: Routes::default(),
            ended: 0,
            has_departing: false,
            max_unsignaled: config.max_unsignaled,
            register: mlx5dv.and_then(|_| ThreadDomain::create(pd)),
            cq,
            pd: pd.clone(),
            committed: 0,
        })
    }

    /// Returns the path of the queues: [`Path::Direct`] or [`Path::Verbs`].
    pub const fn path(&self) -> Path {
        match self.poller {
            Poller::Direct(_) => Path::Direct,
            Poller::Verbs(_) => Path::Verbs,
        }
    }

    /// Returns the protection domain.
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Returns the number of entries of the CQ.
    pub fn cq_capacity(&self) -> u32 {
        self.cq.capacity()
    }

    pub(crate) fn is_in_real_time(&self) -> bool {
        self.cq.is_in_real_time()
    }

    fn mlx5dv(&self) -> Option<&'static Mlx5dv> {
        match &self.poller {
            Poller::Direct(direct) => Some(direct.mlx5dv),
            Poller::Verbs(_) => None,
        }
    }

    fn check_room(&self, requests: u64) -> Result<()> {
        let (needed, capacity) = (self.committed + requests, u64::from(self.cq.capacity()));
        if needed > capacity {
            return Err(Error::CqTooSmall {
                setting: "SenderConfig::cq_capacity, or with tag matching TagMatchingConfig::sends",
                capacity,
                needed,
            });
        }
        Ok(())
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("path", &self.path())
            .field("device", &self.pd.context().name())
            .field("cq_capacity", &self.cq_capacity())
            .finish_non_exhaustive()
    }
}
