//! States of a queue pair.

use std::fmt;

use rdma_core_sys as sys;

/// State of a queue pair (`enum ibv_qp_state`).
///
/// ```
/// # let world = doorbell_doc::World::new();
/// use doorbell::QpState;
///
/// assert_eq!(world.qp.state()?, QpState::Rts);
/// println!("{}", world.qp.state()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum QpState {
    /// Nothing can be posted.
    Reset,
    /// Receives can be posted; messages are not taken yet. A new queue pair is in this state.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send, which includes receiving. A connected queue pair is in this state.
    Rts,
    /// The send queue is being drained.
    Sqd,
    /// The send queue failed; the receive queue works.
    Sqe,
    /// Failed or disconnected: what was posted comes back flushed.
    Error,
    /// What the driver reports has no name.
    Unknown,
}

impl QpState {
    pub(crate) const fn from_raw(state: sys::ibv_qp_state) -> Self {
        match state {
            sys::IBV_QPS_RESET => Self::Reset,
            sys::IBV_QPS_INIT => Self::Init,
            sys::IBV_QPS_RTR => Self::Rtr,
            sys::IBV_QPS_RTS => Self::Rts,
            sys::IBV_QPS_SQD => Self::Sqd,
            sys::IBV_QPS_SQE => Self::Sqe,
            sys::IBV_QPS_ERR => Self::Error,
            _ => Self::Unknown,
        }
    }

    pub(crate) const fn as_raw(self) -> sys::ibv_qp_state {
        // The variants stand in the order of the header.
        self as sys::ibv_qp_state
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Error => "ERR",
            Self::Unknown => "unknown",
        })
    }
}

/// What became of the receives that a queue pair had taken from its SRQ when it ended.
///
/// A queue pair takes a receive with the first packet of a message. When it ends before the last packet, the receive
/// comes back flushed, and the device then reports that it was the last one (`IBV_EVENT_QP_LAST_WQE_REACHED`).
///
/// ```
/// # let doorbell_doc::World { mut receiver, mut qp, device: _device, .. } = doorbell_doc::World::new();
/// use doorbell::QpEnd;
///
/// if receiver.reset_qp(&mut qp)? == QpEnd::LastWqeMissing {
///     println!("the SRQ may have a receive less; see Statistics::last_wqe_missing");
/// }
/// # Ok::<(), doorbell::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QpEnd {
    /// All have come back, or it has a receive queue of its own.
    Complete,
    /// The device did not report the last one, though it was waited for: a receive that the queue pair had taken may
    /// be lost to the SRQ. The queue pair has ended all the same. Soft-RoCE of Linux 6.1 reports none, and is not waited
    /// for.
    LastWqeMissing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_values_are_those_of_the_header() {
        for raw in sys::IBV_QPS_RESET..=sys::IBV_QPS_ERR {
            assert_eq!(QpState::from_raw(raw).as_raw(), raw);
        }
        assert_eq!(QpState::Error.as_raw(), sys::IBV_QPS_ERR);
        assert_eq!(QpState::from_raw(99), QpState::Unknown);
    }
}
