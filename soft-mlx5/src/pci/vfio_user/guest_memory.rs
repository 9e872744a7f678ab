//! Memory of the guest: files that the client shares, under guest physical addresses.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::{io, ptr};

use super::message::{EINVAL, Errno};
use crate::base::dma::{Access, Dma, Piece};

/// Most ranges of one client, as QEMU says by itself.
const MAX_RANGES: usize = 65535;
const PAGE: u64 = 4096;

/// A whole file of the client, mapped once however many ranges of it are DMA memory, and as long as there is one.
#[derive(Debug)]
struct Mapping {
    device: u64,
    inode: u64,
    address: u64,
    len: u64,
    writable: bool,
}

impl Mapping {
    fn new(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        let map = |rights| {
            // SAFETY: a new mapping at an address that the kernel chooses.
            let address = unsafe {
                let len = found.len() as usize;
                libc::mmap(ptr::null_mut(), len, rights, libc::MAP_SHARED, file.as_raw_fd(), 0)
            };
            if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(address as u64) }
        };
        let both = map(libc::PROT_READ | libc::PROT_WRITE);
        let writable = both.is_ok();
        let address = both.or_else(|_| map(libc::PROT_READ))?;
        let (device, inode, len) = (found.dev(), found.ino(), found.len());
        Ok(Self { device, inode, address, len, writable })
    }

    fn is_of(&self, file: &File) -> bool {
        let same =
            |found: std::fs::Metadata| (found.dev(), found.ino(), found.len()) == (self.device, self.inode, self.len);
        file.metadata().is_ok_and(same)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length; whoever had a piece of it has returned.
        unsafe { libc::munmap(self.address as *mut _, self.len as usize) };
    }
}

#[derive(Debug)]
struct Range {
    size: u64,
    // Offset in the file, unless the client kept the memory to itself.
    place: Option<(Arc<Mapping>, u64)>,
    writable: bool,
}

#[derive(Debug, Default)]
struct Tables {
    files: Vec<Weak<Mapping>>,
    ranges: BTreeMap<u64, Range>,
}

/// The DMA memory of one client.
#[derive(Debug, Default)]
pub struct GuestMemory {
    tables: RwLock<Tables>,
}

impl GuestMemory {
    /// Adds a range at guest physical `address`: bytes of the file from `offset` on. Memory without a file (ROMs, BARs
    /// of devices) is no target of DMA.
    pub fn map(&self, address: u64, size: u64, writable: bool, file: Option<(OwnedFd, u64)>) -> Result<(), Errno> {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let end = address.checked_add(size).ok_or(EINVAL)?;
        let before = tables.ranges.range(..end).next_back();
        let free = before.is_none_or(|(start, range)| start + range.size <= address);
        if size == 0 || !free || tables.ranges.len() >= MAX_RANGES {
            return Err(EINVAL);
        }
        let mut range = Range { size, place: None, writable };
        if let Some((fd, offset)) = file {
            let file = File::from(fd);
            tables.files.retain(|mapping| mapping.strong_count() > 0);
            let known = tables.files.iter().filter_map(Weak::upgrade).find(|mapping| mapping.is_of(&file));
            let mapping = match known {
                Some(mapping) => mapping,
                None => {
                    let made = Mapping::new(&file);
                    let made = made.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EINVAL)))?;
                    let made = Arc::new(made);
                    tables.files.push(Arc::downgrade(&made));
                    made
                }
            };
            let inside = offset.checked_add(size).is_some_and(|end| end <= mapping.len);
            // Pages must stay pages: rings are aligned on both sides.
            if !inside || offset % PAGE != address % PAGE {
                return Err(EINVAL);
            }
            range.writable &= mapping.writable;
            range.place = Some((mapping, offset));
        }
        tables.ranges.insert(address, range);
        Ok(())
    }

    /// Removes a range that was added, or all ranges inside of this one. A file without ranges is unmapped.
    pub fn unmap(&self, address: u64, size: u64) -> Result<(), Errno> {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let end = address.checked_add(size).ok_or(EINVAL)?;
        let inside: Vec<u64> = tables
            .ranges
            .range(address..end)
            .filter(|(start, range)| **start + range.size <= end)
            .map(|(start, _)| *start)
            .collect();
        if inside.is_empty() {
            return Err(EINVAL);
        }
        for start in inside {
            tables.ranges.remove(&start);
        }
        Ok(())
    }

    /// Removes all ranges.
    pub fn unmap_all(&self) {
        self.tables.write().unwrap_or_else(PoisonError::into_inner).ranges.clear();
    }
}

