//! The rings of an mlx5 device over raw memory: how WQEs and CQEs are handed over.
//!
//! One file per ring, named after the ring: [`rq::ReceiveQueue`], [`srq::SharedReceiveQueue`],
//! [`ordered::OrderedReceiveQueue`], [`frames::FrameQueue`], [`cq::CompletionQueue`], [`sq::SendQueue`], and
//! [`tag_list::TagList`] on the same basic blocks; [`receive`] has what the three receive queues share,
//! [`arm::CqDoorbell`] asks for an event. Nothing here allocates, makes a system call or knows of libibverbs: the
//! constructors take the pointers that `mlx5dv_init_obj` hands out, and storage of the caller's for what software must
//! remember of each slot.
//!
//! # Who may touch what
//! The device reads and writes queue memory while this code runs. No Rust reference to a live WQE, CQE
//! or doorbell record is ever formed: only volatile loads and stores through raw pointers. All barriers,
//! with the argument for each, are in [`barrier`].
//!
//! # Batches
//! Many WQEs take one doorbell ([`receive::ReceiveRing::ring_doorbell`]), and many CQEs one store of the consumer index
//! ([`cq::CompletionQueue::publish`]). The indices themselves are in the queue after each step, so a batch that a panic
//! has cut off costs a late doorbell and nothing else. A short borrow posts to a send queue or a tag list
//! ([`sq::SendQueue::posting`], [`tag_list::TagList::posting`]) and rings once, when it is dropped.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod arm;
pub mod barrier;
pub mod completion;
mod compressed;
mod copy;
pub mod cq;
pub mod dbrec;
pub mod frames;
mod inline;
pub mod ordered;
mod prefetch;
pub mod receive;
pub mod rq;
pub mod sge;
pub mod slots;
pub mod sq;
pub mod srq;
pub mod tag_list;
#[cfg(test)]
mod testing;
pub mod uar;
