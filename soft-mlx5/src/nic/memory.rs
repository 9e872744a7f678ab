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
//!
//! A kernel pins registered memory, so that an adapter reaches it even when the program has unmapped it. The
//! model cannot: it finds nothing there, or what was mapped in its place, and reports a protection error
//! in the first case.

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

/// The memory is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unmapped;

fn iovec(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

/// Copies from registered memory, which the program may have unmapped meanwhile: the kernel does the
/// copying, and it survives that.
pub fn read_registered(addr: u64, dst: &mut [u8]) -> Result<(), Unmapped> {
    let local = iovec(dst.as_mut_ptr(), dst.len());
    let remote = iovec(addr as usize as *mut u8, dst.len());
    // SAFETY: the local range is the exclusive borrow `dst`; the kernel checks the other one.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if copied == dst.len() as isize { Ok(()) } else { Err(Unmapped) }
}

/// Copies to registered memory, which the program may have unmapped meanwhile.
///
/// # Safety
/// The program expects that whatever is at `addr..addr + src.len()` is written.
pub unsafe fn write_registered(addr: u64, src: &[u8]) -> Result<(), Unmapped> {
    // The last word after all others: programs wait for the end of an RDMA WRITE by looking at it.
    let cut = src.len().saturating_sub(WORD);
    let (first, last) = src.split_at(cut);
    let pieces = [(addr, first), (addr.wrapping_add(cut as u64), last)];
    let local = pieces.map(|(_, piece)| iovec(piece.as_ptr().cast_mut(), piece.len()));
    let remote = pieces.map(|(addr, piece)| iovec(addr as usize as *mut u8, piece.len()));
    // SAFETY: the local ranges are only read and are the borrow `src`; the kernel checks the others, and
    // the caller vouches that they may be written.
    let copied = unsafe {
        libc::process_vm_writev(libc::getpid(), local.as_ptr(), 2, remote.as_ptr(), 2, 0)
    };
    if copied == src.len() as isize { Ok(()) } else { Err(Unmapped) }
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
