//! The side that is connected to.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rdma_core_sys as sys;

use super::connection::Connection;
use super::event::Event;
use super::id::{Id, sockaddr};
use crate::error::{Error, Result};
use crate::qp::QueuePair;

/// Requests that may wait for [`Listener::accept`].
const BACKLOG: i32 = 128;

/// Bytes that the connection manager leaves to the program in the answer to a request.
const MAX_PRIVATE_DATA: usize = 196;
/// Bytes that the connection manager leaves to the program in a rejection.
const MAX_REJECT_DATA: usize = 148;

/// Waits for peers that connect. The descriptor is readable when a peer waits.
///
/// ```no_run
/// use std::time::Duration;
///
/// use doorbell::{QueuePair, rdmacm::Listener};
///
/// # fn serve(receiver: &mut doorbell::Receiver, srq: doorbell::SrqId) -> doorbell::Result<()> {
/// let mut listener = Listener::bind("[::]:18515".parse().expect("an address"))?;
/// let mut clients = Vec::new();
/// while let Some(request) = listener.accept(None)? {
///     if !request.private_data().starts_with(b"hello") {
///         request.reject(b"unknown")?;
///         continue;
///     }
///     let mut qp = QueuePair::builder(&doorbell::QpConfig::rc()).receive(receiver, srq).build()?;
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
    /// Listens on an IPv4 or IPv6 address of one device, or on the unspecified address for all devices. With port 0
    /// the system selects a port, which [`port`](Self::port) returns.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) if the host has no connection manager, no device has the address, or the
    /// port is in use; [`Error::Library`](crate::Error::Library) without librdmacm.
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

    /// Returns the port of the connection manager. No socket listens on it.
    pub fn port(&self) -> u16 {
        // SAFETY: a live identifier.
        u16::from_be(unsafe { (self.id.cm.get_src_port)(self.id.as_raw()) })
    }

    /// Waits for a peer that connects, at most for `timeout`; without a time-out, forever. Returns `None` if the time
    /// is over.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs), also if the device was removed.
    pub fn accept(&mut self, timeout: impl Into<Option<Duration>>) -> Result<Option<ConnectRequest>> {
        self.id.event(timeout.into())?.map(|event| self.request(event)).transpose()
    }

    /// Waits like [`accept`](Self::accept) in a task of tokio. A dropped future loses no request. Needs the feature
    /// `tokio`.
    ///
    /// [`ConnectRequest::accept`] and [`Route::connect`](crate::rdmacm::Route::connect) wait for the peer: call them in
    /// `tokio::task::spawn_blocking`, as the page Connecting of the book shows.
    ///
    /// # Errors
    /// The errors of [`accept`](Self::accept).
    #[cfg(feature = "tokio")]
    pub async fn accept_async(&mut self) -> Result<ConnectRequest> {
        let event = self.id.event_async().await?;
        self.request(event)
    }

    fn request(&self, event: Event) -> Result<ConnectRequest> {
        let event =
            event.expect(self.id.cm, sys::RDMA_CM_EVENT_CONNECT_REQUEST, "rdma_get_cm_event", &self.id.subject)?;
        // SAFETY: the event gave us the identifier, and is acknowledged.
        let id = unsafe { Id::of_request(self.id.cm, event.id) }?;
        let device_name = id.device_name()?;
        Ok(ConnectRequest { id, device_name, private_data: event.private_data })
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

/// A connection request of a peer. Dropping it rejects the peer.
///
/// ```
/// use std::time::Duration;
///
/// use doorbell::rdmacm::{Connection, Listener};
/// use doorbell::{QueuePair, Receiver, RqConfig};
///
/// /// Takes the next client that knows the word.
/// fn next(
///     listener: &mut Listener,
///     receiver: &mut Receiver,
/// ) -> Result<(Connection, QueuePair), Box<dyn std::error::Error>> {
///     loop {
///         let request = listener.accept(None)?.ok_or("no time-out was given")?;
///         // The bytes after the word are padding.
///         if !request.private_data().starts_with(b"please") {
///             request.reject(b"unknown")?;
///             continue;
///         }
///         let mut qp = QueuePair::builder(&doorbell::QpConfig::rc()).receive(receiver, RqConfig::new(128)).build()?;
///         let connection = request.accept(&mut qp, b"welcome", Duration::from_secs(5))?;
///         return Ok((connection, qp));
///     }
/// }
/// ```
pub struct ConnectRequest {
    id: Id,
    device_name: String,
    private_data: Vec<u8>,
}

impl ConnectRequest {
    /// Returns the device of the request, for [`open`](crate::open).
    pub fn device_name(&self) -> &str {
        &self.device_name
    }

    /// Returns the address of the peer, or `None` if it is neither IPv4 nor IPv6.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.peer_addr()
    }

    /// Returns the private data of the peer, padded with zeros to 56 bytes.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Connects `qp`, which is new or was reset, and waits until the peer is connected. Post receives before it.
    /// `private_data` has at most 196 bytes.
    ///
    /// # Errors
    /// [`Error::TimedOut`](crate::Error::TimedOut) if the peer does not answer;
    /// [`Error::Foreign`](crate::Error::Foreign) for a queue pair on another device;
    /// [`Error::OutOfRange`](crate::Error::OutOfRange); [`Error::WrongState`](crate::Error::WrongState) and
    /// [`Error::InUse`](crate::Error::InUse) as in [`QueuePair::connect`]; [`Error::Verbs`](crate::Error::Verbs).
    /// Each error rejects the peer.
    pub fn accept(mut self, qp: &mut QueuePair, private_data: &[u8], timeout: Duration) -> Result<Connection> {
        self.id.check_device(qp)?;
        let mut param = Id::conn_param(qp, private_data, MAX_PRIVATE_DATA)?;
        self.id.connect_qp(qp)?;
        // SAFETY: a live identifier; the parameters refer to bytes that outlive the call.
        let result = unsafe { (self.id.cm.accept)(self.id.as_raw(), &mut param) };
        self.id.check("rdma_accept", result)?;
        self.id.wait_for(sys::RDMA_CM_EVENT_ESTABLISHED, "rdma_accept", timeout)?;
        Ok(Connection::new(self.id, self.private_data))
    }

    /// Rejects the peer, which finds `private_data` in [`Error::Rejected`](crate::Error::Rejected). `private_data` has
    /// at most 148 bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if it has more: the peer is rejected without it;
    /// [`Error::Verbs`](crate::Error::Verbs) if `rdma_reject` fails.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        let len = private_data.len();
        Error::check_range("length of private_data", len as u64, 0, MAX_REJECT_DATA as u64)?;
        // SAFETY: a live identifier; the bytes outlive the call.
        let result = unsafe { (self.id.cm.reject)(self.id.as_raw(), private_data.as_ptr().cast(), len as u8) };
        self.id.check("rdma_reject", result)
    }
}

impl fmt::Debug for ConnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectRequest")
            .field("peer", &self.id.subject)
            .field("device_name", &self.device_name)
            .field("private_data", &self.private_data)
            .finish_non_exhaustive()
    }
}
