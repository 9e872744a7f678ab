//! Fuzz targets.
//!
//! Each target is a function of bytes, which it executes as a short program. It must neither panic nor
//! crash, and keep the guarantees of its module. A stepped soft-mlx5 is the device of all targets.
//!
//! | target | bytes |
//! |---|---|
//! | [`commands`] | commands of a program to the uverbs device of soft-mlx5: `ioctl`, `write`, `mmap` |
//! | [`wqes`] | WQEs, doorbell records and register writes of a program |
//! | [`packets`] | packets that reach the port of the device |
//! | [`cqes`] | CQEs in the CQ of a [`doorbell::Receiver`], [`doorbell::Sender`] or [`doorbell::frames::FrameReceiver`] |
//! | [`decode`] | text for `doorbell decode` |

pub mod commands;
pub mod cqes;
pub mod decode;
mod input;
mod memory;
pub mod packets;
#[path = "../../soft-mlx5/tests/common/qp_states.rs"]
mod qp_states;
mod world;
pub mod wqes;
