//! What software remembers of each slot of a receive queue.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// Free; its WQE describes nothing.
pub const EMPTY: u8 = 0;
/// Free; its WQE describes a buffer that is the queue's and waits to be posted.
pub const LOADED: u8 = 1;
/// With the device; its link leads to the slot after it.
pub const POSTED: u8 = 2;
/// With the device; its link was turned to another slot (SRQ only).
pub const POSTED_TURNED: u8 = 3;
/// Completed, and not given back to the queue yet.
pub const HELD: u8 = 4;
/// Given back empty, which the queue takes note of in a moment (receive queue only).
pub(crate) const LEAVING: u8 = 5;

/// Whether a slot of this state is with the device, or was when its CQE was written.
#[inline(always)]
pub(crate) const fn is_posted(state: u8) -> bool {
    matches!(state, POSTED | POSTED_TURNED)
}

/// One state byte and one `T` of the caller's (a `wr_id`, say) per slot.
///
/// The arrays are apart, so that a load needs one scaled index and 64 states share a cache line.
#[derive(Debug)]
pub struct Slots<T> {
    states: NonNull<u8>,
    data: NonNull<MaybeUninit<T>>,
    count: u32,
    mask: u32,
    block: u32,
}

/// Slots of a [`block`](Slots::until_block_end), if there are as many.
const BLOCK: u32 = 256;

impl<T: Copy> Slots<T> {
    /// All slots empty.
    ///
    /// # Safety
    /// `count` is a power of two; `states` and `data` are valid for reads and writes of `count` elements
    /// for as long as the value exists, and nobody else touches them.
    pub unsafe fn new(states: NonNull<u8>, data: NonNull<MaybeUninit<T>>, count: u32) -> Self {
        // SAFETY: the caller's contract.
        unsafe { states.write_bytes(EMPTY, count as usize) }
        let block = if count < BLOCK { count } else { BLOCK };
        Self { states, data, count, mask: count - 1, block }
    }

    /// Number of slots less one.
    #[inline(always)]
    pub const fn mask(&self) -> u32 {
        self.mask
    }

    /// Number of slots.
    #[inline(always)]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// State of `slot`, taken modulo the number of slots.
    #[inline(always)]
    pub fn state(&self, slot: u32) -> u8 {
        // SAFETY: the index is masked to the array.
        unsafe { self.state_at((slot & self.mask) as usize) }
    }

    /// The caller's value of `slot`, taken modulo the number of slots.
    ///
    /// # Safety
    /// A value was stored in that slot before: its state has been [`LOADED`] or [`POSTED`] once.
    #[inline(always)]
    pub unsafe fn data(&self, slot: u32) -> T {
        // SAFETY: the index is masked to the array; the rest is the caller's contract.
        unsafe { self.data_at((slot & self.mask) as usize) }
    }

    /// The caller's value of `slot`, taken modulo the number of slots, if that is posted.
    pub fn posted(&self, slot: u32) -> Option<T> {
        // SAFETY: it is posted, with a value.
        is_posted(self.state(slot)).then(|| unsafe { self.data(slot) })
    }

    /// The same arrays once more, for a batch that keeps their addresses in registers. The batch borrows
    /// the queue, so only one of the two is used at a time.
    #[inline(always)]
    pub(crate) const fn view(&self) -> Self {
        Self { ..*self }
    }

    /// Slots from `slot` on before the next one whose number is a multiple of 256, or before the end: within
    /// them the lower byte of a `wqe_counter` does not overflow.
    #[inline(always)]
    pub(crate) const fn until_block_end(&self, slot: u32) -> u32 {
        self.block - (slot & (self.block - 1))
    }

    /// The state and the value of running slot `slot`.
    #[inline(always)]
    pub(crate) const fn entry(&self, slot: u32) -> (NonNull<u8>, NonNull<MaybeUninit<T>>) {
        // SAFETY: a running slot is in the arrays or at their end.
        unsafe { (self.states.add(slot as usize), self.data.add(slot as usize)) }
    }

    #[inline(always)]
    pub(crate) fn set_state(&mut self, slot: u32, state: u8) {
        // SAFETY: the index is masked to the array.
        unsafe { self.set_state_at((slot & self.mask) as usize, state) }
    }

    /// [`state`](Self::state) without the mask.
    ///
    /// # Safety
    /// `slot` is below the number of slots.
    #[inline(always)]
    pub(crate) unsafe fn state_at(&self, slot: usize) -> u8 {
        // SAFETY: within the array.
        unsafe { self.states.add(slot).read() }
    }

    /// [`data`](Self::data) without the mask.
    ///
    /// # Safety
    /// `slot` is below the number of slots, and a value was stored there.
    #[inline(always)]
    pub(crate) unsafe fn data_at(&self, slot: usize) -> T {
        // SAFETY: within the array, and initialised by the contract.
        unsafe { self.data.add(slot).read().assume_init() }
    }

    /// [`data_at`](Self::data_at), to be changed.
    ///
    /// # Safety
    /// As [`data_at`](Self::data_at).
    #[inline(always)]
    pub(crate) unsafe fn data_at_mut(&mut self, slot: usize) -> &mut T {
        // SAFETY: within the array, which is this value's alone, and initialised by the contract.
        unsafe { self.data.add(slot).as_mut().assume_init_mut() }
    }

    /// # Safety
    /// `slot` is below the number of slots.
    #[inline(always)]
    pub(crate) unsafe fn set_state_at(&mut self, slot: usize, state: u8) {
        // SAFETY: within the array.
        unsafe { self.states.add(slot).write(state) }
    }

    /// # Safety
    /// `slot` is below the number of slots.
    #[inline(always)]
    pub(crate) unsafe fn set_data_at(&mut self, slot: usize, data: T) {
        // SAFETY: within the array.
        unsafe { self.data.add(slot).write(MaybeUninit::new(data)) }
    }

    /// Gives the slots from `from` up to `to` (not included) one state.
    ///
    /// # Safety
    /// `from <= to`, and `to` is at most the number of slots.
    #[inline(always)]
    pub(crate) unsafe fn set_states(&mut self, from: u32, to: u32, state: u8) {
        let len = (to - from) as usize;
        // SAFETY: within the array.
        unsafe {
            let first = self.states.add(from as usize);
            // A call to `memset` costs as much as the rest of a batch: short ranges are covered by stores of
            // fixed width, of which the last ends where the range does.
            if len > 32 {
                first.write_bytes(state, len);
            } else if len > 16 {
                first.write_bytes(state, 16);
                first.add(len - 16).write_bytes(state, 16);
            } else if len >= 8 {
                first.write_bytes(state, 8);
                first.add(len - 8).write_bytes(state, 8);
            } else if len >= 4 {
                first.write_bytes(state, 4);
                first.add(len - 4).write_bytes(state, 4);
            } else if len > 0 {
                first.write(state);
                first.add(len / 2).write(state);
                first.add(len - 1).write(state);
            }
        }
    }
}

// SAFETY: the arrays belong to this value alone, and `T` may move between threads.
unsafe impl<T: Send> Send for Slots<T> {}
