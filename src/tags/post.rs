//! Posting receives: one, one without a buffer, many with one doorbell.

use super::TagMatchingSrq;
use super::arrival::{self, ListHandle, Operation};
use super::error::TagFailure;
use super::header::RENDEZVOUS;
use super::ids::{Key, ReceiveId};
use super::receives::{Receive, State};
use crate::debug_is_display::debug_is_display;
use crate::error::Error;
use crate::memory::{Buffer, BufferPool, PoolConfig};
use crate::refused::Refused;

/// A receive for the oldest message with `message.tag & mask == tag`.
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// # let doorbell_doc::Tags { pool, tags, .. } = &mut world;
/// use doorbell::tags::TaggedReceive;
///
/// // Any message with 7 in the upper half of the tag, and an empty message with just this tag.
/// let buffer = pool.take().expect("a free buffer");
/// let receives = [TaggedReceive::new(7 << 32, u64::MAX << 32, buffer), TaggedReceive::empty(3, u64::MAX)];
/// assert_eq!(tags.post_all(receives)?.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TaggedReceive {
    /// Tag of the message in the bits of the mask; other bits are 0.
    pub tag: u64,
    /// Bits of the tag that must match.
    pub mask: u64,
    /// Buffer for the payload. A receive without one takes only messages without payload.
    pub buffer: Option<Buffer>,
}

impl TaggedReceive {
    /// Describes a receive into `buffer`.
    pub const fn new(tag: u64, mask: u64, buffer: Buffer) -> Self {
        Self { tag, mask, buffer: Some(buffer) }
    }

    /// Describes a receive without a buffer.
    pub const fn empty(tag: u64, mask: u64) -> Self {
        Self { tag, mask, buffer: None }
    }
}

/// Not all receives were posted. The error returns the others.
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// # let doorbell_doc::Tags { tags, .. } = &mut world;
/// use doorbell::tags::{TagFailure, TaggedReceive};
///
/// // One more than the list holds, and another after it.
/// let room = tags.max_tags();
/// let receives = (0..u64::from(room) + 2).map(|tag| TaggedReceive::empty(tag, u64::MAX));
/// let error = tags.post_all(receives).expect_err("the list is full");
/// assert_eq!(error.reason, TagFailure::ListFull);
/// assert_eq!(error.posted.len(), usize::from(room));
/// assert_eq!((error.refused.len(), error.rest.count()), (1, 1));
/// ```
#[derive(thiserror::Error)]
#[error("{reason} ({} receives were posted before)", posted.len())]
pub struct PostTagsError<I> {
    /// The posted receives, in order.
    pub posted: Vec<ReceiveId>,
    /// The receives taken from the iterator and not posted, in order.
    pub refused: Vec<TaggedReceive>,
    /// The rest of the iterator.
    pub rest: I,
    /// The reason.
    pub reason: TagFailure,
}

debug_is_display!(<I> PostTagsError<I>);

/// A receive that was not entered.
type RefusedReceive = (TaggedReceive, TagFailure);

