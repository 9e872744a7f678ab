//! How a work request ended.

use std::ffi::CStr;
use std::fmt;

use rdma_core_sys as sys;

/// The status of a completion (`enum ibv_wc_status`). Displays as the text of `ibv_wc_status_str(3)`, for
/// some values followed by the usual cause.
///
/// Values without a name in the headers are kept, because drivers may report them.
///
/// ```
/// use doorbell::WcStatus;
///
/// let status = WcStatus::RETRY_EXC_ERR;
/// assert!(!status.is_success());
/// assert_eq!(status.name(), Some("RETRY_EXC_ERR"));
/// println!("{status}");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WcStatus(sys::ibv_wc_status);

/// Declares the named values and the way back to their names.
macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:ident,)*) => {
        impl WcStatus {
            $($(#[$doc])* pub const $name: Self = Self(sys::$value);)*

            /// Returns the name in the headers without the prefix `IBV_WC_`, for example `WR_FLUSH_ERR`.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// The request succeeded.
    SUCCESS = IBV_WC_SUCCESS,
    /// The message does not fit the posted buffers, or is longer than the port allows.
    LOC_LEN_ERR = IBV_WC_LOC_LEN_ERR,
    /// The request itself is malformed.
    LOC_QP_OP_ERR = IBV_WC_LOC_QP_OP_ERR,
    /// The request is malformed (EE context, RD).
    LOC_EEC_OP_ERR = IBV_WC_LOC_EEC_OP_ERR,
    /// A buffer lies outside its memory region, or the region is not writable.
    LOC_PROT_ERR = IBV_WC_LOC_PROT_ERR,
    /// The queue pair was in the error state before the request was processed.
    WR_FLUSH_ERR = IBV_WC_WR_FLUSH_ERR,
    /// A memory window could not be bound.
    MW_BIND_ERR = IBV_WC_MW_BIND_ERR,
    /// The responder sent an unexpected answer.
    BAD_RESP_ERR = IBV_WC_BAD_RESP_ERR,
    /// A remote write caused a protection error at this side.
    LOC_ACCESS_ERR = IBV_WC_LOC_ACCESS_ERR,
    /// The responder rejected the message as invalid, for example because it is longer than the receive.
    REM_INV_REQ_ERR = IBV_WC_REM_INV_REQ_ERR,
    /// A protection error at the responder: a wrong key, range or permission. Both queue pairs have failed; the
    /// responder gets [`DeviceEvent::QpAccessError`](crate::DeviceEvent::QpAccessError).
    REM_ACCESS_ERR = IBV_WC_REM_ACCESS_ERR,
    /// The responder could not complete the operation.
    REM_OP_ERR = IBV_WC_REM_OP_ERR,
    /// The peer did not answer after all retries: it has ended, or is not connected to this queue pair.
    RETRY_EXC_ERR = IBV_WC_RETRY_EXC_ERR,
    /// The peer had no posted receive at any retry.
    RNR_RETRY_EXC_ERR = IBV_WC_RNR_RETRY_EXC_ERR,
    /// An RDD violation (RD).
    LOC_RDD_VIOL_ERR = IBV_WC_LOC_RDD_VIOL_ERR,
    /// An invalid RD request at the responder.
    REM_INV_RD_REQ_ERR = IBV_WC_REM_INV_RD_REQ_ERR,
    /// The responder aborted the operation.
    REM_ABORT_ERR = IBV_WC_REM_ABORT_ERR,
    /// An invalid EE context number (RD).
    INV_EECN_ERR = IBV_WC_INV_EECN_ERR,
    /// The EE context is in the wrong state (RD).
    INV_EEC_STATE_ERR = IBV_WC_INV_EEC_STATE_ERR,
    /// The device failed.
    FATAL_ERR = IBV_WC_FATAL_ERR,
    /// The response did not arrive in time.
    RESP_TIMEOUT_ERR = IBV_WC_RESP_TIMEOUT_ERR,
    /// Another error.
    GENERAL_ERR = IBV_WC_GENERAL_ERR,
    /// A tag operation failed.
    TM_ERR = IBV_WC_TM_ERR,
    /// A rendezvous matched, and software must finish it.
    TM_RNDV_INCOMPLETE = IBV_WC_TM_RNDV_INCOMPLETE,
}

impl WcStatus {
    /// Returns the status with this value.
    pub const fn from_raw(status: sys::ibv_wc_status) -> Self {
        Self(status)
    }

    /// Returns the value in the headers.
    pub const fn as_raw(self) -> sys::ibv_wc_status {
        self.0
    }

    /// Returns the usual reason, where the words of libibverbs do not say it.
    const fn hint(self) -> &'static str {
        match self {
            Self::LOC_LEN_ERR => {
                ": the message was longer than the buffers of the receive, or a send longer than the port takes"
            }
            Self::LOC_PROT_ERR => {
                ": the memory of the request is not registered for this access in this protection domain"
            }
            Self::REM_INV_REQ_ERR => {
                ": the peer refused the message, which may be longer than the buffers of the receive, or its queue pair does not allow this RDMA WRITE, READ or atomic"
            }
            Self::REM_ACCESS_ERR => {
                ": the memory or the queue pair of the peer does not allow it: wrong key, range or permission"
            }
            Self::WR_FLUSH_ERR => {
                ": the queue pair was reset or destroyed, or it failed: then the first failed completion of its receiver or sender, or an event, has the cause"
            }
            Self::RETRY_EXC_ERR => ": the peer is gone, or is not connected to this queue pair",
            Self::RNR_RETRY_EXC_ERR => ": the peer had no receive posted",
            _ => "",
        }
    }

    /// Says why a request is over: `status`, or for a flushed one the status that failed the queue pair, if it is
    /// known.
    pub(crate) fn explained(status: &impl fmt::Display, first: Option<Self>) -> String {
        match first {
            Some(first) => format!("Work Request Flushed Error, because the queue pair failed before: {first}"),
            None => status.to_string(),
        }
    }

    /// Returns `true` for [`SUCCESS`](Self::SUCCESS).
    pub const fn is_success(self) -> bool {
        self.0 == sys::IBV_WC_SUCCESS
    }
}

impl fmt::Debug for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "WcStatus({})", self.0),
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: takes any value and returns a string constant.
        let words = unsafe { CStr::from_ptr(sys::ibv_wc_status_str(self.0)) };
        f.write_str(&words.to_string_lossy())?;
        f.write_str(self.hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_the_words_of_libibverbs() {
        assert_eq!(WcStatus::SUCCESS.to_string(), "success");
        let flushed = WcStatus::WR_FLUSH_ERR.to_string();
        assert!(flushed.starts_with("Work Request Flushed Error: the queue pair"), "{flushed}");
        let length = WcStatus::LOC_LEN_ERR.to_string();
        assert!(length.starts_with("local length error: the message was longer"), "{length}");
        assert_eq!(WcStatus::from_raw(1000).to_string(), "unknown");
    }

    #[test]
    fn each_value_of_the_headers_has_its_name() {
        for value in 0..=sys::IBV_WC_TM_RNDV_INCOMPLETE {
            assert!(WcStatus::from_raw(value).name().is_some(), "{value}");
        }
        assert_eq!(WcStatus::from_raw(5).name(), Some("WR_FLUSH_ERR"));
        assert_eq!(format!("{:?}", WcStatus::from_raw(24)), "WcStatus(24)");
    }
}
