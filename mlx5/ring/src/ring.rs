//! What receive queues and SRQs have in common, for [`Posting`](crate::post::Posting) and
//! [`Receiving`](crate::receive::Receiving).
//!
//! Words that all of these use:
//!
//! - *head*: the slot to post next. *Run*: free slots from the head on that follow each other by number. *Span*: the
//!   part of it that posting fills by counting alone.
//! - *turned*: a link of an SRQ that leads elsewhere than to the slot after it. *Loose*: a slot whose link may be turned
//!   although its state does not say so.
//! - *expected*: the slot that completes next if all goes in order. *Alone*: of a slot behind which the
//!   device did not go on to the slot after it, because the link was turned.
//! - *stretch*: expected slots of a batch that complete by counting alone; a batch *aims* at the first of them. *Block*:
//!   slots, aligned to their number, beyond whose end no stretch goes.
//! - *settle*: to tell the queue what has become of the slots that a batch has gone through. *Apart*: of slots that
//!   completed while others before them are still with the device.

use core::num::NonZero;
use core::ptr::NonNull;

use mlx5_wire::data::DataSegment;

use crate::slots::Slots;

/// What a slot that is posted next leaves behind; see [`Ring::step`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Step {
    /// Slot to write, or [`Step::FULL`].
    pub slot: u32,
    /// Slot to write after it.
    pub next: u32,
    /// Slot before which `next` is posted by counting alone.
    pub limit: u32,
}

impl Step {
    /// There is no slot to write.
    pub const FULL: u32 = u32::MAX;
}

/// The last word of a CQE as it stands in memory, but for `signature`.
pub const fn last_word(wqe_counter: u16, op_own: u8) -> u32 {
    let [upper, lower] = wqe_counter.to_be_bytes();
    u32::from_ne_bytes([upper, lower, 0, op_own])
}

/// The `wqe_counter` of a last word.
pub const fn wqe_counter(last_word: u32) -> u16 {
    let [upper, lower, ..] = last_word.to_ne_bytes();
    u16::from_be_bytes([upper, lower])
}

/// What is added to a last word for the next `wqe_counter`, as long as the lower byte does not overflow.
pub const NEXT: u64 = last_word(1, 0) as u64;

/// The next completion, if all goes in order.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Its slot.
    pub slot: u32,
    /// The last word of its CQE, with 0 for `op_own`; or [`Expected::NEVER`].
    pub word: u64,
    /// How many can be told by adding [`NEXT`]: they follow each other, and name the WQEs that were posted last
    /// into their slots. At least one.
    pub count: u32,
}

impl Expected {
    /// No CQE ends like this: a word has 32 bits.
    pub const NEVER: u64 = 1 << 32;

    /// No completion can be expected. Out of line, because a batch that starts with it is empty.
    #[cold]
    pub const fn none(slot: u32) -> Self {
        Self { slot, word: Self::NEVER, count: 1 }
    }
}

/// A queue of slots. Where a slot number is called *running*, the number of slots itself is also allowed
/// and means slot 0.
pub trait Ring {
    /// What the caller wants back with each completion.
    type Data: Copy;
    /// Bytes of a WQE before its data segments.
    const LEAD: usize;

    fn book(&self) -> &Slots<Self::Data>;
    fn book_mut(&mut self) -> &mut Slots<Self::Data>;
    fn max_sge(&self) -> NonZero<u32>;
    /// The WQE in a running slot.
    fn wqe(&self, slot: u32) -> NonNull<u8>;
    /// Bytes from one WQE to the next.
    fn stride(&self) -> usize;

    /// Data segments of a slot.
    #[inline(always)]
    fn segments(&self, slot: u32) -> NonNull<DataSegment> {
        // SAFETY: each WQE has room for `LEAD` bytes and at least one segment.
        unsafe { self.wqe(slot).add(Self::LEAD).cast() }
    }

    /// The slot to post next, and the running slot before which posting is counting alone.
    fn span(&self) -> (u32, u32);
    /// Takes note of the WQEs written into the slots of the span before running slot `upto`.
    fn commit(&mut self, upto: u32);
    /// As [`commit`](Self::commit), where counting alone ends; and decides where the next WQE goes, which
    /// the caller writes, and the one after it.
    fn step(&mut self, upto: u32) -> Step;
    /// [`step`](Self::step), if `upto` is the slot to post next, and the one after it stands alone; returns that one.
    #[inline(always)]
    fn hop(&mut self, upto: u32) -> Option<u32> {
        let _ = upto;
        None
    }
    /// WQEs posted since the queue exists.
    fn posted(&self) -> u32;
    /// What [`Posting::post`](crate::post::Posting::post) returns for a slot of the span.
    fn index(&self, slot: u32) -> u32;

    /// What is expected to complete next.
    fn expected(&self) -> Expected;
    /// Whether the first of them, whose CQE has arrived, completes alone: its link was turned, so from there the device
    /// did not go on to the slot after it.
    #[inline(always)]
    fn completes_alone(&mut self) -> bool {
        false
    }
    /// Makes WQE `wqe_counter`, which has completed, the expected one. `false` when no such WQE is posted.
    fn expect(&mut self, wqe_counter: u16) -> bool;
    /// Takes note of completions in order, of `count` slots from the expected one on, not beyond the last.
    /// Their states say what has become of each: posted still when it was given back with its buffer, `EMPTY`
    /// without, `HELD` when it was not given back. With `recycled` all are posted, with `taken` all are
    /// `EMPTY`.
    ///
    /// `false` when that is not counting alone: then nothing has changed, see
    /// [`settle_each`](Self::settle_each).
    fn settle(&mut self, count: u32, recycled: bool, taken: bool) -> bool;
    /// [`settle`](Self::settle) of those that completed before others.
    #[inline(always)]
    fn settle_apart(&mut self, count: u32, recycled: bool, taken: bool) -> bool {
        let _ = (count, recycled, taken);
        false
    }
    /// Of the slots of `count` completions that it was not told of, how many were posted again: behind a batch that was
    /// forgotten, the first of them may be, if they were given back.
    fn reused(&self, count: u32) -> u32 {
        let _ = count;
        0
    }
    /// [`settle`](Self::settle), slot by slot.
    fn settle_each(&mut self, count: u32);
    /// The slot of WQE `wqe_counter`, which has completed; `None` when no such WQE is posted.
    fn complete(&mut self, wqe_counter: u16) -> Option<u32>;
    /// # Safety
    /// The slot is held.
    unsafe fn release(&mut self, slot: u32);
    /// # Safety
    /// The slot is held, and its buffer is the device's again.
    unsafe fn recycle(&mut self, slot: u32);
    /// Marks a slot that has completed and is not given back.
    fn hold(&mut self, slot: u32);
    fn ring(&mut self);
}
