//! Registered memory that the processor does not read or write.

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use mlx5_ring::barrier;
use rdma_core_sys as sys;

use super::region::{RemoteAccess, RemoteRegion};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::pd::ProtectionDomain;
use crate::refused::Refused;
use crate::trace::trace_event;

/// Registered memory that the processor does not read or write: memory of a GPU, or of the adapter itself. There is no
/// way to its bytes, and no value of it is a slice.
///
/// Peers access it as its [`RemoteAccess`] says. [`BufferPool::divide`](super::BufferPool::divide) divides it into
/// buffers.
///
/// ```
/// # let _device = doorbell_doc::device();
/// # fn export(len: usize) -> std::os::fd::OwnedFd { doorbell_doc::dma_buf(len) }
/// use doorbell::RemoteAccess;
/// use doorbell::opaque::OpaqueMemory;
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// // A CUDA program has the descriptor of cuMemGetHandleForAddressRange here.
/// let memory = OpaqueMemory::dma_buf(&pd, export(1 << 20), 0, 1 << 20, RemoteAccess::WRITE)?;
/// println!("tell the peers: {:?}", memory.region().to_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OpaqueMemory {
    mr: *mut sys::ibv_mr,
    /// The address of the first byte for the device. The processor does not follow it.
    start: NonNull<u8>,
    len: usize,
    is_readable_by_peers: bool,
    backing: ManuallyDrop<OpaqueBacking>,
    pd: ProtectionDomain,
}

