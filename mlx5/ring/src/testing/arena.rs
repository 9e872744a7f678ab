//! Memory that software and the device share.

use core::ptr::NonNull;
use std::alloc::{self, Layout};
use std::vec::Vec;

/// Zeroed pieces of memory, reached through pointers only. Each is an allocation of its own, so that a tool
/// that watches allocations sees who leaves one.
#[derive(Default)]
pub struct Arena(Vec<(NonNull<u8>, Layout)>);

impl Arena {
    /// `bytes` bytes at an address that is a multiple of 64.
    pub fn cut<T>(&mut self, bytes: usize) -> NonNull<T> {
        let layout = Layout::from_size_align(bytes, 64).unwrap();
        assert_ne!(bytes, 0);
        // SAFETY: the size is not zero.
        let piece = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).unwrap();
        self.0.push((piece, layout));
        piece.cast()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for (piece, layout) in &self.0 {
            // SAFETY: allocated with this layout, freed once.
            unsafe { alloc::dealloc(piece.as_ptr(), *layout) }
        }
    }
}
