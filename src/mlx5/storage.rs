//! Memory that a ring keeps its slots in.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Owned memory for values that only a ring touches: reached through the pointer, freed when dropped. The values are
/// not dropped.
pub(crate) struct Storage<T>(NonNull<[MaybeUninit<T>]>);

// SAFETY: owned memory.
unsafe impl<T: Send> Send for Storage<T> {}

impl<T> Storage<T> {
    /// Allocates room for `len` values.
    pub(crate) fn uninit(len: usize) -> Self {
        Self(NonNull::from(Box::leak(Box::new_uninit_slice(len))))
    }

    /// Allocates `len` values.
    pub(crate) fn of(len: usize, value: impl Fn() -> T) -> Self {
        let values: Box<[_]> = (0..len).map(|_| MaybeUninit::new(value())).collect();
        Self(NonNull::from(Box::leak(values)))
    }

    /// Returns the address of the values.
    pub(crate) const fn slice(&self) -> NonNull<[T]> {
        NonNull::slice_from_raw_parts(self.start(), self.0.len())
    }

    /// Returns the address of the first value.
    pub(crate) const fn start(&self) -> NonNull<T> {
        self.0.cast()
    }
}

impl<T> Drop for Storage<T> {
    fn drop(&mut self) {
        // SAFETY: leaked by `uninit`, freed once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
