//! Fuzz targets.
//!
//! Each target is a function of bytes, which it executes as a short program. It must neither panic nor
//! crash, and keep the guarantees of its module. A stepped soft-mlx5 is the device of all targets.
//!
//! | target | bytes |
//! |---|---|
//! | [`commands`] | commands of a program to the uverbs device of soft-mlx5: `ioctl`, `write`, `mmap` |
//! | [`connections`] | commands of a program to the connection manager, and datagrams of its peer |
//! | [`wqes`] | WQEs, doorbell records and register writes of a program |
//! | [`packets`] | packets that reach the port of the device |
//! | [`cqes`] | CQEs in the CQ of a [`doorbell::Receiver`], [`doorbell::Sender`] or [`doorbell::frames::FrameReceiver`] |
//! | [`firmware`] | commands of a driver to the firmware of a PCI function, doorbells, memory |
//! | [`vfio_user`] | messages of a virtual machine on its socket |
//! | [`decode`] | text for `doorbell decode` |

pub mod commands;
pub mod connections;
pub mod cqes;
pub mod decode;
pub mod firmware;
mod input;
mod memory;
pub mod packets;
#[path = "../../soft-mlx5/tests/common/qp_states.rs"]
mod qp_states;
#[path = "../../soft-mlx5/src/pci/tests/templates.rs"]
mod templates;
pub mod vfio_user;
mod world;
pub mod wqes;
