//! The record of a request in a send queue.

use std::collections::VecDeque;
use std::mem;
use std::ptr::NonNull;

use crate::memory::{Buffer, Opaque, Pool};

/// The token and the first buffer of a posted request, kept in the send queue.
///
/// ```
/// use doorbell::raw::WorkRequest;
///
/// // A request that is posted through the ring itself says what it is by its `wr_id`.
/// assert_eq!(WorkRequest::from_wr_id(7).wr_id(), 7);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest {
    token: u64,
    /// `[request-owns]`: the reference that the first buffer had to its pool, and that the request owns now; null
    /// without a buffer.
    pool: Option<NonNull<Pool>>,
    start: NonNull<u8>,
    len: u32,
    /// Buffers after the first, and [`UNSIGNALED`], [`WINDOW`] and [`INTERNAL`].
    more: u32,
}

/// Bit of [`WorkRequest::more`]: no completion is returned if the request succeeds.
const UNSIGNALED: u32 = 1 << 31;
/// Bit of [`WorkRequest::more`]: the request binds a memory window or revokes its key.
const WINDOW: u32 = 1 << 29;
/// Bit of [`WorkRequest::more`]: the library has posted the request, and nothing is returned.
const INTERNAL: u32 = 1 << 30;

// SAFETY: a buffer, which may be sent, and numbers.
unsafe impl Send for WorkRequest {}

impl WorkRequest {
    /// Creates a request without a buffer of a pool. It sends copied bytes, or memory of the caller.
    #[inline(always)]
    pub const fn from_wr_id(wr_id: u64) -> Self {
        Self { token: wr_id, pool: None, start: NonNull::dangling(), len: 0, more: 0 }
    }

    /// Describes a request whose first buffer is `buffer`, of which `len` bytes are in use when it comes back. It owns
    /// nothing before [`own`].
    #[inline(always)]
    pub(super) fn of(token: u64, buffer: &Buffer, len: u32, more: u32) -> Self {
        Self { token, pool: Some(buffer.raw_pool()), start: buffer.addr(), len, more }
    }

    /// Describes a request whose `count` buffers are all in [`Gathered`].
    #[inline(always)]
    pub(super) const fn gathered(token: u64, count: u32) -> Self {
        Self { more: count, ..Self::from_wr_id(token) }
    }

    /// Describes the bind of a memory window, or the revocation of its key.
    pub(super) const fn window(token: u64) -> Self {
        Self { more: WINDOW, ..Self::from_wr_id(token) }
    }

    /// Returns the number of the program: the token of the completion.
    #[inline(always)]
    pub const fn wr_id(&self) -> u64 {
        self.token
    }

    /// A request that the library posts for itself: the last one of a queue pair in ERROR, the NOP behind a bind.
    pub(super) const INTERNAL: Self = Self { more: UNSIGNALED | INTERNAL, ..Self::from_wr_id(0) };

    /// Returns this request as one of which no completion is returned if it succeeds.
    #[inline(always)]
    pub(super) const fn unsignaled(self) -> Self {
        Self { more: self.more | UNSIGNALED, ..self }
    }

    /// Returns `true` if no completion is returned if the request succeeds.
    #[inline(always)]
    pub(super) const fn is_unsignaled(&self) -> bool {
        self.more & UNSIGNALED != 0
    }

    /// Returns `true` if the request is unsignaled and has no buffers.
    #[inline(always)]
    pub(super) const fn is_unsignaled_copy(&self) -> bool {
        self.is_unsignaled() && self.pool.is_none() && self.more() == 0
    }

    /// Returns `true` if it is not unsignaled and has at most one buffer.
    #[inline(always)]
    pub(super) const fn is_plain(&self) -> bool {
        self.more == 0
    }

    /// Returns `true` if it is [`INTERNAL`](Self::INTERNAL).
    pub(super) const fn is_internal(&self) -> bool {
        self.more & INTERNAL != 0
    }

