//! Access to the program's memory.
//!
//! The program reads and writes the same memory meanwhile, with or without synchronization, as with DMA.
//! So no references or slices to it exist, only copies of one aligned word at a time ([`crate::base::guard`]),
//! and two reads of a place may give different values.
//!
//! # Safety of this module
//! Every address comes from the driver, which got it from the program when the memory was registered or
//! the queue created ([`crate::engine::Nic::new`] states the contract). [`Span`] keeps accesses to queue
//! memory inside the bounds given then; [`super::mkey`] does so for registered memory. Addresses of a host's memory are
//! translated by its bus at each access, whose contract ([`Dma`]) covers what the translation gives.
//!
//! A kernel pins the memory that it registers, so that the adapter reaches it even when the program has unmapped
//! it. The model cannot pin memory: it reports memory that is not mapped, and uses other memory that was mapped
//! in its place.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::base::dma::{Access, Dma, Piece};
use crate::base::guard::{self, Unit};

pub use crate::base::guard::Unmapped;

const WORD: usize = Unit::Word.size();

// Copies between `len` bytes of the program at `addr` and our own, in words; bytes before the first word and
// after the last are copied singly. `piece` gets the place in the range, the count and the unit.
fn in_words(
    addr: u64,
    len: usize,
    mut piece: impl FnMut(usize, usize, Unit) -> Result<(), Unmapped>,
) -> Result<(), Unmapped> {
    let head = ((addr as usize).wrapping_neg() & (WORD - 1)).min(len);
    let words = (len - head) / WORD;
    let tail = head + words * WORD;
    piece(0, head, Unit::Byte)?;
    piece(head, words, Unit::Word)?;
    piece(tail, len - tail, Unit::Byte)
}

/// Copies from program memory.
fn read(addr: u64, dst: &mut [u8]) -> Result<(), Unmapped> {
    let to = dst.as_mut_ptr() as u64;
    in_words(addr, dst.len(), |at, count, unit| {
        let at = at as u64;
        // SAFETY: the pieces are parts of `dst`, which is borrowed exclusively, and words are aligned.
        unsafe { guard::copy(to + at, addr.wrapping_add(at), count, unit) }
    })
}

/// Copies to program memory.
///
/// # Safety
/// The program expects writes to `addr..addr + src.len()`.
unsafe fn write(addr: u64, src: &[u8]) -> Result<(), Unmapped> {
    let from = src.as_ptr() as u64;
    in_words(addr, src.len(), |at, count, unit| {
        let at = at as u64;
        // SAFETY: a part of the range to which the program expects writes, by the caller's promise; words are aligned.
        unsafe { guard::copy(addr.wrapping_add(at), from + at, count, unit) }
    })
}

/// Replaces eight bytes at a multiple of eight, in the program's byte order, by the result of `change`;
/// returns the old value.
///
/// # Safety
/// The program expects a write to the eight bytes at `addr`.
unsafe fn fetch_update(addr: u64, mut change: impl FnMut(u64) -> u64) -> Result<u64, Unmapped> {
    let mut bytes = [0; WORD];
    read(addr, &mut bytes)?;
    let mut old = u64::from_ne_bytes(bytes);
    loop {
        // SAFETY: the program expects a write to the word, by the caller's promise.
        match unsafe { guard::exchange(addr, old, change(old)) }? {
            Ok(()) => return Ok(old),
            Err(other) => old = other,
        }
    }
}

/// The memory in which the addresses of queues and keys are.
#[derive(Debug, Clone, Default)]
pub enum Space {
    /// Memory of this process.
    #[default]
    Process,
    /// Memory of a host, under the addresses of its bus.
    Host(Arc<dyn Dma>),
    /// Pages of a host's memory; an address is an offset in them.
    Pages(Arc<PageList>),
}

/// Pages of a host's memory that stand for one range of bytes.
#[derive(Debug)]
pub struct PageList {
    dma: Arc<dyn Dma>,
    log_size: u32,
    start: u64,
    pages: Vec<u64>,
}

impl PageList {
    /// Makes a list of pages of `1 << log_size` bytes each. Offset 0 is byte `start` of the first page.
    pub fn new(dma: Arc<dyn Dma>, log_size: u32, start: u64, pages: Vec<u64>) -> Self {
        Self { dma, log_size, start, pages }
    }

