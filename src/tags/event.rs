//! Events of tag matching.

use super::error::ListFailure;
use super::ids::{PeerId, ReceiveId, SendId};
use super::message::TaggedBuffer;
use crate::debug_is_display::debug_is_display;
use crate::memory::Buffer;
use crate::status::WcStatus;

/// An event of a [`TagMatchingSrq`](super::TagMatchingSrq), from [`next`](super::TagMatchingSrq::next).
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// # let doorbell_doc::Tags { tags, pool, .. } = &mut world;
/// use doorbell::tags::TagEvent;
///
/// tags.post(7, u64::MAX, pool.take().expect("a free buffer"))?;
/// # world.send(7, b"hello");
/// # let event = world.event();
/// // Each event that has a buffer gives it back to the program.
/// match event {
///     TagEvent::Received(got) => assert_eq!(*got.buffer, *b"hello"),
///     TagEvent::Failed { cause, buffer, .. } => println!("{cause}, {} bytes are free", buffer.capacity()),
///     TagEvent::PeerFailed { peer, status } => println!("{peer:?}: {status}"),
///     TagEvent::Broken { cause } => println!("the list is broken: {cause}"),
///     other => println!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "it has a buffer"]
pub enum TagEvent {
    /// A receive completed with a message.
    Received(Received),
    /// A receive matched a message and failed.
    Failed {
        /// The receive.
        receive: ReceiveId,
        /// Why.
        cause: ReceiveFailure,
        /// The buffer of the receive, with length 0: no part of the message is returned.
        buffer: Buffer,
    },
    /// A receive was cancelled before a message matched it.
    Cancelled {
        /// The receive.
        receive: ReceiveId,
        /// The buffer of the receive.
        buffer: Buffer,
    },
    /// A message without a tag arrived.
    NoTag {
        /// Who sent it.
        peer: PeerId,
        /// The message.
        message: TaggedBuffer,
    },
    /// An invalid message arrived, or a FIN for a rendezvous that was not offered.
    Malformed {
        /// Who sent it.
        peer: PeerId,
        /// All bytes of it.
        buffer: Buffer,
    },
    /// A message was sent, or the peer has read the buffer of a rendezvous.
    Sent(Sent),
    /// The connection to a peer failed: see [`remove_peer`](super::TagMatchingSrq::remove_peer). A side gets this event
    /// if a send or READ of its own fails, or if the peer sends a message that is longer than the buffers of
    /// [`keep_filled`](super::TagMatchingSrq::keep_filled). The failed sends follow, as [`Sent`](Self::Sent) with their
    /// status; offers that the peer has not read come back from `remove_peer` only.
    ///
    /// A side that waits for a message, or for the peer to read an offer, gets no event when the peer dies. Keep the
    /// stream of
    /// [`connect_over`](super::TagMatchingSrq::connect_over), and call `remove_peer` when it ends.
    PeerFailed {
        /// The peer.
        peer: PeerId,
        /// The status that the device reported.
        status: WcStatus,
    },
    /// Unexpected messages hold nearly all buffers: the device has fewer than 33 left, at least as many messages wait
    /// for a receive, and the pool of [`keep_filled`](super::TagMatchingSrq::keep_filled) is empty. Soon senders must
    /// wait, including those whose messages have a receive. Post receives for waiting messages, or call
    /// [`keep_filled`](super::TagMatchingSrq::keep_filled) with another pool. Reported once, and again after the
    /// condition has ended.
    BuffersLow {
        /// Buffers that the device has left.
        posted: u32,
        /// Messages that wait for a receive; those that were sent whole hold a buffer each.
        unexpected: usize,
    },
    /// The tag list of the device has failed and executes no more operations.
    Broken {
        /// Why.
        cause: ListFailure,
    },
}

