//! The state of a batch, apart from what its loop has in registers.

use core::ptr::NonNull;

/// Lives in the completion queue. Means nothing between batches.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Consumer index when the budget is used up.
    pub(super) until: u32,
    /// Consumer index at the end of the stretch.
    pub(super) stop: u32,
    /// The running slot after the last one of the stretch.
    pub(super) limit: u32,
    /// `to_go` when the queue was told last.
    pub(super) settled: isize,
    /// Slot of a WQE that failed.
    pub(super) failed: u32,
    /// Where out-of-line code finds and leaves the registers of the loop.
    pub(super) stretch: Stretch,
    pub(super) recycled_from: isize,
    pub(super) taken_from: isize,
    /// How many a cursor took of those that the queue was not told of, or [`NEVER`](Self::NEVER).
    pub(super) taken: isize,
    /// How far the batch has come, for the case that it is forgotten.
    pub(super) noted: Noted,
}

/// What [`Receiving::note`](super::Receiving::note) and cursors say beside `to_go`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Noted {
    /// There is no batch, or it has noted nothing.
    Nothing,
    /// The messages before `to_go` are accounted for.
    GivenBack,
    /// But the last one of them may be lent, if it was not taken.
    Lent,
}

/// Slots that follow each other and are expected to complete one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// The first CQE.
    pub(super) cqe: NonNull<u8>,
    /// Its last word, in the common case.
    pub(super) expected: u64,
    /// How many they are, as a negative number.
    pub(super) to_go: isize,
}

impl Batch {
    /// [`taken`](Self::taken) when not all messages before the cursor were.
    const NEVER: isize = isize::MIN / 2;

    pub(crate) const fn new() -> Self {
        Self {
            until: 0,
            stop: 0,
            limit: 0,
            settled: 0,
            failed: 0,
            stretch: Stretch { cqe: NonNull::dangling(), expected: 0, to_go: 0 },
            recycled_from: 0,
            taken_from: 0,
            taken: 0,
            noted: Noted::Nothing,
        }
    }

    /// Whether the budget is used up at the end of the stretch.
    #[inline(always)]
    pub(super) const fn is_last(&self) -> bool {
        self.stop == self.until
    }

    /// A cursor goes on from `to_go`.
    #[inline(always)]
    pub(super) const fn leave(&mut self, to_go: isize, recycled_from: isize, taken_from: isize) {
        self.noted = Noted::Lent;
        self.stretch.to_go = to_go;
        self.recycled_from = recycled_from;
        self.taken = if taken_from == self.settled { to_go - self.settled } else { Self::NEVER };
    }

    /// A cursor has come to `to_go`: the `to_go` since which all messages were recycled, and since which all
    /// were taken.
    #[inline(always)]
    pub(super) const fn come_back(&self, to_go: isize) -> (isize, isize) {
        let all = self.settled + self.taken == to_go;
        (self.recycled_from, if all { self.settled } else { to_go })
    }

    /// The running slot at `to_go`.
    #[inline(always)]
    pub(super) const fn slot(&self, to_go: isize) -> u32 {
        self.limit.wrapping_add(to_go as u32)
    }

    /// The consumer index at `to_go`.
    #[inline(always)]
    pub(super) const fn index(&self, to_go: isize) -> u32 {
        self.stop.wrapping_add(to_go as u32)
    }
}
