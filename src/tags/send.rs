//! Sends: messages, offers of a rendezvous, and the READs and FINs that answer the offers of peers.

use super::TagMatchingSrq;
use super::error::NotSentTagged;
use super::event::ReceiveFailure;
use super::header::{OfferedMemory, TagHeader};
use super::ids::{PeerId, SendId};
use super::message::TaggedBuffer;
use super::peer::Peer;
use super::work::{Posted, Work};
use crate::memory::{Buffer, RemoteRegion};
use crate::not_sent::NotSent;
use crate::refused::Refused;
use crate::sender::{Payload, Sender};
use crate::status::WcStatus;

/// A send, read or FIN that has completed.
pub(super) struct Over {
    peer: PeerId,
    status: WcStatus,
    buffer: Option<Buffer>,
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

impl Peer {
    /// Sends a message.
    fn send<P: Payload>(
        &mut self,
        sender: &mut Sender,
        id: PeerId,
        payload: P,
        posted: Posted,
    ) -> Result<(), P::Error> {
        match sender.post(self.queue) {
            Ok(request) => request.token(id.token()).send(payload)?,
            Err(reason) => return Err(payload.refuse(reason)),
        }
        self.posted.push_back(posted);
        Ok(())
    }
}

impl TagMatchingSrq {
    /// Sends a message with a tag. The event [`Sent`](super::TagEvent::Sent) returns the buffer.
    ///
    /// A message without a posted receive uses a buffer that the peer gave to [`keep_filled`](Self::keep_filled): 16
    /// bytes of header and the payload must fit, else the connection fails on both sides. doorbell cannot check this.
    /// Agree on a limit with the peer, and send longer messages with [`send_rendezvous`](Self::send_rendezvous).
    ///
    /// If the send queue is full, the reason is [`Queue`](NotSentTagged::Queue) with
    /// [`NotSent::Full`]: poll, and send the returned message again.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # let doorbell_doc::Tags { tags, peer, other, other_peer, pool, .. } = &mut world;
    /// # let (peer, other_peer) = (*peer, *other_peer);
    /// use doorbell::tags::{TagEvent, TaggedBuffer};
    ///
    /// let mut message = TaggedBuffer::new(pool.take().expect("a free buffer")).expect("room for a header");
    /// message.extend_from_slice(b"hello");
    /// tags.send(peer, 7, 0, message)?;
    /// # let event = doorbell_doc::event(tags, other);
    /// # let _ = other_peer;
    /// assert!(matches!(event, TagEvent::Sent(sent) if sent.status.is_success()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`], which returns the message with a [`NotSentTagged`].
    pub fn send(
        &mut self,
        peer: PeerId,
        tag: u64,
        context: u32,
        message: TaggedBuffer,
    ) -> Result<SendId, Refused<TaggedBuffer, NotSentTagged>> {
        self.send_message(peer, message.into_message(&TagHeader::Eager { tag, context }))
    }

    /// Sends a message without a tag. The peer receives it as [`NoTag`](super::TagEvent::NoTag).
    ///
    /// # Errors
    /// [`Refused`], which returns the message with a [`NotSentTagged`].
    pub fn send_no_tag(
        &mut self,
        peer: PeerId,
        message: TaggedBuffer,
    ) -> Result<SendId, Refused<TaggedBuffer, NotSentTagged>> {
        self.send_message(peer, message.into_message(&TagHeader::NoTag))
    }

    fn send_message(&mut self, id: PeerId, buffer: Buffer) -> Result<SendId, Refused<TaggedBuffer, NotSentTagged>> {
        let send = SendId(self.next_send);
        let Self { sender, peers, .. } = self;
        let Some(peer) = peers.get_mut(id) else {
            return Err(returned(buffer, NotSentTagged::NoPeer));
        };
        match peer.send(sender, id, buffer, Posted::Message(send)) {
            Ok(()) => {
                self.next_send += 1;
                Ok(send)
            }
            Err(error) => {
                let reason = NotSentTagged::Queue(error.reason);
                Err(returned(error.payload, reason))
            }
        }
    }

    /// Offers a message by its tag. The peer reads the bytes of `buffer` when a receive matches; the event
    /// [`Sent`](super::TagEvent::Sent) then returns the buffer. The pool must be
    /// [`readable`](crate::PoolConfig::readable). The buffer needs no header, and the length has no other limit than
    /// the buffer and the port. A success says that the peer is done with the buffer, also if the receive was too
    /// short.
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
    /// [`Refused`], which returns the buffer with a [`NotSentTagged`].
    pub fn send_rendezvous(
        &mut self,
        id: PeerId,
        tag: u64,
        context: u32,
        buffer: Buffer,
    ) -> Result<SendId, Refused<Buffer, NotSentTagged>> {
        let send = SendId(self.next_send);
        if self.peer_mut(id).is_none() {
            return Err(Refused { payload: buffer, reason: NotSentTagged::NoPeer });
        }
        // The peer reads through a queue pair of our domain.
        if !buffer.pool().pd().is_same(&self.pd) {
            let reason = NotSentTagged::Queue(NotSent::WrongDomain);
            return Err(Refused { payload: buffer, reason });
        }
        let message = self.offers.offer(buffer, tag, context, (send, id))?;
        let Self { sender, peers, .. } = self;
        let Some(peer) = peers.get_mut(id) else { return Ok(send) };
        match peer.send(sender, id, &message, Posted::Offer) {
            Ok(()) => {
                self.next_send += 1;
                Ok(send)
            }
            Err(reason) => match self.offers.withdraw(&message) {
                Some((buffer, _)) => Err(Refused { payload: buffer, reason: NotSentTagged::Queue(reason) }),
                None => Ok(send),
            },
        }
    }

    /// Takes what has become of sends, reads and FINs, and posts what waits for room. Returns how many completed.
    pub(super) fn poll_sends(&mut self) -> usize {
        let mut over = std::mem::take(&mut self.over);
        let mut batch = self.sender.poll();
        while let Some(done) = batch.next() {
            // A request of tag matching has at most one buffer.
            let (token, status, buffer) = match done {
                Ok(done) => (done.token, WcStatus::SUCCESS, done.buffer),
                Err(mut failure) => (failure.token, failure.status, failure.buffers.pop()),
            };
            over.push(Over { peer: PeerId::of_token(self.id, token), status, buffer });
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
        match sender.post_many(*queue) {
            Ok(mut posting) => {
                while let Some(work) = backlog.pop_front() {
                    posting.token(id.token());
                    let result = match work {
                        Work::Fin(message) => posting.send(&message).map(|()| Posted::Fin),
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
                        Err(NotSent::Full { .. }) => {
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

/// Returns the buffer of a message that was not sent, with room for its header.
fn returned(buffer: Buffer, reason: NotSentTagged) -> Refused<TaggedBuffer, NotSentTagged> {
    Refused { payload: TaggedBuffer::arrived(buffer), reason }
}
