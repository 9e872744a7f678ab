//! Memory that a peer may write at any time.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_core_sys as sys;

use super::mapping::{HugePages, Mapping};
use super::region::{RemoteAccess, RemoteRegion};
use crate::error::{Error, Result};
use crate::pd::ProtectionDomain;
use crate::trace::trace_event;

/// Registered memory that peers write with RDMA WRITE (`IBV_ACCESS_REMOTE_WRITE`), over queue pairs with
/// [`QpConfig::remote_write`](crate::QpConfig::remote_write). [`with_access`](Self::with_access) also allows RDMA
/// READ and atomic operations.
///
/// There is no reference to the memory, because a peer can write at any time: [`read`](Self::read) and
/// [`write`](Self::write) copy. A write of the peer is complete when this side has polled the completion of a message
/// that the peer sent after it.
///
/// ```
/// # let _device = doorbell_doc::device();
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let memory = doorbell::MemoryRegion::new(&pd, 4096)?;
/// println!("tell the peer: {:?}", memory.region());
/// let mut header = [0; 16];
/// memory.read(0, &mut header);
/// assert_eq!(header, [0; 16]);
/// # Ok::<(), doorbell::Error>(())
/// ```
pub struct MemoryRegion {
    registered: Arc<Registered>,
    /// The region is not shared by threads.
    one_thread: PhantomData<Cell<()>>,
}

/// The memory and its registration, which windows that are bound to it keep.
pub struct Registered {
    memory: ManuallyDrop<Mapping>,
    pub(super) len: usize,
    pub(super) mr: *mut sys::ibv_mr,
    pub(super) pd: ProtectionDomain,
    /// Memory windows can be bound to it.
    pub(super) has_windows: bool,
}

// SAFETY: the region's handle is read, and used to free it; the memory is accessed by volatile copies.
unsafe impl Send for Registered {}
// SAFETY: the reason for `Send` holds for shared references, too; `MemoryRegion::write`, which stores, needs `&mut` of
// the only region that has the memory.
unsafe impl Sync for Registered {}

impl MemoryRegion {
    /// Allocates and registers `len` zeroed bytes that peers can write.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `len` is 0 or greater than `max_mr_size` of the device; [`Error::Verbs`].
    pub fn new(pd: &ProtectionDomain, len: usize) -> Result<Self> {
        Self::with_access(pd, len, RemoteAccess::WRITE)
    }

    /// Allocates and registers `len` zeroed bytes for the operations of `access`.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// use doorbell::{RemoteAccess, MemoryRegion};
    ///
    /// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let mut table = MemoryRegion::with_access(&pd, 4096, RemoteAccess::READ)?;
    /// table.write(0, b"for all to read");
    /// println!("tell the peers: {:?}", table.region().to_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_access(pd: &ProtectionDomain, len: usize, access: RemoteAccess) -> Result<Self> {
        let max = pd.context().attr().max_mr_size.min(isize::MAX as u64);
        Error::check_range("size of the region in bytes", len as u64, 1, max)?;
        let memory = Mapping::new(len, HugePages::No).map_err(|source| Error::verbs("mmap", "the system", source))?;
        let remote = access.intersection(RemoteAccess::all());
        let access = sys::IBV_ACCESS_LOCAL_WRITE | remote.bits();
        // SAFETY: the mapping is readable and writable and outlives the region, see `Drop`.
        let mr = unsafe { sys::ibv_reg_mr(pd.as_raw(), memory.start().as_ptr().cast(), len, access) };
        if mr.is_null() {
            return Err(Error::last_os("ibv_reg_mr", pd.context().name()));
        }
        trace_event!(device = pd.context().name(), bytes = len, "memory region registered");
        let has_windows = remote.contains(RemoteAccess::BIND);
        Ok(Self::of(Registered { memory: ManuallyDrop::new(memory), len, mr, pd: pd.clone(), has_windows }))
    }

    /// Returns address, length and key for the peers.
    pub fn region(&self) -> RemoteRegion {
        // SAFETY: the region exists.
        let rkey = unsafe { (*self.registered.mr).rkey };
        RemoteRegion::new(self.as_ptr().addr() as u64, self.len(), rkey)
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.registered.len
    }

    /// Returns the address of the first byte, which is page-aligned. Plain accesses race with writes of peers: use
    /// volatile or atomic ones. An atomic instruction of the CPU is not atomic towards those of peers
    /// (`IBV_ATOMIC_HCA`).
    pub fn as_ptr(&self) -> *mut u8 {
        self.registered.memory.start().as_ptr()
    }

    /// Copies the bytes from `offset` on to `out`. Each byte that a peer writes at the same time may be old or new.
    ///
    /// # Panics
    /// If the bytes are not inside the memory.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let from = self.range(offset, out.len());
        for (at, byte) in out.iter_mut().enumerate() {
            // SAFETY: inside the memory.
            *byte = unsafe { from.add(at).read_volatile() };
        }
    }

    /// Copies `bytes` into the memory at `offset`. A peer that reads at the same time may get old and new bytes.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let mut memory = doorbell::MemoryRegion::new(&pd, 64)?;
    /// memory.write(8, b"ready");
    /// let mut found = [0; 5];
    /// memory.read(8, &mut found);
    /// assert_eq!(found, *b"ready");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If the bytes do not fit.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let to = self.range(offset, bytes.len());
        for (at, &byte) in bytes.iter().enumerate() {
            // SAFETY: inside the memory.
            unsafe { to.add(at).write_volatile(byte) }
        }
    }

    fn range(&self, offset: usize, len: usize) -> NonNull<u8> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len());
        assert!(inside, "{len} bytes from {offset} on in a memory of {}", self.len());
        // SAFETY: inside the mapping, or at its end.
        unsafe { self.registered.memory.start().add(offset) }
    }
}

impl MemoryRegion {
    fn of(registered: Registered) -> Self {
        Self { registered: Arc::new(registered), one_thread: PhantomData }
    }

    pub(super) const fn registered(&self) -> &Arc<Registered> {
        &self.registered
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered with this context, and dropped once.
        if unsafe { self.pd.context().deregister(self.mr) } {
            // SAFETY: the device has no access any more; dropped once.
            unsafe { ManuallyDrop::drop(&mut self.memory) }
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("len", &self.len()).finish_non_exhaustive()
    }
}
