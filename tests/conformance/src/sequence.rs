//! Constants of the plans of all kinds of sessions.

/// Operations of a session.
pub const OPERATIONS: usize = 250;

/// A session.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<S, O> {
    pub shape: S,
    pub operations: Vec<O>,
}

/// Actions of peers and connections, for each kind of sends.
#[derive(Clone, Debug, PartialEq)]
pub enum Traffic<S> {
    /// Messages of a peer; the device works on them now or later. A connection that has failed is
    /// reset and connected first, or not.
    Send { qp: u32, sends: Vec<S>, restart: bool, run: bool },
    /// The device works until there is nothing left to do.
    Run,
    /// Time passes: retries happen.
    Wait { milliseconds: u32 },
    /// A QP goes to error: the device flushes its receives, and a message that it is receiving ends.
    Fail { qp: u32 },
    /// A QP and its peer are reset and connected.
    Reset { qp: u32 },
}

/// Settings of the adapter and the link, which do not depend on the queues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// CQEs of 128 bytes.
    pub large_cqe: bool,
    /// Short payloads come inside CQEs.
    pub scatter_to_cqe: bool,
    /// Packets of 256 bytes instead of 1024.
    pub small_mtu: bool,
    /// Packets are lost and overtake each other.
    pub lossy: bool,
}
