//! Events of the connection manager.

use std::ffi::CStr;
use std::{io, slice};

use rdma_core_sys as sys;
use sys::RdmaCm;

use crate::error::{Error, Result};

/// A copy of an event, which was acknowledged.
pub(super) struct Event {
    pub(super) kind: sys::rdma_cm_event_type,
    pub(super) id: *mut sys::rdma_cm_id,
    status: i32,
    /// Data of a request, a response, a refusal or an established connection.
    pub(super) private_data: Vec<u8>,
}

impl Event {
    /// Copies an event and acknowledges it.
    ///
    /// # Safety
    /// `event` was taken from its channel, and was not acknowledged.
    pub(super) unsafe fn take(cm: &RdmaCm, event: *mut sys::rdma_cm_event) -> Self {
        // SAFETY: an event that is not acknowledged is readable.
        let kind = unsafe { (*event).event };
        let has_conn = matches!(
            kind,
            sys::RDMA_CM_EVENT_CONNECT_REQUEST
                | sys::RDMA_CM_EVENT_CONNECT_RESPONSE
                | sys::RDMA_CM_EVENT_REJECTED
                | sys::RDMA_CM_EVENT_ESTABLISHED
        );
        // SAFETY: as above; events of reliable connections carry the member for connections, whose
        // private data lies in the event.
        let taken = unsafe {
            let conn = (*event).param.conn;
            let private_data = if has_conn && !conn.private_data.is_null() {
                slice::from_raw_parts(conn.private_data.cast(), conn.private_data_len.into()).to_vec()
            } else {
                Vec::new()
            };
            Self { kind, id: (*event).id, status: (*event).status, private_data }
        };
        // SAFETY: not acknowledged before; the copy refers to nothing in it.
        unsafe { (cm.ack_cm_event)(event) };
        taken
    }

    /// Returns the error when `operation` of `subject` waited for another event.
    pub(super) fn error(self, cm: &RdmaCm, operation: &'static str, subject: &str) -> Error {
        if self.kind == sys::RDMA_CM_EVENT_REJECTED {
            return Error::Rejected { peer: subject.to_owned(), reason: self.status, private_data: self.private_data };
        }
        let source = if self.status < 0 {
            io::Error::from_raw_os_error(-self.status)
        } else {
            // SAFETY: the function returns a string that lives for ever.
            let name = unsafe { CStr::from_ptr((cm.event_str)(self.kind)) };
            io::Error::other(name.to_string_lossy())
        };
        Error::Verbs { operation, device: subject.to_owned(), source }
    }

    /// The event if it is the one that `operation` waits for.
    pub(super) fn expect(
        self,
        cm: &RdmaCm,
        kind: sys::rdma_cm_event_type,
        operation: &'static str,
        subject: &str,
    ) -> Result<Self> {
        if self.kind == kind && self.status == 0 { Ok(self) } else { Err(self.error(cm, operation, subject)) }
    }
}
