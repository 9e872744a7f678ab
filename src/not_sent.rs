//! Why a request was not posted.

use std::io;
use std::time::Duration;

use crate::debug_is_display::debug_is_display;
use crate::qp_state::QpState;

/// Why a request was not posted. The queue is unchanged. The page
/// [Refused calls](https://github.com/doorbell-rs/doorbell/blob/main/docs/refused-calls.md) has what libibverbs returns
/// for the same mistakes.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let queue = world.queue();
/// # let sender = &mut world.sender;
/// use doorbell::{Completions, NotSent};
///
/// loop {
///     match sender.send(queue, b"hello") {
///         Ok(()) => break,
///         // Completions free slots.
///         Err(NotSent::Full { .. }) => {
///             sender.wait(None)?;
///             while sender.poll().next().is_some() {}
///         }
///         Err(error) => return Err(error.into()),
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum NotSent {
    /// All slots of the queue are outstanding. The answer to a request can arrive before its completion, so a client
    /// that waits for room waits on the sender, not on the receiver: poll, then post, then
    /// [`arm`](crate::Completions::arm).
    ///
    /// A request whose acknowledgement was lost, and all after it, wait for the
    /// [timeout](crate::QpConfig::timeout) of the queue pair.
    #[error("the send queue is full{}: poll, then post again", for_how_long(.waited))]
    Full {
        /// Time since the first request that was refused while the oldest of the queue was the one that it is now: so
        /// long it has waited at least. Zero in the error of the first.
        waited: Duration,
    },
    /// The queue pair is not ready to send.
    #[error(
        "the queue pair is in state {0}, and must be in RTS to send: connect it; after a failure reset and connect it, with tag matching remove the peer and add it again, with frames create another FrameReceiver, with DC call Sender::restart"
    )]
    State(QpState),
    /// The bytes to copy do not fit into a WQE.
    #[error(
        "the request copies {len} bytes, and the limit is {max}: send a Buffer, or raise max_inline of the queue pair"
    )]
    InlineTooLong {
        /// Bytes of the message.
        len: usize,
        /// Bytes that a WQE of the queue holds.
        max: usize,
    },
    /// The answer of a READ or an atomic does not fit into the buffer.
    #[error("the answer has {len} bytes, and the buffer holds {capacity}: take a larger buffer")]
    BufferTooSmall {
        /// Bytes of the answer.
        len: usize,
        /// Bytes that the buffer holds.
        capacity: usize,
    },
    /// The message is longer than the port sends, or the datagram longer than its MTU.
    #[error("the message has {len} bytes, and the limit of the port is {max}: send several messages")]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Bytes of the longest message or datagram of the port.
        max: usize,
    },
    /// The frame is too short.
    #[error("the frame has {len} bytes, and needs {min}: an Ethernet header and payload")]
    Runt {
        /// Bytes of the frame.
        len: usize,
        /// Least length.
        min: usize,
    },
    /// The buffer, region, window or address handle belongs to another protection domain.
    #[error(
        "the buffer, region, window or address handle belongs to another protection domain: use those of the sender's protection domain"
    )]
    WrongDomain,
    /// The transport does not have this request, for example a datagram without a destination.
    #[error(
        "the transport of the queue pair does not have this request: use send_to for datagrams, send_frame for frames, to for DC, RC or DC for READs and atomics"
    )]
    Transport,
    /// The queue belongs to another sender, or its queue pair was destroyed and the sender was polled since.
    #[error("the queue belongs to another sender, or its queue pair was destroyed")]
    NoQueue,
    /// The request has more buffers than the queue was created for.
    #[error("the request has more buffers than the limit of {max}: set a larger QpConfig::max_send_sge")]
    TooManyBuffers {
        /// Buffers there is room for.
        max: usize,
    },
    /// The request is longer than the memory of the peer.
    #[error("the request has {len} bytes, and the memory of the peer has {max}")]
    OutOfBounds {
        /// Bytes of the request.
        len: usize,
        /// Bytes of the memory.
        max: usize,
    },
    /// The memory of the peer is not eight bytes at a multiple of eight.
    #[error(
        "the memory of the peer does not fit an atomic operation: it needs eight bytes at an address that is a multiple of eight, see RemoteRegion::slice"
    )]
    NotANumber,
    /// The bytes for a memory window are not a part of the memory that it can have.
    #[error(
        "bytes {start}..{end} are no range for a memory window on {len} bytes of memory: choose 1 byte to 2 GiB of them"
    )]
    WindowOutside {
        /// First byte of the range.
        start: usize,
        /// End of the range.
        end: usize,
        /// Bytes of the memory.
        len: usize,
    },
    /// The memory or the queue pair was not made for memory windows.
    #[error("the {what} was not made for memory windows: set {setting}")]
    NoWindows {
        /// The object.
        what: &'static str,
        /// The setting that it lacks.
        setting: &'static str,
    },
    /// The memory window is bound already.
    #[error(
        "the memory window is bound with key {rkey:#x}: revoke it, or wait until the peer has invalidated it, and poll"
    )]
    WindowBound {
        /// The key.
        rkey: u32,
    },
    /// The memory window is not bound through this queue pair.
    #[error(
        "the memory window is not bound through this queue pair, or is being revoked: MemoryWindow::is_bound says whether it is bound"
    )]
    WindowNotBound,
    /// A bind or revocation of the memory window failed, or was flushed.
    #[error(
        "a bind or revocation of the memory window failed, and the peer may have access: drop or destroy the window, and create another"
    )]
    WindowLost,
    /// The memory window would allow nothing.
    #[error("the memory window would allow no operation: choose among READ, WRITE and ATOMIC")]
    WindowAccess,
    /// `ibv_post_send` failed.
    #[error("ibv_post_send failed: {0}")]
    Verbs(#[source] io::Error),
}

debug_is_display!(NotSent);

fn for_how_long(waited: &Duration) -> String {
    match waited {
        &Duration::ZERO => String::new(),
        waited => format!(", and its oldest request has waited for {waited:.1?}"),
    }
}
