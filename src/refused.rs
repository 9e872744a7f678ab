//! The error of a call that did not take what it was given.

use std::error::Error;
use std::fmt;

use crate::debug_is_display::debug_is_display;
use crate::not_sent::NotSent;

/// A call was refused, changed nothing, and gives back what it was given.
///
/// `R` is the reason: [`NotSent`] of a send, [`PostFailure`](crate::PostFailure) of a receive,
/// [`TagFailure`](crate::tags::TagFailure) and [`NotSentTagged`](crate::tags::NotSentTagged) with tags,
/// [`Error`](crate::Error) of memory for a pool. A refused send of bytes takes nothing, so its error is [`NotSent`]
/// itself. `?` turns either into a `Box<dyn Error>` or a [`NotSent`].
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let (queue, pool) = (world.queue(), world.pool.clone());
/// # let sender = &mut world.sender;
/// // A buffer more than the queue gathers.
/// let buffers = [0; 5].map(|_| pool.take().expect("a free buffer"));
/// let refused = sender.send(queue, buffers).unwrap_err();
/// println!("{refused}");
/// // Nothing is lost.
/// assert_eq!(refused.payload.len(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Refused<P, R = NotSent> {
    /// Argument of the call, unchanged.
    pub payload: P,
    /// Why it was refused.
    pub reason: R,
}

impl<P, R: fmt::Display> fmt::Display for Refused<P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

debug_is_display!(<P, R: fmt::Display> Refused<P, R>);

/// The error prints the text of its reason, so its source is that of the reason.
impl<P, R: Error> Error for Refused<P, R> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.reason.source()
    }
}

/// The buffers of the payload return to their pools.
impl<P> From<Refused<P>> for NotSent {
    fn from(refused: Refused<P>) -> Self {
        refused.reason
    }
}
