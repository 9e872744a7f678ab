//! Free slots of an SRQ that follow no other free one.

use core::ptr::NonNull;

use crate::bitmap::Bitmap;

/// Slots that [`recent`](Scattered::recent) has room for.
const RECENT: usize = 64;

/// A few that were freed last, in that order, and all others by number.
///
/// When completions come in no order, each batch frees slots and posts as many. They go in and out here by counting,
/// and nothing is searched. When more are freed before any is posted, all are put in order again.
#[derive(Debug)]
pub(crate) struct Scattered {
    recent: [u16; RECENT],
    /// Slots that were ever put into `recent`, and taken out of it.
    added: u32,
    taken: u32,
    /// How many may be in it now: `most`, or none while many are freed.
    room: u32,
    /// Few enough that a small queue puts slots in order, too.
    most: u32,
    sorted: Bitmap,
}

impl Scattered {
    /// None of `slots` slots.
    ///
    /// # Safety
    /// As [`Bitmap::new`].
    pub(crate) unsafe fn new(storage: NonNull<u64>, slots: u32) -> Self {
        // SAFETY: the caller's contract.
        let sorted = unsafe { Bitmap::new(storage, slots) };
        let most = (slots / 4).clamp(1, RECENT as u32);
        Self { recent: [0; RECENT], added: 0, taken: 0, room: most, most, sorted }
    }

    #[inline(always)]
    const fn recent(&self) -> u32 {
        self.added.wrapping_sub(self.taken)
    }

    pub(crate) const fn len(&self) -> u32 {
        self.recent() + self.sorted.len()
    }

    #[inline(always)]
    pub(crate) const fn is_empty(&self) -> bool {
        self.added == self.taken && self.sorted.is_empty()
    }

    /// Adds a slot that is not a member, unless slots are to be put in order first.
    #[inline(always)]
    pub(crate) const fn push(&mut self, slot: u32) -> bool {
        if self.recent() >= self.room {
            return false;
        }
        self.recent[self.added as usize % RECENT] = slot as u16;
        self.added = self.added.wrapping_add(1);
        true
    }

    /// Adds a slot among those that are in order, and returns one that is to follow it there.
    ///
    /// # Safety
    /// `slot` is below the number of slots and not a member.
    pub(crate) unsafe fn sort(&mut self, slot: u32) -> Option<u32> {
        self.room = 0;
        // SAFETY: the caller's contract.
        unsafe { self.sorted.insert(slot) }
        self.pop()
    }

    /// Takes out the slot that was freed first of those that are not in order.
    #[inline(always)]
    pub(crate) const fn pop(&mut self) -> Option<u32> {
        if self.added == self.taken {
            return None;
        }
        let slot = self.recent[self.taken as usize % RECENT];
        self.taken = self.taken.wrapping_add(1);
        Some(slot as u32)
    }

    /// Takes out the first slot of a run, how many are in it, and whether they are of those that are in order: then
    /// `preferred`, if it is one of them.
    ///
    /// # Safety
    /// `preferred` is below the number of slots, and there is a member.
    #[inline(always)]
    pub(crate) unsafe fn take(&mut self, preferred: u32) -> (u32, u32, bool) {
        if let Some(slot) = self.pop() {
            return (slot, 1, false);
        }
        self.room = self.most;
        // SAFETY: the caller's contract: the members are in order.
        unsafe {
            let run = self.sorted.take_run(preferred);
            if run > 0 {
                return (preferred, run, true);
            }
            let start = self.sorted.next(preferred);
            (start, self.sorted.take_run(start), true)
        }
    }
}

#[cfg(test)]
impl Scattered {
    /// Those that are not in order.
    fn recent_slots(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.recent()).map(|i| self.recent[self.taken.wrapping_add(i) as usize % RECENT])
    }

    pub(crate) fn is_recent(&self, slot: u32) -> bool {
        self.recent_slots().any(|recent| u32::from(recent) == slot)
    }

    /// Those that are in order.
    pub(crate) const fn sorted(&mut self) -> &mut Bitmap {
        &mut self.sorted
    }

    /// Of at most 8 slots: whether all that are freed are put in order, and those that are not, after a 1.
    pub(crate) fn fields(&self) -> (bool, u8) {
        (self.room == 0, self.recent_slots().fold(1, |bits, slot| bits << 3 | slot as u8))
    }

    /// Takes over [`fields`](Self::fields). The counters are about to wrap.
    pub(crate) fn restore(&mut self, closed: bool, recent: u8) {
        self.room = if closed { 0 } else { self.most };
        (self.added, self.taken) = (u32::MAX, u32::MAX);
        let count = (7 - recent.leading_zeros()) / 3;
        for i in (0..count).rev() {
            assert!(self.push(u32::from(recent >> (3 * i) & 7)), "no room");
        }
    }
}
