//! A message that is lent.

use std::ptr::NonNull;

use super::slot_context::SlotContext;

/// A message as its batch lends it.
#[derive(Clone, Copy)]
pub(super) struct Lent {
    pub(super) context: SlotContext,
    /// The first buffer, and how many bytes of the message are in it.
    pub(super) start: NonNull<u8>,
    pub(super) first: usize,
    /// Bytes of the message, fewer than 2^32.
    pub(super) len: usize,
}

impl Lent {
    /// Returns a message of `len` bytes that is in the only buffer of its receive.
    #[inline(always)]
    pub(super) fn in_one_buffer(context: SlotContext, len: u32) -> Option<Self> {
        let bytes = len as usize;
        context.holds(len).then(|| Self {
            context,
            start: context.start(),
            first: bytes,
            len: bytes,
        })
    }
}

/// The slot of a message that is lent, or was when its batch was forgotten. It is held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct LentSlot {
    pub(super) queue: u32,
    pub(super) slot: u32,
}

impl LentSlot {
    /// No message is lent.
    pub(super) const NONE: Self = Self { queue: u32::MAX, slot: 0 };
}
