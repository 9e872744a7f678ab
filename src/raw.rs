//! The rings themselves: [`Receiver::as_direct`](crate::Receiver::as_direct) and
//! [`Sender::as_direct`](crate::Sender::as_direct) lend the queues of the crate `mlx5_ring`.
//!
//! A ring takes SGEs of any registered memory, and its caller keeps the memory alive until the completion. Most programs do
//! not need this: the safe methods of `Receiver` and `Sender` write the same WQEs.

pub use crate::receiver::{DirectQueues, SlotContext};
pub use crate::sender::WorkRequest;
