//! A software mlx5 device: the other side of the queues.
//!
//! `kernel` plays the uverbs character device and the mlx5 driver behind it, [`nic`] plays the
//! adapter, `fabric` is the wire between devices. The stock libibverbs and libmlx5 of the system
//! open the result like a ConnectX-5 and drive it with their own code.
//!
//! A test holds a [`Device`] in its hands; the program `soft-mlx5` ([`runner`]) gives one to each
//! process of any command.
//!
//! It is a correctness model: its speed says nothing about an adapter.

mod clock;
mod device;
mod engine;
mod fabric;
mod fd_table;
mod interpose;
mod kernel;
pub mod nic;
mod options;
mod registry;
mod run_dir;
pub mod runner;
mod shared;
mod sysfs;

pub use device::{Builder, Device};
pub use fabric::{Fabric, Faults, LinkLayer, Switch};
