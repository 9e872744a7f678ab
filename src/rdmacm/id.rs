//! Identifier of the connection manager, with a channel of its own.

use std::ffi::{CStr, c_int};
#[cfg(feature = "tokio")]
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use std::{io, mem, ptr};

use rdma_core_sys as sys;
use sys::RdmaCm;

use super::event::Event;
use crate::error::{Error, Result};
use crate::owner::Owner;
#[cfg(feature = "tokio")]
use crate::poll::Readiness;
use crate::qp::QueuePair;
use crate::qp_state::QpState;
use crate::{node, poll};

/// An identifier and the channel where its events arrive.
pub(super) struct Id {
    pub(super) cm: &'static RdmaCm,
    id: *mut sys::rdma_cm_id,
    channel: *mut sys::rdma_event_channel,
    owner: Owner,
    /// The address that errors name.
    pub(super) subject: String,
}

// SAFETY: librdmacm can be called from any thread, and no other code has the identifier or the channel.
unsafe impl Send for Id {}
// SAFETY: with a shared reference, methods only read the identifier and call functions that change the kernel's part
// of it, under the kernel's locks. What changes it here, the next event, needs a unique reference.
unsafe impl Sync for Id {}

impl Id {
    /// A new identifier for a reliable connection.
    pub(super) fn new(subject: SocketAddr) -> Result<Self> {
        let cm = RdmaCm::get()?;
        let mut this = Self::with_channel(cm, subject.to_string())?;
        // SAFETY: a live channel and a writable pointer.
        let result = unsafe { (cm.create_id)(this.channel, &mut this.id, ptr::null_mut(), sys::RDMA_PS_TCP) };
        this.check("rdma_create_id", result)?;
        Ok(this)
    }

    fn with_channel(cm: &'static RdmaCm, subject: String) -> Result<Self> {
        // SAFETY: no preconditions.
        let channel = unsafe { (cm.create_event_channel)() };
        if channel.is_null() {
            let failed = io::Error::last_os_error();
            let source = node::denied("rdma_cm").unwrap_or(failed);
            return Err(Error::verbs("rdma_create_event_channel", &subject, source));
        }
        Ok(Self { cm, id: ptr::null_mut(), channel, owner: Owner::this_process(), subject })
    }

    /// Takes over the identifier of a request to connect, whose event was acknowledged.
    ///
    /// # Safety
    /// `id` is such an identifier, and no other code has it.
    pub(super) unsafe fn of_request(cm: &'static RdmaCm, id: *mut sys::rdma_cm_id) -> Result<Self> {
        // SAFETY: a live identifier.
        let destroy = || unsafe { (cm.destroy_id)(id) };
        // SAFETY: as above; librdmacm has filled the addresses in, and does not change them any more.
        let peer = socket_addr(unsafe { &(*id).route.addr.dst_storage });
        let subject = peer.map_or_else(|| "the peer".to_owned(), |peer| peer.to_string());
        let mut this = match Self::with_channel(cm, subject) {
            Ok(this) => this,
            Err(error) => {
                destroy();
                return Err(error);
            }
        };
        this.id = id;
        // SAFETY: a live identifier and a live channel.
        let result = unsafe { (cm.migrate_id)(id, this.channel) };
        this.check("rdma_migrate_id", result)?;
        Ok(this)
    }

    pub(super) const fn as_raw(&self) -> *mut sys::rdma_cm_id {
        self.id
    }

