//! An established connection.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rdma_core_sys as sys;

use super::event::Event;
use super::id::Id;
use crate::error::{Error, Result};
use crate::qp::QueuePair;

/// A connection of the connection manager. Dropping it disconnects.
///
/// The queue pair does not depend on it: it sends and receives until it detects that the peer has ended. The
/// descriptor is readable after the peer has disconnected. Threads and tasks may share a connection to
/// [`disconnect`](Self::disconnect); one of them waits for the peer.
///
/// ```no_run
/// use std::time::Duration;
///
/// use doorbell::rdmacm::{Connection, Route};
/// use doorbell::{QueuePair, Receiver, Result};
///
/// /// Connects once more, with the same queue pair.
/// fn again(receiver: &mut Receiver, qp: &mut QueuePair, mut over: Connection) -> Result<Connection> {
///     const PATIENCE: Duration = Duration::from_secs(5);
///     over.disconnect(qp)?;
///     // The peer must have heard of the end, else it refuses.
///     over.wait_disconnected(PATIENCE)?;
///     receiver.reset_qp(qp)?;
///     let route = Route::resolve("192.0.2.1:18515".parse().expect("an address"), PATIENCE)?;
///     route.connect(qp, b"hello again", PATIENCE)
/// }
/// ```
pub struct Connection {
    id: Id,
    private_data: Vec<u8>,
    disconnected: bool,
}

impl Connection {
    pub(super) const fn new(id: Id, private_data: Vec<u8>) -> Self {
        Self { id, private_data, disconnected: false }
    }

    /// Returns the private data of the peer, padded with zeros to 56 bytes in a request and 196 bytes in an answer.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Waits until the peer disconnects or drops the connection, at most for `timeout`; without a time-out, forever.
    /// Returns `false` if the time is over.
    ///
    /// After [`disconnect`](Self::disconnect) it waits for the answer of the peer. After `true` the same queue pair can
    /// connect to this peer again. Before, the connection manager of the peer refuses the number of the queue pair
    /// (reason 10).
    ///
    /// # Errors
    /// [`Error::Verbs`], also if the device was removed.
    pub fn wait_disconnected(&mut self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        let timeout = timeout.into();
        while !self.disconnected {
            let Some(event) = self.id.event(timeout)? else { return Ok(false) };
            self.take(event)?;
        }
        Ok(true)
    }

    /// Waits like [`wait_disconnected`](Self::wait_disconnected) in a task of tokio. A dropped future loses
    /// nothing. Needs the feature `tokio`.
    ///
    /// # Errors
    /// [`Error::Verbs`], also if the device was removed.
    #[cfg(feature = "tokio")]
    pub async fn wait_disconnected_async(&mut self) -> Result<()> {
        while !self.disconnected {
            let event = self.id.event_async().await?;
            self.take(event)?;
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<()> {
        match event.kind {
            sys::RDMA_CM_EVENT_DISCONNECTED | sys::RDMA_CM_EVENT_TIMEWAIT_EXIT => self.disconnected = true,
            sys::RDMA_CM_EVENT_ESTABLISHED => {}
            _ => return Err(event.error(self.id.cm, "rdma_get_cm_event", &self.id.subject)),
        }
        Ok(())
    }

    /// Disconnects from the peer and moves the queue pair to ERROR: its requests are flushed. A second call changes
    /// nothing.
    ///
    /// To use the queue pair again, [wait](Self::wait_disconnected) until the peer has answered, and
    /// [reset](crate::Receiver::reset_qp) it.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a queue pair on another device; [`Error::Verbs`]: the queue pair is in ERROR even if
    /// `rdma_disconnect` failed.
    pub fn disconnect(&self, qp: &QueuePair) -> Result<()> {
        self.id.check_device(qp)?;
        let disconnected = self.send_disconnect();
        qp.to_error()?;
        disconnected
    }

    fn send_disconnect(&self) -> Result<()> {
        // SAFETY: a live identifier.
        let result = unsafe { (self.id.cm.disconnect)(self.id.as_raw()) };
        match self.id.check("rdma_disconnect", result) {
            // The connection is disconnected already.
            Err(Error::Verbs { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            result => result,
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.id.subject)
            .field("disconnected", &self.disconnected)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::ffi::c_int;

    use sys::RdmaCm;

    use super::*;

    thread_local! {
        /// The `errno` of `rdma_disconnect`.
        static ERRNO: Cell<c_int> = const { Cell::new(0) };
        static CALLS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }

    unsafe extern "C" fn disconnect(_: *mut sys::rdma_cm_id) -> c_int {
        // SAFETY: the `errno` of this thread.
        unsafe { *libc::__errno_location() = ERRNO.get() };
        -1
    }

    unsafe extern "C" fn destroy_id(_: *mut sys::rdma_cm_id) -> c_int {
        CALLS.with_borrow_mut(|calls| calls.push("rdma_destroy_id"));
        0
    }

    unsafe extern "C" fn destroy_event_channel(_: *mut sys::rdma_event_channel) {
        CALLS.with_borrow_mut(|calls| calls.push("rdma_destroy_event_channel"));
    }

    fn connection() -> Connection {
        let library: *const RdmaCm = RdmaCm::get().expect("librdmacm");
        // SAFETY: functions, which are copied.
        let mut functions = unsafe { library.read() };
        functions.disconnect = disconnect;
        functions.destroy_id = destroy_id;
        functions.destroy_event_channel = destroy_event_channel;
        Connection::new(Id::of_functions(Box::leak(Box::new(functions))), Vec::new())
    }

    /// The kernel refuses to disconnect what the peer has disconnected.
    #[test]
    fn a_connection_that_is_over_is_disconnected() {
        let connection = connection();
        ERRNO.set(libc::EINVAL);
        connection.send_disconnect().unwrap();
        ERRNO.set(libc::EIO);
        let failed = connection.send_disconnect().unwrap_err();
        assert!(failed.to_string().contains("rdma_disconnect"), "{failed}");
    }

    #[test]
    fn the_identifier_is_destroyed_before_its_channel() {
        drop(connection());
        assert_eq!(CALLS.take(), ["rdma_destroy_id", "rdma_destroy_event_channel"]);
    }
}