impl TagMatchingSrq {
    /// Posts a receive for the oldest message with `message.tag & mask == tag`, after all receives posted before. If
    /// a matching message waits, the receive takes it. The event [`Received`](super::TagEvent::Received) reports the
    /// message in either case. The buffer needs no room for headers.
    ///
    /// A message may be longer than the buffer. If the device matches one that was sent with [`send`](Self::send), the
    /// receive fails with [`ReceiveFailure::Dropped`](super::ReceiveFailure::Dropped) and the connection fails, too.
    /// Then both sides call
    /// [`remove_peer`](Self::remove_peer), [`add_peer`](Self::add_peer) and [`connect_over`](Self::connect_over), which
    /// can use the same stream again; other receives stay posted. In all other cases the receive fails with
    /// [`ReceiveFailure::TooLong`](super::ReceiveFailure::TooLong), the connection goes on, and the send succeeds.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # let doorbell_doc::Tags { tags, peer, other, other_peer, pool, .. } = &mut world;
    /// # let (peer, other_peer) = (*peer, *other_peer);
    /// use doorbell::tags::{TagEvent, TaggedBuffer};
    ///
    /// // Any message whose tag has 7 in its upper half.
    /// let buffer = pool.take().expect("a free buffer");
    /// let id = tags.post(7 << 32, u64::MAX << 32, buffer)?;
    /// # let mut message = TaggedBuffer::new(pool.take().expect("a buffer")).expect("room for a header");
    /// # message.set_len(5);
    /// # message.copy_from_slice(b"hello");
    /// # other.send(other_peer, 7 << 32 | 1, 0, message)?;
    /// # let _ = peer;
    /// # let event = doorbell_doc::event(tags, other);
    /// // From `poll`:
    /// match event {
    ///     TagEvent::Received(got) => {
    ///         assert_eq!((got.receive, got.tag), (id, 7 << 32 | 1));
    ///         assert_eq!(*got.buffer, *b"hello");
    ///     }
    ///     event => panic!("{event:?}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`], which returns the buffer with a [`TagFailure`].
    pub fn post(&mut self, tag: u64, mask: u64, buffer: Buffer) -> Result<ReceiveId, Refused<Buffer, TagFailure>> {
        self.post_one(TaggedReceive::new(tag, mask, buffer)).map_err(|(receive, reason)| match receive.buffer {
            Some(buffer) => Refused { payload: buffer, reason },
            None => unreachable!("a refused receive has the buffer it came with"),
        })
    }

    /// Posts a receive without a buffer. It takes only messages without payload; a longer message that matches makes
    /// it fail as too long. Its event contains an empty buffer of the library. The program can hold `max_tags` of
    /// these buffers.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # let doorbell_doc::Tags { tags, other, other_peer, pool, .. } = &mut world;
    /// # let send = |other: &mut doorbell::tags::TagMatchingSrq, tag| {
    /// #     let message = doorbell::tags::TaggedBuffer::new(pool.take().expect("a buffer"));
    /// #     other.send(*other_peer, tag, 0, message.expect("room")).expect("sent")
    /// # };
    /// use doorbell::tags::TagEvent;
    ///
    /// let barrier = tags.post_empty(7, u64::MAX)?;
    /// # send(other, 7);
    /// # let event = doorbell_doc::event(tags, other);
    /// // From `poll`:
    /// match event {
    ///     TagEvent::Received(got) => assert!(got.receive == barrier && got.buffer.is_empty()),
    ///     event => panic!("{event:?}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`TagFailure`].
    pub fn post_empty(&mut self, tag: u64, mask: u64) -> Result<ReceiveId, TagFailure> {
        self.post_one(TaggedReceive::empty(tag, mask)).map_err(|(_, reason)| reason)
    }

