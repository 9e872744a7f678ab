//! Locked memory: the limit for a process without `CAP_IPC_LOCK`.
//!
//! As in `ib_umem_get`, registered memory and the rings of queues count, by whole pages, each registration by
//! itself. Doorbell records, a page or two, are left out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::errno::{EFAULT, ENOMEM};
use super::{capability, user};
use crate::objects::Result;

const PAGE: u64 = 4096;

/// Memory that a device has pinned.
#[derive(Debug)]
pub struct Memlock {
    limited: bool,
    pages: Arc<AtomicU64>,
}

/// Pages that stay pinned as long as this lives.
#[derive(Debug)]
pub struct Pinned {
    count: u64,
    of: Arc<AtomicU64>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.of.fetch_sub(self.count, Ordering::Relaxed);
    }
}

impl Memlock {
    /// Starts without pinned memory, which has a limit only with `limited`.
    pub fn new(limited: bool) -> Self {
        Self { limited, pages: Arc::default() }
    }

    /// Pins a range. Returns `ENOMEM` beyond the limit, and `EFAULT` if the range is not mapped with the rights needed.
    pub fn pin(&self, addr: u64, length: u64, writable: bool) -> Result<Pinned> {
        let end = addr.checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE));
        let count = (end.ok_or(EFAULT)? - (addr & !(PAGE - 1))) / PAGE;
        let total = self.pages.fetch_add(count, Ordering::Relaxed) + count;
        let pinned = Pinned { count, of: self.pages.clone() };
        if self.limited && total > limit() / PAGE && !capability::has(capability::IPC_LOCK) {
            return Err(ENOMEM);
        }
        user::pin(addr, length, writable)?;
        Ok(pinned)
    }
}

fn limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is valid and outlives the call, which cannot fail.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    limit.rlim_cur
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_memory::Pages;

    #[test]
    fn whole_pages_count_as_long_as_they_are_pinned() {
        let pages = Pages::new(3);
        let memlock = Memlock::new(false);
        let count = || memlock.pages.load(Ordering::Relaxed);
        let first = memlock.pin(pages.addr(0) + 4095, 2, true).unwrap();
        assert_eq!(count(), 2);
        let again = memlock.pin(pages.addr(1), 4096, false).unwrap();
        assert_eq!(count(), 3, "twice is twice");
        drop(first);
        assert_eq!(count(), 1);
        pages.protect(libc::PROT_READ);
        assert_eq!(memlock.pin(pages.addr(0), 1, true).err(), Some(EFAULT));
        assert_eq!(count(), 1);
        drop(again);
        assert_eq!(count(), 0);
        assert_eq!(memlock.pin(u64::MAX - 5, 100, false).err(), Some(EFAULT));
    }
}
