//! Connections: to each peer one queue pair that receives and one that sends.
//!
//! The device reads the data of a rendezvous with the send queue of the queue pair that received the
//! offer; so that one is the device's, and nothing can be posted to it.

use std::collections::VecDeque;
use std::io::{Read, Write};

use super::TagMatchingSrq;
use super::config::MIN_SLOTS;
use super::error::{NotSentTagged, SendTagError};
use super::event::ReceiveFailure;
use super::header::{OfferedMemory, RENDEZVOUS, TagHeader};
use super::message::TaggedBuffer;
use super::receives::Key;
use crate::connect;
use crate::error::{Error, Result};
use crate::events::Patience;
use crate::memory::{Buffer, RemoteRegion};
use crate::qp::{QpAddress, QpConfig, QpEnd, QueuePair};
use crate::sender::{NotSent, SendError};
use crate::sender::{Payload, Sender, SqId};
use crate::status::WcStatus;

/// A peer of one [`TagMatchingSrq`].
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// use doorbell::QpConfig;
/// use doorbell::tags::TagEvent;
///
/// // One for each connection; events and sends name it.
/// let another = world.tags.add_peer(&QpConfig::rc())?;
/// assert_ne!(another, world.peer);
/// # world.send(7, b"hello");
/// world.tags.post(7, u64::MAX, world.pool.take().expect("a free buffer"))?;
/// # let event = world.event();
/// assert!(matches!(event, TagEvent::Received(got) if got.peer == world.peer));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId {
    pub(super) owner: u32,
    pub(super) index: u32,
    /// Peers that had the index before.
    pub(super) generation: u32,
}

/// A send; the numbers of a queue ascend.
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// use std::collections::HashMap;
///
/// use doorbell::tags::{SendId, TagEvent, TaggedBuffer};
///
/// // What is on its way, and for what.
/// let mut outstanding: HashMap<SendId, &str> = HashMap::new();
/// let message = TaggedBuffer::new(world.pool.take().expect("a free buffer")).expect("room");
/// outstanding.insert(world.tags.send(world.peer, 7, 0, message)?, "the first");
/// # let event = world.event();
/// if let TagEvent::Sent(sent) = event {
///     assert_eq!(outstanding.remove(&sent.send), Some("the first"));
/// }
/// # assert!(outstanding.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendId(pub(super) u64);

/// What a peer needs to know in order to connect.
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// use doorbell::QpConfig;
///
/// // Two queue pairs: one for messages that come, one for those that go.
/// let peer = world.tags.add_peer(&QpConfig::rc())?;
/// let address = world.tags.address(peer)?;
/// assert_ne!(address.incoming.qpn, address.outgoing.qpn);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// The queue pair that receives messages: the other side's `outgoing` connects to it.
    pub incoming: QpAddress,
    /// The queue pair that sends them: the other side's `incoming` connects to it.
    pub outgoing: QpAddress,
}

pub(super) struct Peer {
    pub(super) incoming: QueuePair,
    pub(super) outgoing: QueuePair,
    /// The send queue of `outgoing`.
    queue: SqId,
    /// What was posted to `outgoing`, in order.
    pub(super) posted: VecDeque<Posted>,
    /// What is to be posted as soon as there is room.
    pub(super) backlog: VecDeque<Work>,
    pub(super) failed: bool,
}

impl Peer {
    /// Sends a message.
    fn send<P: Payload>(
        &mut self,
        sender: &mut Sender,
        id: PeerId,
        payload: P,
        posted: Posted,
    ) -> Result<(), SendError<P>> {
        match sender.post(self.queue) {
            Ok(mut posting) => posting.token(id.token()).send(payload)?,
            Err(reason) => return Err(SendError { payload, reason }),
        }
        self.posted.push_back(posted);
        Ok(())
    }
}

/// A send, read or FIN that has completed.
pub(super) struct Over {
    peer: PeerId,
    status: WcStatus,
    buffer: Option<Buffer>,
}