    /// Posts receives in order, with one doorbell.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # let doorbell_doc::Tags { tags, pool, .. } = &mut world;
    /// use doorbell::tags::TaggedReceive;
    ///
    /// let buffers = std::iter::from_fn(|| pool.take()).take(8);
    /// let receives = (0..).zip(buffers).map(|(tag, b)| TaggedReceive::new(tag, u64::MAX, b));
    /// let ids = match tags.post_all(receives) {
    ///     Ok(ids) => ids,
    ///     // The receives in `error.refused` and `error.rest` were not posted.
    ///     Err(error) => error.posted,
    /// };
    /// assert_eq!(ids.len(), 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PostTagsError`] at the first receive that cannot be posted. Receives before it are posted; the error returns
    /// the others.
    pub fn post_all<I>(&mut self, receives: I) -> Result<Vec<ReceiveId>, PostTagsError<I::IntoIter>>
    where
        I: IntoIterator<Item = TaggedReceive>,
    {
        let mut rest = receives.into_iter();
        let mut posted = Vec::new();
        let mut refused = None;
        for receive in rest.by_ref() {
            match self.enter(receive) {
                Ok(id) => posted.push(id),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        let (mut back, failure) = self.post_entered();
        let reason = match (failure, refused) {
            (None, None) => return Ok(posted),
            (Some(reason), refused) => {
                posted.retain(|id| back.iter().all(|(not_posted, _)| id != not_posted));
                back.extend(refused.map(|(receive, _)| (ReceiveId::NONE, receive)));
                reason
            }
            (None, Some((receive, reason))) => {
                back.push((ReceiveId::NONE, receive));
                reason
            }
        };
        let refused = back.into_iter().map(|(_, receive)| receive).collect();
        Err(PostTagsError { posted, refused, rest, reason })
    }

    fn post_one(&mut self, receive: TaggedReceive) -> Result<ReceiveId, RefusedReceive> {
        let id = self.enter(receive)?;
        match self.post_entered() {
            (mut back, Some(reason)) => match back.pop() {
                Some((_, receive)) => Err((receive, reason)),
                None => Ok(id),
            },
            (_, None) => Ok(id),
        }
    }

    /// Why a receive cannot be posted.
    fn refusal(&self, receive: &TaggedReceive) -> Option<TagFailure> {
        let TaggedReceive { tag, mask, buffer } = receive;
        if tag & !mask != 0 {
            return Some(TagFailure::Mask { tag: *tag, mask: *mask });
        }
        if let Some(buffer) = buffer {
            if !buffer.pool().pd().is_same(&self.pd) {
                return Some(TagFailure::WrongDomain);
            }
            if buffer.capacity() < RENDEZVOUS && !buffer.is_padded() {
                return Some(TagFailure::TooSmall { min: RENDEZVOUS });
            }
        }
        if let Some(cause) = self.broken {
            return Some(TagFailure::Broken(cause));
        }
        (self.receives.len() >= self.max_tags.into()).then_some(TagFailure::ListFull)
    }

    /// Takes a receive in: it has its message already, or its append waits to be posted.
    fn enter(&mut self, mut receive: TaggedReceive) -> Result<ReceiveId, RefusedReceive> {
        if let Some(reason) = self.refusal(&receive) {
            return Err((receive, reason));
        }
        let empty = receive.buffer.is_none();
        let buffer = match receive.buffer.take().map_or_else(|| self.scratch(), Ok) {
            Ok(buffer) => buffer,
            Err(reason) => return Err((receive, reason)),
        };
        let TaggedReceive { tag, mask, .. } = receive;
        let sge = arrival::sge(&buffer);
        let message = self.unexpected.take(tag, mask);
        let id = self.receives.add(Receive {
            tag,
            mask,
            state: if message.is_some() { State::Matched } else { State::Posted },
            handle: ListHandle::None,
            header: (0, 0),
            late: message.is_some(),
            buffer: Some(buffer),
            empty,
        });
        if let Some(message) = message {
            self.deliver(id.key, message);
        } else if self.engine.offloads() {
            self.operations.push(Operation::Append { receive: id.key, tag, mask, sge });
        }
        Ok(id)
    }

    /// Posts the appends of receives that were taken in. Those that the device does not take come back.
    fn post_entered(&mut self) -> (Vec<(ReceiveId, TaggedReceive)>, Option<TagFailure>) {
        let (posted, result) = self.flush_some();
        let keys = self.operations.drain(..).skip(posted).filter_map(|operation| match operation {
            Operation::Append { receive, .. } => Some(receive),
            _ => None,
        });
        let keys: Vec<Key> = keys.collect();
        let Err(errno) = result else { return (Vec::new(), None) };
        let back = keys.into_iter().filter_map(|key| {
            let (id, Receive { tag, mask, buffer, empty, .. }) = self.receives.take(key)?;
            Some((id, TaggedReceive { tag, mask, buffer: buffer.filter(|_| !empty) }))
        });
        let reason = match errno {
            libc::ENOMEM => TagFailure::ListFull,
            errno => TagFailure::Verbs(errno),
        };
        (back.collect(), Some(reason))
    }

    /// A buffer for the headers of what a receive without one matches.
    fn scratch(&mut self) -> Result<Buffer, TagFailure> {
        if self.scratch.is_none() {
            let pool = BufferPool::new(&self.pd, &PoolConfig::new(self.max_tags.into(), RENDEZVOUS as u32));
            self.scratch = Some(pool.map_err(|error| match error {
                Error::Verbs { source, .. } => TagFailure::Verbs(source.raw_os_error().unwrap_or(libc::ENOMEM)),
                _ => TagFailure::Verbs(libc::ENOMEM),
            })?);
        }
        let mut buffer = self.scratch.as_ref().and_then(BufferPool::take).ok_or(TagFailure::Held)?;
        buffer.set_len(0);
        Ok(buffer)
    }
}
