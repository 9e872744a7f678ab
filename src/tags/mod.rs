//! Tag matching: receives that select their messages by tag, as in MPI.
//!
//! Each message starts with a tag. A receive with a tag and a mask takes the oldest message whose tag has the same bits
//! in the mask. A device with the offload (`tm_caps` of `ibv_query_device_ex(3)`) matches by itself: it writes the data
//! to the buffer of the receive, and reads large messages from the sender. Otherwise the library matches, with the same
//! messages on the wire. [`TagMatchingSrq::offload`] returns which of the two.
//!
//! [`send`](TagMatchingSrq::send) sends the payload with the message. A *rendezvous*
//! ([`send_rendezvous`](TagMatchingSrq::send_rendezvous)) sends an offer with the address of the payload; the receiving
//! side reads the payload when a receive matches (RDMA READ), and a last message, FIN, returns the buffer to the
//! sender.
//!
//! Without a poll the device finishes only an offer that matches a posted receive and fits. In all other cases
//! [`next`](TagMatchingSrq::next), [`arm`](Completions::arm) or [`wait`](Completions::wait) of the receiving side posts
//! the READ and the FIN: a program that does not call them holds up the sender.
//!
//! To start: create a [`TagMatchingSrq`], [`keep_filled`](TagMatchingSrq::keep_filled),
//! [`add_peer`](TagMatchingSrq::add_peer) and
//! [`connect_over`](TagMatchingSrq::connect_over), [`post`](TagMatchingSrq::post) receives,
//! [`send`](TagMatchingSrq::send), and [`next`](TagMatchingSrq::next) events.
//!
//! To wait for a certain receive or send: [`wait_for`](TagMatchingSrq::wait_for),
//! [`wait_all`](TagMatchingSrq::wait_all), [`is_done`](TagMatchingSrq::is_done).
//!
//! To end: both sides call [`end_over`](TagMatchingSrq::end_over), with the stream of `connect_over`. If the stream of
//! a peer ends earlier, call [`remove_peer`](TagMatchingSrq::remove_peer) at once: an offer that a dead peer has not
//! read does not complete. Dropping the queue ends all connections and returns all buffers to their pools.
//!
//! The page Tag matching of the book describes the protocol and the order of messages.

mod arrival;
mod config;
mod direct;
mod engine;
mod error;
mod event;
mod hardware;
mod header;
mod ids;
mod matching;
mod message;
mod offers;
mod peer;
mod peers;
mod phase;
mod post;
mod receives;
mod request;
mod send;
mod software;
mod unexpected;
mod verbs;
mod work;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_core_sys as sys;

use crate::cq::{CompletionChannel, Completions, CqConfig, Timestamps, Waiting};
use crate::error::{Error, Result};
use crate::memory::BufferPool;
use crate::path::DataPath;
use crate::pd::ProtectionDomain;
use crate::routes::Routes;
use crate::sender::Sender;

use arrival::{Arrived, Operation};
use config::MIN_SLOTS;
use direct::DirectTags;
use engine::Engine;
use peers::Peers;
use phase::Phase;
use receives::{Receive, Receives, State};
use send::Over;
use software::SoftwareTags;
use unexpected::Unexpected;
use verbs::VerbsTags;

pub use config::{Offload, TagMatchingConfig};
pub use error::{CancelError, ListFailure, NotSentTagged, TagFailure};
pub use event::{ReceiveFailure, Received, Sent, TagEvent};
pub use header::{OfferedMemory, TagHeader};
pub use ids::{PeerId, ReceiveId, SendId};
pub use message::TaggedBuffer;
pub use offers::Offers;
pub use peer::PeerAddress;
pub use post::{PostTagsError, TaggedReceive};
pub use request::RequestId;
pub use unexpected::Probe;

