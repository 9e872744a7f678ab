//! Memory that the twins and their devices share: read and restored as bytes, never borrowed.

use std::os::fd::RawFd;
use std::ptr::{self, NonNull};

use crate::sizes::{ARENA, HEADERS, LONGEST, SOURCE};

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

    /// Makes the region that begins at an address, as a command names it: see [`new`](Self::new).
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    pub unsafe fn at(address: u64, len: usize) -> Self {
        let start = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the clauses of `new`: usable memory, which nothing else touches during a method.
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

/// Memory of all sessions of a process, which stays until the process ends: parts of one file that stands for a
/// dma-buf.
#[derive(Clone, Copy)]
pub struct Memory {
    pub arena: Region,
    pub source: Region,
    pub target: Region,
    pub headers: Region,
    /// The descriptor of the file.
    pub dma_buf: RawFd,
    /// Where the file begins.
    pub start: u64,
}

impl Memory {
    pub fn new() -> Self {
        const PAGE: usize = 4096;
        let sizes = [ARENA as usize, SOURCE, LONGEST as usize, HEADERS];
        let len = PAGE + sizes.iter().map(|size| size.next_multiple_of(PAGE)).sum::<usize>();
        // SAFETY: the name is a string; a new mapping at an address that the kernel chooses.
        let (dma_buf, start) = unsafe {
            let fd = libc::memfd_create(c"conformance".as_ptr(), libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(fd, len as i64), 0, "{}", std::io::Error::last_os_error());
            (fd, libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0))
        };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        start.expose_provenance();
        // The first page belongs to no part.
        let mut next = start.cast::<u8>().wrapping_add(PAGE);
        let [arena, source, target, headers] = sizes.map(|size| {
            let start = NonNull::new(next).expect("memory has an address");
            next = next.wrapping_add(size.next_multiple_of(PAGE));
            // SAFETY: a part of the mapping, which stays and is reached only through the value.
            unsafe { Region::new(start, size) }
        });
        fill_source(source);
        Self { arena, source, target, headers, dma_buf, start: start as u64 }
    }
}

/// Memory that messages are written to: one place, which both devices write one after the other, or one place for each
/// twin.
pub struct Arena {
    /// Each region of the first twin, and of the second.
    regions: Vec<[Region; 2]>,
    before: Vec<Vec<u8>>,
    after: Vec<Vec<u8>>,
    now: Vec<u8>,
}

impl Arena {
    pub fn new(regions: Vec<[Region; 2]>) -> Self {
        let copies = vec![Vec::new(); regions.len()];
        Self { regions, before: copies.clone(), after: copies, now: Vec::new() }
    }

    /// Before an operation on the first twin.
    pub fn remember(&mut self) {
        for ([first, _], before) in self.regions.iter().zip(&mut self.before) {
            first.read(before);
        }
    }

    /// Between the twins: the second one starts from the same bytes.
    pub fn put_back(&mut self) {
        let copies = self.before.iter().zip(&mut self.after);
        for ([first, second], (before, after)) in self.regions.iter().zip(copies) {
            first.read(after);
            if before != after && first.address() == second.address() {
                first.write(before);
            }
        }
    }

    /// Compares the bytes that the twins left. The error is the number of the region, the bytes of the
    /// first twin, and those of the second.
    pub fn compare(&mut self) -> Result<usize, (usize, Vec<u8>, Vec<u8>)> {
        let mut compared = 0;
        for (index, ([_, second], after)) in self.regions.iter().zip(&self.after).enumerate() {
            second.read(&mut self.now);
            if self.now != *after {
                return Err((index, after.clone(), self.now.clone()));
            }
            compared += after.len();
        }
        Ok(compared)
    }
}

/// Fills the memory that peers send from with bytes that show their offset.
fn fill_source(memory: Region) {
    let bytes: Vec<u8> = (0..memory.len()).map(|at| (at * 167 / 16 + at) as u8).collect();
    memory.write(&bytes);
}
