//! Buffers that other threads give back.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::{fmt, io};

use super::handover::Handover;
use super::wake_state::WakeState;
use crate::memory::{Buffer, Host, Memory};
use crate::pd::ProtectionDomain;
use crate::post_failure::PostFailure;
use crate::refused::Refused;

/// Gives buffers to a queue from any thread. Clones share one handle.
///
/// The [`Receiver`](crate::Receiver) posts them at its next batch. If the queue is full or the receiver was dropped,
/// they return to their pools; if only the queue was destroyed, they do so at the next batch.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # world.send(b"hello");
/// # let (receiver, srq) = (&mut world.receiver, world.srq);
/// let poster = receiver.shared_poster(srq)?;
/// let (sender, messages) = std::sync::mpsc::channel::<doorbell::Buffer>();
/// std::thread::spawn(move || {
///     for message in messages {
///         println!("{} bytes", message.len());
///         poster.post(message).expect("a buffer of the receiver's domain");
///     }
/// });
/// let mut batch = receiver.poll();
/// while let Some(message) = batch.next() {
///     sender.send(message?.take()?)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedPoster<M: Memory = Host>(Arc<Returned>, PhantomData<M>);

impl<M: Memory> Clone for SharedPoster<M> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl<M: Memory> SharedPoster<M> {
    pub(super) fn new(returned: Arc<Returned>) -> Self {
        Self(returned, PhantomData)
    }

    /// Gives a buffer to the queue. Takes no lock, and makes a system call only if the receiver sleeps.
    ///
    /// # Errors
    /// [`PostFailure::WrongDomain`] for a buffer of another protection domain.
    pub fn post(&self, buffer: Buffer<M>) -> Result<(), Refused<Buffer<M>, PostFailure>> {
        if !buffer.pool().pd().is_same(&self.0.pd) {
            return Err(Refused { payload: buffer, reason: PostFailure::WrongDomain });
        }
        let Returned { buffers, wake, .. } = &*self.0;
        if buffers.give(&wake.wake_state, buffer.cast()) {
            wake.signal();
        }
        Ok(())
    }
}

impl<M: Memory> fmt::Debug for SharedPoster<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPoster").field("waiting", &self.0.buffers.len()).finish()
    }
}

/// Buffers that wait to be posted.
pub(super) struct Returned {
    pub(super) buffers: Handover<Buffer>,
    pd: ProtectionDomain,
    wake: Arc<Wake>,
}

impl Returned {
    pub(super) fn new(capacity: usize, pd: ProtectionDomain, wake: Arc<Wake>) -> Self {
        Self { buffers: Handover::new(capacity), pd, wake }
    }
}

/// How the owner of a receiver is woken.
pub(super) struct Wake {
    pub(super) wake_state: WakeState,
    event: OwnedFd,
}

impl Wake {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: plain call.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and no other code has it.
        Ok(Self { wake_state: WakeState::new(), event: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Takes what was signalled before; from now on a buffer given back signals.
    pub(super) fn park(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight bytes of ours. Nothing to read is no error here.
        unsafe { libc::read(self.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        self.wake_state.park();
    }

    fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes. It fails only when the counter is full, and then it is readable.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
