//! A software mlx5 device: the other side of the queues.
//!
//! [`kernel`] plays the uverbs character device and the mlx5 driver behind it, [`nic`] plays the
//! adapter, [`fabric`] is the wire between devices. The stock libibverbs and libmlx5 of the system
//! open the result like a ConnectX-5 and drive it with their own code.
//!
//! It is a correctness model: its speed says nothing about an adapter.

mod fabric;
mod kernel;
pub mod nic;
