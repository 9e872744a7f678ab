//! Buses: what stands between a driver and a [`Function`].
//!
//! `init_segment` and `command_queue` are the interface that every bus shows; each bus adds how its driver reaches
//! the registers, and how the function reaches the driver's memory.

mod command_queue;
mod doorbell;
mod function;
mod init_segment;
pub mod vfio_user;

#[cfg(test)]
mod tests;

pub use self::function::Function;
pub use crate::base::dma::{Access, Dma, Piece};
pub use crate::commands::Interrupts;