#[derive(Debug)]
pub(super) enum Posted {
    Message(SendId),
    /// The offer of a rendezvous, which ends with a FIN.
    Offer,
    Read {
        receive: Key,
        offer: TagHeader,
    },
    Fin,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Read { receive: Key, offer: TagHeader, memory: OfferedMemory },
    Fin([u8; RENDEZVOUS]),
}

impl Work {
    /// The receive that ends with it.
    fn receive(self) -> Option<Key> {
        match self {
            Self::Read { receive, .. } => Some(receive),
            Self::Fin(_) => None,
        }
    }
}

impl PeerId {
    /// The token of all that is posted for the peer.
    fn token(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    fn of_token(owner: u32, token: u64) -> Self {
        Self { owner, index: token as u32, generation: (token >> 32) as u32 }
    }
}

impl TagMatchingSrq {
    /// Makes the queue pairs for a peer. `config` says how they connect, and how many sends can be
    /// outstanding.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # let tags = &mut world.tags;
    /// let peer = tags.add_peer(&doorbell::QpConfig::rc())?;
    /// let address = tags.address(peer)?;
    /// println!("{address:?}");
    /// tags.remove_peer(peer)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] for datagrams; [`Error::CqTooSmall`] when there is no room for the sends, see
    /// [`TagMatchingConfig::sends`](super::TagMatchingConfig::sends); [`Error::OutOfRange`], [`Error::Verbs`].
    pub fn add_peer(&mut self, config: &QpConfig) -> Result<PeerId> {
        if config.qp_type != rdma_core_sys::IBV_QPT_RC {
            return Err(Error::Unsupported {
                operation: "add_peer",
                when: "with a configuration for datagrams: tag matching needs reliable connections, QpConfig::rc()",
            });
        }
        let config = config.clone().remote_read(true);
        let inline = config.max_inline.max(RENDEZVOUS as u32);
        let receiving =
            if self.offload() { config.clone().device_sends() } else { config.clone().idle() };
        let send = self.sender.idle_side();
        let incoming = self.engine.create_qp(&self.pd, &receiving, send)?;
        let sending = config.max_inline(inline);
        let send = self.sender.send_side(&self.pd)?;
        let mut outgoing = self.engine.create_qp(&self.pd, &sending, send)?;
        // SAFETY: a fresh queue pair that nobody else knows, made for this sender.
        let queue = unsafe { self.sender.enter(&mut outgoing, &sending) }?;
        let numbers = [incoming.qp_num(), outgoing.qp_num()];
        let id = self.peers.add(Peer {
            incoming,
            outgoing,
            queue,
            posted: VecDeque::new(),
            backlog: VecDeque::new(),
            failed: false,
        });
        numbers.iter().for_each(|&number| self.routes.insert(number, id.index));
        Ok(id)
    }

    pub(super) fn peer_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(peer)
    }

    fn known_peer(&mut self, peer: PeerId) -> Result<&mut Peer> {
        if peer.owner != self.id {
            return Err(Error::Foreign { what: "the peer", domain: "queue" });
        }
        self.peer_mut(peer).ok_or(Error::Gone { what: "peer" })
    }

    /// What the peer needs to know in order to [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`Error::Foreign`], [`Error::Gone`], [`Error::Verbs`].
    pub fn address(&mut self, peer: PeerId) -> Result<PeerAddress> {
        let peer = self.known_peer(peer)?;
        Ok(PeerAddress { incoming: peer.incoming.address()?, outgoing: peer.outgoing.address()? })
    }

