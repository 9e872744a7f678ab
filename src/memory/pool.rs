//! A registered pool: one memory region, cut into buffers of equal size.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use mlx5_wire::data::DataSegment;
use rdma_core_sys as sys;

use super::backing::{Backing, StableMemory};
use super::buffer::Buffer;
use super::config::PoolConfig;
use super::inner::{Bound, Free, Pool};
use super::kind::{Host, Memory};
use super::mapping::{HugePages, Mapping};
use super::slots::Slots;
use crate::error::{Error, Result};
use crate::pd::ProtectionDomain;
use crate::refused::Refused;
use crate::trace::trace_event;

/// Registered memory, divided into buffers of one size. Clones share one pool.
///
/// The pool zeroes its memory and registers it with `IBV_ACCESS_LOCAL_WRITE`. Peers can read a
/// [`readable`](PoolConfig::readable) pool, and can write none. The memory is freed when the last buffer and the last
/// queue that may hold one are dropped.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{BufferPool, PoolConfig};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let pool = BufferPool::new(&pd, &PoolConfig::new(1024, 4096))?;
/// let mut buffer = pool.take().expect("a new pool is full");
/// buffer.set_len(5);
/// buffer.copy_from_slice(b"hello");
/// assert_eq!((pool.available(), pool.count()), (1023, 1024));
/// drop(buffer);
/// assert_eq!(pool.available(), 1024);
/// # Ok::<(), doorbell::Error>(())
/// ```
pub struct BufferPool<M: Memory = Host>(pub(crate) Arc<Pool>, PhantomData<M>);

impl<M: Memory> Clone for BufferPool<M> {
    fn clone(&self) -> Self {
        self.cast()
    }
}

/// A pool without what keeps its memory.
pub(super) struct Registered {
    pub(super) mr: *mut sys::ibv_mr,
    pub(super) slots: Slots,
    pub(super) pd: ProtectionDomain,
    /// Peers may read it.
    pub(super) is_readable: bool,
    /// Memory windows can be bound to it.
    pub(super) has_windows: bool,
}

impl Registered {
    pub(super) fn into_pool<M: Memory>(self, backing: Backing) -> BufferPool<M> {
        let Self { mr, slots, pd, is_readable, has_windows } = self;
        let free = ArrayQueue::new(slots.count as usize);
        for index in 0..slots.count as usize {
            let _ = free.push(Free(slots.at(index)));
        }
        // SAFETY: a region that was just made.
        let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
        let pool = Arc::new(Pool {
            bound: Bound::of_buffer(slots.buffer_size),
            buffer_size: slots.buffer_size,
            segment: DataSegment::new(0, slots.buffer_size, lkey),
            pd,
            backing: ManuallyDrop::new(backing),
            start: slots.start,
            mr,
            lkey,
            rkey: is_readable.then_some(rkey),
            has_windows,
            headroom: slots.headroom,
            stride: slots.stride,
            count: slots.count,
            free,
        });
        BufferPool(pool, PhantomData)
    }
}

impl BufferPool {
    /// Creates a pool as `config` describes it.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// use doorbell::{BufferPool, HugePages, PoolConfig};
    ///
    /// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let config = PoolConfig::new(512, 4000).headroom(64).pages(HugePages::Transparent);
    /// let pool = BufferPool::new(&pd, &config)?;
    /// assert_eq!((pool.buffer_size(), pool.headroom()), (4000, 64));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the count or the size is 0, or the pool is larger than `max_mr_size` of the device;
    /// [`Error::Verbs`] if memory is short or may not be locked (`RLIMIT_MEMLOCK`), or too few huge pages are
    /// reserved (`mmap`).
    pub fn new(pd: &ProtectionDomain, config: &PoolConfig) -> Result<Self> {
        let len = Slots::len(config)?;
        Self::check_size(pd, len)?;
        let memory = Mapping::new(len as usize, config.pages).map_err(|source| {
            let reserved = config.pages == HugePages::Reserved;
            let operation = if reserved { "mmap(MAP_HUGETLB)" } else { "mmap" };
            Error::verbs(operation, "the system", source)
        })?;
        // SAFETY: mapped with that length, and the mapping is ours.
        let registered = unsafe {
            let slots = Slots::cut(memory.start(), memory.len(), config)?;
            Self::register(pd, slots, memory.start(), memory.len(), config.access())?
        };
        Ok(registered.into_pool(Backing::Pages(memory)))
    }

