//! Memory that the processor does not read or write: of a GPU, by its dma-buf or by a pointer, and of the adapter.
//!
//! Pools, buffers, receivers and messages are those of other memory, with the type parameter [`Opaque`]. What differs
//! is that there is no way to the bytes: a program that looks at them, sends them inline or as a frame, or matches
//! their tags does not compile.
//!
//! | to | use |
//! |---|---|
//! | register memory | [`OpaqueMemory`]: for peers as it is |
//! | divide it into buffers | [`BufferPool::divide`](crate::BufferPool::divide) |
//! | send, RDMA WRITE and READ, atomics | [`Sender`](crate::Sender), as with other buffers; [`SendCompletion::opaque_buffer`](crate::SendCompletion::opaque_buffer) returns them |
//! | receive | [`Receiver::opaque`](crate::Receiver::opaque), [`QueuePairBuilder::receive`](crate::QueuePairBuilder::receive) |
//!
//! The page GPU memory of the book says what a GPU program must do beside this: which descriptor or module it needs,
//! and how it makes what the device wrote visible to its own kernels.

pub use crate::memory::{Opaque, OpaqueMemory};
