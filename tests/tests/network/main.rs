//! Programs that know nothing of doorbell, in processes of their own, as peers.
//!
//! The device must reach the devices of other processes: `DOORBELL_NETWORKED=1` says so.
//!
//! Needs: network

mod pingpong;
mod rdma;
mod tags;
