//! Access to the program's memory that survives a bad address, as the kernel's does.

use std::fs;

use super::errno::EFAULT;
use crate::objects::Result;

/// Copies from the program. A range that is not readable gives `EFAULT`.
pub fn read(addr: u64, out: &mut [u8]) -> Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: addr as *mut _, iov_len: out.len() };
    // SAFETY: the local range is the exclusive borrow `out`; the kernel checks the remote one.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if copied == out.len() as isize { Ok(()) } else { Err(EFAULT) }
}

/// Copies to the program. A range that is not writable gives `EFAULT`.
pub fn write(addr: u64, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let local = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: addr as *mut _, iov_len: bytes.len() };
    // SAFETY: the local range is only read and is the borrow `bytes`; the kernel checks the remote
    // one, which the program handed in as a place for output.
    let copied = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
    if copied == bytes.len() as isize { Ok(()) } else { Err(EFAULT) }
}

/// Faults in every page of a range, as pinning does. Returns `EFAULT` if a page is not mapped, or not
/// mapped for writing although the device is going to write there.
pub fn pin(addr: u64, length: u64, writable: bool) -> Result<()> {
    const PAGE: u64 = 4096;
    if length == 0 {
        return Ok(());
    }
    let start = addr & !(PAGE - 1);
    let end = addr.checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE));
    let end = end.ok_or(EFAULT)?;
    let advice = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: populating changes no contents, and a range that is not mapped is reported.
    let failed = unsafe { libc::madvise(start as *mut _, (end - start) as usize, advice) } != 0;
    if !failed {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        // A kernel before 5.14, or a mapping that cannot be populated: ask the map instead.
        Some(libc::EINVAL) if mapped(start, end, writable) => Ok(()),
        _ => Err(EFAULT),
    }
}

fn mapped(start: u64, end: u64, writable: bool) -> bool {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return false };
    covered(&maps, start, end, writable)
}

fn covered(maps: &str, mut start: u64, end: u64, writable: bool) -> bool {
    for line in maps.lines() {
        let mut words = line.split(' ');
        let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
        let Some((low, high)) = range.split_once('-') else { continue };
        let (Ok(low), Ok(high)) = (u64::from_str_radix(low, 16), u64::from_str_radix(high, 16)) else {
            continue;
        };
        if low > start {
            return false;
        }
        if high <= start {
            continue;
        }
        if !rights.starts_with('r') || (writable && !rights[1..].starts_with('w')) {
            return false;
        }
        start = high;
        if start >= end {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(protection: i32) -> u64 {
        // SAFETY: a fresh anonymous mapping.
        let addr = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(addr, libc::MAP_FAILED);
        addr as u64
    }

    #[test]
    fn copies_fail_on_a_bad_address_instead_of_crashing() {
        let mut four = [0; 4];
        assert_eq!(read(8, &mut four), Err(EFAULT));
        assert_eq!(write(8, &four), Err(EFAULT));
        let readonly = page(libc::PROT_READ);
        assert_eq!(read(readonly, &mut four), Ok(()));
        assert_eq!(write(readonly, &four), Err(EFAULT));
        let source = [1u8, 2, 3, 4];
        assert_eq!(read(source.as_ptr() as u64, &mut four), Ok(()));
        assert_eq!(four, source);
    }

    #[test]
    fn pinning_wants_every_page_with_the_rights_of_the_device() {
        let writable = page(libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(pin(writable + 100, 3996, true), Ok(()));
        let readonly = page(libc::PROT_READ);
        assert_eq!(pin(readonly, 4096, false), Ok(()));
        assert_eq!(pin(readonly, 1, true), Err(EFAULT));
        let none = page(libc::PROT_NONE);
        assert_eq!(pin(none, 1, false), Err(EFAULT));
        assert_eq!(pin(0x1000, 1, false), Err(EFAULT));
        assert_eq!(pin(u64::MAX - 10, 100, false), Err(EFAULT));
    }

    #[test]
    fn the_map_of_an_old_kernel_is_read_the_same_way() {
        let maps = "1000-3000 rw-p 0 00:00 0\n3000-4000 r--p 0 00:00 0\n6000-7000 ---p 0 0:0 0\n";
        assert!(covered(maps, 0x1000, 0x4000, false));
        assert!(!covered(maps, 0x1000, 0x4000, true));
        assert!(covered(maps, 0x2000, 0x3000, true));
        assert!(!covered(maps, 0x3000, 0x5000, false));
        assert!(!covered(maps, 0, 0x2000, false));
        assert!(!covered(maps, 0x6000, 0x7000, false));
    }
}
