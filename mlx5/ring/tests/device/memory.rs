//! Memory that a ring and the device share.

use std::alloc::{self, Layout};
use std::ptr::NonNull;

/// Zeroed bytes at a fixed place, aligned to a cache line and more.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    pub fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), 128).unwrap();
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).unwrap();
        start.as_ptr().expose_provenance();
        Self { start, layout }
    }

    /// The first byte, for the constructors of the rings.
    pub fn ptr<T>(&self) -> NonNull<T> {
        self.start.cast()
    }

    pub fn len(&self) -> usize {
        self.layout.size()
    }

    pub fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(offset + to.len() <= self.len());
        let len = to.len();
        // SAFETY: inside the allocation, of which no reference exists.
        unsafe { self.start.add(offset).copy_to_nonoverlapping(NonNull::from(to).cast(), len) }
    }

    pub fn array<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.read(offset, &mut bytes);
        bytes
    }

    pub fn be32(&self, offset: usize) -> u32 {
        u32::from_be_bytes(self.array(offset))
    }

    pub fn be16(&self, offset: usize) -> u16 {
        u16::from_be_bytes(self.array(offset))
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len());
        // SAFETY: inside the allocation, of which no reference exists.
        unsafe {
            self.start
                .add(offset)
                .copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len())
        }
    }

    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        assert!(offset + len <= self.len());
        // SAFETY: as in `write`.
        unsafe { self.start.add(offset).write_bytes(byte, len) }
    }

    pub fn copy(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes);
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}
