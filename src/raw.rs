//! The rings of the direct path, for programs that bypass the safe layer.
//!
//! [`Receiver::as_direct`](crate::Receiver::as_direct) and [`Sender::as_direct`](crate::Sender::as_direct) lend the
//! queues of the crate `mlx5_ring`. A ring takes SGEs of any registered memory; the caller keeps this memory alive
//! until the completion. Most programs do not need this: the safe methods write the same WQEs.
//!
//! [`mlx5_ring`] has the rings, [`rdma_core_sys`] the functions and structures of libibverbs and libmlx5.

pub use {mlx5_ring, rdma_core_sys};

pub use crate::receiver::{DirectQueues, SlotContext};
pub use crate::sender::WorkRequest;
