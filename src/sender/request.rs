//! What a send queue remembers of a request.

use std::collections::VecDeque;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::memory::{Buffer, Pool};

/// What a send queue remembers of a request: its token and its first buffer. The others are in [`Gathered`].
#[derive(Clone, Copy)]
pub struct WorkRequest {
    token: u64,
    /// `[request-owns]`: the reference to its pool of a buffer that was taken apart, which is the request's; null without
    /// a buffer.
    pool: *const Pool,
    start: NonNull<u8>,
    len: u32,
    /// Buffers after the first.
    more: u32,
}

// SAFETY: a buffer, which may be sent, and numbers.
unsafe impl Send for WorkRequest {}

impl WorkRequest {
    /// A request without a buffer.
    #[inline(always)]
    pub(super) const fn inline(token: u64) -> Self {
        Self { token, pool: std::ptr::null(), start: NonNull::dangling(), len: 0, more: 0 }
    }

    /// Describes a request whose first buffer is `buffer`. It owns nothing before [`own`].
    #[inline(always)]
    pub(super) fn of(token: u64, buffer: &Buffer, more: u32) -> Self {
        let (pool, start, len) = (Arc::as_ptr(buffer.pool()), buffer.addr(), buffer.len() as u32);
        Self { token, pool, start, len, more }
    }

    /// The program's number for it.
    #[inline(always)]
    pub(super) const fn token(&self) -> u64 {
        self.token
    }

    /// Returns how many buffers it has after the first.
    #[inline(always)]
    pub(super) const fn more(&self) -> u32 {
        self.more
    }

    /// Returns the first buffer.
    ///
    /// # Safety
    /// The request was posted and is over, and nobody else takes its buffer.
    #[inline(always)]
    pub(super) unsafe fn into_buffer(self) -> Option<Buffer> {
        if self.pool.is_null() {
            return None;
        }
        // SAFETY: [request-owns], by the contract.
        Some(unsafe { Buffer::new(Arc::from_raw(self.pool), self.start, self.len) })
    }
}

/// Gives a buffer to the request that describes it.
#[inline(always)]
pub(super) fn own(buffer: Buffer) {
    mem::forget(buffer);
}

/// The buffers after the first of all requests of a queue, in the order of posting, which is that of completion.
#[derive(Default)]
pub struct Gathered {
    buffers: VecDeque<Buffer>,
    /// Buffers at the front that the completion which was returned last has.
    unclaimed: u32,
}

impl Gathered {
    /// Adds a buffer of the request that is posted.
    #[inline]
    pub(super) fn push(&mut self, buffer: Buffer) {
        self.buffers.push_back(buffer);
    }

    /// A request of `more` buffers after the first is over. What the one before did not take goes back to its pools.
    #[inline(always)]
    pub(super) fn claim(&mut self, more: u32) {
        if self.unclaimed > 0 {
            self.drop_unclaimed();
        }
        self.unclaimed = more;
    }

    /// Takes a buffer of the request that is over.
    pub(super) fn take(&mut self) -> Option<Buffer> {
        self.unclaimed = self.unclaimed.checked_sub(1)?;
        self.buffers.pop_front()
    }

    /// Takes all buffers, of whatever request.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Buffer> {
        self.unclaimed = 0;
        self.buffers.drain(..)
    }

    #[cold]
    pub(super) fn drop_unclaimed(&mut self) {
        while self.take().is_some() {}
    }
}
