//! The other side of the rings, for tests: a small device that owns the memory as hardware would, and a
//! ledger of who has which buffer.
//!
//! [`Device`] reads doorbell records, follows links, and remembers each WQE byte by byte from the doorbell
//! until its completion is polled. [`CqDevice`] writes CQEs. [`Rig`] drives a queue and its CQ against both,
//! and after each step compares what the device saw with what the ledger says.

mod arena;
mod cq_device;
mod device;
mod rig;
pub mod trace;

pub use arena::Arena;
pub use cq_device::{CqDevice, CqeSpec};
pub use device::{Device, Taken};
pub use rig::{Beside, Give, Held, Place, Rig, TestQueue, pool, sge};
