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

    /// Copies what is in all pieces.
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = Vec::<u8>::with_capacity(self.0.iter().map(|(_, layout)| layout.size()).sum());
        for (piece, layout) in &self.0 {
            let at = bytes.len();
            // SAFETY: the vector has room for all pieces, and each is as long as its layout says.
            unsafe {
                bytes.as_mut_ptr().add(at).copy_from_nonoverlapping(piece.as_ptr(), layout.size());
                bytes.set_len(at + layout.size());
            }
        }
        bytes
    }

    /// Puts back what [`save`](Self::save) copied.
    pub fn load(&mut self, bytes: &[u8]) {
        let mut at = 0;
        for (piece, layout) in &self.0 {
            let from = &bytes[at..at + layout.size()];
            // SAFETY: the piece is as long.
            unsafe { piece.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) }
            at += from.len();
        }
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
