//! The state and the caller's value of each slot of a receive queue.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// The owner of the WQE and the buffer of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum SlotState {
    /// No owner: the slot has no buffer.
    Free,
    /// The device.
    Posted,
    /// The code that completed the receive, until it gives the slot back.
    Held,
    /// Software: the WQE describes a buffer that waits to be posted.
    Loaded,
}

/// One slot: 24 bytes for data of 16 bytes, and 16 for data of 8.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Slot<T: Copy> {
    /// The caller's value; initialised unless the state is [`SlotState::Free`].
    data: MaybeUninit<T>,
    /// Aligns the two fields that follow, which are one [word](word).
    _word: [u32; 0],
    /// SRQ: the slot that the link of the WQE names. Receive queue: the `wqe_counter` with which the WQE completes, if
    /// it is posted.
    pub(crate) index: u16,
    pub(crate) state: SlotState,
    /// Ordered queue: is not 0 in slot `n` if one of the [`GROUP`] slots from `GROUP * n` on may be free.
    has_free: u32,
}

impl<T: Copy> Slot<T> {
    /// A slot without a buffer.
    pub const FREE: Self =
        Self { data: MaybeUninit::uninit(), _word: [], index: 0, state: SlotState::Free, has_free: 0 };

    /// Stores the caller's value with a state.
    #[inline(always)]
    pub(crate) const fn set(&mut self, data: T, state: SlotState) {
        self.data = MaybeUninit::new(data);
        self.state = state;
    }

    /// Stores another value of the caller's.
    #[inline(always)]
    pub(crate) const fn set_data(&mut self, data: T) {
        self.data = MaybeUninit::new(data);
    }

    /// Returns index and state as one word.
    #[inline(always)]
    const fn word(&self) -> u32 {
        // SAFETY: the two fields are adjacent, and `_word` aligns them.
        unsafe { (&raw const *self).byte_add(core::mem::offset_of!(Self, index)).cast::<u32>().read() }
    }

    /// Returns `true` if the slot is posted and has this index.
    #[inline(always)]
    pub(crate) const fn is_posted_as(&self, index: u16) -> bool {
        // One comparison.
        self.word() == word(index, SlotState::Posted)
    }

    /// Posts the slot, whose WQE completes with `index`.
    #[inline(always)]
    pub(crate) const fn post(&mut self, index: u16) {
        // One store.
        // SAFETY: the two fields are adjacent, and `_word` aligns them.
        unsafe {
            let word_of_two = (&raw mut *self).byte_add(core::mem::offset_of!(Self, index)).cast::<u32>();
            word_of_two.write(word(index, SlotState::Posted));
        }
    }
}

/// Index and state as one word of memory.
#[inline(always)]
const fn word(index: u16, state: SlotState) -> u32 {
    const { assert!(cfg!(target_endian = "little")) }
    index as u32 | (state as u32) << 16
}

/// Slots among which a free one is looked for at once.
const GROUP: u32 = 32;

/// All slots of a queue, in memory of the caller's.
///
/// Invariants, which `SAFETY` comments cite by name:
/// - `[slots-mapped]`: `slots` is valid for reads and writes of `count` slots, and only this value uses it.
/// - `[data-set]`: the data of a slot whose state is not `Free` was stored.
#[derive(Debug)]
pub struct Slots<T: Copy> {
    slots: NonNull<Slot<T>>,
    count: u32,
}

// SAFETY: [slots-mapped], and `T` may move between threads.
unsafe impl<T: Copy + Send> Send for Slots<T> {}

impl<T: Copy> Slots<T> {
    /// Frees all slots.
    ///
    /// # Safety
    /// `slots` is valid for reads and writes of `count` slots for as long as the value exists, and no other code
    /// uses it. `count` is not 0.
    pub(crate) unsafe fn new(slots: NonNull<Slot<T>>, count: u32) -> Self {
        for slot in 0..count as usize {
            // SAFETY: `slot` is below `count`.
            unsafe { slots.add(slot).write(Slot::FREE) }
        }
        Self { slots, count }
    }

