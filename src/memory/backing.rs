//! Memory of a pool: pages of its own, or memory of the program's.

use std::ptr::NonNull;

use super::mapping::Mapping;
use super::opaque::OpaqueBacking;

/// Memory of the program that [`BufferPool::from_memory`](crate::BufferPool::from_memory) accepts: `Vec<u8>`,
/// `Box<[u8]>`, `memmap2::MmapMut` (feature `memmap2`), or a type that keeps the contract below.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use std::ptr::NonNull;
///
/// use doorbell::{BufferPool, PoolConfig, StableMemory};
///
/// /// A part of a program's own, for example what another library has mapped.
/// struct Part(Box<[u8]>);
///
/// // SAFETY: the bytes stay where they are while the box exists, and no other code has them.
/// unsafe impl StableMemory for Part {
///     fn memory(&mut self) -> (NonNull<u8>, usize) {
///         self.0.memory()
///     }
/// }
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let pool = BufferPool::from_memory(&pd, Part(vec![0; 1 << 20].into()), &PoolConfig::new(u32::MAX, 4096))?;
/// assert!(pool.count() >= 255);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Safety
/// [`memory`](Self::memory) returns initialized bytes that belong to the value. Until the value is moved or dropped,
/// these bytes stay at that address, mapped, readable and writable, and only the caller of `memory` accesses them.
pub unsafe trait StableMemory: Send + 'static {
    /// The first byte, and how many there are.
    fn memory(&mut self) -> (NonNull<u8>, usize);
}

// SAFETY: the elements of a vector stay where they are while no code uses the vector.
unsafe impl StableMemory for Vec<u8> {
    fn memory(&mut self) -> (NonNull<u8>, usize) {
        (NonNull::from(&mut self[..]).cast(), self.len())
    }
}

// SAFETY: a box owns its bytes, and stays where it is.
unsafe impl StableMemory for Box<[u8]> {
    fn memory(&mut self) -> (NonNull<u8>, usize) {
        (NonNull::from(&mut self[..]).cast(), self.len())
    }
}

#[cfg(feature = "memmap2")]
// SAFETY: a mapping stays where it is until it is dropped. The caller of `MmapMut::map_mut` has promised
// that no other code changes or truncates its file.
unsafe impl StableMemory for memmap2::MmapMut {
    fn memory(&mut self) -> (NonNull<u8>, usize) {
        (NonNull::from(&mut self[..]).cast(), self.len())
    }
}

/// Memory that a pool keeps until the device has no access any more.
pub(super) enum Backing {
    Pages(#[expect(dead_code, reason = "kept for its drop")] Mapping),
    /// On the heap, and reached through the pointer only: moving the value would invalidate pointers to its
    /// memory.
    Program(NonNull<dyn StableMemory>),
    /// The first address for the device, and what keeps the memory there.
    Opaque(NonNull<u8>, OpaqueBacking),
}

// SAFETY: the value is `Send`, and used only when it is dropped; memory of the adapter is `Send`.
unsafe impl Send for Backing {}
// SAFETY: nothing can be done through a reference, but to store into a part of the adapter's memory that the caller has
// alone.
unsafe impl Sync for Backing {}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Self::Program(value) = self {
            // SAFETY: from a box, dropped once.
            drop(unsafe { Box::from_raw(value.as_ptr()) });
        }
    }
}
