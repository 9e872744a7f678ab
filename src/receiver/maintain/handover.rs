//! Things on their way to an owner, which may have left when they come.

use std::collections::VecDeque;

use super::sync::{Mutex, MutexGuard};
use super::wake_state::{Then, WakeState};

/// A queue that many put things into and one owner takes them from. A thing is dropped at once if there is no room, or
/// if the owner has left: it does not wait for the last handle to go.
///
/// A mutex protects the queue, because the owner takes all that is there at once: one lock of many, and each giver
/// holds it for one push. A queue without a lock costs each giver more: an exchange, and a fence before it reads the
/// state of the owner.
pub(crate) struct Handover<T> {
    things: Mutex<VecDeque<T>>,
    capacity: usize,
}

impl<T> Handover<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { things: Mutex::new(VecDeque::with_capacity(capacity)), capacity }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        // A panic leaves the queue whole: no other code runs under the lock.
        self.things.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Puts `thing`. Returns `true` if the caller must wake the owner.
    pub(crate) fn give(&self, owner: &WakeState, thing: T) -> bool {
        let mut things = self.lock();
        let refused = if things.len() < self.capacity {
            things.push_back(thing);
            None
        } else {
            Some(thing)
        };
        let then = owner.after_put();
        drop(things);
        drop(refused);
        match then {
            Then::Nothing => false,
            Then::Wake => true,
            Then::TakeBack => {
                self.clear();
                false
            }
        }
    }

    /// Appends at most `most` things, the oldest first, to `to`; for the owner.
    pub(crate) fn take(&self, most: usize, to: &mut Vec<T>) {
        let mut things = self.lock();
        let count = most.min(things.len());
        to.extend(things.drain(..count));
    }

    /// Drops all that is there. The owner does so when it has left.
    pub(crate) fn clear(&self) {
        let things = std::mem::take(&mut *self.lock());
        drop(things);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }
}
