//! States of a queue pair.

use std::fmt;

use rdma_core_sys as sys;

/// The state of a queue pair (`enum ibv_qp_state`).
///
/// ```
/// # let doorbell_doc::World { qp, device: _device, .. } = doorbell_doc::World::new();
/// use doorbell::QpState;
///
/// assert_eq!(qp.state()?, QpState::Rts);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum QpState {
    /// Nothing can be posted.
    Reset,
    /// Receives can be posted, but no messages arrive. The state of a new queue pair.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to receive and send. The state of a connected queue pair.
    Rts,
    /// The send queue is being drained.
    Sqd,
    /// The send queue failed; the receive queue works.
    Sqe,
    /// Failed or disconnected. Posted requests are flushed.
    Error,
    /// The driver reports a state without a name.
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

/// Whether all receives that a queue pair took from its SRQ came back when it ended.
///
/// A queue pair takes a receive at the first packet of a message. If it ends before the last packet, the receive is
/// flushed, and the device then reports `IBV_EVENT_QP_LAST_WQE_REACHED`.
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
    /// All receives came back, or the queue pair has its own receive queue.
    Complete,
    /// The event did not arrive in time: a receive may be lost to the SRQ. The queue pair has ended. Soft-RoCE of
    /// Linux 6.1 never sends this event, and doorbell does not wait for it there.
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
