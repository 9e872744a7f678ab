//! Fuzz targets.
//!
//! Each target is a function of bytes, which it takes for a short program: it must neither panic nor
//! crash, and keep what its module says. A stepped soft-mlx5 is the device of all of them.
//!
//! | target | what the bytes are |
//! |---|---|
//! | [`commands`] | commands of a program to the uverbs device of soft-mlx5: `ioctl`, `write`, `mmap` |
//! | [`wqes`] | WQEs, doorbell records and register writes of a program |
//! | [`packets`] | packets that reach the port of the device |
//! | [`completions`] | CQEs in the CQ of a [`doorbell::Receiver`] |
//! | [`frames`] | CQEs in the CQ of a [`doorbell::frames::FrameReceiver`], plain or striding |
//! | [`decode`] | text for `doorbell decode` |

pub mod commands;
pub mod completions;
pub mod cq;
pub mod decode;
pub mod encoding;
pub mod frames;
mod input;
pub mod memory;
pub mod packets;
pub mod sends;
pub mod world;
pub mod wqes;

pub use input::Input;
