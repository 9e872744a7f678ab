//! A software mlx5 device: the other side of the queues.
//!
//! `kernel` plays the uverbs character device and the mlx5 driver behind it, [`nic`] plays the
//! adapter, `fabric` is the wire between devices. The stock libibverbs and libmlx5 of the system
//! open the result like a ConnectX-5 and drive it with their own code.
//!
//! A test holds a [`Device`] in its hands; the program `soft-mlx5` ([`runner`]) gives one to each
//! process of any command.
//!
//! ```
//! let device = soft_mlx5::Device::builder().name("mlx5_test").stepped().build()?;
//! // From here on libibverbs lists a ConnectX-5 of this name, and programs in this process may open
//! // it. A stepped device works when told, so a test sees what was there before and after:
//! assert!(!device.step(), "nothing was posted yet");
//! # std::io::Result::Ok(())
//! ```
//!
//! It is a correctness model: its speed says nothing about an adapter.

mod clock;
mod device;
mod engine;
mod fabric;
pub mod faults;
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
pub use fabric::{Fabric, LinkLayer, Switch};
pub use faults::Faults;