// SAFETY: pieces are parts of shared mappings of the client's files, which this value made and keeps to itself. Only
// `map`, `unmap` and `unmap_all` end a mapping, and only `Device::handle` calls these: it borrows the device alone, so
// no method of the device runs meanwhile. The offset in a page is the same, because mappings begin at a page and `map`
// checks the rest.
unsafe impl Dma for GuestMemory {
    fn translate(&self, address: u64, access: Access) -> Option<Piece> {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        let (start, range) = tables.ranges.range(..=address).next_back()?;
        let within = address - start;
        let allowed = within < range.size && (access == Access::Read || range.writable);
        let (mapping, offset) = range.place.as_ref().filter(|_| allowed)?;
        Some(Piece { address: mapping.address + offset + within, len: range.size - within })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use super::*;

    fn memfd(pages: u64) -> File {
        // SAFETY: the name is a C string; the new descriptor has no other owner.
        let file = unsafe {
            let fd = libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            File::from_raw_fd(fd)
        };
        file.set_len(pages * PAGE).unwrap();
        file
    }

    fn part(file: &File, page: u64) -> Option<(OwnedFd, u64)> {
        Some((file.try_clone().unwrap().into(), page * PAGE))
    }

    fn read(memory: &GuestMemory, address: u64) -> Option<Piece> {
        memory.translate(address, Access::Read)
    }

    #[test]
    fn ranges_of_a_file_share_its_mapping() {
        let (memory, file) = (GuestMemory::default(), memfd(4));
        memory.map(0, PAGE, true, part(&file, 0)).unwrap();
        memory.map(0x10_0000, 2 * PAGE, true, part(&file, 2)).unwrap();
        assert_eq!(memory.tables.read().unwrap().files.len(), 1);
        let first = read(&memory, 0x10).unwrap();
        assert_eq!(first.len, PAGE - 0x10);
        let second = read(&memory, 0x10_1008).unwrap();
        assert_eq!((second.address, second.len), (first.address - 0x10 + 3 * PAGE + 8, PAGE - 8));
        assert_eq!(read(&memory, PAGE), None);
        assert_eq!(read(&memory, 0x10_2000), None);
        assert_eq!(read(&memory, u64::MAX), None);
    }

    #[test]
    fn firmware_splits_and_joins_memory() {
        let (memory, file) = (GuestMemory::default(), memfd(4));
        memory.map(0, 4 * PAGE, true, part(&file, 0)).unwrap();
        memory.unmap(0, 4 * PAGE).unwrap();
        memory.map(0, PAGE, true, part(&file, 0)).unwrap();
        memory.map(PAGE, 3 * PAGE, false, part(&file, 1)).unwrap();
        assert_eq!(read(&memory, PAGE).unwrap().len, 3 * PAGE);
        assert_eq!(memory.translate(PAGE, Access::Write), None);
        assert!(memory.translate(0, Access::Write).is_some());
        memory.unmap(0, 4 * PAGE).unwrap();
        assert_eq!(read(&memory, 0), None);
        assert_eq!(memory.unmap(0, 4 * PAGE), Err(EINVAL));
    }

    #[test]
    fn a_file_is_unmapped_with_its_last_range() {
        let (memory, file) = (GuestMemory::default(), memfd(4));
        let is_mapped = || {
            let inode = format!(" {} ", file.metadata().unwrap().ino());
            std::fs::read_to_string("/proc/self/maps").unwrap().contains(&inode)
        };
        memory.map(0, PAGE, true, part(&file, 0)).unwrap();
        memory.map(PAGE, PAGE, true, part(&file, 1)).unwrap();
        memory.unmap(0, PAGE).unwrap();
        assert!(is_mapped() && read(&memory, PAGE).is_some());
        memory.unmap(PAGE, PAGE).unwrap();
        assert!(!is_mapped());
        memory.map(0, PAGE, true, part(&file, 0)).unwrap();
        assert!(is_mapped());
        memory.unmap_all();
        assert!(!is_mapped());
    }

    #[test]
    fn memory_without_a_file_is_no_target() {
        let memory = GuestMemory::default();
        memory.map(0xfe01_0000, 0x7f_0000, true, None).unwrap();
        assert_eq!(read(&memory, 0xfe01_0000), None);
        assert_eq!(memory.unmap(0xfe01_0000, 0x7f_0000), Ok(()));
    }

    #[test]
    fn ranges_that_no_client_may_have() {
        let (memory, file) = (GuestMemory::default(), memfd(2));
        let map = |address, size, page| memory.map(address, size, true, part(&file, page));
        assert_eq!(map(0, 0, 0), Err(EINVAL));
        assert_eq!(map(u64::MAX - PAGE + 1, 2 * PAGE, 0), Err(EINVAL));
        assert_eq!(map(0, 3 * PAGE, 0), Err(EINVAL), "longer than the file");
        assert_eq!(map(0, PAGE, u64::MAX / PAGE), Err(EINVAL));
        assert_eq!(map(8, PAGE, 0), Err(EINVAL), "not aligned");
        assert_eq!(map(PAGE, PAGE, 0), Ok(()));
        for (address, size) in [(PAGE, PAGE), (0, 2 * PAGE), (PAGE + 1024, 8)] {
            assert_eq!(memory.map(address, size, true, None), Err(EINVAL), "overlap");
        }
        assert_eq!(memory.unmap(PAGE, u64::MAX), Err(EINVAL));
        assert_eq!(memory.unmap(PAGE, PAGE / 2), Err(EINVAL));
    }

    #[test]
    fn a_file_for_reading_only() {
        let memory = GuestMemory::default();
        let file = memfd(1);
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let reader = File::open(path).unwrap();
        memory.map(0, PAGE, true, part(&reader, 0)).unwrap();
        assert!(read(&memory, 0).is_some());
        assert_eq!(memory.translate(0, Access::Write), None);
    }
}
