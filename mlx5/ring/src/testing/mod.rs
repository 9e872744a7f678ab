//! The other side of the rings, for tests: a small device that owns the memory as hardware would, and a
//! ledger of the owners of buffers.
//!
//! [`Device`] reads doorbell records, follows links, and keeps a copy of each WQE from the doorbell until its
//! completion is polled. [`CqDevice`] writes CQEs. [`Rig`] drives one or two queues and their CQ against both,
//! and compares what the device saw with what the ledger says.

mod arena;
mod buffers;
mod check;
mod cq_device;
mod device;
pub mod queue;
mod random;
mod rig;
mod strays;
pub mod trace;

pub use arena::Arena;
pub use buffers::Owner;
pub use cq_device::{CqDevice, CqeSpec};
pub use queue::Kind;
pub(crate) use queue::on;
pub use random::{Random, cases, seed};
pub use rig::{Give, Rig, Setup, State};