/// A shared receive queue whose receives are matched by tag, its completion queue, and the connections to all peers.
///
/// A message takes the oldest receive that matches it, and a receive takes the oldest message. The order of arrival
/// and posting does not change which of them meet.
///
/// ```no_run
/// use doorbell::{BufferPool, PoolConfig, QpConfig};
/// use doorbell::tags::{TagEvent, TagMatchingConfig, TagMatchingSrq};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let mut tags = TagMatchingSrq::new(&pd, &TagMatchingConfig::new(64))?;
/// // For messages that come before their receive.
/// tags.keep_filled(&BufferPool::new(&pd, &PoolConfig::new(256, 8192))?)?;
/// let peer = tags.add_peer(&QpConfig::rc())?;
/// tags.connect_over(peer, &mut std::net::TcpStream::connect("server:18515")?)?;
///
/// let pool = BufferPool::new(&pd, &PoolConfig::new(64, 1 << 20))?;
/// let buffer = pool.take().expect("a new pool is full");
/// // Any message whose tag has 7 in its upper half.
/// tags.post(7 << 32, u64::MAX << 32, buffer)?;
/// loop {
///     match tags.next() {
///         Some(TagEvent::Received(got)) => println!("{:#x}: {} bytes", got.tag, got.buffer.len()),
///         Some(other) => println!("{other:?}"),
///         None => {}
///     }
/// }
/// # }
/// ```
pub struct TagMatchingSrq {
    // Before the engine: queue pairs refer to its SRQ.
    peers: Peers,
    /// Sends to all peers.
    sender: Sender,
    engine: Engine,
    pool: Option<BufferPool>,
    /// Buffers of receives without a buffer, for the headers of their messages. Made for the first of them.
    scratch: Option<BufferPool>,
    receives: Receives,
    unexpected: Unexpected,
    offers: Offers<(SendId, PeerId)>,
    phase: Phase,
    operations: Vec<Operation>,
    arrived: Vec<Arrived>,
    over: Vec<Over>,
    events: VecDeque<TagEvent>,
    routes: Routes<u32>,
    pd: ProtectionDomain,
    id: u32,
    max_tags: u16,
    manual: bool,
    broken: Option<ListFailure>,
    /// Why the library matches, if [`Offload::Auto`] chose that.
    refused: Option<Error>,
    /// [`TagEvent::BuffersLow`] was reported, and is still true.
    low_reported: bool,
    /// Messages that the library has handled.
    arrivals: u64,
    next_send: u64,
}

