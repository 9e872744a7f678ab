//! Sending: one completion queue and all the send queues that complete on it.

mod batch;
mod blue_flame;
mod completion;
mod error;
mod one;
mod operation;
mod payload;
mod posting;
mod queue;
mod queues;
mod raw;
mod request;
mod teardown;
mod verbs;

use std::fmt;
use std::sync::Arc;

use rdma_core_sys::Mlx5dv;

use crate::cq::{CompletionChannel, Completions, CqConfig, CqCore, Waiting};
use crate::error::Result;
use crate::path::Path;
use crate::pd::ProtectionDomain;
use crate::routes::Routes;
use crate::thread_domain::ThreadDomain;

pub use batch::SendBatch;
pub use completion::{SendCompletion, SendFailure};
pub use error::NotSent;
pub use one::Request;
pub use payload::{BufferPart, Payload};
pub use posting::Posting;
pub use request::WorkRequest;

use batch::Run;
use queue::Entry;

/// One completion queue and every send queue that completes on it.
///
/// Polling frees slots and posting fills them. Both change the same state, so one value owns it and moves between
/// threads as a unit. [`QueuePair::builder`](crate::QueuePair::builder) makes queue pairs that send through it; a queue pair,
/// or its [`send_queue`](crate::QueuePair::send_queue), names its queue here.
///
/// | to | use |
/// |---|---|
/// | send one message | [`send`](Self::send) |
/// | post one request with a token, or of another kind | [`post`](Self::post): [`Request`] |
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
/// use doorbell::{Buffer, BufferPool, CqConfig, Error, NotSent, PoolConfig, QpConfig, QueuePair};
/// use doorbell::{Receiver, Sender, SrqConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let pool = BufferPool::new(&pd, &PoolConfig::new(4096, 1024))?;
/// let mut receiver = Receiver::new(&pd, &CqConfig::new(1024))?;
/// let mut sender = Sender::new(&pd, &CqConfig::new(4096))?;
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
///         let config = QpConfig::rc().sends(64);
///         let made =
///             QueuePair::builder(&config).receive(&mut receiver, srq).send(&mut sender).build();
///         let mut qp = match made {
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
///         if let Err(failure) = done {
///             failed.push(failure.qp_num);
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
///                     client.answers.push_back(message.take()?);
///                 }
///             }
///             Err(failure) => failed.push(failure.qp_num),
///         }
///     }
///     drop(batch);
///     receiver.fill(srq, &pool)?;
///
///     for Client { qp, answers, .. } in clients.iter_mut().filter(|client| !client.answers.is_empty()) {
///         let Ok(mut posting) = sender.post_many(&*qp) else {
///             failed.push(qp.qp_num());
///             continue;
///         };
///         while let Some(answer) = answers.pop_front() {
///             match posting.send(answer) {
///                 Ok(()) => {}
///                 Err(refused) if matches!(refused.reason, NotSent::Full) => {
///                     // Again after the next poll of the sender.
///                     answers.push_front(refused.payload);
///                     break;
///                 }
///                 Err(refused) => return Err(refused.into()),
///             }
///         }
///         posting.ring();
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
pub struct Sender {
    cq: CqCore,
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
    /// use doorbell::{CqConfig, Path, Sender};
    ///
    /// let sender = Sender::new(&pd, &CqConfig::new(1024).path(Path::Direct))?;
    /// assert_eq!(sender.path(), Path::Direct);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotDirect`](crate::Error::NotDirect) if [`Path::Direct`] is required and not possible;
    /// [`Error::Unsupported`](crate::Error::Unsupported) with [compression](CqConfig::compression), and if the device lacks
    /// what `config` requests; [`Error::OutOfRange`](crate::Error::OutOfRange); [`Error::Verbs`](crate::Error::Verbs).
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

    /// Returns the path of the queues: [`Path::Direct`] or [`Path::Verbs`].
    pub const fn path(&self) -> Path {
        self.cq.path()
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
