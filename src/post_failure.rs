//! Why receives were not posted.

use crate::debug_is_display::debug_is_display;

/// Bytes before the payload of each datagram in its buffer, for the GRH (InfiniBand specification, 8.3).
///
/// ```
/// # let _device = doorbell_doc::device();
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// use doorbell::{BufferPool, GRH_SIZE, PoolConfig};
///
/// // For datagrams of up to 1,024 bytes.
/// let pool = BufferPool::new(&pd, &PoolConfig::new(64, GRH_SIZE as u32 + 1024))?;
/// # drop(pool);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const GRH_SIZE: usize = 40;

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
    /// The message is in several buffers, so it has no single buffer to replace.
    #[error("the message is in several buffers: use into_buffers")]
    Scattered,
    /// `ibv_post_recv` or `ibv_post_srq_recv` failed with this `errno` (verbs path only).
    #[error("ibv_post_recv or ibv_post_srq_recv failed: {}", std::io::Error::from_raw_os_error(*.0))]
    Verbs(i32),
}

debug_is_display!(PostFailure);

/// A message is in several buffers, so there is no single one to take: see
/// [`Message::into_buffers`](crate::Message::into_buffers).
///
/// ```
/// assert!(doorbell::Scattered.to_string().contains("into_buffers"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", PostFailure::Scattered)]
pub struct Scattered;

debug_is_display!(Scattered);