    /// Connects to a peer, which has to connect too.
    ///
    /// ```
    /// # use doorbell::tags::{TagMatchingConfig, TagMatchingSrq};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let side = || -> doorbell::Result<_> {
    /// #     let mut tags = TagMatchingSrq::new(&pd, &TagMatchingConfig::new(16))?;
    /// #     tags.fill(&doorbell::BufferPool::new(&pd, 128, 2048)?)?;
    /// #     let peer = tags.add_peer(&doorbell::QpConfig::rc())?;
    /// #     Ok((tags, peer))
    /// # };
    /// # let ((mut tags, peer), (mut other, other_peer)) = (side()?, side()?);
    /// let address = tags.address(peer)?;
    /// // By whatever way to the other side, and its address back.
    /// # let theirs = other.address(other_peer)?;
    /// tags.connect(peer, &theirs)?;
    /// # other.connect(other_peer, &address)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`] before [`fill`](Self::fill) has given the device 33 buffers; those of
    /// [`QueuePair::connect`].
    pub fn connect(&mut self, peer: PeerId, address: &PeerAddress) -> Result<()> {
        // Messages of other peers may have taken some since the last poll.
        self.refill();
        let posted = self.engine.posted();
        let (min, max) = (MIN_SLOTS.into(), u32::MAX.into());
        Error::check_range("count of buffers for unexpected messages", posted.into(), min, max)?;
        let peer = self.known_peer(peer)?;
        peer.incoming.connect(&address.outgoing)?;
        peer.outgoing.connect(&address.incoming)
    }

    /// Connects to the peer whose owner calls this at the other end of `stream`, and waits until it is
    /// connected too, as [`QueuePair::connect_over`] does.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect) and of [`QueuePair::connect_over`].
    pub fn connect_over<S: Read + Write>(&mut self, peer: PeerId, stream: &mut S) -> Result<()> {
        let PeerAddress { incoming, outgoing } = self.address(peer)?;
        connect::exchange(stream, &[incoming, outgoing], |[incoming, outgoing]| {
            self.connect(peer, &PeerAddress { incoming, outgoing })
        })
    }

    /// Ends a connection. Sends that are outstanding, and rendezvous that the peer has not read, end with
    /// status `WR_FLUSH_ERR`; receives whose data was to be read from it fail. Messages that have arrived whole go on
    /// to wait for their receives. The device is waited for until it has given back what a message that was not whole
    /// had taken.
    ///
    /// # Errors
    /// [`Error::Foreign`], [`Error::Gone`]; [`Error::Verbs`] when the device refuses, and then the peer stays.
    pub fn remove_peer(&mut self, id: PeerId) -> Result<QpEnd> {
        let peer = self.known_peer(id)?;
        // In ERROR before either is waited for.
        peer.incoming.to_error()?;
        let ends = [
            peer.outgoing.stop_receiving(Patience::Progress)?,
            peer.incoming.stop_receiving(Patience::Progress)?,
        ];
        // What is flushed from here on is no news.
        peer.failed = true;
        self.take_arrived();
        let peer = self.known_peer(id)?;
        peer.outgoing.modify_to_reset()?;
        let queue = peer.queue;
        while self.sender.is_busy(queue) {
            self.poll_sends();
        }
        let Some(mut peer) = self.peers.remove(id) else { return Ok(QpEnd::Complete) };
        // All that they received has been taken.
        self.routes.remove(peer.incoming.qp_num());
        self.routes.remove(peer.outgoing.qp_num());
        for work in peer.backlog.drain(..) {
            if let Work::Read { receive, .. } = work {
                self.fail(receive, ReceiveFailure::PeerGone);
            }
        }
        // The device reads for nobody any more.
        self.engine.destroy_qp(peer.incoming);
        self.engine.destroy_qp(peer.outgoing);
        self.sender.close_departed();
        self.unexpected.forget_offers(id);
        for (buffer, (send, peer)) in self.offers.withdraw_all(|(_, peer)| *peer == id) {
            self.sent(send, peer, true, WcStatus::WR_FLUSH_ERR, buffer);
        }
        let complete = ends.into_iter().all(|end| end == QpEnd::Complete);
        Ok(if complete { QpEnd::Complete } else { QpEnd::LastWqeMissing })
    }

