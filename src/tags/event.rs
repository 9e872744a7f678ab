//! What a program is told.

use super::message::TaggedBuffer;
use super::peer::{PeerId, SendId};
use super::receives::ReceiveId;
use crate::memory::RecvBuffer;
use crate::status::WcStatus;

/// What [`poll`](super::TagMatchingSrq::poll) tells.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "it has a buffer"]
pub enum TagEvent {
    /// A receive has its message.
    Received(Received),
    /// A receive has matched a message that it cannot have.
    Failed {
        /// The receive.
        receive: ReceiveId,
        /// Why.
        cause: ReceiveFailure,
        /// Its buffer.
        buffer: RecvBuffer,
    },
    /// A receive was cancelled: no message has matched it.
    Cancelled {
        /// The receive.
        receive: ReceiveId,
        /// Its buffer.
        buffer: RecvBuffer,
    },
    /// A message without tag has arrived.
    NoTag {
        /// Who sent it.
        peer: PeerId,
        /// The message.
        message: TaggedBuffer,
    },
    /// A message has arrived that is none of tag matching, or that ends a rendezvous which was not offered.
    Malformed {
        /// Who sent it.
        peer: PeerId,
        /// All bytes of it.
        buffer: RecvBuffer,
    },
    /// A message was sent; one that was offered for rendezvous has been read.
    Sent(Sent),
    /// The connection to a peer failed: see [`remove_peer`](super::TagMatchingSrq::remove_peer).
    PeerFailed {
        /// The peer.
        peer: PeerId,
        /// What the device reported.
        status: WcStatus,
    },
    /// The device executes no list operations any more.
    Broken {
        /// What the device reported.
        status: WcStatus,
    },
}

/// A receive has its message.
#[derive(Debug)]
#[non_exhaustive]
pub struct Received {
    /// The receive.
    pub receive: ReceiveId,
    /// Who sent the message.
    pub peer: PeerId,
    /// Tag of the message.
    pub tag: u64,
    /// Context that the sender gave it.
    pub context: u32,
    /// The library matched it: it arrived before the device had the receive, or the device does not match.
    pub by_library: bool,
    /// The message came first, and waited for the receive.
    pub waited: bool,
    /// The payload.
    pub buffer: RecvBuffer,
}

/// Why a receive that matched has no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveFailure {
    /// The message is longer than the buffer.
    #[error("the message of {len} bytes is longer than the buffer")]
    TooLong {
        /// Bytes of the message.
        len: usize,
    },
    /// The device has dropped the message: it did not fit, or the sender's memory could not be read, or the
    /// connection failed.
    #[error("the device has given up the message")]
    Canceled,
    /// The sender's memory could not be read.
    #[error("the data could not be read from the sender: {0}")]
    Read(WcStatus),
    /// The sender is gone, and its data was not read.
    #[error("the sender is gone")]
    PeerGone,
    /// What the device put into the buffer is no offer of a rendezvous.
    #[error("the offer of the rendezvous cannot be understood")]
    Malformed,
}

/// A message was sent.
#[derive(Debug)]
#[non_exhaustive]
pub struct Sent {
    /// The send.
    pub send: SendId,
    /// To whom.
    pub peer: PeerId,
    /// It was offered for rendezvous.
    pub rendezvous: bool,
    /// How it ended.
    pub status: WcStatus,
    /// The buffer: of a rendezvous as it was given, else with the header in front of the payload.
    pub buffer: RecvBuffer,
}
