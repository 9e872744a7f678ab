//! Receives that were not posted.

use crate::debug_is_display::debug_is_display;
use crate::error::Error;
use crate::memory::Buffer;
use crate::post_failure::PostFailure;

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
pub struct PostError<B = Buffer> {
    /// Receives posted before the failure. The last one may wait in the spare slot of
    /// [`fill`](crate::Receiver::fill).
    pub posted: usize,
    /// The reason.
    pub reason: PostFailure,
    /// The buffers that were not posted, in order.
    pub buffers: Vec<B>,
}

debug_is_display!(<B> PostError<B>);

/// Returns the buffers to their pools.
impl<B> From<PostError<B>> for Error {
    fn from(PostError { posted, reason, .. }: PostError<B>) -> Self {
        Self::NotPosted { posted, reason }
    }
}

fn after(posted: usize) -> String {
    match posted {
        0 => String::new(),
        posted => format!(" ({posted} receives were posted before)"),
    }
}
