//! Things on their way to an owner, which may have left when they come.

use super::sync::ArrayQueue;
use super::wake_state::{Then, WakeState};

/// A queue that many put things into and one owner takes them from. A thing is dropped at once if there is no room, or
/// if the owner has left: it does not wait for the last handle to go.
pub(crate) struct Handover<T>(ArrayQueue<T>);

impl<T> Handover<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self(ArrayQueue::new(capacity))
    }

    /// Puts `thing`. Returns `true` if the caller must wake the owner.
    pub(crate) fn give(&self, owner: &WakeState, thing: T) -> bool {
        drop(self.0.push(thing));
        match owner.after_put() {
            Then::Nothing => false,
            Then::Wake => true,
            Then::TakeBack => {
                self.clear();
                false
            }
        }
    }

    /// Takes one; for the owner.
    pub(crate) fn take(&self) -> Option<T> {
        self.0.pop()
    }

    /// Drops all that is there. The owner does so when it has left.
    pub(crate) fn clear(&self) {
        while self.0.pop().is_some() {}
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
