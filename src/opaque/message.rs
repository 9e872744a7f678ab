//! Messages in opaque buffers.

use std::fmt;

use crate::clock::Timestamp;
use crate::memory::OpaqueBuffer;
use crate::message_source::MessageSource;
use crate::post_failure::PostFailure;
use crate::receiver::{Batch, Failure, Message};
use crate::refused::Refused;
use crate::wc_flags::WcFlags;

/// A batch of messages in opaque buffers, from [`OpaqueReceiver::poll`](super::OpaqueReceiver::poll). Dropping it posts
/// the recycled slots with one doorbell per queue.
///
/// ```
/// use doorbell::opaque::OpaqueReceiver;
///
/// /// Returns the bytes of all messages that have arrived.
/// fn arrived(receiver: &mut OpaqueReceiver) -> Result<usize, doorbell::Failure<doorbell::opaque::OpaqueBuffer>> {
///     let mut bytes = 0;
///     let mut batch = receiver.poll();
///     while let Some(message) = batch.next() {
///         bytes += message?.len();
///     }
///     Ok(bytes)
/// }
/// ```
pub struct OpaqueBatch<'a>(pub(super) Batch<'a>);

impl OpaqueBatch<'_> {
    /// Returns the next message or failed receive, or `None` if nothing is left, as [`Batch::next`] does.
    ///
    /// # Errors
    /// [`Failure`] with the buffers of a receive of a queue pair's own queue.
    #[expect(clippy::should_implement_trait, reason = "the item borrows from the batch")]
    #[inline]
    pub fn next(&mut self) -> Option<Result<OpaqueMessage<'_>, Failure<OpaqueBuffer>>> {
        Some(self.0.next()?.map(OpaqueMessage).map_err(failure))
    }
}

/// Returns a failure with its buffers as what they are.
pub(super) fn failure(failure: Failure) -> Failure<OpaqueBuffer> {
    failure.map(OpaqueBuffer::of)
}

/// A received message in an opaque buffer, lent by its batch. After it is dropped, its buffer is recycled, as that of a
/// [`Message`]. [`take`](Self::take) moves the buffer out.
///
/// ```
/// use doorbell::opaque::{OpaqueBuffer, OpaqueMessage};
///
/// /// Keeps a message that has an immediate, and recycles any other.
/// fn keep(message: OpaqueMessage<'_>) -> Option<(u32, OpaqueBuffer)> {
///     let imm = message.imm()?;
///     Some((imm, message.take()))
/// }
/// ```
///
/// The processor cannot look into it:
///
/// ```compile_fail
/// fn first(message: &doorbell::opaque::OpaqueMessage<'_>) -> u8 {
///     message[0]
/// }
/// ```
pub struct OpaqueMessage<'a>(pub(super) Message<'a>);

impl OpaqueMessage<'_> {
    /// Returns the number of bytes received. A datagram has [`GRH_SIZE`](crate::GRH_SIZE) bytes before its payload.
    #[expect(clippy::len_without_is_empty, reason = "there are no bytes to look at")]
    #[inline]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of the QP that received the message.
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num()
    }

    /// Returns the immediate data, or `None` if the peer sent none.
    pub fn imm(&self) -> Option<u32> {
        self.0.imm()
    }

    /// Returns the remote key that the message invalidated, or `None`.
    pub fn invalidated_rkey(&self) -> Option<u32> {
        self.0.invalidated_rkey()
    }

    /// Returns the number of bytes that the peer wrote with RDMA WRITE with immediate, or `None` for other messages.
    pub fn written(&self) -> Option<u32> {
        self.0.written()
    }

    /// Returns the source of the message.
    pub fn source(&self) -> Option<MessageSource> {
        self.0.source()
    }

    /// Returns the flags of the completion.
    pub fn flags(&self) -> WcFlags {
        self.0.flags()
    }

    /// Returns when the device completed the message, see [`Message::timestamp`].
    pub fn timestamp(&self) -> Option<Timestamp> {
        self.0.timestamp()
    }

    /// Moves the buffer out of the queue; its length is that of the message. The queue then has one receive less: post
    /// another buffer.
    #[inline]
    pub fn take(self) -> OpaqueBuffer {
        match self.0.take() {
            Ok(buffer) => OpaqueBuffer::of(buffer),
            Err(_) => unreachable!("[one-opaque]"),
        }
    }

    /// Moves the buffer out of the queue and puts `buffer` in its place, so that the queue stays full.
    ///
    /// # Errors
    /// [`Refused`] returns a `buffer` of another protection domain, or one too small for the GRH of a datagram. The
    /// message is then recycled.
    #[inline]
    pub fn replace(self, buffer: OpaqueBuffer) -> Result<OpaqueBuffer, Refused<OpaqueBuffer, PostFailure>> {
        match self.0.replace(buffer.into_inner()) {
            Ok(buffer) => Ok(OpaqueBuffer::of(buffer)),
            Err(Refused { payload, reason }) => Err(Refused { payload: OpaqueBuffer::of(payload), reason }),
        }
    }
}

impl fmt::Debug for OpaqueMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
