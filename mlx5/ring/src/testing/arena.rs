//! Memory that software and the device share.

use core::ptr::NonNull;
use std::vec;
use std::vec::Vec;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// One zeroed allocation from which aligned pieces are cut. Reached through pointers only.
pub struct Arena {
    lines: NonNull<Line>,
    count: usize,
    used: usize,
}

impl Arena {
    pub fn new(bytes: usize) -> Self {
        let lines = vec![Line([0; 64]); bytes.div_ceil(64)].into_boxed_slice();
        let count = lines.len();
        let lines = NonNull::new(std::boxed::Box::into_raw(lines).cast::<Line>()).unwrap();
        Self { lines, count, used: 0 }
    }

    /// `bytes` bytes at an address that is a multiple of 64.
    pub fn cut<T>(&mut self, bytes: usize) -> NonNull<T> {
        let at = self.used;
        self.used += bytes.div_ceil(64);
        assert!(self.used <= self.count, "arena too small");
        // SAFETY: checked to be inside.
        unsafe { self.lines.add(at).cast() }
    }

    /// A copy of all bytes.
    pub fn save(&self) -> Vec<u8> {
        let bytes = self.lines.cast::<u8>();
        // SAFETY: inside; nobody writes during the copy.
        (0..self.used * 64).map(|i| unsafe { bytes.add(i).read() }).collect()
    }

    /// Puts back what [`save`](Self::save) returned.
    pub fn restore(&self, saved: &[u8]) {
        assert_eq!(saved.len(), self.used * 64);
        // SAFETY: as long as the used part, which is not a Rust object.
        unsafe { self.lines.cast::<u8>().copy_from(NonNull::from(saved).cast(), saved.len()) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let lines = core::ptr::slice_from_raw_parts_mut(self.lines.as_ptr(), self.count);
        // SAFETY: made by `new`, freed once.
        drop(unsafe { std::boxed::Box::from_raw(lines) });
    }
}