    /// Returns how many buffers it has after the first; more than any request has, for one of a
    /// [window](Self::window).
    #[inline(always)]
    pub(super) const fn more(&self) -> u32 {
        self.more & !(UNSIGNALED | INTERNAL)
    }

    /// Returns `true` if a request that has so many buffers is one of a [window](Self::window).
    pub(super) const fn is_of_window(more: u32) -> bool {
        more & WINDOW != 0
    }

    /// Returns the first buffer.
    ///
    /// # Safety
    /// The request was posted and is over, and no other code takes its buffer.
    #[inline(always)]
    pub(super) unsafe fn into_buffer(self) -> Option<Buffer> {
        // SAFETY: [request-owns]: the caller's request is over, and no other code takes its buffer.
        self.pool.map(|pool| unsafe { Buffer::from_raw_parts(pool, self.start, self.len) })
    }
}

/// Gives a buffer to the request that describes it.
#[inline(always)]
pub(super) fn own(buffer: Buffer) {
    mem::forget(buffer);
}

/// The buffers after the first of all requests of a queue, in the order of posting and completion, and all buffers of
/// requests with opaque buffers.
#[derive(Default)]
pub struct Gathered {
    buffers: VecDeque<Buffer>,
    /// Buffers at the front that belong to the completion that was returned last.
    unclaimed: u32,
}

impl Gathered {
    /// Adds a buffer of the request that is posted.
    #[inline]
    pub(super) fn push(&mut self, buffer: Buffer) {
        self.buffers.push_back(buffer);
    }

    /// Adds buffers of the request that is posted.
    #[inline]
    pub(super) fn extend(&mut self, buffers: impl Iterator<Item = Buffer>) {
        self.buffers.extend(buffers);
    }

    /// Returns the buffers after the first, `more` of them, of a request that is over.
    #[inline(always)]
    pub(super) fn rest(&mut self, more: u32) -> Rest<'_> {
        self.drop_unclaimed();
        self.unclaimed = more;
        Rest(Some(self))
    }

    /// Takes a buffer of the request that is over, if it is opaque or not as asked.
    fn take_if(&mut self, is_opaque: bool) -> Option<Buffer> {
        if self.buffers.front()?.is_opaque() == is_opaque { self.take() } else { None }
    }

    /// Takes a buffer of the request that is over.
    fn take(&mut self) -> Option<Buffer> {
        self.unclaimed = self.unclaimed.checked_sub(1)?;
        self.buffers.pop_front()
    }

    /// Takes all buffers, of whatever request.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Buffer> {
        self.unclaimed = 0;
        self.buffers.drain(..)
    }

    /// Returns `true` if the completion that was returned last has no buffers left.
    #[inline(always)]
    pub(super) const fn are_claimed(&self) -> bool {
        self.unclaimed == 0
    }

    /// Drops the buffers of the completion that was returned last.
    pub(super) fn drop_unclaimed(&mut self) {
        while self.take().is_some() {}
    }
}

/// The buffers of a request after the first; [`Gathered`] drops those that are not taken.
#[derive(Default)]
pub(super) struct Rest<'a>(Option<&'a mut Gathered>);

impl Rest<'_> {
    /// Takes the next buffer, if the request has buffers that are not opaque.
    pub(super) fn take(&mut self) -> Option<Buffer> {
        self.0.as_mut()?.take_if(false)
    }

    /// Moves the buffers that are left to the end of `to`, unless they are opaque.
    pub(super) fn take_all(&mut self, to: &mut Vec<Buffer>) {
        let Some(Gathered { buffers, unclaimed }) = &mut self.0 else { return };
        if buffers.front().is_some_and(|buffer| !buffer.is_opaque()) {
            to.extend(buffers.drain(..mem::take(unclaimed) as usize));
        }
    }

    /// Takes the next buffer, if the request has opaque ones.
    pub(super) fn take_opaque(&mut self) -> Option<Buffer<Opaque>> {
        self.0.as_mut()?.take_if(true).map(Buffer::cast)
    }
}

impl std::fmt::Debug for Rest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("..")
    }
}
