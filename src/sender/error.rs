//! Why a request was not posted.

use std::fmt;
use std::io;

use crate::memory::Buffer;
use crate::qp::QpState;

/// Why a send was not posted. The queue is as it was.
///
/// ```
/// # let mut world = doorbell_doc::Sends::new();
/// # let queue = world.queue();
/// # let sender = &mut world.sender;
/// use doorbell::NotSent;
///
/// let mut posting = sender.post(queue)?;
/// match posting.send(b"hello") {
///     Ok(()) => println!("on its way"),
///     Err(error) if matches!(error.reason, NotSent::Full) => println!("poll, and send again"),
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotSent {
    /// As many requests are outstanding as the queue holds.
    #[error("the send queue is full: poll its sender")]
    Full,
    /// The queue pair is not ready to send.
    #[error(
        "the queue pair is in state {0}, and sends from RTS only: connect it, or reset it if it failed"
    )]
    State(QpState),
    /// The message is too long.
    #[error("{len} bytes are more than the {max} that are possible")]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Bytes there is room for: in a WQE for an inline send, else in a message of the port.
        max: usize,
    },
    /// The frame is too short.
    #[error("a frame of {len} bytes: it takes an Ethernet header and more, {min} bytes at least")]
    Runt {
        /// Bytes of the frame.
        len: usize,
        /// Least length.
        min: usize,
    },
    /// The buffer or the address handle is of another protection domain.
    #[error("the buffer or the address handle belongs to another protection domain")]
    Foreign,
    /// A request that the transport does not have, such as a datagram without a destination.
    #[error(
        "the transport has no such request: datagrams, and only they, are sent with send_to, frames with send_frame; READs and atomics need RC"
    )]
    Transport,
    /// The queue belongs to another sender, or its queue pair is gone.
    #[error("the queue is that of another sender, or its queue pair was destroyed")]
    NoQueue,
    /// More buffers than a request of this queue gathers.
    #[error(
        "more buffers than the {max} that a request gathers: ask for more with QpConfig::send_buffers"
    )]
    TooManyBuffers {
        /// Buffers there is room for.
        max: usize,
    },
    /// More bytes than the memory of the peer has.
    #[error("{len} bytes are more than the {max} of the peer's memory")]
    OutOfBounds {
        /// Bytes of the request.
        len: usize,
        /// Bytes of the memory.
        max: usize,
    },
    /// The memory of the peer is none for an atomic operation.
    #[error("atomic operations take eight bytes at an address that is a multiple of eight")]
    NotANumber,
    /// `ibv_post_send` failed.
    #[error("ibv_post_send: {0}")]
    Verbs(#[source] io::Error),
}

/// A send was not posted; the buffer is back.
///
/// ```
/// # let mut world = doorbell_doc::Sends::new();
/// # let (queue, pool) = (world.queue(), world.pool.clone());
/// # let sender = &mut world.sender;
/// // A buffer more than the queue gathers.
/// let buffers = [0; 5].map(|_| pool.take().expect("a free buffer"));
/// let refused = sender.post(queue)?.send(buffers).unwrap_err();
/// println!("{refused}");
/// // Nothing is lost.
/// assert_eq!(refused.payload.len(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[error("not sent: {reason}")]
pub struct SendError<P = Buffer> {
    /// What was to be sent, as it was given.
    pub payload: P,
    /// Why.
    #[source]
    pub reason: NotSent,
}

impl<P> fmt::Debug for SendError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.reason, f)
    }
}
