//! Hints to fetch a cache line before it is needed. They change nothing, wherever they point.

use core::arch::asm;
use core::ptr::NonNull;

/// Bytes by which lines of WQEs are fetched before they are written. The device has read the lines since they were
/// written last, so most are in no cache; the store buffer alone holds only a few WQEs while their lines come. Beyond
/// the end of the ring it is a hint in vain.
const AHEAD: usize = 1024;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Fetches the lines of the WQE that is written [`AHEAD`] bytes after the one of one line, or two or more, at `wqe`.
#[inline(always)]
pub(crate) fn ahead<T>(wqe: NonNull<T>, lines: u32) {
    for_write::<AHEAD, _>(wqe.as_ptr());
    if lines > 1 {
        for_write::<{ AHEAD + LINE }, _>(wqe.as_ptr());
    }
}

/// The line `OFFSET` bytes after `at` will be written. There may be anything.
///
/// The offset is part of the instruction, and takes no register.
#[inline(always)]
fn for_write<const OFFSET: usize, T>(at: *const T) {
    // SAFETY: reads and writes nothing that a program can see, and never faults. On x86-64 without PREFETCHW it
    // does nothing (Intel SDM vol. 2, PREFETCHW; AMD64 APM vol. 3, PREFETCHlevel).
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "prefetchw [{} + {}]",
            in(reg) at,
            const OFFSET,
            options(readonly, nostack, preserves_flags)
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "prfm pstl1keep, [{}, #{}]",
            in(reg) at,
            const OFFSET,
            options(readonly, nostack, preserves_flags)
        );
    }
}
