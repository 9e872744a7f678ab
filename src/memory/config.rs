//! Configuration of a pool.

use rdma_core_sys as sys;

use super::mapping::HugePages;

/// Size, headroom, pages and access of a [`BufferPool`](crate::BufferPool).
///
/// ```
/// use doorbell::{HugePages, PoolConfig};
///
/// // 1,024 buffers of 4,000 bytes, with room for a header in front of each message.
/// let config = PoolConfig::new(1024, 4000).headroom(64).pages(HugePages::Transparent);
/// # let _ = config;
/// ```
#[derive(Clone, Debug)]
pub struct PoolConfig {
    pub(super) count: u32,
    pub(super) buffer_size: u32,
    pub(super) headroom: u32,
    pub(super) pages: HugePages,
    readable: bool,
    relaxed_ordering: bool,
    memory_windows: bool,
}

impl PoolConfig {
    /// Describes `count` buffers of `buffer_size` bytes each.
    pub const fn new(count: u32, buffer_size: u32) -> Self {
        Self {
            count,
            buffer_size,
            headroom: 0,
            pages: HugePages::No,
            readable: false,
            relaxed_ordering: false,
            memory_windows: false,
        }
    }

    /// Reserves `bytes` bytes before each buffer, 0 by default. Receives do not write them. A program that forwards a
    /// message writes its own header there, see [`Buffer::headroom_mut`](crate::Buffer::headroom_mut).
    ///
    /// Messages still start on cache lines, so each buffer grows by whole lines of 64 bytes.
    pub const fn headroom(mut self, bytes: u32) -> Self {
        self.headroom = bytes;
        self
    }

    /// Sets the kind of pages, [`HugePages::No`](crate::HugePages::No) by default.
    pub const fn pages(mut self, pages: HugePages) -> Self {
        self.pages = pages;
        self
    }

    /// Lets peers read the pool (`IBV_ACCESS_REMOTE_READ`), as a rendezvous requires. A peer that knows one buffer
    /// can read the whole pool until it is freed.
    pub const fn readable(mut self, allowed: bool) -> Self {
        self.readable = allowed;
        self
    }

    /// Lets the stores of the device pass each other on their way to the pool (`IBV_ACCESS_RELAXED_ORDERING`), `false`
    /// by default. Buffers that come back with their completions are complete nevertheless. The page GPU memory of the
    /// book says when that is faster. A kernel that does not know the flag ignores it.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// use doorbell::{BufferPool, PoolConfig};
    ///
    /// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let pool = BufferPool::new(&pd, &PoolConfig::new(1024, 4096).relaxed_ordering(true))?;
    /// # drop(pool);
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    pub const fn relaxed_ordering(mut self, allowed: bool) -> Self {
        self.relaxed_ordering = allowed;
        self
    }

    /// Lets [memory windows](crate::MemoryWindow) be bound to buffers of the pool (`IBV_ACCESS_MW_BIND`), `false` by
    /// default.
    pub const fn memory_windows(mut self, allowed: bool) -> Self {
        self.memory_windows = allowed;
        self
    }

    pub(super) const fn access(&self) -> sys::ibv_access_flags {
        let remote = if self.readable { sys::IBV_ACCESS_REMOTE_READ } else { 0 };
        let ordering = if self.relaxed_ordering { sys::IBV_ACCESS_RELAXED_ORDERING } else { 0 };
        let windows = if self.memory_windows { sys::IBV_ACCESS_MW_BIND } else { 0 };
        sys::IBV_ACCESS_LOCAL_WRITE | remote | ordering | windows
    }
}
