//! The state of a batch, apart from what its loop has in registers.

use core::ptr::NonNull;

use crate::ring::Expected;

/// Lives in the completion queue. Means nothing between batches.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Consumer index when the budget is used up.
    pub(super) until: u32,
    /// Consumer index up to which stretches may go: there the budget is used up, or the buffer ends.
    pub(super) reach: u32,
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
    /// How many were taken of those that the queue was not told of, if all others were recycled; else
    /// [`MIXED`](Self::MIXED).
    pub(super) taken: isize,
    /// State and data of the slot whose turn it is, when a cursor goes on behind code out of line.
    pub(super) states: NonNull<u8>,
    pub(super) data: NonNull<u8>,
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
    /// [`taken`](Self::taken) when that does not tell what has become of the messages so far.
    const MIXED: isize = isize::MIN / 2;

    pub(crate) const fn new() -> Self {
        Self {
            until: 0,
            reach: 0,
            stop: 0,
            limit: 0,
            settled: 0,
            failed: 0,
            stretch: Stretch { cqe: NonNull::dangling(), expected: 0, to_go: 0 },
            taken: 0,
            states: NonNull::dangling(),
            data: NonNull::dangling(),
            noted: Noted::Nothing,
        }
    }

    /// Aims at the slots that are expected from consumer index `index` on, and returns `to_go` at the first.
    #[inline(always)]
    pub(super) const fn aim(&mut self, index: u32, expected: &Expected) -> isize {
        let (left, count) = (self.reach.wrapping_sub(index), expected.count);
        self.aim_at(index, expected.slot, if left < count { left } else { count })
    }

    /// Aims at `length` slots from `slot` on.
    #[inline(always)]
    pub(super) const fn aim_at(&mut self, index: u32, slot: u32, length: u32) -> isize {
        self.stop = index.wrapping_add(length);
        self.limit = slot + length;
        self.settled = -(length as isize);
        self.settled
    }

    /// Whether the budget is used up at the end of the stretch.
    #[inline(always)]
    pub(super) const fn is_last(&self) -> bool {
        self.stop == self.until
    }

    /// Puts down since which `to_go` all messages before `to_go` were recycled, and since which all were taken.
    #[inline(always)]
    pub(super) const fn put(&mut self, to_go: isize, recycled_from: isize, taken_from: isize) {
        self.taken = if recycled_from == self.settled {
            0
        } else if taken_from == self.settled {
            to_go - self.settled
        } else {
            Self::MIXED
        };
    }

    /// How many messages there are before `to_go` that the queue was not told of, whether all were recycled, and
    /// whether all were taken.
    #[inline(always)]
    pub(super) const fn unsettled(&self, to_go: isize) -> (u32, bool, bool) {
        let count = to_go - self.settled;
        (count as u32, self.taken == 0, self.taken == count)
    }

    /// The `to_go` since which all messages before `to_go` were recycled, and since which all were taken.
    #[inline(always)]
    pub(super) const fn get(&self, to_go: isize) -> (isize, isize) {
        let (_, recycled, taken) = self.unsettled(to_go);
        (if recycled { self.settled } else { to_go }, if taken { self.settled } else { to_go })
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