impl TagMatchingSrq {
    /// Creates the queue.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::tags::{Offload, TagMatchingConfig, TagMatchingSrq};
    ///
    /// let tags = TagMatchingSrq::new(&pd, &TagMatchingConfig::new(64).offload(Offload::Auto))?;
    /// println!("matched by the device: {}, path {}", tags.offload(), tags.path());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] if [`Offload::Required`] is set and the device does not match tags; [`Error::NotDirect`];
    /// [`Error::OutOfRange`]; [`Error::Verbs`] if the device refuses an [`Offload::Required`], as on RoCE on
    /// [`DataPath::Verbs`]. Without DEVX the direct path returns [`Error::Unsupported`] on RoCE.
    pub fn new(pd: &ProtectionDomain, config: &TagMatchingConfig) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let max_slots = pd.context().attr().max_srq_wr.into();
        Error::check_range("max_wr", config.max_wr.into(), MIN_SLOTS.into(), max_slots)?;
        let max_sends = pd.context().attr().max_cqe.into();
        Error::check_range("send_cqe", config.send_cqe.into(), 1, max_sends)?;
        config.cq.uncompressed("for tag matching")?;
        if config.cq.timestamps != Timestamps::Off {
            return Err(Error::Unsupported {
                operation: "timestamps",
                when: "for tag matching, whose events have no time",
            });
        }
        let (engine, refused) = match config.offload {
            Offload::Never => (Self::software(pd, config)?, None),
            Offload::Required => (Self::hardware(pd, config)?, None),
            // A device may say that it can and yet refuse, for example on RoCE without DEVX.
            Offload::Auto => match Self::hardware(pd, config) {
                Ok(engine) => (engine, None),
                Err(error @ (Error::OutOfRange { .. } | Error::NotDirect { .. })) => {
                    return Err(error);
                }
                Err(error) => (Self::software(pd, config)?, Some(error)),
            },
        };
        let channel = engine.core().object.channel().cloned();
        let channel = channel.expect("every CQ for tags is made with a channel");
        let sending = CqConfig { cqe: config.send_cqe, ..config.cq.clone() };
        let sender = Sender::on_channel(pd, &sending, channel)?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            peers: Peers::new(id),
            sender,
            engine,
            pool: None,
            scratch: None,
            receives: Receives::new(id),
            unexpected: Unexpected::default(),
            offers: Offers::new(),
            phase: Phase::default(),
            operations: Vec::new(),
            arrived: Vec::new(),
            over: Vec::new(),
            events: VecDeque::new(),
            routes: Routes::default(),
            pd: pd.clone(),
            id,
            max_tags: config.max_tags,
            manual: config.manual,
            broken: None,
            refused,
            low_reported: false,
            arrivals: 0,
            next_send: 0,
        })
    }

    fn hardware(pd: &ProtectionDomain, config: &TagMatchingConfig) -> Result<Engine> {
        Ok(match pd.context().choose(config.cq.path)? {
            Some(mlx5dv) => Engine::Direct(Box::new(DirectTags::new(pd, config, mlx5dv)?)),
            None => Engine::Verbs(Box::new(VerbsTags::new(pd, config)?)),
        })
    }

    fn software(pd: &ProtectionDomain, config: &TagMatchingConfig) -> Result<Engine> {
        Error::check_range("max_tags", config.max_tags.into(), 1, u16::MAX.into())?;
        Ok(Engine::Software(Box::new(SoftwareTags::new(pd, config)?)))
    }

    /// Returns `true` if the device matches.
    pub fn offload(&self) -> bool {
        self.engine.offloads()
    }

    /// Returns why the device does not match, if [`Offload::Auto`] was asked for and the library matches.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::tags::{TagMatchingConfig, TagMatchingSrq};
    ///
    /// let tags = TagMatchingSrq::new(&pd, &TagMatchingConfig::new(64))?;
    /// if let Some(reason) = tags.offload_refused() {
    ///     println!("matched by the library: {reason}");
    /// }
    /// # assert!(tags.offload_refused().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn offload_refused(&self) -> Option<&Error> {
        self.refused.as_ref()
    }

    /// Returns the path of the queues: [`DataPath::Direct`] or [`DataPath::Verbs`].
    pub fn path(&self) -> DataPath {
        self.engine.core().path()
    }

    /// Returns the CQ of the SRQ, for inspecting its CQEs. doorbell polls and arms it.
    pub fn as_raw_cq(&self) -> *mut sys::ibv_cq {
        self.engine.core().object.as_raw()
    }

    /// Returns how many receives can be outstanding.
    pub const fn max_tags(&self) -> u16 {
        self.max_tags
    }

    /// Returns how many receives have not completed. Sends do not count: each returns a [`TagEvent::Sent`].
    pub fn outstanding(&self) -> u32 {
        self.receives.len()
    }

    /// Returns how many tagged messages wait for a receive, up to the last [`next`](Self::next),
    /// [`probe`](Self::probe),
    /// [`arm`](Completions::arm) or [`wait`](Completions::wait).
    pub fn unexpected(&self) -> usize {
        self.unexpected.len()
    }

    /// Returns how many offered rendezvous the peers have not read.
    pub fn offered(&self) -> usize {
        self.offers.len()
    }

    /// Returns the protection domain.
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Keeps the queue filled with buffers of `pool` for unexpected messages, and returns how many the device has now.
    /// The size of these buffers less the header of 16 bytes is the longest message that peers can
    /// [`send`](Self::send); they must offer longer ones by [`send_rendezvous`](Self::send_rendezvous).
    ///
    /// [`connect`](Self::connect) needs at least 33. The queue takes further buffers from the pool as messages use
    /// them. The pool needs a buffer for each slot, and one for each message that waits for its receive: while it is
    /// empty, senders wait.
    ///
    /// A message that waits for its receive holds its buffer. If waiting messages hold all buffers, the message that
    /// a receive waits for cannot arrive. [`TagEvent::BuffersLow`] reports this when fewer than 33 buffers are left,
    /// after a burst possibly none: call `keep_filled` with another pool, or post receives for the waiting messages.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a pool of another protection domain; [`Error::OutOfRange`] for buffers smaller than the
    /// headers of an offer, 32 bytes.
    pub fn keep_filled(&mut self, pool: &BufferPool) -> Result<u32> {
        if !pool.pd().is_same(&self.pd) {
            return Err(Error::Foreign { what: "the pool", domain: "protection domain" });
        }
        let (size, min) = (pool.buffer_size().into(), header::RENDEZVOUS as u64);
        Error::check_range("size of a buffer for messages", size, min, u32::MAX.into())?;
        self.pool = Some(pool.clone());
        self.refill();
        Ok(self.engine.posted())
    }

    /// Cancels a receive. One event reports the outcome: [`Cancelled`](TagEvent::Cancelled), or that of a message
    /// that matched first.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # let doorbell_doc::Tags { tags, peer, other, other_peer, pool, .. } = &mut world;
    /// # let (peer, other_peer) = (*peer, *other_peer);
    /// use doorbell::tags::TagEvent;
    ///
    /// let id = tags.post(7, u64::MAX, pool.take().expect("a free buffer"))?;
    /// tags.cancel(id)?;
    /// # let event = doorbell_doc::event(tags, other);
    /// # let _ = (peer, other_peer);
    /// // `next` returns later:
    /// assert!(matches!(event, TagEvent::Cancelled { .. }), "{event:?}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CancelError`]; the receive is unchanged.
    pub fn cancel(&mut self, id: ReceiveId) -> Result<(), CancelError> {
        if id.owner != self.id {
            return Err(CancelError::WrongQueue);
        }
        let receive = self.receives.get_mut(id.key).ok_or(CancelError::Over)?;
        let handle = receive.handle;
        match receive.state {
            State::Posted => {}
            State::Cancelling => return Err(CancelError::Cancelling),
            _ => return Err(CancelError::Matched),
        }
        if !self.engine.offloads() {
            if let Some((receive, Receive { buffer: Some(buffer), .. })) = self.receives.take(id.key) {
                self.events.push_back(TagEvent::Cancelled { receive, buffer });
            }
            return Ok(());
        }
        if let Some(cause) = self.broken {
            return Err(CancelError::Broken(cause));
        }
        self.operations.push(Operation::Remove { receive: id.key, handle });
        self.flush().map_err(CancelError::Verbs)?;
        self.receives.set_state(id.key, State::Cancelling);
        Ok(())
    }

    /// Returns the oldest message that waits for a receive and matches this tag and mask, including messages that
    /// arrived since the last [`next`](Self::next).
    ///
    /// Such a message is not an event: [`wait`](Completions::wait) does not return for it. To sleep until one arrives,
    /// call
    /// [`arm`](Completions::arm), then `probe`, then `poll(2)` on the [channel](Completions::channel).
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # let doorbell_doc::Tags { tags, peer, other, other_peer, pool, .. } = &mut world;
    /// # let (peer, other_peer) = (*peer, *other_peer);
    /// # let _ = (peer, other_peer);
    /// # let mut message = doorbell::tags::TaggedBuffer::new(pool.take().expect("a buffer")).expect("room");
    /// # message.set_len(5);
    /// # other.send(other_peer, 7, 0, message)?;
    /// use std::os::fd::AsRawFd;
    ///
    /// use doorbell::Completions;
    ///
    /// // Waits for a message with this tag that no receive has taken.
    /// let fd = tags.channel().ok_or("no completion channel")?.as_raw_fd();
    /// let found = loop {
    ///     let has_event = tags.arm()?;
    ///     // After `arm`, which takes messages from the CQ.
    ///     if let Some(found) = tags.probe(7, u64::MAX) {
    ///         break found;
    ///     }
    ///     if has_event {
    ///         println!("{:?}", tags.next());
    ///         continue;
    ///     }
    ///     let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    ///     // SAFETY: one structure.
    ///     unsafe { libc::poll(&mut poll, 1, -1) };
    /// };
    /// println!("{found:?}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn probe(&mut self, tag: u64, mask: u64) -> Option<Probe> {
        self.progress();
        self.unexpected.probe(tag, mask)
    }

    /// Returns the next event, or `None`.
    ///
    /// Messages of a peer meet their receives in the order of sending, but their events can come in another order: a
    /// rendezvous is complete later, and a message that the library matched waits until the device has removed its
    /// receive from the list, while a later message meets a new receive at once. Where the order counts, keep the order
    /// of [`post`](Self::post) by [`Received::receive`], or number the messages.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # let doorbell_doc::Tags { tags, peer, other, other_peer, pool, .. } = &mut world;
    /// # let (peer, other_peer) = (*peer, *other_peer);
    /// # let _ = (peer, other_peer);
    /// use doorbell::tags::TagEvent;
    ///
    /// tags.post(7, u64::MAX, pool.take().expect("a free buffer"))?;
    /// # let mut message = doorbell::tags::TaggedBuffer::new(pool.take().expect("a buffer")).expect("room");
    /// # message.set_len(5);
    /// # other.send(other_peer, 7, 0, message)?;
    /// loop {
    ///     match tags.next() {
    ///         Some(TagEvent::Received(got)) => {
    ///             println!("{} bytes with tag {:#x}, context {}", got.buffer.len(), got.tag, got.context);
    ///             break;
    ///         }
    ///         Some(TagEvent::PeerFailed { peer, status }) => println!("{peer:?}: {status}"),
    ///         Some(other) => println!("{other:?}"),
    ///         None => std::thread::yield_now(),
    ///     }
    /// #   let _ = other.next();
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[expect(clippy::should_implement_trait, reason = "events follow after `None`")]
    pub fn next(&mut self) -> Option<TagEvent> {
        if self.events.is_empty() {
            self.progress();
        }
        self.events.pop_front()
    }

    /// Returns `true` if the device does not match some posted receives, because it waits for the count of unexpected
    /// messages that the library has handled. By default the library posts the operation that carries this count.
    pub fn needs_synchronization(&self) -> bool {
        self.engine.offloads() && self.phase.is_due()
    }

    /// Reports the count of handled unexpected messages to the device (`IBV_WR_TAG_SYNC`). Does nothing while the
    /// previous operation is outstanding.
    ///
    /// # Errors
    /// [`TagFailure`].
    pub fn synchronize(&mut self) -> Result<(), TagFailure> {
        if let Some(cause) = self.broken {
            return Err(TagFailure::Broken(cause));
        }
        if !self.engine.offloads() || self.phase.is_pending() {
            return Ok(());
        }
        self.operations.push(Operation::Synchronize);
        self.flush().map_err(TagFailure::Verbs)
    }
}