/// The owner of opaque memory, kept until the device has no access any more.
pub(super) enum OpaqueBacking {
    DmaBuf(#[expect(dead_code, reason = "kept for its drop")] OwnedFd),
    Program(#[expect(dead_code, reason = "kept for its drop")] Box<dyn Send>),
    Device(DeviceMemory),
}

// SAFETY: the region's handle is read, and used to free it; no code reaches the memory through the value.
unsafe impl Send for OpaqueMemory {}
// SAFETY: shared references read numbers; no code reaches the memory through them.
unsafe impl Sync for OpaqueMemory {}

/// Address of byte 0 of a dma-buf for the device. A multiple of the largest page, so that the device can use pages as
/// large as those of the exporter, and not 0, which is no pointer.
const DMA_BUF: u64 = 1 << 40;

/// Bytes at the start of device memory that are left out: its first address is 0, which is no pointer.
const LEFT_OUT: usize = 64;

impl OpaqueMemory {
    /// Registers `len` bytes from `offset` on of a dma-buf (`ibv_reg_dmabuf_mr(3)`), and takes the descriptor over.
    ///
    /// The exporter counts `offset` from the start of the allocation that the descriptor names, which may begin before
    /// the pointer that the program has.
    ///
    /// # Errors
    /// [`Refused`], which returns the descriptor, so that the program can try
    /// [`unreadable`](Self::unreadable) instead: [`Error::OutOfRange`]; [`Error::Verbs`] with `EOPNOTSUPP` or
    /// `EPROTONOSUPPORT` if the adapter or the kernel has no dma-bufs, with `EINVAL` if the descriptor is no dma-buf or
    /// ends before the range does.
    pub fn dma_buf(
        pd: &ProtectionDomain,
        fd: OwnedFd,
        offset: u64,
        len: usize,
        access: RemoteAccess,
    ) -> Result<Self, Refused<OwnedFd, Error>> {
        let checked = check_len(pd, len).and_then(|()| {
            let max = isize::MAX as u64 - DMA_BUF - len as u64;
            Error::check_range("offset in the dma-buf", offset, 0, max)
        });
        if let Err(reason) = checked {
            return Err(Refused { payload: fd, reason });
        }
        let start = address(DMA_BUF + offset);
        let access = flags(access);
        // SAFETY: the domain is alive. No code of this process has a reference to memory of another device; what a
        // program has mapped itself changes as memory does that another device shares.
        let mr = unsafe {
            let iova = start.addr().get() as u64;
            sys::ibv_reg_dmabuf_mr(pd.as_raw(), offset, len, iova, fd.as_raw_fd(), access as i32)
        };
        if mr.is_null() {
            return Err(Refused { payload: fd, reason: Error::last_os("ibv_reg_dmabuf_mr", pd.context().name()) });
        }
        Ok(Self::of(pd, mr, start, len, access, OpaqueBacking::DmaBuf(fd)))
    }

    /// Registers `len` bytes at `addr` that the program declares unreadable: a pointer of a GPU, for which a
    /// peer-memory module of the kernel stands in. `ibv_reg_mr(3)` gets the address as it is. The memory drops `keep`
    /// when the device can no longer access it, and never if the registration cannot be removed.
    ///
    /// ```no_run
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let (pointer, allocation) = (std::ptr::null_mut(), ());
    /// use doorbell::RemoteAccess;
    /// use doorbell::opaque::OpaqueMemory;
    ///
    /// // SAFETY: the allocation has so many bytes at this address, frees them when it is dropped, and no code of this
    /// // process has a reference to them.
    /// let memory =
    ///     unsafe { OpaqueMemory::unreadable(&pd, pointer, 1 << 20, RemoteAccess::READ, allocation)? };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a null pointer or a length of 0; [`Error::Verbs`] with `EFAULT` if the kernel finds no
    /// memory at the address: the peer-memory module of the GPU is not loaded. `keep` is dropped then.
    ///
    /// # Safety
    /// Until `keep` is dropped, `len` bytes at `addr` belong to the device: they stay allocated at that address, no
    /// Rust reference to them exists in this process, and the program's own kernels or copies access only buffers that
    /// the program owns at that time, and memory that it shares with peers as [`MemoryRegion`](crate::MemoryRegion) is
    /// shared.
    pub unsafe fn unreadable<K: Send + 'static>(
        pd: &ProtectionDomain,
        addr: *mut u8,
        len: usize,
        access: RemoteAccess,
        keep: K,
    ) -> Result<Self> {
        check_len(pd, len)?;
        let max = u64::MAX - len as u64;
        Error::check_range("address of opaque memory", addr.addr() as u64, 1, max)?;
        let access = flags(access);
        // SAFETY: the caller's bytes belong to the device until `keep` is dropped, which `Drop` does after the region.
        let mr = unsafe { sys::ibv_reg_mr(pd.as_raw(), addr.cast(), len, access) };
        if mr.is_null() {
            return Err(Error::last_os("ibv_reg_mr", pd.context().name()));
        }
        let start = address(addr.expose_provenance() as u64);
        Ok(Self::of(pd, mr, start, len, access, OpaqueBacking::Program(Box::new(keep))))
    }

    /// Allocates and registers `len` bytes of the adapter's own memory (`ibv_alloc_dm(3)`). A send from it needs no
    /// read of the host's memory over PCIe. [`Buffer::store`](super::Buffer::store) fills its buffers.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (pd, queue) = (world.pd.clone(), world.queue());
    /// # let sender = &mut world.sender;
    /// use doorbell::opaque::OpaqueMemory;
    /// use doorbell::{BufferPool, RemoteAccess};
    ///
    /// let memory = OpaqueMemory::on_adapter(&pd, 4096, RemoteAccess::empty())?;
    /// let pool = BufferPool::divide(memory, u32::MAX, 256)?;
    /// let mut order = pool.take().expect("a new pool is full");
    /// order.store(b"buy 100")?;
    /// sender.send(queue, order)?;
    /// # assert_eq!(world.received(), b"buy 100");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Verbs`] with `EOPNOTSUPP` if the adapter has no such memory, with `EINVAL` or
    /// `ENOMEM` if it has less.
    pub fn on_adapter(pd: &ProtectionDomain, len: usize, access: RemoteAccess) -> Result<Self> {
        check_len(pd, len)?;
        // Copies are of whole words, and buffers start on cache lines.
        let len = len.checked_next_multiple_of(LEFT_OUT).unwrap_or(len);
        let memory = DeviceMemory::new(pd.context(), LEFT_OUT + len)?;
        let access = flags(access);
        // SAFETY: domain and memory are alive; the memory is freed after the region, see `Drop`.
        let mr = unsafe {
            let zero_based = access | sys::IBV_ACCESS_ZERO_BASED;
            sys::ibv_reg_dm_mr(pd.as_raw(), memory.dm.as_ptr(), 0, LEFT_OUT + len, zero_based)
        };
        if mr.is_null() {
            return Err(Error::last_os("ibv_reg_dm_mr", pd.context().name()));
        }
        Ok(Self::of(pd, mr, address(LEFT_OUT as u64), len, access, OpaqueBacking::Device(memory)))
    }

    fn of(
        pd: &ProtectionDomain,
        mr: *mut sys::ibv_mr,
        start: NonNull<u8>,
        len: usize,
        access: sys::ibv_access_flags,
        backing: OpaqueBacking,
    ) -> Self {
        trace_event!(device = pd.context().name(), bytes = len, "opaque memory registered");
        let is_readable_by_peers = access & sys::IBV_ACCESS_REMOTE_READ != 0;
        Self { mr, start, len, is_readable_by_peers, backing: ManuallyDrop::new(backing), pd: pd.clone() }
    }

    /// Returns address, length and key for the peers.
    pub fn region(&self) -> RemoteRegion {
        // SAFETY: the region exists.
        let rkey = unsafe { (*self.mr).rkey };
        RemoteRegion::new(self.start.addr().get() as u64, self.len, rkey)
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns the protection domain.
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    pub(super) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Takes the value apart: the region, whether peers may read it, and what keeps the memory until it is destroyed.
    pub(super) fn into_parts(self) -> (*mut sys::ibv_mr, bool, OpaqueBacking, ProtectionDomain) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the value is not dropped, so that each part is taken once.
        let (backing, pd) = unsafe { (ManuallyDrop::take(&mut this.backing), ptr::read(&this.pd)) };
        (this.mr, this.is_readable_by_peers, backing, pd)
    }
}

/// Returns a pointer that nobody follows.
fn address(addr: u64) -> NonNull<u8> {
    NonNull::new(ptr::without_provenance_mut(addr as usize)).expect("the caller has checked the address")
}

fn flags(access: RemoteAccess) -> sys::ibv_access_flags {
    sys::IBV_ACCESS_LOCAL_WRITE | access.intersection(RemoteAccess::all()).bits()
}

fn check_len(pd: &ProtectionDomain, len: usize) -> Result<()> {
    let max = pd.context().attr().max_mr_size.min(isize::MAX as u64 - DMA_BUF);
    Error::check_range("size of opaque memory in bytes", len as u64, 1, max)
}

impl Drop for OpaqueMemory {
    fn drop(&mut self) {
        // SAFETY: registered with this context, and dropped once.
        if unsafe { self.pd.context().deregister(self.mr) } {
            // SAFETY: the device has no access any more; dropped once.
            unsafe { ManuallyDrop::drop(&mut self.backing) }
        }
    }
}

impl fmt::Debug for OpaqueMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpaqueMemory").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Memory of the adapter.
pub(super) struct DeviceMemory {
    dm: NonNull<sys::ibv_dm>,
    context: Context,
}

// SAFETY: the memory is written through `store`, whose caller has the bytes alone, and freed by its owner.
unsafe impl Send for DeviceMemory {}

impl DeviceMemory {
    fn new(context: &Context, length: usize) -> Result<Self> {
        let mut attr = sys::ibv_alloc_dm_attr { length, log_align_req: LEFT_OUT.ilog2(), comp_mask: 0 };
        // SAFETY: an open context and an initialised structure.
        let dm = unsafe { sys::ibv_alloc_dm(context.as_raw(), &mut attr) };
        match NonNull::new(dm) {
            Some(dm) => Ok(Self { dm, context: context.clone() }),
            None => Err(Error::last_os("ibv_alloc_dm", context.name())),
        }
    }

