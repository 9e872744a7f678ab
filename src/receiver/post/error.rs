//! Why receives were not posted.

use super::super::datagram::GRH_SIZE;
use crate::error::debug_is_display;
use crate::memory::Buffer;

/// Why a receive was not posted.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let doorbell_doc::World { pool, receiver, srq, .. } = &mut world;
/// # let srq = *srq;
/// use doorbell::PostFailure;
///
/// let spare = pool.take().expect("a free buffer");
/// let error = receiver.post(srq, [spare]).expect_err("all receives are posted");
/// assert_eq!(error.reason, PostFailure::Full);
/// // The buffer is in the error, for another time.
/// assert_eq!(error.buffers.len(), 1);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostFailure {
    /// All slots of the queue are posted.
    #[error("the receive queue is full: poll, then post again")]
    Full,
    /// The receive has more buffers than the queue was created for.
    #[error("the receive has {given} buffers, and the queue takes {max}: set a larger max_sge")]
    TooManyBuffers {
        /// Buffers given.
        given: usize,
        /// Buffers there is room for.
        max: usize,
    },
    /// The receive has no buffer.
    #[error("a receive needs at least one buffer")]
    NoBuffer,
    /// The buffer belongs to another protection domain; the device would not write it.
    #[error(
        "the pool of the buffer belongs to another protection domain: use a pool of the receiver's protection domain"
    )]
    WrongDomain,
    /// The queue belongs to another receiver or was destroyed.
    #[error("the queue belongs to another receiver, or was destroyed")]
    NoQueue,
    /// The queue receives datagrams, and the first buffer is smaller than the [GRH](crate::GRH_SIZE): the device
    /// would drop each datagram without a completion.
    #[error(
        "a buffer of {capacity} bytes is too small for datagrams: it needs {GRH_SIZE} bytes for the GRH (GRH_SIZE), and room for the payload"
    )]
    NoRoomForHeader {
        /// Bytes of the first buffer of the receive.
        capacity: u32,
    },
    /// `ibv_post_recv` or `ibv_post_srq_recv` failed with this `errno` (verbs path only).
    #[error("ibv_post_recv or ibv_post_srq_recv failed: {}", std::io::Error::from_raw_os_error(*.0))]
    Verbs(i32),
}

debug_is_display!(PostFailure);

/// Not all receives were posted: the first `posted` ones were. The error returns the other buffers.
///
/// [`Receiver::post_scatter`](crate::Receiver::post_scatter) posts one receive or none: `posted` is 0 then.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let (receiver, srq, pool) = (&mut world.receiver, world.srq, &world.pool);
/// use doorbell::PostFailure;
///
/// # receiver.post(srq, std::iter::from_fn(|| pool.take()).take(receiver.free_slots(srq) as usize)).expect("room");
/// let mut buffers = Vec::new();
/// buffers.extend(std::iter::from_fn(|| pool.take()).take(3));
/// let error = receiver.post(srq, buffers).unwrap_err();
/// assert_eq!((error.posted, error.reason), (0, PostFailure::Full));
/// assert_eq!(error.buffers.len(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[error("{reason}{}", after(*.posted))]
pub struct PostError {
    /// Receives posted before the failure. The last one may wait in the spare slot of
    /// [`fill`](crate::Receiver::fill).
    pub posted: usize,
    /// The reason.
    pub reason: PostFailure,
    /// The buffers that were not posted, in order.
    pub buffers: Vec<Buffer>,
}

debug_is_display!(PostError);

fn after(posted: usize) -> String {
    match posted {
        0 => String::new(),
        posted => format!(" ({posted} receives were posted before)"),
    }
}
