//! Errors of receives and sends.

use crate::debug_is_display::debug_is_display;
use crate::not_sent::NotSent;
use crate::status::WcStatus;

/// Why a tagged receive was not posted.
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// # let doorbell_doc::Tags { tags, .. } = &mut world;
/// use doorbell::tags::TagFailure;
///
/// // A receive whose tag has bits outside of its mask matches no message.
/// let refused = tags.post_empty(0x17, 0xf).expect_err("nothing could match");
/// assert_eq!(refused, TagFailure::Mask { tag: 0x17, mask: 0xf });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TagFailure {
    /// The list has `max_tags` receives.
    #[error("the tag list is full: poll, then post again, or set a larger max_tags")]
    ListFull,
    /// The tag has bits outside the mask, so no message can match.
    #[error("the tag {tag:#x} has bits outside the mask {mask:#x}, so no message can match: clear those bits")]
    Mask {
        /// The tag.
        tag: u64,
        /// The mask.
        mask: u64,
    },
    /// The buffer belongs to another protection domain.
    #[error("the buffer belongs to another protection domain: use a pool of the queue's")]
    WrongDomain,
    /// The buffer of a [`TaggedBuffer`](super::TaggedBuffer) is smaller than the header of a message, 16 bytes. Or
    /// memory of the program, given as a receive, is smaller than the header of a rendezvous, 32 bytes.
    #[error("the buffer is too small: it needs at least {min} bytes for headers")]
    TooSmall {
        /// Bytes of the headers.
        min: usize,
    },
    /// The library lends a small buffer to each empty receive and has none left, because the program keeps those of
    /// earlier events.
    #[error("the library has no buffer for an empty receive: drop the buffers of earlier empty receives")]
    Held,
    /// The tag list of the device has failed and executes no more operations.
    #[error("the tag list failed ({0}): create another TagMatchingSrq")]
    Broken(ListFailure),
    /// `ibv_post_srq_ops` failed with this `errno`.
    #[error("ibv_post_srq_ops failed: {}", std::io::Error::from_raw_os_error(*.0))]
    Verbs(i32),
}

debug_is_display!(TagFailure);

/// Why the list of the device failed.
///
/// ```
/// use doorbell::WcStatus;
/// use doorbell::tags::ListFailure;
///
/// fn is_short_of_memory(cause: ListFailure) -> bool {
///     match cause {
///         // Not a number of the device's: the call failed, and nothing was posted.
///         ListFailure::Verbs(errno) => errno == libc::ENOMEM,
///         ListFailure::Status(status) => panic!("the device reports {status}"),
///         other => panic!("{other}"),
///     }
/// }
/// assert!(is_short_of_memory(ListFailure::Verbs(libc::ENOMEM)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListFailure {
    /// The device reported this status for an operation.
    #[error("{0}")]
    Status(WcStatus),
    /// The library could not post an operation: `ibv_post_srq_ops` failed with this `errno`, or the list of the
    /// direct path was full (`ENOMEM`).
    #[error("ibv_post_srq_ops failed: {}", std::io::Error::from_raw_os_error(*.0))]
    Verbs(i32),
}

debug_is_display!(ListFailure);

/// Why a receive cannot be cancelled.
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// # let doorbell_doc::Tags { tags, pool, .. } = &mut world;
/// use doorbell::tags::CancelError;
///
/// let id = tags.post(7, u64::MAX, pool.take().expect("a free buffer"))?;
/// # world.send(7, b"faster");
/// # let event = world.event();
/// # let tags = &mut world.tags;
/// // The message was faster, and its event has been taken.
/// assert_eq!(tags.cancel(id), Err(CancelError::Over));
/// # drop(event);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CancelError {
    /// The receive is over: completed, failed or cancelled. Its event was taken or waits.
    #[error("the receive is over: it has completed, has failed or was cancelled")]
    Over,
    /// The receive is already being cancelled.
    #[error("the receive is already being cancelled")]
    Cancelling,
    /// A message has matched the receive and will complete it.
    #[error("a message has matched the receive and will complete it")]
    Matched,
    /// The receive belongs to another queue.
    #[error("the receive belongs to another queue")]
    WrongQueue,
    /// The tag list of the device has failed and executes no more operations.
    #[error("the tag list failed ({0}): create another TagMatchingSrq")]
    Broken(ListFailure),
    /// `ibv_post_srq_ops` failed with this `errno`.
    #[error("ibv_post_srq_ops failed: {}", std::io::Error::from_raw_os_error(*.0))]
    Verbs(i32),
}

debug_is_display!(CancelError);

/// Why a message was not sent.
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// # let doorbell_doc::Tags { pd, tags, peer, .. } = &mut world;
/// # let peer = *peer;
/// use doorbell::tags::NotSentTagged;
/// use doorbell::{BufferPool, PoolConfig};
///
/// // A rendezvous is read by the peer, which this pool does not allow.
/// let private = BufferPool::new(pd, &PoolConfig::new(1, 1024))?;
/// let buffer = private.take().expect("a new pool is full");
/// let error = tags.send_rendezvous(peer, 7, 0, buffer).expect_err("not readable");
/// assert!(matches!(error.reason, NotSentTagged::NotReadable));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum NotSentTagged {
    /// The peer belongs to another queue or was removed.
    #[error("the peer belongs to another queue, or was removed")]
    NoPeer,
    /// Peers cannot read the buffer; its pool must be [`readable`](crate::PoolConfig::readable).
    #[error("peers cannot read the buffer: take it from a pool made with PoolConfig::readable")]
    NotReadable,
    /// The send queue refused the message.
    #[error("{0}")]
    Queue(#[source] NotSent),
}

debug_is_display!(NotSentTagged);