/// A completed receive.
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// # let doorbell_doc::Tags { tags, pool, .. } = &mut world;
/// use doorbell::tags::TagEvent;
///
/// // Receives any tag; who sent it and which tag it was, the event says.
/// tags.post(0, 0, pool.take().expect("a free buffer"))?;
/// # world.send(0x42, b"hello");
/// # let event = world.event();
/// # let doorbell_doc::Tags { peer, .. } = &mut world;
/// # let peer = *peer;
/// let TagEvent::Received(got) = event else { panic!("{event:?}") };
/// assert_eq!((got.tag, got.peer, got.buffer.len()), (0x42, peer, 5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Received {
    /// The receive.
    pub receive: ReceiveId,
    /// The sender of the message.
    pub peer: PeerId,
    /// The tag of the message.
    pub tag: u64,
    /// The context that the sender passed to [`send`](super::TagMatchingSrq::send).
    pub context: u32,
    /// `true` if the library matched the message: it arrived before the device had the receive, or the device does
    /// not match.
    pub by_library: bool,
    /// `true` if a poll took the message from the CQ before the receive was posted; `false` if it was still in the CQ,
    /// or arrived later.
    pub waited: bool,
    /// The payload.
    pub buffer: Buffer,
}

/// Why a receive that matched a message failed.
///
/// ```
/// # use doorbell::tags::{Offload, TagMatchingConfig};
/// # let mut world = doorbell_doc::Tags::with(&TagMatchingConfig::new(16).offload(Offload::Never));
/// # let doorbell_doc::Tags { tags, .. } = &mut world;
/// use doorbell::tags::{ReceiveFailure, TagEvent};
///
/// // A receive without a buffer takes only empty messages.
/// tags.post_empty(7, u64::MAX)?;
/// # world.send(7, b"hello");
/// # let event = world.event();
/// let TagEvent::Failed { cause, .. } = event else { panic!("{event:?}") };
/// assert_eq!(cause, ReceiveFailure::TooLong { len: 5 });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveFailure {
    /// The message is longer than the buffer. The connection goes on.
    #[error("the message has {len} bytes, more than the buffer: post larger buffers")]
    TooLong {
        /// Bytes of the message.
        len: usize,
    },
    /// The device has dropped the message: it did not fit, or the sender's memory could not be read, or the
    /// connection failed. In the first two cases the connection fails with it. This side
    /// gets no [`PeerFailed`](TagEvent::PeerFailed), so it does not learn which peer it was. The sender gets a
    /// `PeerFailed`, and its send returns as [`Sent`](TagEvent::Sent) with an error status; it can report that over the
    /// stream of
    /// [`connect_over`](super::TagMatchingSrq::connect_over).
    #[error("the device dropped the message: it did not fit, its sender could not be read, or the connection failed")]
    Dropped,
    /// Reading the memory of the sender failed, or the peer was removed after the READ was posted.
    #[error("reading the data from the sender failed: {0}")]
    Read(WcStatus),
    /// The peer was removed or failed before the READ of its data was posted.
    #[error("the peer was removed or failed before its data was read")]
    PeerGone,
    /// The device delivered an invalid rendezvous header.
    #[error("the header of the rendezvous is malformed")]
    Malformed,
}

debug_is_display!(ReceiveFailure);

/// A completed send.
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// # let doorbell_doc::Tags { pool, tags, peer, .. } = &mut world;
/// # let peer = *peer;
/// use doorbell::tags::{TagEvent, TaggedBuffer};
///
/// let message = TaggedBuffer::new(pool.take().expect("a free buffer")).expect("room");
/// let id = tags.send(peer, 7, 0, message)?;
/// # let event = world.event();
/// // `event` is from `poll`.
/// let TagEvent::Sent(sent) = event else { panic!("{event:?}") };
/// assert_eq!((sent.send, sent.peer), (id, peer));
/// assert!(sent.status.is_success() && !sent.rendezvous);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Sent {
    /// The send.
    pub send: SendId,
    /// The destination.
    pub peer: PeerId,
    /// `true` for a rendezvous.
    pub rendezvous: bool,
    /// The status of the send.
    pub status: WcStatus,
    /// The buffer: unchanged for a rendezvous, else with the header before the payload.
    pub buffer: Buffer,
}
