//! doorbell gives programs the receive path of mlx5 (NVIDIA ConnectX) adapters without the cost of
//! generic verbs.
#![deny(missing_docs)]

mod context;
mod cq;
mod device;
mod error;
mod memory;
mod owner;
mod path;
mod pd;

pub use context::Context;
pub use device::{Device, devices, open};
pub use error::{Error, Result};
pub use memory::{BufferPool, RecvBuffer};
pub use path::{NotDirect, Path, UnknownPath};
pub use pd::ProtectionDomain;
