//! A message that is lent.

use std::ptr::NonNull;

use super::slot_context::SlotContext;

/// A message as its batch lends it.
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
    #[inline(always)]
    pub(super) fn in_one_buffer(queue: u32, slot: u32, context: SlotContext, len: u32) -> Self {
        debug_assert!(context.holds(len));
        let len = len as usize;
        Self { queue, slot, context, start: context.start(), first: len, len }
    }
}

/// The slot of the message that was lent last, until it is given back.
#[derive(Clone, Copy)]
pub(crate) struct LentSlot(u32);

impl LentSlot {
    /// No slot has this number.
    pub(crate) const NONE: Self = Self(u32::MAX);

    #[inline(always)]
    pub(crate) const fn new(slot: u32) -> Self {
        Self(slot)
    }

    /// Puts another slot in its place, and returns the slot that was there.
    #[inline(always)]
    pub(crate) const fn replace(&mut self, slot: Self) -> Option<u32> {
        let Self(before) = std::mem::replace(self, slot);
        if before == Self::NONE.0 { None } else { Some(before) }
    }
}
