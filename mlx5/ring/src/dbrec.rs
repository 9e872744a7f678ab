//! One word of a doorbell record.

use core::ptr::NonNull;

use mlx5_wire::be::Be32;

/// A big-endian word in host memory that software writes and the device reads.
#[derive(Debug)]
pub struct DoorbellRecord(NonNull<Be32>);

impl DoorbellRecord {
    /// Takes over the word at `word`.
    ///
    /// # Safety
    /// `word` is aligned to 4 bytes, and stays readable and writable for as long as the value exists. No other code
    /// writes it, but for the zero of a reset.
    pub const unsafe fn new(word: NonNull<Be32>) -> Self {
        Self(word)
    }

    /// Returns the word as it stands in memory.
    #[inline(always)]
    pub fn read(&self) -> Be32 {
        // SAFETY: aligned and readable by the contract of `new`.
        unsafe { self.0.as_ptr().read_volatile() }
    }

    /// Stores `value`. The caller has ordered what it announces, see [`crate::barrier`].
    #[inline(always)]
    pub fn write(&mut self, value: Be32) {
        crate::barrier::traced!(Event::Record(value.get()));
        // SAFETY: aligned and writable by the contract of `new`; volatile because the device reads it.
        unsafe { self.0.as_ptr().write_volatile(value) }
    }
}