    /// Returns the number of slots.
    #[inline(always)]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the state of `slot`.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn state(&self, slot: u32) -> SlotState {
        assert!(slot < self.count, "slot {slot} of {}", self.count);
        // SAFETY: checked.
        unsafe { self.get(slot).state }
    }

    /// Returns the caller's value of `slot` if the device has it.
    pub fn posted(&self, slot: u32) -> Option<T> {
        // SAFETY: it is posted, so it exists and has data.
        self.is_posted(slot).then(|| unsafe { self.data(slot) })
    }

    /// Calls `each` with the caller's value of every slot that is not free.
    pub fn each(&self, mut each: impl FnMut(T)) {
        for slot in 0..self.count {
            // SAFETY: `slot` is below the count.
            let slot = unsafe { self.get(slot) };
            if slot.state != SlotState::Free {
                // SAFETY: [data-set].
                each(unsafe { slot.data.assume_init() });
            }
        }
    }

    /// Returns `true` if the device has `slot`.
    #[inline(always)]
    pub(crate) fn is_posted(&self, slot: u32) -> bool {
        // SAFETY: checked.
        slot < self.count && unsafe { self.get(slot).state == SlotState::Posted }
    }

    /// Returns `slot`.
    ///
    /// # Safety
    /// `slot` is below [`count`](Self::count).
    #[inline(always)]
    pub(crate) unsafe fn get(&self, slot: u32) -> &Slot<T> {
        debug_assert!(slot < self.count);
        // SAFETY: [slots-mapped]; the caller's `slot` is below the count.
        unsafe { self.slots.add(slot as usize).as_ref() }
    }

    /// As [`get`](Self::get), to change it.
    ///
    /// # Safety
    /// `slot` is below [`count`](Self::count).
    #[inline(always)]
    pub(crate) unsafe fn get_mut(&mut self, slot: u32) -> &mut Slot<T> {
        debug_assert!(slot < self.count);
        // SAFETY: [slots-mapped]; the caller's `slot` is below the count.
        unsafe { self.slots.add(slot as usize).as_mut() }
    }

    /// Returns two slots, to change them.
    ///
    /// # Safety
    /// Both numbers are below [`count`](Self::count), and they differ.
    #[inline(always)]
    pub(crate) unsafe fn pair_mut(&mut self, one: u32, other: u32) -> [&mut Slot<T>; 2] {
        debug_assert!(one != other && one < self.count && other < self.count);
        // SAFETY: [slots-mapped]; the caller's slots are below the count, and they differ.
        [one, other].map(|slot| unsafe { self.slots.add(slot as usize).as_mut() })
    }

    /// Returns `true` if the slot before `neighbour`, which the device does not have, is free and has the index of
    /// `neighbour`, which then exists.
    ///
    /// # Safety
    /// `neighbour` is not above [`count`](Self::count), and not 0.
    #[inline(always)]
    pub(crate) unsafe fn is_free_before(&self, neighbour: u32) -> bool {
        const { assert!(SlotState::Free as u32 == 0 && SlotState::Posted as u32 == 1) }
        // Slot 65,536 would be the word of a posted slot.
        // SAFETY: the slot before the caller's `neighbour` is below the count.
        unsafe { self.get(neighbour - 1).word() == neighbour }
    }

    /// Posts the slots from `slot` on that are loaded and have the index of their neighbour in memory, as far as that
    /// is loaded, too. Returns the first one that stays.
    ///
    /// # Safety
    /// `slot` is below [`count`](Self::count).
    #[inline(always)]
    pub(crate) unsafe fn post_run(&mut self, slot: u32) -> u32 {
        const {
            assert!(
                SlotState::Loaded as u32 > SlotState::Posted as u32
                    && SlotState::Loaded as u32 > SlotState::Held as u32
            )
        }
        // The word of a slot that leads on. It is never that of slot 65,535, whose neighbour would be 65,536: `Loaded`
        // is the largest state.
        let mut leads_on = slot + 1 + ((SlotState::Loaded as u32) << 16);
        // SAFETY: [slots-mapped]; the caller's `slot` is below the count. An index is below the count, so a slot that
        // leads on has a neighbour.
        unsafe {
            let mut at = self.slots.add(slot as usize);
            while at.as_ref().word() == leads_on {
                let next = at.add(1);
                if next.as_ref().state != SlotState::Loaded {
                    break;
                }
                at.as_mut().state = SlotState::Posted;
                at = next;
                leads_on += 1;
            }
        }
        leads_on - 1 - ((SlotState::Loaded as u32) << 16)
    }

    /// Frees `slot`, which [`next_free`](Self::next_free) finds then.
    ///
    /// # Safety
    /// `slot` is below [`count`](Self::count).
    #[inline(always)]
    pub(crate) unsafe fn free(&mut self, slot: u32) {
        // SAFETY: the number of a group is not above that of its slots, which are below the count.
        unsafe {
            let [mut group, mut slot] = [slot / GROUP, slot].map(|slot| self.slots.add(slot as usize));
            slot.as_mut().state = SlotState::Free;
            group.as_mut().has_free = 1;
        }
    }

    /// Returns the first free slot from `from` on, and from slot 0 on after the last one. Each of them was
    /// [freed](Self::free).
    ///
    /// # Safety
    /// `from` is below [`count`](Self::count).
    pub(crate) unsafe fn next_free(&mut self, from: u32) -> Option<u32> {
        let groups = self.count.div_ceil(GROUP);
        let mut start = from;
        // The first group is searched twice: from `from` on, and all of it.
        for _ in 0..=groups {
            let group = start / GROUP;
            let end = self.count.min(GROUP * (group + 1));
            // SAFETY: there are no more groups than slots, and all slots are below the count.
            unsafe {
                if self.get(group).has_free != 0 {
                    let free = (start..end).find(|&slot| self.get(slot).state == SlotState::Free);
                    if free.is_some() {
                        return free;
                    }
                    if start % GROUP == 0 {
                        self.get_mut(group).has_free = 0;
                    }
                }
            }
            start = if end == self.count { 0 } else { end };
        }
        None
    }

    /// Returns the caller's value of `slot`.
    ///
    /// # Safety
    /// `slot` is below [`count`](Self::count), and not free.
    #[inline(always)]
    pub(crate) unsafe fn data(&self, slot: u32) -> T {
        // SAFETY: [data-set]; the caller's `slot` is below the count, and not free.
        unsafe { self.get(slot).data.assume_init() }
    }

    /// Frees every slot, and calls `each` with the value of those that had a buffer of the queue's: all but the held
    /// ones, whose buffers are their holders'.
    pub(crate) fn clear(&mut self, mut each: impl FnMut(T)) {
        for slot in 0..self.count {
            // SAFETY: `slot` is below the count.
            let slot = unsafe { self.get_mut(slot) };
            let was = core::mem::replace(&mut slot.state, SlotState::Free);
            if matches!(was, SlotState::Loaded | SlotState::Posted) {
                // SAFETY: [data-set].
                each(unsafe { slot.data.assume_init() });
            }
        }
    }
}

#[cfg(test)]
impl<T: Copy> Slots<T> {
    /// Returns `true` if `slot` is marked as free.
    pub(crate) fn is_marked(&self, slot: u32) -> bool {
        // SAFETY: the tests ask for slots that exist.
        unsafe { self.get(slot / GROUP).has_free != 0 }
    }
}
