//! A message that is lent.

use std::ptr::{NonNull, with_exposed_provenance_mut};

use super::slot_context::SlotContext;

/// A message as its batch lends it. `[lent]`: while a message shows it, nothing is posted, lent or rung: the message
/// borrows the receiver.
#[derive(Clone, Copy)]
pub(super) struct Lent {
    /// Where its receive was posted: index of the queue and slot.
    pub(super) queue: u32,
    pub(super) slot: u32,
    pub(super) context: SlotContext,
    /// The first buffer, and how many bytes of the message are in it.
    pub(super) start: NonNull<u8>,
    pub(super) first: usize,
    /// Bytes of the message, fewer than 2^32.
    pub(super) len: usize,
}

impl Lent {
    /// Returns a message of `len` bytes that is in the only buffer of its receive, which has room for it.
    ///
    /// # Safety
    /// The receive has one buffer.
    #[inline(always)]
    pub(super) unsafe fn in_one_buffer(queue: u32, slot: u32, context: SlotContext, len: u32) -> Self {
        // SAFETY: the caller's receive has one buffer.
        let start = unsafe { context.start() };
        Self { queue, slot, context, start, first: len as usize, len: len as usize }
    }

    /// Returns a message of `len` bytes in the buffers of its receive; `None` if these are the caller's.
    ///
    /// # Safety
    /// The slot, which is held, has this context.
    pub(super) unsafe fn of(queue: u32, slot: u32, context: SlotContext, len: u32) -> Option<Self> {
        // SAFETY: [slot-owns], for the slot is held.
        if unsafe { context.holds(len) } {
            // SAFETY: as above.
            return Some(unsafe { Self::in_one_buffer(queue, slot, context, len) });
        }
        // SAFETY: as above.
        let mut sges = unsafe { context.sges() };
        let first = sges.next()?;
        let start = NonNull::new(with_exposed_provenance_mut(first.addr as usize))?;
        // The length that the device reports is not trusted.
        let capacity = sges.fold(first.length as usize, |sum, sge| sum + sge.length as usize);
        let len = capacity.min(len as usize);
        Some(Self { queue, slot, context, start, first: len.min(first.length as usize), len })
    }
}
