//! Waiting for descriptors.

use std::io;
#[cfg(feature = "tokio")]
use std::os::fd::{AsFd, OwnedFd};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

#[cfg(feature = "tokio")]
use tokio::io::{Interest, unix::AsyncFd};

/// Waits until there is something to read, at most until `deadline`. Returns `true` if there is. A signal handler
/// that runs does not end the wait.
pub(crate) fn is_readable(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> io::Result<bool> {
    either_is_readable(fd, None, deadline)
}

/// The same, for two descriptors.
pub(crate) fn either_is_readable(
    fd: BorrowedFd<'_>,
    other: Option<BorrowedFd<'_>>,
    deadline: Option<Instant>,
) -> io::Result<bool> {
    // A negative descriptor is passed over.
    let other = other.map_or(-1, |other| other.as_raw_fd());
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Rounded up, so that the time is over when the call says so.
        let millis = left.map_or(-1, |left| left.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(i32::MAX));
        let mut polls = [fd.as_raw_fd(), other].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: that many structures.
        match unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, millis) } {
            0 if left == Some(Duration::ZERO) => return Ok(false),
            // The time exceeded the limit of the call, or is over now.
            0 => {}
            // An error or hang-up is for the reader to find.
            1.. => return Ok(true),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Returns a copy of a descriptor that wakes the current task of tokio when it becomes readable.
#[cfg(feature = "tokio")]
pub(crate) fn registered(fd: impl AsFd) -> io::Result<AsyncFd<OwnedFd>> {
    let copy = fd.as_fd().try_clone_to_owned()?;
    // SAFETY: the descriptor is owned, and open until the value is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(copy, Interest::READABLE) }?)
}