    /// Copies bytes to `at`, a multiple of 64, and zeroes up to the next multiple of four. What is posted afterwards
    /// finds them.
    ///
    /// The caller has the bytes from `at` to the end of the last word alone.
    pub(super) fn store(&self, at: usize, bytes: &[u8]) -> Result<()> {
        const WORD: usize = mem::size_of::<u32>();
        let (words, rest) = bytes.split_at(bytes.len() / WORD * WORD);
        let mut last = [0; WORD];
        last[..rest.len()].copy_from_slice(rest);
        let pieces = [(at, words), (at + words.len(), if rest.is_empty() { &[] } else { &last[..] })];
        for (at, piece) in pieces.into_iter().filter(|(_, piece)| !piece.is_empty()) {
            // SAFETY: the memory is alive, and the piece can be read.
            let errno =
                unsafe { sys::ibv_memcpy_to_dm(self.dm.as_ptr(), at as u64, piece.as_ptr().cast(), piece.len()) };
            if errno != 0 {
                return Err(Error::returned("ibv_memcpy_to_dm", self.context.name(), errno));
            }
        }
        // The memory is mapped write-combining, as the register is that starts the device.
        barrier::flush_uar();
        Ok(())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if !self.context.owner().is_this_process() {
            return;
        }
        // SAFETY: allocated by us and freed once; no region of it exists.
        let errno = unsafe { sys::ibv_free_dm(self.dm.as_ptr()) };
        self.context.destroyed("ibv_free_dm", errno);
    }
}
