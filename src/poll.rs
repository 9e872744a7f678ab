//! Waiting for descriptors.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

#[cfg(feature = "tokio")]
pub(crate) use self::readiness::Readiness;

/// Waits until there is something to read, at most until `deadline`. Returns `true` if there is. A signal handler
/// that runs does not end the wait.
pub(crate) fn is_readable(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> io::Result<bool> {
    either_is_readable(fd, None, deadline)
}

/// Waits until there is something to read from `fd` or from `other`, as [`is_readable`] does for one descriptor.
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

/// # Safety
/// `fd` is what a call that opens a descriptor returned.
pub(crate) unsafe fn opened(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller's descriptor was opened just now, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns a descriptor that is readable while one of `fds` is readable or has failed.
pub(crate) fn epoll(fds: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    // SAFETY: a plain call, and what it returned.
    let epoll = unsafe { opened(libc::epoll_create1(libc::EPOLL_CLOEXEC))? };
    fds.iter().try_for_each(|fd| add(&epoll, *fd))?;
    Ok(epoll)
}

fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: two open descriptors and an initialised structure.
    match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(feature = "tokio")]
mod readiness {
    use std::io;
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::task::{Context, Poll, ready};

    use tokio::io::{Interest, unix::AsyncFd};
    use tokio::runtime::{Handle, Id};

    /// Descriptors that wake the current task of tokio.
    #[derive(Debug)]
    pub(crate) struct Readiness {
        /// An epoll descriptor: tokio does not wake a task that waits to read when the descriptor has failed, as event
        /// files of a removed device have.
        epoll: AsyncFd<OwnedFd>,
        /// The runtime that wakes.
        runtime: Id,
    }

    impl Readiness {
        /// Registers an epoll descriptor with the runtime of the task that calls.
        pub(crate) fn new(epoll: OwnedFd) -> io::Result<Self> {
            Ok(Self { epoll: registered(epoll)?, runtime: Handle::current().id() })
        }

        /// Wakes for another descriptor, too.
        pub(crate) fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
            super::add(self.epoll.get_ref(), fd)
        }

        /// Returns ready when a descriptor is, and clears the readiness: from then on the next event counts.
        pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            // The first runtime may have ended, or not run. Tasks outside of a runtime are woken by the last.
            let runtime = Handle::try_current().map_or(self.runtime, |handle| handle.id());
            if runtime != self.runtime {
                self.epoll = registered(self.epoll.get_ref().try_clone()?)?;
                self.runtime = runtime;
            }
            ready!(self.epoll.poll_read_ready(cx))?.clear_ready();
            Poll::Ready(Ok(()))
        }
    }

    fn registered(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
        // SAFETY: the descriptor is owned, and open until the value is dropped.
        Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
    }
}
