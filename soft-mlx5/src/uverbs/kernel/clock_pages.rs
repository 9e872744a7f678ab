//! Two pages that a program may map to read the clock of the device: the clock itself, and how its
//! ticks convert to nanoseconds of the day.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use super::abi::{Abi, structure};

const PAGE: usize = 4096;

structure! {
    struct ClockInfo = 56 {
        sign: u32,
        reserved: u32,
        nsec: u64,
        cycles: u64,
        frac: u64,
        mult: u32,
        shift: u32,
        mask: u64,
        overflow_period: u64,
    }
}

/// Bits of a timestamp.
pub const MASK: u64 = i64::MAX as u64;

/// The pages, in a memory file.
#[derive(Debug)]
pub struct ClockPages {
    file: File,
    clock: NonNull<AtomicU64>,
}

// SAFETY: the mapping belongs to this value alone and is reached only through an atomic.
unsafe impl Send for ClockPages {}

impl ClockPages {
    /// Makes the pages of a clock that is 0 when the time of day is `nsec`, and counts nanoseconds.
    pub fn new(nsec: u64) -> io::Result<Self> {
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"soft-mlx5-clock".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(2 * PAGE as u64)?;
        let info = ClockInfo { nsec, mult: 1, mask: MASK, overflow_period: MASK, ..Default::default() };
        file.write_all_at(&info.to_bytes(), PAGE as u64)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of the first page of the file.
        let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, rights, libc::MAP_SHARED, fd, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let clock = NonNull::new(page.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { file, clock })
    }

    /// Moves the clock. A reader takes the high half, the low half and the high half again, so both
    /// must change at once.
    pub fn set(&self, now: u64) {
        // SAFETY: inside the page, which stays mapped as long as this value lives.
        unsafe { self.clock.as_ref() }.store((now & MASK).to_be(), Ordering::Relaxed);
    }

    /// Returns the descriptor and offset of the page with the clock.
    pub fn clock(&self) -> (RawFd, u64) {
        (self.file.as_raw_fd(), 0)
    }

    /// Returns the descriptor and offset of the page with the conversion.
    pub fn info(&self) -> (RawFd, u64) {
        (self.file.as_raw_fd(), PAGE as u64)
    }
}

impl Drop for ClockPages {
    fn drop(&mut self) {
        // SAFETY: the page was mapped with this size and nothing refers to it any more.
        unsafe { libc::munmap(self.clock.as_ptr().cast(), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_two_big_endian_words() {
        let pages = ClockPages::new(77).unwrap();
        pages.set(0x1122_3344_5566_7788);
        let mut bytes = [0; 8];
        pages.file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        let mut info = [0; ClockInfo::SIZE];
        pages.file.read_exact_at(&mut info, PAGE as u64).unwrap();
        let info = ClockInfo::get(&info);
        assert_eq!((info.nsec, info.mult, info.shift, info.sign), (77, 1, 0, 0));
    }
}
