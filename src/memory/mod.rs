//! Registered memory: pools of receive buffers.

mod backing;
mod mapping;
mod pool;
mod remote;

pub use backing::{MemoryError, StableMemory};
pub use mapping::HugePages;
pub use pool::{BufferPool, RecvBuffer};
pub use remote::RemoteMemory;

pub(crate) use pool::Pool;
