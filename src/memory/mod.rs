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