    /// Returns the number of bytes from offset 0 on.
    pub fn len(&self) -> u64 {
        let all = (self.pages.len() as u64).checked_shl(self.log_size).unwrap_or(0);
        all.saturating_sub(self.start)
    }

    pub(super) fn piece(&self, offset: u64, access: Access) -> Option<Piece> {
        let at = self.start.checked_add(offset)?;
        let page = self.pages.get(usize::try_from(at >> self.log_size).ok()?)?;
        let size = 1u64 << self.log_size;
        let within = at & (size - 1);
        let piece = self.dma.translate(page.wrapping_add(within), access)?;
        Some(Piece { len: piece.len.min(size - within), ..piece })
    }
}

impl Space {
    /// Returns a list of pages of the same host, or `None` for memory of this process.
    pub fn page_list(&self, log_size: u32, start: u64, pages: Vec<u64>) -> Option<Arc<PageList>> {
        let dma = match self {
            Self::Process => return None,
            Self::Host(dma) => dma,
            Self::Pages(list) => &list.dma,
        };
        Some(Arc::new(PageList::new(dma.clone(), log_size, start, pages)))
    }

    /// Returns `true` for memory of this process.
    pub fn is_process(&self) -> bool {
        matches!(self, Self::Process)
    }

    // Calls `copy` with each piece of `len` bytes at `addr`: its address in this process and its place in the range.
    fn each_piece(
        &self,
        addr: u64,
        len: usize,
        access: Access,
        mut copy: impl FnMut(u64, Range<usize>) -> Result<(), Unmapped>,
    ) -> Result<(), Unmapped> {
        if let Self::Process = self {
            return copy(addr, 0..len);
        }
        let mut done = 0;
        while done < len {
            let piece = self.piece(addr.wrapping_add(done as u64), access)?;
            let end = done + (piece.len.min((len - done) as u64) as usize).max(1);
            copy(piece.address, done..end)?;
            done = end;
        }
        Ok(())
    }

    fn piece(&self, addr: u64, access: Access) -> Result<Piece, Unmapped> {
        match self {
            Self::Process => Some(Piece { address: addr, len: u64::MAX }),
            Self::Host(dma) => dma.translate(addr, access),
            Self::Pages(list) => list.piece(addr, access),
        }
        .ok_or(Unmapped)
    }

    /// Copies out.
    pub fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), Unmapped> {
        self.each_piece(addr, dst.len(), Access::Read, |addr, range| read(addr, &mut dst[range]))
    }

    /// Copies in.
    ///
    /// # Safety
    /// The owner of the memory expects writes to `addr..addr + src.len()`.
    pub unsafe fn write(&self, addr: u64, src: &[u8]) -> Result<(), Unmapped> {
        self.each_piece(addr, src.len(), Access::Write, |addr, range| {
            // SAFETY: by the caller's promise; a host's memory was translated for writing.
            unsafe { write(addr, &src[range]) }
        })
    }

    /// Copies in, the last word after all others: programs wait for the end of an RDMA WRITE by looking at it.
    ///
    /// # Safety
    /// The owner of the memory expects writes to `addr..addr + src.len()`.
    pub unsafe fn write_in_order(&self, addr: u64, src: &[u8]) -> Result<(), Unmapped> {
        let (first, last) = src.split_at(src.len().saturating_sub(WORD));
        // SAFETY: both are parts of the range to which the owner expects writes, by the caller's promise.
        unsafe {
            self.write(addr, first)?;
            fence(Ordering::Release);
            self.write(addr.wrapping_add(first.len() as u64), last)
        }
    }

    /// Replaces eight bytes at a multiple of eight, in the byte order of this machine, by the result of `change`;
    /// returns the old value.
    ///
    /// # Safety
    /// The owner of the memory expects a write to the eight bytes at `addr`.
    pub unsafe fn fetch_update(&self, addr: u64, change: impl FnMut(u64) -> u64) -> Result<u64, Unmapped> {
        let piece = self.piece(addr, Access::Write)?;
        if piece.len < WORD as u64 {
            return Err(Unmapped);
        }
        // SAFETY: by the caller's promise; a host's memory was translated for writing.
        unsafe { fetch_update(piece.address, change) }
    }

    // Copies one aligned unit out.
    fn load(&self, addr: u64, unit: &mut [u8], size: Unit) -> Result<(), Unmapped> {
        debug_assert_eq!(unit.len(), size.size());
        let piece = self.piece(addr, Access::Read)?;
        if piece.len < unit.len() as u64 {
            return Err(Unmapped);
        }
        // SAFETY: the target is our own.
        unsafe { guard::copy(unit.as_mut_ptr() as u64, piece.address, 1, size) }
    }

    // Copies one aligned unit in.
    //
    // SAFETY (of the call): the owner of the memory expects a write there.
    unsafe fn store(&self, addr: u64, unit: &[u8], size: Unit) -> Result<(), Unmapped> {
        debug_assert_eq!(unit.len(), size.size());
        let piece = self.piece(addr, Access::Write)?;
        if piece.len < unit.len() as u64 {
            return Err(Unmapped);
        }
        // SAFETY: by the caller's promise; a host's memory was translated for writing.
        unsafe { guard::copy(piece.address, unit.as_ptr() as u64, 1, size) }
    }
}

