//! Every order of the steps of several threads, and of loads that overtake each other.
//!
//! Needs: nothing

mod cqe_barrier;
mod giving_back;
