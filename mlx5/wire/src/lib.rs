//! Layouts that an mlx5 device and its driver share: WQE segments, CQEs, doorbell records and the
//! tag-matching headers, as plain big-endian structs.
//!
//! The structs are the bytes and nothing else: no queue, no pointer, no `unsafe`. Every struct has the size and the
//! field offsets of its counterpart in rdma-core's `providers/mlx5/mlx5dv.h`, checked at compile time; each module
//! names the counterparts, and the source of a name for a field that is reserved there. [`to_bytes`] and [`from_bytes`]
//! convert without loss. Nothing in this crate panics and every byte pattern is a valid value. The accessors decide
//! what a pattern means: they return `Option`, or an enum with an `Unknown` arm where the device may write something
//! that has no name here.
//!
//! [`to_bytes`]: data::DataSegment::to_bytes
//! [`from_bytes`]: data::DataSegment::from_bytes
//!
//! ```
//! use mlx5_wire::data::DataSegment;
//!
//! let segment = DataSegment::new(0x1000, 64, 0x1234);
//! assert_eq!(segment.to_bytes(), [0, 0, 0, 64, 0, 0, 0x12, 0x34, 0, 0, 0, 0, 0, 0, 0x10, 0]);
//! ```
#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
mod layout;

/// The example of the README is run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod be;
pub mod cqe;
pub mod ctrl;
pub mod data;
pub mod datagram;
pub mod dbrec;
pub mod eth;
pub mod firmware;
pub mod frame;
pub mod inline;
pub mod mini_cqe;
pub mod next;
pub mod opcode;
pub mod remote;
pub mod signature;
pub mod syndrome;
pub mod text;
pub mod tm;
pub mod tmh;
pub mod uar;
pub mod umr;
pub mod vendor;
