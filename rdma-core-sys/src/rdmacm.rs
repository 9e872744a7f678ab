//! librdmacm, loaded at run time: the functions that connect a queue pair that librdmacm did not make.
#![expect(non_camel_case_types, reason = "the names of the C header, whose man pages document them")]

use core::ffi::{c_char, c_int, c_void};

use crate::library::{Library, functions};
use crate::{__be16, ibv_context, ibv_qp, ibv_qp_attr};

const LIBRDMACM: Library = Library {
    soname: c"librdmacm.so.1",
    name: "librdmacm",
    packages: "Debian and Ubuntu: package librdmacm1; Fedora and RHEL: package librdmacm",
};

/// Kind of connection: [`RDMA_PS_TCP`] is a reliable one.
pub type rdma_port_space = u32;
/// Reliable connections.
pub const RDMA_PS_TCP: rdma_port_space = 0x0106;

/// Type of an event: one of `RDMA_CM_EVENT_*`.
pub type rdma_cm_event_type = u32;
/// `rdma_resolve_addr` has ended well.
pub const RDMA_CM_EVENT_ADDR_RESOLVED: rdma_cm_event_type = 0;
/// `rdma_resolve_route` has ended well.
pub const RDMA_CM_EVENT_ROUTE_RESOLVED: rdma_cm_event_type = 2;
/// A peer wants to connect to a listening identifier.
pub const RDMA_CM_EVENT_CONNECT_REQUEST: rdma_cm_event_type = 4;
/// The peer accepted; the identifier has no queue pair, so the program connects its own.
pub const RDMA_CM_EVENT_CONNECT_RESPONSE: rdma_cm_event_type = 5;
/// The peer is there and refused.
pub const RDMA_CM_EVENT_REJECTED: rdma_cm_event_type = 8;
/// Both sides are connected.
pub const RDMA_CM_EVENT_ESTABLISHED: rdma_cm_event_type = 9;
/// The peer disconnected, or has left.
pub const RDMA_CM_EVENT_DISCONNECTED: rdma_cm_event_type = 10;
/// The device is being removed.
pub const RDMA_CM_EVENT_DEVICE_REMOVAL: rdma_cm_event_type = 11;
/// The queue pair has left the time-wait state.
pub const RDMA_CM_EVENT_TIMEWAIT_EXIT: rdma_cm_event_type = 15;

/// Where events arrive (`rdma_create_event_channel(3)`).
#[repr(C)]
#[derive(Debug)]
pub struct rdma_event_channel {
    /// Readable when there is an event.
    pub fd: c_int,
}

/// Addresses of both ends of a connection, each of the family that it names. The C structure goes on after the last
/// field.
#[repr(C)]
pub struct rdma_addr {
    /// Address of this side.
    pub src_storage: libc::sockaddr_storage,
    /// Address of the peer.
    pub dst_storage: libc::sockaddr_storage,
}

/// How the peer is reached. The C structure goes on after the last field.
#[repr(C)]
pub struct rdma_route {
    /// From where to where.
    pub addr: rdma_addr,
}

/// One end of a connection (`rdma_create_id(3)`). The C structure goes on after the last field.
#[repr(C)]
pub struct rdma_cm_id {
    /// The device, as librdmacm opened it; null before it is known.
    pub verbs: *mut ibv_context,
    /// Where its events arrive.
    pub channel: *mut rdma_event_channel,
    /// The program's own.
    pub context: *mut c_void,
    /// The queue pair that librdmacm made, if it made one.
    pub qp: *mut ibv_qp,
    /// The addresses.
    pub route: rdma_route,
}

