//! Registered memory: pools of receive buffers.

mod backing;
mod buffer;
mod config;
mod mapping;
mod pool;
mod region;
mod remote;
mod slots;

pub use backing::{MemoryError, StableMemory};
pub use buffer::Buffer;
pub use config::PoolConfig;
pub use mapping::HugePages;
pub use pool::BufferPool;
pub use region::{RemoteAccess, RemoteRegion};
pub use remote::RemoteMemory;

pub(crate) use pool::Pool;