/// Spaces of a queue.
#[derive(Debug, Clone, Default)]
pub struct Spaces {
    /// Space of the ring.
    pub ring: Space,
    /// Space of the doorbell record.
    pub record: Space,
}

/// A queue's memory: a doorbell record, a ring of WQEs or of CQEs.
#[derive(Debug, Clone, Default)]
pub struct Span {
    space: Space,
    base: u64,
    len: usize,
}

impl Span {
    /// Names the memory at `base` of this process, as the driver described it.
    pub fn new(base: u64, len: usize) -> Self {
        Self::of(&Space::Process, base, len)
    }

    /// Names the memory at `base` of a space.
    pub fn of(space: &Space, base: u64, len: usize) -> Self {
        Self { space: space.clone(), base, len }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    fn at(&self, offset: usize, len: usize) -> u64 {
        // A wrong offset here is a bug of this crate, not of the program: all indices are masked.
        assert!(offset + len <= self.len, "offset {offset} of {} bytes", self.len);
        self.base + offset as u64
    }

    /// Copies out.
    pub fn read(&self, offset: usize, dst: &mut [u8]) -> Result<(), Unmapped> {
        self.space.read(self.at(offset, dst.len()), dst)
    }

    /// Copies in.
    pub fn write(&self, offset: usize, src: &[u8]) -> Result<(), Unmapped> {
        // SAFETY: inside the span, which the driver vouched for.
        unsafe { self.space.write(self.at(offset, src.len()), src) }
    }

    /// Returns word `index` of a doorbell record. Stores of the program before the record are visible afterwards.
    #[inline]
    pub fn record(&self, index: usize) -> Result<u32, Unmapped> {
        let mut word = [0; 4];
        self.space.load(self.at(4 * index, 4), &mut word, Unit::Half)?;
        fence(Ordering::Acquire);
        Ok(u32::from_be_bytes(word))
    }

    /// Sets word `index` of a doorbell record.
    pub fn set_record(&self, index: usize, value: u32) -> Result<(), Unmapped> {
        fence(Ordering::Release);
        // SAFETY: inside the span, which the driver vouched for; records are aligned to eight bytes.
        unsafe { self.space.store(self.at(4 * index, 4), &value.to_be_bytes(), Unit::Half) }
    }

    /// Stores eight bytes at an aligned offset; a program that reads them also sees all earlier writes.
    pub fn publish(&self, offset: usize, bytes: [u8; 8]) -> Result<(), Unmapped> {
        fence(Ordering::Release);
        // SAFETY: inside the span, which the driver vouched for; rings begin at a multiple of eight and the offset
        // is one, too.
        unsafe { self.space.store(self.at(offset, 8), &bytes, Unit::Word) }
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
                assert_eq!(unsafe { write(addr, &source[..len]) }, Ok(()));
                let mut back = vec![0; len];
                assert_eq!(read(addr, &mut back), Ok(()));
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
        span.set_record(1, 0x0102_0304).unwrap();
        let mut bytes = [0; 8];
        span.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(span.record(1), Ok(0x0102_0304));
    }

    #[test]
    #[should_panic(expected = "offset")]
    fn no_access_outside_the_span() {
        let mut memory = [0u64; 1];
        let _ = Span::new(memory.as_mut_ptr() as u64, 8).read(1, &mut [0; 8]);
    }
}