/// Parameters that the two sides of a connection exchange (`rdma_connect(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_conn_param {
    /// Bytes of the program's.
    pub private_data: *const c_void,
    /// How many.
    pub private_data_len: u8,
    /// RDMA READs and atomics of the peer that may be outstanding.
    pub responder_resources: u8,
    /// RDMA READs and atomics of this side that may be outstanding.
    pub initiator_depth: u8,
    /// Whether the hardware does flow control.
    pub flow_control: u8,
    /// How often a packet is sent again.
    pub retry_count: u8,
    /// How often a message is sent again to a peer that has no receive posted.
    pub rnr_retry_count: u8,
    /// Whether the queue pair uses an SRQ.
    pub srq: u8,
    /// Number of the queue pair.
    pub qp_num: u32,
}

/// Parameters of an event. The C union has a second member, for datagrams.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    /// Parameters of a connection.
    pub conn: rdma_conn_param,
}

/// An event (`rdma_get_cm_event(3)`). The C structure is longer.
#[repr(C)]
pub struct rdma_cm_event {
    /// Its identifier; the new one in a connection request.
    pub id: *mut rdma_cm_id,
    /// The listening identifier, in a connection request.
    pub listen_id: *mut rdma_cm_id,
    /// Its type.
    pub event: rdma_cm_event_type,
    /// 0, a negative `errno`, or the reason of a rejection.
    pub status: c_int,
    /// More about it.
    pub param: rdma_cm_event_param,
}

functions! {
    /// The functions of librdmacm (`rdma_*`, without the prefix). Functions that return an integer return
    /// -1 and set `errno` on failure.
    RdmaCm of LIBRDMACM;

    /// Opens a channel for events. Null and errno on failure.
    create_event_channel = c"rdma_create_event_channel": fn() -> *mut rdma_event_channel;
    /// Closes a channel that no identifier uses.
    destroy_event_channel = c"rdma_destroy_event_channel": fn(channel: *mut rdma_event_channel);
    /// Waits for an event and takes it.
    get_cm_event = c"rdma_get_cm_event":
        fn(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
    /// Gives an event back.
    ack_cm_event = c"rdma_ack_cm_event": fn(event: *mut rdma_cm_event) -> c_int;
    /// Name of an event.
    event_str = c"rdma_event_str": fn(event: rdma_cm_event_type) -> *const c_char;
    /// Makes an identifier. Its events go to `channel`.
    create_id = c"rdma_create_id": fn(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: rdma_port_space,
    ) -> c_int;
    /// Destroys an identifier. All its events must be acknowledged.
    destroy_id = c"rdma_destroy_id": fn(id: *mut rdma_cm_id) -> c_int;
    /// Has the events of an identifier go to another channel.
    migrate_id = c"rdma_migrate_id":
        fn(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
    /// Chooses the address, and with it the device, of this side.
    bind_addr = c"rdma_bind_addr": fn(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int;
    /// Finds the device that reaches an address.
    resolve_addr = c"rdma_resolve_addr": fn(
        id: *mut rdma_cm_id,
        src_addr: *mut libc::sockaddr,
        dst_addr: *mut libc::sockaddr,
        timeout_ms: c_int,
    ) -> c_int;
    /// Finds the route to the resolved address.
    resolve_route = c"rdma_resolve_route": fn(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
    /// Attributes for the transition to the `qp_state` in `qp_attr`, and their mask.
    init_qp_attr = c"rdma_init_qp_attr":
        fn(id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int) -> c_int;
    /// Asks the peer to connect.
    connect = c"rdma_connect":
        fn(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
    /// Tells the peer that the queue pair of the program is connected, after its response.
    establish = c"rdma_establish": fn(id: *mut rdma_cm_id) -> c_int;
    /// Waits for requests to connect.
    listen = c"rdma_listen": fn(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    /// Accepts a request to connect.
    accept = c"rdma_accept": fn(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
    /// Refuses a request to connect.
    reject = c"rdma_reject":
        fn(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
    /// Ends a connection.
    disconnect = c"rdma_disconnect": fn(id: *mut rdma_cm_id) -> c_int;
    /// The port of this side.
    get_src_port = c"rdma_get_src_port": fn(id: *mut rdma_cm_id) -> __be16;
}
