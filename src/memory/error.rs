//! Errors that return a buffer or memory.

use std::fmt;

use super::Buffer;
use crate::error::{Error, debug_is_display};

/// A buffer was not accepted. The error returns it.
///
/// `R` is the reason: [`PostFailure`](crate::PostFailure) of [`Message::replace`](crate::Message::replace) and
/// [`SharedPoster::post`](crate::SharedPoster::post), [`TagFailure`](crate::tags::TagFailure) of a tagged receive,
/// [`NotSentTagged`](crate::tags::NotSentTagged) of a tagged send.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let doorbell_doc::World { receiver, srq, pd, .. } = &mut world;
/// # let srq = *srq;
/// use doorbell::{BufferPool, PostFailure};
///
/// let poster = receiver.shared_poster(srq)?;
/// // A pool of another protection domain: the device would not write its buffers for this queue.
/// let other = BufferPool::new(&pd.context().alloc_pd()?, 1, 256)?;
/// let buffer = other.take().expect("a new pool is full");
/// let error = poster.post(buffer).expect_err("another protection domain");
/// assert_eq!(error.reason, PostFailure::WrongDomain);
/// drop(error.buffer);
/// assert_eq!(other.available(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[error("{reason}")]
pub struct BufferError<R, B = Buffer> {
    /// The reason.
    pub reason: R,
    /// The buffer, unchanged.
    pub buffer: B,
}

debug_is_display!(<R: fmt::Display, B> BufferError<R, B>);

/// A pool was not created. The error returns its memory.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::BufferPool;
///
/// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let small = vec![1u8; 100];
/// let error = BufferPool::from_memory(&pd, small, 1024).expect_err("not one buffer fits");
/// println!("{error}");
/// // Nothing is lost: the memory is in the error.
/// let small = error.memory;
/// assert_eq!(small.len(), 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryError<M> {
    /// The reason.
    pub error: Error,
    /// The memory, unchanged.
    pub memory: M,
}

impl<M> fmt::Debug for MemoryError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<M> fmt::Display for MemoryError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> std::error::Error for MemoryError<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
