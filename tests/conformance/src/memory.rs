//! Memory that the twins and their devices share: read and restored as bytes, never borrowed.

use std::ptr::NonNull;

/// A piece of memory that it does not own.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
}

impl Region {
    /// # Safety
    /// The memory can be read and written for as long as the value is used, and nothing else touches it
    /// while one of the methods runs.
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len }
    }

    /// As [`new`](Self::new), by its number in a command.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    pub unsafe fn at(address: u64, len: usize) -> Self {
        let start = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the clauses of `new`: usable memory, which nothing else touches during a method.
        unsafe { Self::new(NonNull::new(start).expect("memory has an address"), len) }
    }

    /// Fresh memory that stays until the process ends.
    pub fn leaked(len: usize) -> Self {
        const PAGE: usize = 4096;
        let memory = vec![0u8; len + PAGE].leak();
        let start = memory.as_mut_ptr().map_addr(|addr| addr.next_multiple_of(PAGE));
        start.expose_provenance();
        // SAFETY: leaked, and reached only through the value.
        unsafe { Self::new(NonNull::new(start).expect("memory has an address"), len) }
    }

    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn read_at(&self, offset: usize, to: &mut [u8]) {
        assert!(offset + to.len() <= self.len);
        // SAFETY: inside the memory.
        unsafe { self.start.add(offset).copy_to_nonoverlapping(NonNull::from(&mut *to).cast(), to.len()) }
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read_at(offset, &mut bytes);
        bytes
    }

    pub fn read(&self, to: &mut Vec<u8>) {
        to.resize(self.len, 0);
        self.read_at(0, to);
    }

    pub fn write(&self, from: &[u8]) {
        assert_eq!(from.len(), self.len);
        self.write_at(0, from);
    }

    pub fn write_at(&self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.len);
        // SAFETY: inside the memory.
        unsafe {
            self.start.add(offset).as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len());
        }
    }

    /// A big-endian word.
    pub fn word(&self, offset: usize) -> u32 {
        let mut word = [0; 4];
        self.read_at(offset, &mut word);
        u32::from_be_bytes(word)
    }
}

/// Memory that messages are written to. Both devices write the same addresses, one after the other.
pub struct Arena {
    regions: Vec<Region>,
    before: Vec<Vec<u8>>,
    after: Vec<Vec<u8>>,
    now: Vec<u8>,
}

impl Arena {
    pub fn new(regions: Vec<Region>) -> Self {
        let copies = vec![Vec::new(); regions.len()];
        Self { regions, before: copies.clone(), after: copies, now: Vec::new() }
    }

    /// Before an operation on the first twin.
    pub fn remember(&mut self) {
        for (region, before) in self.regions.iter().zip(&mut self.before) {
            region.read(before);
        }
    }

    /// Between the twins: the second one starts from the same bytes.
    pub fn put_back(&mut self) {
        let copies = self.before.iter().zip(&mut self.after);
        for (region, (before, after)) in self.regions.iter().zip(copies) {
            region.read(after);
            if before != after {
                region.write(before);
            }
        }
    }

    /// Compares the bytes that the twins left. The error is the number of the region, the bytes of the
    /// first twin, and those of the second.
    pub fn compare(&mut self) -> Result<usize, (usize, Vec<u8>, Vec<u8>)> {
        let mut compared = 0;
        for (index, (region, after)) in self.regions.iter().zip(&self.after).enumerate() {
            region.read(&mut self.now);
            if self.now != *after {
                return Err((index, after.clone(), self.now.clone()));
            }
            compared += after.len();
        }
        Ok(compared)
    }
}
