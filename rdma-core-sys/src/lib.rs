//! FFI to libibverbs, which is linked, and to libmlx5 and librdmacm, which are loaded at run time.
//!
//! The types, constants and functions carry the names of the C headers of rdma-core, and its man
//! pages are their documentation. Three things differ from plain bindings of bindgen:
//!
//! - Functions that the headers define as `static inline` or as a macro ([`ibv_post_recv`],
//!   [`ibv_poll_cq`], [`ibv_create_cq_ex`], [`ibv_query_port`], ...) are inline Rust that calls the
//!   entry of the provider, after the same checks as in the header.
//! - libmlx5 and librdmacm are not linked, so that a program also starts where they are absent: see
//!   [`Mlx5dv`] and [`RdmaCm`].
//! - Enumerations are integers with constants, as in C: their values come from drivers, and a
//!   value that is not in the header must not be undefined behaviour.
//!
//! # Bindings
//!
//! The bindings in the crate were made from the headers of rdma-core 44 and are the same for
//! x86-64 and aarch64. The feature `bindgen` makes them from the installed headers instead; it
//! needs libclang. With that feature the tests also say which file of the crate is not current,
//! and what to copy over it.
//!
//! # Requirements
//!
//! To build: libibverbs of rdma-core 44 or newer with its development files (Debian: package
//! `libibverbs-dev`). To use an mlx5 device: libmlx5 (Debian: package `ibverbs-providers`). To connect
//! through the RDMA connection manager: librdmacm (Debian: package `librdmacm1`).

mod bindings;
mod constants;
mod context;
mod default;
mod device;
mod device_memory;
mod library;
mod memory;
mod mlx5dv;
mod poll;
mod post;
mod raw_packet;
mod rdmacm;
mod windows;
mod wr;

pub use bindings::*;
pub use constants::*;
pub use context::{VERBS_ABI_IS_EXTENDED, verbs_get_ctx};
pub use device::*;
pub use device_memory::*;
pub use library::LoadError;
pub use memory::*;
pub use mlx5dv::*;
pub use poll::*;
pub use post::*;
pub use raw_packet::*;
pub use rdmacm::*;
pub use windows::*;
pub use wr::*;