    /// Sends a message that is matched by its tag, with its payload. The event
    /// [`Sent`](super::TagEvent::Sent) gives the buffer back.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # let doorbell_doc::Tags { tags, peer, other, other_peer, pool, .. } = &mut world;
    /// # let (peer, other_peer) = (*peer, *other_peer);
    /// use doorbell::tags::{TagEvent, TaggedBuffer};
    ///
    /// let mut message = TaggedBuffer::new(pool.take().expect("a free buffer")).expect("room for a header");
    /// message.set_len(5);
    /// message.copy_from_slice(b"hello");
    /// tags.send(peer, 7, 0, message)?;
    /// # let event = doorbell_doc::event(tags, other);
    /// # let _ = other_peer;
    /// assert!(matches!(event, TagEvent::Sent(sent) if sent.status.is_success()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SendTagError`] has the buffer and the reason.
    pub fn send(
        &mut self,
        peer: PeerId,
        tag: u64,
        context: u32,
        message: TaggedBuffer,
    ) -> Result<SendId, SendTagError<TaggedBuffer>> {
        self.send_message(peer, message.into_message(&TagHeader::Eager { tag, context }))
    }

    /// Sends a message that is not matched: the peer gets it as [`NoTag`](super::TagEvent::NoTag).
    ///
    /// # Errors
    /// [`SendTagError`] has the buffer and the reason.
    pub fn send_no_tag(
        &mut self,
        peer: PeerId,
        message: TaggedBuffer,
    ) -> Result<SendId, SendTagError<TaggedBuffer>> {
        self.send_message(peer, message.into_message(&TagHeader::NoTag))
    }

    fn send_message(
        &mut self,
        id: PeerId,
        buffer: Buffer,
    ) -> Result<SendId, SendTagError<TaggedBuffer>> {
        let send = SendId(self.next_send);
        let Self { sender, peers, .. } = self;
        let Some(peer) = peers.get_mut(id) else {
            return Err(SendTagError { buffer, reason: NotSentTagged::NoPeer }.tagged());
        };
        match peer.send(sender, id, buffer, Posted::Message(send)) {
            Ok(()) => {
                self.next_send += 1;
                Ok(send)
            }
            Err(error) => {
                let reason = NotSentTagged::Queue(error.reason);
                Err(SendTagError { buffer: error.payload, reason }.tagged())
            }
        }
    }

    /// Offers a message by its tag: the peer reads the bytes of `buffer` when a receive has matched. The
    /// event [`Sent`](super::TagEvent::Sent) gives the buffer back when it has.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # let doorbell_doc::Tags { tags, peer, other, other_peer, pool, .. } = &mut world;
    /// # let (peer, other_peer) = (*peer, *other_peer);
    /// # let _ = (peer, other_peer);
    /// use doorbell::tags::TagEvent;
    ///
    /// // The message offers the buffer, and the other side's adapter reads it when it has a receive for it.
    /// let mut buffer = pool.take().expect("a free buffer of a pool that peers may read");
    /// buffer.set_len(1000);
    /// tags.send_rendezvous(peer, 7, 0, buffer)?;
    /// # other.post(7, u64::MAX, pool.take().expect("a buffer"))?;
    /// # let event = doorbell_doc::event(tags, other);
    /// // From `poll`, when it has been read:
    /// assert!(matches!(event, TagEvent::Sent(sent) if sent.rendezvous && sent.status.is_success()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SendTagError`] has the buffer and the reason.
    pub fn send_rendezvous(
        &mut self,
        id: PeerId,
        tag: u64,
        context: u32,
        buffer: Buffer,
    ) -> Result<SendId, SendTagError<Buffer>> {
        let send = SendId(self.next_send);
        if self.peer_mut(id).is_none() {
            return Err(SendTagError { buffer, reason: NotSentTagged::NoPeer });
        }
        // The peer reads through a queue pair of our domain.
        if !buffer.pool().pd().is_same(&self.pd) {
            let reason = NotSentTagged::Queue(NotSent::Foreign);
            return Err(SendTagError { buffer, reason });
        }
        let message = self.offers.offer(buffer, tag, context, (send, id))?;
        let Self { sender, peers, .. } = self;
        let Some(peer) = peers.get_mut(id) else { return Ok(send) };
        match peer.send(sender, id, &message, Posted::Offer) {
            Ok(()) => {
                self.next_send += 1;
                Ok(send)
            }
            Err(SendError { reason, .. }) => match self.offers.withdraw(&message) {
                Some((buffer, _)) => {
                    Err(SendTagError { buffer, reason: NotSentTagged::Queue(reason) })
                }
                None => Ok(send),
            },
        }
    }

