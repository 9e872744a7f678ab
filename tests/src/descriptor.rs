//! Descriptors that say when there is something to do.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Whether there is something to read, within this time.
pub fn is_readable(what: impl AsFd, timeout: Duration) -> bool {
    let fd = what.as_fd().as_raw_fd();
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure.
    unsafe { libc::poll(&mut poll, 1, timeout.as_millis() as i32) == 1 }
}
