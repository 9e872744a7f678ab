//! What a pool should be like.

use rdma_core_sys as sys;

use super::mapping::HugePages;

/// What a [`BufferPool`](crate::BufferPool) should be like.
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
}

impl PoolConfig {
    /// `count` buffers, each for `buffer_size` bytes of a message.
    pub const fn new(count: u32, buffer_size: u32) -> Self {
        Self { count, buffer_size, headroom: 0, pages: HugePages::No, readable: false }
    }

    /// Keeps so many bytes in front of each buffer, which no receive writes. A program that sends a message on
    /// puts its header there, see [`Buffer::headroom_mut`](crate::Buffer::headroom_mut). 0 by default.
    ///
    /// Messages still start on cache lines, so each buffer grows by whole lines of 64 bytes.
    pub const fn headroom(mut self, bytes: u32) -> Self {
        self.headroom = bytes;
        self
    }

    /// Pages of this kind; those of the normal size by default.
    pub const fn pages(mut self, pages: HugePages) -> Self {
        self.pages = pages;
        self
    }

    /// Lets peers read the pool (`IBV_ACCESS_REMOTE_READ`): its buffers can be sent by rendezvous. A peer that
    /// knows one buffer can read all of them, at any time until the pool is gone.
    pub const fn readable(mut self, allowed: bool) -> Self {
        self.readable = allowed;
        self
    }

    pub(super) const fn access(&self) -> sys::ibv_access_flags {
        let remote = if self.readable { sys::IBV_ACCESS_REMOTE_READ } else { 0 };
        sys::IBV_ACCESS_LOCAL_WRITE | remote
    }
}
