//! Completion channel: the descriptor that says that an armed CQ has something.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};
use std::{fmt, ptr};

use rdma_core_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::poll;

/// A descriptor for `poll(2)` and `epoll(7)` that becomes readable when an armed receiver or sender has a completion.
/// Programs do not read from it: [`arm`](crate::Completions::arm) consumes the events.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// use std::os::fd::AsRawFd;
///
/// use doorbell::Completions;
///
/// # let receiver = &mut world.receiver;
/// if !receiver.arm()? {
///     let channel = receiver.channel().expect("a receiver has one");
///     let mut poll = libc::pollfd { fd: channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
///     // SAFETY: one structure.
///     let readable = unsafe { libc::poll(&mut poll, 1, 10) };
///     assert_eq!(readable, 0, "no message was sent");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CompletionChannel {
    channel: *mut sys::ibv_comp_channel,
    context: Context,
    destroys: bool,
}

// SAFETY: verbs calls on a channel are thread-safe (ibverbs(7)).
unsafe impl Send for CompletionChannel {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    pub(crate) fn create(context: &Context) -> Result<Self> {
        // SAFETY: an open context.
        let channel = unsafe { sys::ibv_create_comp_channel(context.as_raw()) };
        if channel.is_null() {
            return Err(Error::last_os("ibv_create_comp_channel", context.name()));
        }
        Ok(Self { channel, context: context.clone(), destroys: true })
    }

    /// The channel that the caller made `cq` with and will destroy, if there is one.
    ///
    /// # Safety
    /// `cq` is alive, and its channel lives for as long as the value.
    pub(crate) unsafe fn of_cq(context: &Context, cq: *mut sys::ibv_cq) -> Option<Self> {
        // SAFETY: the caller's `cq` is alive.
        let channel = unsafe { (*cq).channel };
        (!channel.is_null()).then(|| Self { channel, context: context.clone(), destroys: false })
    }

    /// The device of the channel.
    #[cfg(feature = "tokio")]
    pub(crate) const fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) const fn as_raw(&self) -> *mut sys::ibv_comp_channel {
        self.channel
    }

    /// Takes all events that have arrived, and calls `each` with the CQ of each. Does not block.
    pub(crate) fn take_events(&self, mut each: impl FnMut(*mut sys::ibv_cq)) -> Result<()> {
        while self.is_readable(Some(Duration::ZERO))? {
            let (mut cq, mut user) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: a live channel and writable pointers; it does not block, for it is readable, and the
            // owner of its CQs is its only reader.
            if unsafe { sys::ibv_get_cq_event(self.channel, &mut cq, &mut user) } != 0 {
                return Err(Error::last_os("ibv_get_cq_event", self.context.name()));
            }
            // SAFETY: an event of this CQ was taken, and is acknowledged once.
            unsafe { sys::ibv_ack_cq_events(cq, 1) };
            each(cq);
        }
        Ok(())
    }

    /// Waits until there is an event; `false` when the time is over.
    pub(crate) fn is_readable(&self, timeout: Option<Duration>) -> Result<bool> {
        self.or_is_readable(None, timeout)
    }

    /// Waits until there is an event, or `other` is readable; `false` when the time is over.
    pub(crate) fn or_is_readable(&self, other: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<bool> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        poll::either_is_readable(self.as_fd(), other, deadline)
            .map_err(|source| Error::verbs("poll", self.context.name(), source))
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive, and its descriptor open with it.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        if !self.destroys || !self.context.owner().is_this_process() {
            return;
        }
        // SAFETY: created by us, destroyed once, and the CQ that uses it owned it.
        let errno = unsafe { sys::ibv_destroy_comp_channel(self.channel) };
        self.context.destroyed("ibv_destroy_comp_channel", errno);
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionChannel").field(&self.as_raw_fd()).finish()
    }
}
