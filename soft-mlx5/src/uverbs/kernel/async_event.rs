//! Asynchronous events, as the program gets them.

use super::events::FileId;

/// `enum ib_event_type`.
pub mod event_type {
    pub const CQ_ERR: u32 = 0;
    pub const QP_FATAL: u32 = 1;
    pub const QP_REQ_ERR: u32 = 2;
    pub const QP_ACCESS_ERR: u32 = 3;
    pub const COMM_EST: u32 = 4;
    pub const SQ_DRAINED: u32 = 5;
    pub const DEVICE_FATAL: u32 = 8;
    pub const PORT_ACTIVE: u32 = 9;
    pub const PORT_ERR: u32 = 10;
    pub const SRQ_ERR: u32 = 14;
    pub const SRQ_LIMIT_REACHED: u32 = 15;
    pub const QP_LAST_WQE_REACHED: u32 = 16;
    pub const WQ_FATAL: u32 = 19;

    /// Events of a QP.
    pub const OF_QP: &[u32] = &[QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR, COMM_EST, SQ_DRAINED, QP_LAST_WQE_REACHED];
    /// Events of an SRQ.
    pub const OF_SRQ: &[u32] = &[SRQ_ERR, SRQ_LIMIT_REACHED];
    /// Events of a WQ.
    pub const OF_WQ: &[u32] = &[WQ_FATAL];
    /// Events of a CQ.
    pub const OF_CQ: &[u32] = &[CQ_ERR];
}

/// Events that the program has read. DESTROY reports them, and the library waits until the program has
/// acknowledged so many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reported {
    /// Completion events.
    pub completions: u32,
    /// Asynchronous events.
    pub asynchronous: u32,
}

/// Asynchronous events of one object: their file, and how many were delivered.
#[derive(Debug, Clone, Copy, Default)]
pub struct AsyncTarget {
    /// Event file, if there is one.
    pub file: Option<FileId>,
    /// The program's name for the object.
    pub element: u64,
    /// Events delivered.
    pub delivered: u32,
}