impl TagMatchingSrq {
    /// Returns `true` if the device has fewer buffers for messages than it needs, and the pool has none.
    fn is_short_of_buffers(&self) -> bool {
        self.pool.is_some() && self.engine.posted() < MIN_SLOTS
    }

    /// Arms the CQ of the SRQ and that of the sends, which share the channel.
    fn arm_all(&mut self) -> Result<()> {
        let core = self.engine.core();
        let own = core.object.as_raw();
        let (mut events, mut of_sends) = (0, 0);
        if let Some(channel) = core.channel() {
            channel.take_events(|cq| match cq == own {
                true => events += 1,
                false => of_sends += 1,
            })?;
        }
        self.engine.arm(events)?;
        self.sender.arm_after(of_sends)
    }
}

impl Completions for TagMatchingSrq {
    fn channel(&self) -> Option<&CompletionChannel> {
        self.engine.core().channel()
    }

    fn arm(&mut self) -> Result<bool> {
        while self.events.is_empty() {
            self.arm_all()?;
            // Completions from before the CQs were armed make no event, but may post operations, whose completions do.
            if self.progress() == 0 {
                break;
            }
        }
        Ok(!self.events.is_empty())
    }

    fn has_completions(&mut self) -> bool {
        if self.events.is_empty() {
            self.progress();
        }
        !self.events.is_empty()
    }
}

impl Waiting for TagMatchingSrq {
    fn is_starving(&mut self) -> bool {
        self.is_short_of_buffers()
    }
}

impl Drop for TagMatchingSrq {
    /// Buffers that the device may still write go back to their pools when the SRQ has been destroyed.
    fn drop(&mut self) {
        for receive in self.receives.drain() {
            if let Some(buffer) = receive.buffer {
                self.engine.defer(buffer);
            }
        }
    }
}

impl fmt::Debug for TagMatchingSrq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagMatchingSrq")
            .field("device", &self.pd.context().name())
            .field("offload", &self.offload())
            .field("path", &self.path())
            .field("outstanding", &self.outstanding())
            .field("unexpected", &self.unexpected())
            .finish_non_exhaustive()
    }
}
