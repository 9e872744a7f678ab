//! Memory that the processor does not read or write: of a GPU, by its dma-buf or by a pointer, and of the adapter.
//!
//! Ownership, completions and errors are those of other buffers. What differs is that there is no way to the bytes: a
//! program that looks at them, sends them inline or as a frame, or matches their tags does not compile.
//!
//! | to | use |
//! |---|---|
//! | register memory | [`OpaqueMemory`]: for peers as it is |
//! | divide it into buffers | [`OpaquePool`], [`OpaqueBuffer`] |
//! | send, RDMA WRITE and READ, atomics | [`Sender`](crate::Sender), as with other buffers; [`SendCompletion::opaque_buffer`](crate::SendCompletion::opaque_buffer) returns them |
//! | receive | [`OpaqueReceiver`], [`QueuePairBuilder::receive_opaque`](crate::QueuePairBuilder::receive_opaque) |
//!
//! The page GPU memory of the book says what a GPU program must do beside this: which descriptor or module it needs,
//! and how it makes what the device wrote visible to its own kernels.

mod message;
mod receiver;

pub use crate::memory::{OpaqueBuffer, OpaqueMemory, OpaquePool};
pub use message::{OpaqueBatch, OpaqueMessage};
pub use receiver::OpaqueReceiver;
