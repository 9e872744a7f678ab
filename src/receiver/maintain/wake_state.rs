//! State of the owner of a queue: whether a thread that gives the owner something must wake it, or take the thing back.

use super::sync::{AtomicU8, Ordering};

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const GONE: u8 = 2;

/// Shared by one owner and many givers. The owner looks whether something is there and then sleeps, or takes all that
/// is there and then leaves. A giver puts something there and then asks what is left to do.
///
/// The owner writes the state and then takes the lock of the queue to look. A giver puts something and reads the state
/// under the same lock. If the owner has the lock first, its unlocking orders the new state before what the giver
/// reads; otherwise the owner sees what was put. So either the owner sees it, or the giver sees that the owner sleeps
/// or has left.
pub(crate) struct WakeState(AtomicU8);

/// Action that is left to a giver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Nothing,
    /// Wake the owner. Only one of several givers at once must do so.
    Wake,
    /// There is no owner: take it back.
    TakeBack,
}

impl WakeState {
    pub(crate) fn new() -> Self {
        Self(AtomicU8::new(AWAKE))
    }

    /// The owner is about to look under the lock, and to sleep if nothing is there.
    pub(crate) fn park(&self) {
        self.0.store(ASLEEP, Ordering::Relaxed);
    }

    /// The owner does not sleep any more.
    pub(crate) fn unpark(&self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    /// The owner is about to take what is there under the lock, and never to come back.
    pub(crate) fn close(&self) {
        self.0.store(GONE, Ordering::Relaxed);
    }

    /// Something was put; the giver still has the lock.
    pub(crate) fn after_put(&self) -> Then {
        if self.0.load(Ordering::Relaxed) == AWAKE {
            return Then::Nothing;
        }
        match self.0.compare_exchange(ASLEEP, AWAKE, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Then::Wake,
            Err(GONE) => Then::TakeBack,
            Err(_) => Then::Nothing,
        }
    }
}
