//! A list operation, for both twins.

use mlx5_ring::tag_list::Handle;
use rdma_core_sys as sys;

#[derive(Clone, Copy)]
pub enum What {
    Add {
        tag: u64,
        mask: u64,
        buffer: sys::ibv_sge,
    },
    /// The receive, as each twin names it.
    Del {
        entry: u32,
        handle: Handle,
    },
    Sync,
}

#[derive(Clone, Copy)]
pub struct Request {
    /// `wr_id` of its completion, and of the completion of the receive.
    pub id: u64,
    pub what: What,
    pub signaled: bool,
    /// Unexpected messages that were handled.
    pub count: Option<u32>,
}

impl Request {
    pub fn sge(&self) -> sys::ibv_sge {
        match self.what {
            What::Add { buffer, .. } => buffer,
            What::Del { .. } | What::Sync => sys::ibv_sge::default(),
        }
    }
}
