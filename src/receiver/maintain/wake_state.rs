//! State of the owner of a queue: whether a thread that gives the owner something must wake it, or take the thing back.

use super::sync::{AtomicU8, Ordering, fence};

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const GONE: u8 = 2;

/// Shared by one owner and many givers. The owner looks whether something is there and then sleeps, or takes all that
/// is there and then leaves. A giver puts something there and then asks what is left to do.
///
/// Each side writes, passes a sequentially consistent fence, and reads what the other writes. One of the two
/// fences comes first in their common order; the side whose fence comes second sees the other's write. So either the
/// owner sees what was put, or the giver sees that the owner sleeps or has left.
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

    /// The owner is about to look, and to sleep if nothing is there.
    pub(crate) fn park(&self) {
        self.0.store(ASLEEP, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The owner does not sleep any more.
    pub(crate) fn unpark(&self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    /// The owner is about to take what is there, and never to come back.
    pub(crate) fn close(&self) {
        self.0.store(GONE, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Something was put.
    pub(crate) fn after_put(&self) -> Then {
        fence(Ordering::SeqCst);
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
