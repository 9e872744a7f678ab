//! Anonymous memory of the process.

use std::io;
use std::ptr::{self, NonNull};

/// The pages of a pool. The adapter needs fewer translations for huge pages.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{BufferPool, HugePages, PoolConfig};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let pool = BufferPool::new(&pd, &PoolConfig::new(256, 4096).pages(HugePages::Transparent))?;
/// // An error says how to reserve huge pages.
/// if let Err(error) = BufferPool::new(&pd, &PoolConfig::new(256, 4096).pages(HugePages::Reserved)) {
///     println!("{error}");
/// }
/// # drop(pool);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// Pages of the normal size.
    #[default]
    No,
    /// Huge pages where the kernel has some (`madvise(2)` with `MADV_HUGEPAGE`), else normal pages.
    Transparent,
    /// Huge pages that the administrator reserved (`vm.nr_hugepages`), of the system's default size.
    Reserved,
}

/// Zeroed pages, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory; who may touch which part of it is the pool's business.
unsafe impl Send for Mapping {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for Mapping {}

/// Size of a huge page on x86-64, and the alignment from which the kernel can use one.
const HUGE: usize = 2 << 20;

impl Mapping {
    /// Maps at least `len` bytes, `len > 0`.
    pub(crate) fn new(len: usize, pages: HugePages) -> io::Result<Self> {
        match pages {
            HugePages::No => Self::map(len, 0),
            HugePages::Transparent => Self::transparent(len),
            HugePages::Reserved => {
                let huge = reserved_page_size().unwrap_or(HUGE);
                let len = len.checked_next_multiple_of(huge).ok_or(io::ErrorKind::OutOfMemory)?;
                Self::map(len, libc::MAP_HUGETLB)
            }
        }
    }

    fn transparent(len: usize) -> io::Result<Self> {
        let len = len.checked_next_multiple_of(HUGE).ok_or(io::ErrorKind::OutOfMemory)?;
        // The kernel uses huge pages where they are aligned: map more, and give back what is around.
        let larger = Self::map(len.checked_add(HUGE).ok_or(io::ErrorKind::OutOfMemory)?, 0)?;
        let before = larger.start.as_ptr().addr().wrapping_neg() % HUGE;
        let after = HUGE - before;
        let all = std::mem::ManuallyDrop::new(larger);
        // SAFETY: parts of the mapping at its ends, multiples of pages, which no code uses; the middle stays.
        unsafe {
            let start = all.start.add(before);
            if before > 0 {
                libc::munmap(all.start.as_ptr().cast(), before);
            }
            libc::munmap(start.add(len).as_ptr().cast(), after);
            // A kernel without huge pages refuses; then they are small.
            libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
            Ok(Self { start, len })
        }
    }

    fn map(len: usize, flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: asks for new pages; touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    pub(crate) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }
}

/// The size of reserved huge pages in bytes, as the kernel reports it.
fn reserved_page_size() -> Option<usize> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let kib: usize = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, unmapped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