    /// Creates a pool in memory of the program, with as many buffers as fit and at most `config` says, each on its own
    /// cache lines. The pool drops the memory when the device can no longer access it. If the registration cannot be
    /// removed, the memory is leaked.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// use doorbell::{BufferPool, PoolConfig};
    ///
    /// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let as_many_as_fit = PoolConfig::new(u32::MAX, 1024);
    /// let pool = BufferPool::from_memory(&pd, vec![0; 1 << 16], &as_many_as_fit)?;
    /// assert!(pool.count() >= 63);
    /// // When that is not possible, the memory comes back.
    /// let refused = BufferPool::from_memory(&pd, vec![7; 100], &as_many_as_fit).unwrap_err();
    /// println!("{refused}");
    /// assert_eq!(refused.payload, [7; 100]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`], which returns the memory: [`Error::OutOfRange`] if not one buffer fits (with up to 63 bytes before
    /// it, for alignment), [`Error::Unsupported`] if `config` asks for [`pages`](PoolConfig::pages); the errors of
    /// [`new`](Self::new).
    pub fn from_memory<S: StableMemory>(
        pd: &ProtectionDomain,
        memory: S,
        config: &PoolConfig,
    ) -> Result<Self, Refused<S, Error>> {
        if config.pages != HugePages::No {
            let reason = Error::Unsupported {
                operation: "PoolConfig::pages",
                when: "for a pool in memory of the program: map the memory with such pages",
            };
            return Err(Refused { payload: memory, reason });
        }
        let value = NonNull::from(Box::leak(Box::new(memory)));
        // SAFETY: leaked just now, and no other code has it.
        let (first, len) = unsafe { (*value.as_ptr()).memory() };
        // SAFETY: the value's memory, by the contract of the trait.
        let made = unsafe {
            Slots::cut(first, len, config).and_then(|slots| Self::register(pd, slots, first, len, config.access()))
        };
        match made {
            Ok(registered) => Ok(registered.into_pool(Backing::Program(value))),
            Err(reason) => {
                // SAFETY: leaked above, and not registered.
                let memory = unsafe { Box::from_raw(value.as_ptr()) };
                Err(Refused { payload: *memory, reason })
            }
        }
    }

    fn check_size(pd: &ProtectionDomain, len: u64) -> Result<()> {
        let max = pd.context().attr().max_mr_size;
        Error::check_range("size of the pool in bytes", len, 1, max.min(isize::MAX as u64))
    }

    /// # Safety
    /// The slots are in the `len` bytes from `first` on, which are initialised, used by no other code, and stay
    /// for as long as the pool.
    unsafe fn register(
        pd: &ProtectionDomain,
        slots: Slots,
        first: NonNull<u8>,
        len: usize,
        access: sys::ibv_access_flags,
    ) -> Result<Registered> {
        Self::check_size(pd, len as u64)?;
        // SAFETY: no other code uses the caller's `len` bytes; the memory outlives the region, see `Drop`.
        let mr = unsafe { sys::ibv_reg_mr(pd.as_raw(), first.as_ptr().cast(), len, access) };
        if mr.is_null() {
            return Err(Error::last_os("ibv_reg_mr", pd.context().name()));
        }
        trace_event!(
            device = pd.context().name(),
            count = slots.count,
            buffer_size = slots.buffer_size,
            headroom = slots.headroom,
            bytes = len,
            "pool registered"
        );
        let is_readable = access & sys::IBV_ACCESS_REMOTE_READ != 0;
        let has_windows = access & sys::IBV_ACCESS_MW_BIND != 0;
        Ok(Registered { mr, slots, pd: pd.clone(), is_readable, has_windows })
    }
}

impl<M: Memory> BufferPool<M> {
    /// Takes a free buffer with length 0, or returns `None` if all buffers are in use.
    pub fn take(&self) -> Option<Buffer<M>> {
        let Free(start) = self.0.free.pop()?;
        // SAFETY: a buffer of this pool, which had no owner.
        Some(unsafe { Buffer::new(Arc::clone(&self.0), start, 0) })
    }

    /// Returns the size of a buffer in bytes.
    pub fn buffer_size(&self) -> u32 {
        self.0.buffer_size
    }

    /// Returns the bytes before each buffer that the device does not write, see [`PoolConfig::headroom`].
    pub fn headroom(&self) -> u32 {
        self.0.headroom
    }

    /// Returns the number of buffers.
    pub fn count(&self) -> u32 {
        self.0.count
    }

    /// Returns the number of free buffers.
    pub fn available(&self) -> usize {
        self.0.free.len()
    }

    /// Returns the pool as one in another kind of memory, see [`Buffer::cast`].
    pub(crate) fn cast<N: Memory>(&self) -> BufferPool<N> {
        BufferPool(Arc::clone(&self.0), PhantomData)
    }

    /// Returns the protection domain of the pool.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }
}

impl<M: Memory> fmt::Debug for BufferPool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("count", &self.count())
            .field("buffer_size", &self.buffer_size())
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}
