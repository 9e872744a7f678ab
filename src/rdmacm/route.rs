//! The side that connects.

use std::net::SocketAddr;
use std::time::Duration;
use std::{fmt, ptr};

use rdma_core_sys as sys;

use super::connection::Connection;
use super::id::{Id, sockaddr};
use crate::error::Result;
use crate::qp::QueuePair;

/// Bytes that the connection manager leaves to the program in a request.
const MAX_PRIVATE_DATA: usize = 56;

/// The device, the port and the path to an address, as the system resolved them.
///
/// ```
/// use std::time::Duration;
///
/// use doorbell::{QueuePair, RqConfig, rdmacm::Route};
/// use doorbell::{CqConfig, QpConfig, Receiver};
///
/// const PATIENCE: Duration = Duration::from_secs(5);
///
/// # fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let route = Route::resolve("192.0.2.1:18515".parse()?, PATIENCE)?;
/// // The system has found out which device leads there.
/// let pd = doorbell::open(route.device_name())?.alloc_pd()?;
/// let mut receiver = Receiver::new(&pd, &CqConfig::new(4096))?;
/// let mut qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(128)).build()?;
/// let connection = route.connect(&mut qp, b"hello", PATIENCE)?;
/// println!("the server says {:?}", connection.private_data());
/// # Ok(())
/// # }
/// # // Without the module of the kernel nothing can be resolved, and the error says so.
/// # if let Err(error) = run() { println!("{error}"); }
/// ```
pub struct Route {
    id: Id,
    device_name: String,
}

impl Route {
    /// Finds the device and the path to `peer`, IPv4 or IPv6. Each of the two steps takes at most `timeout`.
    ///
    /// # Errors
    /// [`Error::Verbs`](crate::Error::Verbs) if the host has no connection manager, or no device reaches the address;
    /// [`Error::Library`](crate::Error::Library) without librdmacm.
    pub fn resolve(peer: SocketAddr, timeout: Duration) -> Result<Self> {
        let mut id = Id::new(peer)?;
        let millis = timeout.as_millis().try_into().unwrap_or(i32::MAX);
        // The system answers in time; what is added is for its answer to arrive.
        let patience = timeout.saturating_add(Duration::from_secs(1));
        let mut address = sockaddr(peer);

        // SAFETY: a live identifier and an address of the family that it names.
        let result = unsafe { (id.cm.resolve_addr)(id.as_raw(), ptr::null_mut(), (&raw mut address).cast(), millis) };
        id.check("rdma_resolve_addr", result)?;
        id.wait_for(sys::RDMA_CM_EVENT_ADDR_RESOLVED, "rdma_resolve_addr", patience)?;
        // SAFETY: a live identifier.
        let result = unsafe { (id.cm.resolve_route)(id.as_raw(), millis) };
        id.check("rdma_resolve_route", result)?;
        id.wait_for(sys::RDMA_CM_EVENT_ROUTE_RESOLVED, "rdma_resolve_route", patience)?;
        let device_name = id.device_name()?;
        Ok(Self { id, device_name })
    }

    /// Returns the device, for [`open`](crate::open).
    pub fn device_name(&self) -> &str {
        &self.device_name
    }

    /// Connects `qp`, which is new or was reset, and waits until the peer has accepted. `private_data` has at most 56
    /// bytes; the peer sees it before it accepts.
    ///
    /// [`QpConfig`](crate::QpConfig) sets the retries and the time-out of acknowledgements. The port is that of the
    /// route.
    ///
    /// # Errors
    /// [`Error::Rejected`](crate::Error::Rejected) if the peer refuses or no program listens; the queue pair is
    /// unchanged. [`Error::TimedOut`](crate::Error::TimedOut); [`Error::Foreign`](crate::Error::Foreign) for a queue
    /// pair on another device; [`Error::OutOfRange`](crate::Error::OutOfRange);
    /// [`Error::WrongState`](crate::Error::WrongState) and [`Error::InUse`](crate::Error::InUse) as in
    /// [`QueuePair::connect`]; [`Error::Verbs`](crate::Error::Verbs).
    pub fn connect(mut self, qp: &mut QueuePair, private_data: &[u8], timeout: Duration) -> Result<Connection> {
        self.id.check_device(qp)?;
        qp.check_managed()?;
        let mut param = Id::conn_param(qp, private_data, MAX_PRIVATE_DATA)?;
        // SAFETY: a live identifier; the parameters refer to bytes that outlive the call.
        let result = unsafe { (self.id.cm.connect)(self.id.as_raw(), &mut param) };
        self.id.check("rdma_connect", result)?;
        let response = self.id.wait_for(sys::RDMA_CM_EVENT_CONNECT_RESPONSE, "rdma_connect", timeout)?;
        self.id.connect_qp(qp)?;
        // SAFETY: a live identifier.
        let result = unsafe { (self.id.cm.establish)(self.id.as_raw()) };
        self.id.check("rdma_establish", result)?;
        Ok(Connection::new(self.id, response.private_data))
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("peer", &self.id.subject)
            .field("device_name", &self.device_name)
            .finish_non_exhaustive()
    }
}
