//! Completion queue, the control object.

use std::ptr;

use rdma_core_sys as sys;

use crate::channel::CompletionChannel;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::owner::warn_leak;

/// A completion queue of libibverbs. What polls it is elsewhere: the ring on the direct path,
/// `ibv_poll_cq` on the verbs path.
pub(crate) struct Cq {
    cq: *mut sys::ibv_cq,
    context: Context,
    // Dropped after the CQ is destroyed.
    channel: Option<CompletionChannel>,
    destroys: bool,
}

// SAFETY: the handle is shared for creating and destroying queues only; one owner polls.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// A CQ of at least `entries` entries, whose events go to `channel`.
    pub(crate) fn create(
        context: &Context,
        entries: u32,
        channel: Option<CompletionChannel>,
    ) -> Result<Self> {
        let max = context.attr().max_cqe;
        Error::check_range("cq_capacity", entries.into(), 1, max.max(0) as u64)?;
        // SAFETY: an open context, a channel of it or none; no user pointer.
        let cq = unsafe {
            sys::ibv_create_cq(
                context.as_raw(),
                entries as i32,
                ptr::null_mut(),
                channel.as_ref().map_or(ptr::null_mut(), CompletionChannel::as_raw),
                0,
            )
        };
        if cq.is_null() {
            return Err(Error::last_os("ibv_create_cq", context.name()));
        }
        Ok(Self { cq, context: context.clone(), channel, destroys: true })
    }

    /// A CQ that the caller made and will destroy.
    ///
    /// # Safety
    /// `cq` belongs to `context` and lives for as long as the value, and so does its channel.
    pub(crate) unsafe fn from_raw(context: &Context, cq: *mut sys::ibv_cq) -> Self {
        // SAFETY: forwarded.
        let channel = unsafe { CompletionChannel::of_cq(context, cq) };
        Self { cq, context: context.clone(), channel, destroys: false }
    }

    pub(crate) const fn as_raw(&self) -> *mut sys::ibv_cq {
        self.cq
    }

    pub(crate) const fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) const fn channel(&self) -> Option<&CompletionChannel> {
        self.channel.as_ref()
    }

    /// Entries the CQ holds.
    pub(crate) fn capacity(&self) -> u32 {
        // SAFETY: the CQ is alive.
        unsafe { (*self.cq).cqe }.max(0) as u32
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if !self.destroys || !self.context.owner().is_this_process() {
            return;
        }
        // SAFETY: created by us, destroyed once, and every queue that completes on it held this value.
        let errno = unsafe { sys::ibv_destroy_cq(self.cq) };
        if errno != 0 {
            warn_leak("ibv_destroy_cq", errno);
        }
    }
}
