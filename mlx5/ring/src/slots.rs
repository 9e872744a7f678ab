//! What software remembers of each slot of a receive queue.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// Free; its WQE describes nothing.
pub const EMPTY: u8 = 0;
/// Free; its WQE describes a buffer that is ours and can be posted as it stands.
pub const LOADED: u8 = 1;
/// With the device; its link leads to the slot after it.
pub const POSTED: u8 = 2;
/// With the device; its link was turned to another slot (SRQ only).
pub const POSTED_TURNED: u8 = 3;
/// Completed, and not given back to the queue yet.
pub const HELD: u8 = 4;

/// One state byte and one `T` of the caller's (a `wr_id`, say) per slot.
///
/// The arrays are apart, so that a load needs one scaled index and 64 states share a cache line.
#[derive(Debug)]
pub struct Slots<T> {
    states: NonNull<u8>,
    data: NonNull<MaybeUninit<T>>,
    mask: u32,
}

impl<T: Copy> Slots<T> {
    /// All slots empty.
    ///
    /// # Safety
    /// `count` is a power of two; `states` and `data` are valid for reads and writes of `count` elements
    /// for as long as the value exists, and nobody else touches them.
    pub unsafe fn new(states: NonNull<u8>, data: NonNull<MaybeUninit<T>>, count: u32) -> Self {
        for i in 0..count as usize {
            // SAFETY: within the array.
            unsafe { states.add(i).write(EMPTY) }
        }
        Self { states, data, mask: count - 1 }
    }

    /// Number of slots less one.
    #[inline(always)]
    pub const fn mask(&self) -> u32 {
        self.mask
    }

    /// State of `slot`, taken modulo the number of slots.
    #[inline(always)]
    pub fn state(&self, slot: u32) -> u8 {
        // SAFETY: the index is masked to the array.
        unsafe { self.states.add((slot & self.mask) as usize).read() }
    }

    /// The same arrays once more, for a batch that keeps their addresses in registers. The batch borrows
    /// the queue, so only one of the two is used at a time.
    #[inline(always)]
    pub(crate) const fn view(&self) -> Self {
        Self { states: self.states, data: self.data, mask: self.mask }
    }

    #[inline(always)]
    pub(crate) fn set_state(&mut self, slot: u32, state: u8) {
        // SAFETY: the index is masked to the array.
        unsafe { self.states.add((slot & self.mask) as usize).write(state) }
    }

    /// The caller's value of `slot`.
    ///
    /// # Safety
    /// A value was stored in that slot before: its state has been [`LOADED`] or [`POSTED`] once.
    #[inline(always)]
    pub unsafe fn data(&self, slot: u32) -> T {
        // SAFETY: the index is masked to the array, and initialised by the contract.
        unsafe { self.data.add((slot & self.mask) as usize).read().assume_init() }
    }

    #[inline(always)]
    pub(crate) fn set_data(&mut self, slot: u32, data: T) {
        // SAFETY: the index is masked to the array.
        unsafe { self.data.add((slot & self.mask) as usize).write(MaybeUninit::new(data)) }
    }
}

// SAFETY: the arrays belong to this value alone, and `T` may move between threads.
unsafe impl<T: Send> Send for Slots<T> {}
