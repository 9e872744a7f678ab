//! Whether the owner of a queue sleeps, so that who gives it something wakes it, and only then.

use super::sync::{AtomicBool, Ordering, fence};

/// Between one owner, who looks whether something is there and then sleeps, and many who put something
/// there and then ask whether to wake.
///
/// Each side writes, passes a sequentially consistent fence, and reads what the other writes. One of the two
/// fences comes first in their common order; who is behind it sees the other's write. So either the owner
/// sees what was put and does not sleep, or who put it sees the owner asleep.
pub(crate) struct Sleeper(AtomicBool);

impl Sleeper {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The owner is about to look, and to sleep if nothing is there.
    pub(crate) fn doze(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The owner does not sleep any more.
    pub(crate) fn rise(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Something was put: whether this thread has to wake the owner. Of several that come at once one has
    /// to.
    pub(crate) fn must_be_woken(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}
