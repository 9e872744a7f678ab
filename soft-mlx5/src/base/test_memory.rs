//! Memory that tests take away.

use std::ptr;

const PAGE: usize = 4096;

/// Pages that nothing but the test uses.
pub struct Pages {
    base: u64,
    len: usize,
}

fn map(count: usize, flags: libc::c_int, fd: libc::c_int) -> Pages {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping, where the kernel likes.
    let base = unsafe { libc::mmap(ptr::null_mut(), count.max(1) * PAGE, rights, flags, fd, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    Pages { base: base as u64, len: count.max(1) * PAGE }
}

impl Pages {
    /// Maps zeroed pages.
    pub fn new(count: usize) -> Self {
        map(count, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Maps a page of an empty file.
    pub fn of_empty_file() -> Self {
        // SAFETY: the name is a C string; the descriptor is closed below and no other code uses it.
        unsafe {
            let fd = libc::memfd_create(c"empty".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            let pages = map(1, libc::MAP_SHARED, fd);
            libc::close(fd);
            pages
        }
    }

    /// Returns the address of a page.
    pub fn addr(&self, page: usize) -> u64 {
        self.base + (page * PAGE) as u64
    }

    /// Changes the rights to all pages.
    pub fn protect(&self, rights: libc::c_int) {
        // SAFETY: the pages of this value.
        let done = unsafe { libc::mprotect(self.base as *mut _, self.len, rights) };
        assert_eq!(done, 0);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages of this value, which are not used any more.
        unsafe { libc::munmap(self.base as *mut _, self.len) };
    }
}
