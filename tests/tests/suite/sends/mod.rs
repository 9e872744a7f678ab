//! Sends through a sender.

mod basics;
mod endings;
mod rdma;
mod refusals;
mod waiting;
