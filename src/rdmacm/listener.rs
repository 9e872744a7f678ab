//! The side that is connected to.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use rdma_core_sys as sys;

use super::connection::Connection;
use super::id::{Id, sockaddr};
use crate::error::Result;
use crate::qp::QueuePair;

/// Requests that may wait for [`Listener::accept`].
const BACKLOG: i32 = 128;

/// Bytes that the connection manager leaves to the program in the answer to a request.
const MAX_PRIVATE_DATA: usize = 196;

/// Waits for peers that want to connect. Its descriptor is readable when there is one.
///
/// ```no_run
/// use std::time::Duration;
///
/// use doorbell::rdmacm::Listener;
///
/// # fn serve(receiver: &mut doorbell::Receiver, srq: doorbell::SrqId) -> doorbell::Result<()> {
/// let mut listener = Listener::bind("[::]:18515".parse().expect("an address"))?;
/// let mut clients = Vec::new();
/// while let Some(request) = listener.accept(None)? {
///     if !request.private_data().starts_with(b"hello") {
///         request.reject()?;
///         continue;
///     }
///     let mut qp = receiver.create_qp(&doorbell::QpConfig::rc().srq(srq))?;
///     let connection = request.accept(&mut qp, b"welcome", Duration::from_secs(5))?;
///     clients.push((qp, connection));
/// }
/// # Ok(())
/// # }
/// ```
pub struct Listener {
    id: Id,
}

impl Listener {
    /// Listens on an address, IPv4 or IPv6, of one device, or on the unspecified address on all of
    /// them. With port 0 the system chooses one: see [`port`](Self::port).
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) when there is no connection manager, no device has the address, or the port is in
    /// use; [`Error::Library`](crate::Error::Library) without librdmacm.
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let id = Id::new(address)?;
        let mut address = sockaddr(address);
        // SAFETY: a live identifier and an address of the family that it names.
        let result = unsafe { (id.cm.bind_addr)(id.as_raw(), (&raw mut address).cast()) };
        id.check("rdma_bind_addr", result)?;
        // SAFETY: a live identifier.
        let result = unsafe { (id.cm.listen)(id.as_raw(), BACKLOG) };
        id.check("rdma_listen", result)?;
        Ok(Self { id })
    }

    /// The port. It is the connection manager's: no socket listens on it.
    pub fn port(&self) -> u16 {
        // SAFETY: a live identifier.
        u16::from_be(unsafe { (self.id.cm.get_src_port)(self.id.as_raw()) })
    }

    /// Waits for a peer that wants to connect; `None` when there is none in time. Without a time-out it
    /// waits for ever.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs), also when the device is removed.
    pub fn accept(&mut self, timeout: impl Into<Option<Duration>>) -> Result<Option<Request>> {
        let Some(event) = self.id.event(timeout.into())? else { return Ok(None) };
        let event = event.expect(
            self.id.cm,
            sys::RDMA_CM_EVENT_CONNECT_REQUEST,
            "rdma_get_cm_event",
            &self.id.subject,
        )?;
        // SAFETY: the event gave us the identifier, and is acknowledged.
        let id = unsafe { Id::of_request(self.id.cm, event.id) }?;
        let device_name = id.device_name()?;
        Ok(Some(Request { id, device_name, private_data: event.private_data }))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.id.subject).finish_non_exhaustive()
    }
}

/// A peer that wants to connect. Dropping the request rejects it.
///
/// ```
/// use std::time::Duration;
///
/// use doorbell::rdmacm::{Connection, Listener};
/// use doorbell::{QueuePair, Receiver};
///
/// /// Takes the next client that knows the word.
/// fn next(
///     listener: &mut Listener,
///     receiver: &mut Receiver,
/// ) -> Result<(Connection, QueuePair), Box<dyn std::error::Error>> {
///     loop {
///         let request = listener.accept(None)?.ok_or("no time-out was given")?;
///         // What follows the word is padding.
///         if !request.private_data().starts_with(b"please") {
///             request.reject()?;
///             continue;
///         }
///         let mut qp = receiver.create_qp(&doorbell::QpConfig::rc())?;
///         let connection = request.accept(&mut qp, b"welcome", Duration::from_secs(5))?;
///         return Ok((connection, qp));
///     }
/// }
/// ```
pub struct Request {
    id: Id,
    device_name: String,
    private_data: Vec<u8>,
}

impl Request {
    /// The device that it arrived on, for [`open`](crate::open).
    pub fn device_name(&self) -> &str {
        &self.device_name
    }

    /// The address that it connects from; `None` when it is neither IPv4 nor IPv6.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.peer_addr()
    }

    /// What the peer said, filled up with zeroes to 56 bytes.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Connects `qp`, which is new or was reset, and waits until the peer is connected too. Receives
    /// should be posted already. `private_data` has at most 196 bytes.
    ///
    /// # Errors
    /// [`Error::TimedOut`](crate::Error::TimedOut) when the peer does not go on; [`Error::Foreign`](crate::Error::Foreign) for a queue pair on another
    /// device; [`Error::OutOfRange`](crate::Error::OutOfRange); [`Error::Unsupported`](crate::Error::Unsupported) unless the queue pair is in INIT;
    /// [`Error::Verbs`](crate::Error::Verbs). The peer is rejected in each case.
    pub fn accept(
        mut self,
        qp: &mut QueuePair,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<Connection> {
        self.id.check_device(qp)?;
        let mut param = Id::conn_param(qp, private_data, MAX_PRIVATE_DATA)?;
        self.id.connect_qp(qp)?;
        // SAFETY: a live identifier; the parameters refer to bytes that outlive the call.
        let result = unsafe { (self.id.cm.accept)(self.id.as_raw(), &mut param) };
        self.id.check("rdma_accept", result)?;
        self.id.wait_for(sys::RDMA_CM_EVENT_ESTABLISHED, "rdma_accept", timeout)?;
        Ok(Connection::new(self.id, self.private_data))
    }

    /// Refuses.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) when `rdma_reject` fails.
    pub fn reject(self) -> Result<()> {
        // SAFETY: a live identifier; no private data.
        let result = unsafe { (self.id.cm.reject)(self.id.as_raw(), ptr::null(), 0) };
        self.id.check("rdma_reject", result)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("peer", &self.id.subject)
            .field("device_name", &self.device_name)
            .field("private_data", &self.private_data)
            .finish_non_exhaustive()
    }
}
