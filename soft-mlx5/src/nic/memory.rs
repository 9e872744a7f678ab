//! Access to the program's memory.
//!
//! The program reads and writes the same memory meanwhile, in good order or not: that is what DMA is.
//! So there are no references and no slices to it, only copies made of relaxed atomic accesses, one
//! aligned word at a time, and nothing read twice is expected to be the same.
//!
//! # Safety of this module
//! Every address comes from the driver, which had it from the program when the memory was registered or
//! the queue created ([`super::Nic::new`] states the contract). [`Span`] keeps accesses to queue
//! memory inside the bounds given then; [`super::mkey`] does so for registered memory.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// Copies from program memory.
///
/// # Safety
/// `addr..addr + dst.len()` is mapped and readable.
pub unsafe fn read(addr: u64, dst: &mut [u8]) {
    let mut from = addr as usize;
    let head = (from.wrapping_neg() & (WORD - 1)).min(dst.len());
    let (first, rest) = dst.split_at_mut(head);
    let mut words = rest.chunks_exact_mut(WORD);
    for byte in first {
        // SAFETY: within the range that the caller vouches for.
        *byte = unsafe { AtomicU8::from_ptr(from as *mut u8) }.load(Ordering::Relaxed);
        from += 1;
    }
    for word in &mut words {
        // SAFETY: within the range that the caller vouches for, and aligned: the head ended at a word.
        let value = unsafe { AtomicU64::from_ptr(from as *mut u64) }.load(Ordering::Relaxed);
        word.copy_from_slice(&value.to_ne_bytes());
        from += WORD;
    }
    for byte in words.into_remainder() {
        // SAFETY: within the range that the caller vouches for.
        *byte = unsafe { AtomicU8::from_ptr(from as *mut u8) }.load(Ordering::Relaxed);
        from += 1;
    }
}

/// Copies to program memory.
///
/// # Safety
/// `addr..addr + src.len()` is mapped and writable, and the program expects it to be written.
pub unsafe fn write(addr: u64, src: &[u8]) {
    let mut to = addr as usize;
    let head = (to.wrapping_neg() & (WORD - 1)).min(src.len());
    let (first, rest) = src.split_at(head);
    let mut words = rest.chunks_exact(WORD);
    for byte in first {
        // SAFETY: within the range that the caller vouches for.
        unsafe { AtomicU8::from_ptr(to as *mut u8) }.store(*byte, Ordering::Relaxed);
        to += 1;
    }
    for word in &mut words {
        let mut bytes = [0; WORD];
        bytes.copy_from_slice(word);
        let value = u64::from_ne_bytes(bytes);
        // SAFETY: within the range that the caller vouches for, and aligned: the head ended at a word.
        unsafe { AtomicU64::from_ptr(to as *mut u64) }.store(value, Ordering::Relaxed);
        to += WORD;
    }
    for byte in words.remainder() {
        // SAFETY: within the range that the caller vouches for.
        unsafe { AtomicU8::from_ptr(to as *mut u8) }.store(*byte, Ordering::Relaxed);
        to += 1;
    }
}

/// Replaces eight bytes, as they stand in the program's byte order, by what `change` makes of them;
/// returns what was there.
///
/// # Safety
/// `addr..addr + 8` is mapped, writable and aligned, and the program expects it to be written.
pub unsafe fn fetch_update(addr: u64, mut change: impl FnMut(u64) -> u64) -> u64 {
    // SAFETY: the caller vouches for mapping and alignment.
    let word = unsafe { AtomicU64::from_ptr(addr as usize as *mut u64) };
    let changed = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(change(old)));
    match changed {
        Ok(old) | Err(old) => old,
    }
}

/// A queue's memory: a doorbell record, a ring of WQEs or of CQEs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Span {
    base: u64,
    len: usize,
}

impl Span {
    /// Memory at `base`, as the driver described it.
    pub fn new(base: u64, len: usize) -> Self {
        Self { base, len }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    fn at(&self, offset: usize, len: usize) -> u64 {
        // A wrong offset here is a bug of this crate, not of the program: all indices are masked.
        assert!(offset + len <= self.len, "offset {offset} of {} bytes", self.len);
        self.base + offset as u64
    }

    /// Copies out.
    pub fn read(&self, offset: usize, dst: &mut [u8]) {
        // SAFETY: inside the span, which the driver vouched for.
        unsafe { read(self.at(offset, dst.len()), dst) }
    }

    /// Copies in.
    pub fn write(&self, offset: usize, src: &[u8]) {
        // SAFETY: inside the span, which the driver vouched for.
        unsafe { write(self.at(offset, src.len()), src) }
    }

    /// Word `index` of a doorbell record. What the program wrote before it is visible afterwards.
    #[inline]
    pub fn record(&self, index: usize) -> u32 {
        let addr = self.at(4 * index, 4);
        // SAFETY: inside the span, which the driver vouched for; records are aligned to eight bytes.
        let word = unsafe { AtomicU32::from_ptr(addr as usize as *mut u32) };
        u32::from_be(word.load(Ordering::Acquire))
    }

    /// Sets word `index` of a doorbell record.
    pub fn set_record(&self, index: usize, value: u32) {
        let addr = self.at(4 * index, 4);
        // SAFETY: inside the span, which the driver vouched for; records are aligned to eight bytes.
        let word = unsafe { AtomicU32::from_ptr(addr as usize as *mut u32) };
        word.store(value.to_be(), Ordering::Release);
    }

    /// Stores eight bytes at an aligned offset; everything written before is visible to who reads them.
    pub fn publish(&self, offset: usize, bytes: [u8; 8]) {
        let addr = self.at(offset, 8);
        // SAFETY: inside the span, which the driver vouched for; rings are page-aligned and the offset
        // is a multiple of eight.
        let word = unsafe { AtomicU64::from_ptr(addr as usize as *mut u64) };
        word.store(u64::from_ne_bytes(bytes), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_alignment_and_length() {
        let source: Vec<u8> = (0..64).collect();
        for start in 0..9 {
            for len in 0..40 {
                let mut memory = vec![0xee_u8; 64];
                let addr = memory.as_mut_ptr() as u64 + start;
                // SAFETY: start + len is at most 48, inside the vector, which nothing else uses here.
                unsafe { write(addr, &source[..len]) };
                let mut back = vec![0; len];
                // SAFETY: as above.
                unsafe { read(addr, &mut back) };
                assert_eq!(back, source[..len]);
                let start = start as usize;
                assert!(memory[..start].iter().chain(&memory[start + len..]).all(|b| *b == 0xee));
            }
        }
    }

    #[test]
    fn records_are_big_endian() {
        let mut memory = [0u64; 2];
        let span = Span::new(memory.as_mut_ptr() as u64, 16);
        span.set_record(1, 0x0102_0304);
        let mut bytes = [0; 8];
        span.read(0, &mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(span.record(1), 0x0102_0304);
    }

    #[test]
    #[should_panic(expected = "offset")]
    fn no_access_outside_the_span() {
        let mut memory = [0u64; 1];
        Span::new(memory.as_mut_ptr() as u64, 8).read(1, &mut [0; 8]);
    }
}
