//! Registered memory: pools of receive buffers.

mod mapping;
mod pool;

pub use pool::{BufferPool, RecvBuffer};

pub(crate) use pool::Pool;
