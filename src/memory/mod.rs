//! Registered memory: pools of receive buffers.

mod backing;
mod buffer;
mod config;
mod deferred_free;
mod inner;
mod kind;
mod mapping;
mod opaque;
mod opaque_pool;
mod pool;
mod region;
mod remote;
mod slots;
mod window;

use std::ops::{self, RangeBounds};

pub use backing::StableMemory;
pub use buffer::Buffer;
pub use config::PoolConfig;
pub use kind::{Host, Memory, Opaque};
pub use mapping::HugePages;
pub use opaque::OpaqueMemory;
pub use pool::BufferPool;
pub use region::{RemoteAccess, RemoteRegion};
pub use remote::MemoryRegion;
pub use window::{MemoryWindow, WindowMemory};

pub(crate) use deferred_free::DeferredFree;
pub(crate) use inner::{Bound, Pool};
pub(crate) use mapping::Mapping;
pub(crate) use window::{Extent, Window};

/// Returns where a range of `len` bytes starts and ends; it need not be inside of them.
pub(crate) fn bounds(range: &impl RangeBounds<usize>, len: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        ops::Bound::Included(&start) => start,
        // No memory has so many bytes that saturating makes a range valid.
        ops::Bound::Excluded(&start) => start.saturating_add(1),
        ops::Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        ops::Bound::Included(&end) => end.saturating_add(1),
        ops::Bound::Excluded(&end) => end,
        ops::Bound::Unbounded => len,
    };
    (start, end)
}