    /// Address of the peer.
    pub(super) fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: a live identifier, whose addresses only calls on it change.
        socket_addr(unsafe { &(*self.id).route.addr.dst_storage })
    }

    /// The result of a function that returns -1 and sets `errno`.
    pub(super) fn check(&self, operation: &'static str, result: c_int) -> Result<()> {
        if result == 0 { Ok(()) } else { Err(Error::last_os(operation, &self.subject)) }
    }

    /// Takes the next event; `None` when there is none in time.
    pub(super) fn event(&mut self, timeout: Option<Duration>) -> Result<Option<Event>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if !poll::is_readable(self.as_fd(), deadline).map_err(|source| Error::verbs("poll", &self.subject, source))? {
            return Ok(None);
        }
        let mut event = ptr::null_mut();
        // SAFETY: a live channel and a writable pointer.
        let result = unsafe { (self.cm.get_cm_event)(self.channel, &mut event) };
        self.check("rdma_get_cm_event", result)?;
        // SAFETY: taken just now.
        Ok(Some(unsafe { Event::take(self.cm, event) }))
    }

    /// Waits in a task of tokio for the next event.
    #[cfg(feature = "tokio")]
    pub(super) async fn event_async(&mut self) -> Result<Event> {
        let failed = |subject: &str, error| Error::verbs("epoll_create1", subject, error);
        let made = poll::epoll(&[self.as_fd()]).and_then(Readiness::new);
        let mut readiness = made.map_err(|error| failed(&self.subject, error))?;
        loop {
            if let Some(event) = self.event(Some(Duration::ZERO))? {
                return Ok(event);
            }
            poll_fn(|cx| readiness.poll(cx)).await.map_err(|error| failed(&self.subject, error))?;
        }
    }

    /// Waits for one event, on which `operation` depends.
    pub(super) fn wait_for(
        &mut self,
        kind: sys::rdma_cm_event_type,
        operation: &'static str,
        timeout: Duration,
    ) -> Result<Event> {
        let event =
            self.event(Some(timeout))?.ok_or_else(|| Error::TimedOut { operation, subject: self.subject.clone() })?;
        event.expect(self.cm, kind, operation, &self.subject)
    }

    /// Name of the device, once it is known.
    pub(super) fn device_name(&self) -> Result<String> {
        // SAFETY: a live identifier; its context is open, and so has a device with a name.
        unsafe {
            let context = (*self.id).verbs;
            if context.is_null() {
                return Err(Error::NoDevice);
            }
            let name = CStr::from_ptr(sys::ibv_get_device_name((*context).device));
            Ok(name.to_string_lossy().into_owned())
        }
    }

    /// Attributes for a transition, as the connection manager would have them.
    pub(super) fn attributes(&self, state: QpState) -> Result<(sys::ibv_qp_attr, sys::ibv_qp_attr_mask)> {
        let mut attr = sys::ibv_qp_attr { qp_state: state.as_raw(), ..Default::default() };
        let mut mask = 0;
        // SAFETY: a live identifier and writable structures.
        let result = unsafe { (self.cm.init_qp_attr)(self.id, &mut attr, &mut mask) };
        self.check("rdma_init_qp_attr", result)?;
        Ok((attr, mask as sys::ibv_qp_attr_mask))
    }

    /// Refuses a queue pair of another device.
    pub(super) fn check_device(&self, qp: &QueuePair) -> Result<()> {
        if self.device_name()? == qp.device_name() {
            return Ok(());
        }
        Err(Error::Foreign { what: "the route to the peer", domain: "device" })
    }

    /// Takes a queue pair from INIT to RTS.
    pub(super) fn connect_qp(&self, qp: &mut QueuePair) -> Result<()> {
        qp.connect_with(|state| self.attributes(state))
    }

    /// Returns the parameters of a queue pair that this side sends to the peer. They borrow `private_data`.
    pub(super) fn conn_param(qp: &QueuePair, private_data: &[u8], most: usize) -> Result<sys::rdma_conn_param> {
        Error::check_range("length of private_data", private_data.len() as u64, 0, most as u64)?;
        let (retry_count, rnr_retry_count) = qp.retries();
        Ok(sys::rdma_conn_param {
            private_data: private_data.as_ptr().cast(),
            private_data_len: private_data.len() as u8,
            // A connection demands a number; no READ or atomic is ever sent or allowed.
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: 1,
            retry_count,
            rnr_retry_count,
            srq: qp.object().has_srq().into(),
            qp_num: qp.qp_num(),
        })
    }
}

#[cfg(test)]
impl Id {
    /// An identifier of these functions, without a channel.
    pub(super) fn of_functions(cm: &'static RdmaCm) -> Self {
        let id = ptr::NonNull::dangling().as_ptr();
        Self { cm, id, channel: ptr::null_mut(), owner: Owner::this_process(), subject: "the peer".into() }
    }
}

impl AsFd for Id {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive, and its descriptor open with it.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if !self.owner.is_this_process() {
            return;
        }
        // SAFETY: made by us and dropped once, the identifier first; all its events were acknowledged.
        unsafe {
            if !self.id.is_null() {
                (self.cm.destroy_id)(self.id);
            }
            (self.cm.destroy_event_channel)(self.channel);
        }
    }
}

/// An address as the system calls take it.
pub(super) fn sockaddr(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all zero is an address of no family.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let to = &raw mut storage;
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: the storage is large enough and aligned for every kind of address.
            unsafe {
                to.cast::<libc::sockaddr_in>().write(libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                });
            }
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            unsafe {
                to.cast::<libc::sockaddr_in6>().write(libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                });
            }
        }
    }
    storage
}

/// The reverse; `None` for an address of another family.
fn socket_addr(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let from = ptr::from_ref(storage);
    match storage.ss_family.into() {
        libc::AF_INET => {
            // SAFETY: the storage is aligned for every kind of address, and this is the kind it says.
            let v4 = unsafe { &*from.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*from.cast::<libc::sockaddr_in6>() };
            let (ip, port) = (v6.sin6_addr.s6_addr.into(), u16::from_be(v6.sin6_port));
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_way_to_c_and_back() {
        for written in ["192.0.2.1:18515", "[2001:db8::1]:1", "[fe80::1%7]:65535", "[::]:0"] {
            let address: SocketAddr = written.parse().unwrap();
            assert_eq!(socket_addr(&sockaddr(address)), Some(address));
        }
        let mut other = sockaddr("192.0.2.1:18515".parse().unwrap());
        other.ss_family = libc::AF_UNIX as libc::sa_family_t;
        assert_eq!(socket_addr(&other), None);
    }
}