    /// Takes what has become of sends, reads and FINs, and posts what waits for room. Returns how many completed.
    pub(super) fn poll_sends(&mut self) -> usize {
        let mut over = std::mem::take(&mut self.over);
        let mut batch = self.sender.poll();
        while let Some(done) = batch.next() {
            let peer = PeerId::of_token(self.id, done.token);
            over.push(Over { peer, status: done.status, buffer: done.buffer });
        }
        drop(batch);
        for &mut Over { peer: id, status, ref mut buffer } in &mut over {
            let posted = self.peer_mut(id).and_then(|peer| peer.posted.pop_front());
            if !status.is_success() {
                self.peer_failed(id, status);
            }
            match (posted, buffer.take()) {
                (Some(Posted::Message(send)), Some(buffer)) => {
                    self.sent(send, id, false, status, buffer);
                }
                (Some(Posted::Read { receive, offer }), Some(buffer)) => {
                    self.has_read(id, receive, &offer, status, buffer);
                }
                _ => {}
            }
        }
        // Afterwards, so that all FINs to a peer have one doorbell.
        over.iter().for_each(|over| self.pump(over.peer));
        let taken = over.len();
        over.clear();
        self.over = over;
        taken
    }

    /// Posts what waits for room in the queue of a peer, with one doorbell.
    pub(super) fn pump(&mut self, id: PeerId) {
        let Self { sender, peers, receives, .. } = self;
        let waits = |peer: &&mut Peer| !peer.backlog.is_empty();
        let Some(peer) = peers.get_mut(id).filter(waits) else { return };
        let Peer { queue, posted, backlog, .. } = peer;
        let mut gone = Vec::new();
        match sender.post(*queue) {
            Ok(mut posting) => {
                while let Some(work) = backlog.pop_front() {
                    posting.token(id.token());
                    let result = match work {
                        Work::Fin(message) => {
                            posting.send(&message).map(|()| Posted::Fin).map_err(|e| e.reason)
                        }
                        Work::Read { receive, offer, memory } => {
                            let buffer = &mut receives.get_mut(receive).map(|r| &mut r.buffer);
                            let Some(to) = buffer.as_mut().and_then(|buffer| buffer.take()) else {
                                continue;
                            };
                            let OfferedMemory { addr, len, rkey } = memory;
                            let from = RemoteRegion::new(addr, len as usize, rkey);
                            match posting.read(to, &from) {
                                Ok(()) => Ok(Posted::Read { receive, offer }),
                                Err(error) => {
                                    if let Some(buffer) = buffer {
                                        **buffer = Some(error.payload);
                                    }
                                    Err(error.reason)
                                }
                            }
                        }
                    };
                    match result {
                        Ok(work) => posted.push_back(work),
                        Err(NotSent::Full) => {
                            backlog.push_front(work);
                            break;
                        }
                        // The peer will learn of the failure, or knows.
                        Err(_) => gone.extend(work.receive()),
                    }
                }
            }
            Err(_) => gone.extend(backlog.drain(..).filter_map(Work::receive)),
        }
        gone.into_iter().for_each(|receive| self.fail(receive, ReceiveFailure::PeerGone));
    }
}
