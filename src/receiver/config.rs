//! What a receiver and its shared receive queues should be like.

use crate::path::Path;

/// What a [`Receiver`](crate::Receiver) should be like.
#[derive(Clone, Debug)]
pub struct ReceiverConfig {
    pub(crate) cq_capacity: u32,
    pub(crate) path: Path,
}

impl ReceiverConfig {
    /// A CQ of 4,096 entries, [`Path::Auto`].
    pub const fn new() -> Self {
        Self { cq_capacity: 4096, path: Path::Auto }
    }

    /// Entries of the CQ: at least as many as receives can be outstanding on all queues together. The
    /// driver rounds up to a power of two.
    pub const fn cq_capacity(mut self, entries: u32) -> Self {
        self.cq_capacity = entries;
        self
    }

    /// How the CQ and the queues are driven.
    pub const fn path(mut self, path: Path) -> Self {
        self.path = path;
        self
    }
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// What a shared receive queue should be like.
#[derive(Clone, Debug)]
pub struct SrqConfig {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
}

impl SrqConfig {
    /// A queue for `max_wr` outstanding receives of one buffer each. The driver may round up.
    pub const fn new(max_wr: u32) -> Self {
        Self { max_wr, max_sge: 1 }
    }

    /// Buffers that one receive may be scattered over.
    pub const fn max_sge(mut self, max_sge: u32) -> Self {
        self.max_sge = max_sge;
        self
    }
}
