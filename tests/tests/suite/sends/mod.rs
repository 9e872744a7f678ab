//! Sends through a sender.

mod at_once;
mod basics;
mod endings;
mod rdma;
mod refusals;
mod waiting;
