//! Attributes of a device and of a port.

use std::ffi::c_int;
use std::fmt;

use rdma_core_sys as sys;

use crate::mtu::Mtu;

/// `IBV_LINK_LAYER_*`, which the header keeps in an enumeration without a name.
const LINK_LAYER_INFINIBAND: u8 = 1;
const LINK_LAYER_ETHERNET: u8 = 2;

/// Identity and limits of a device (`ibv_query_device(3)`), from [`Context::attr`](crate::Context::attr).
///
/// ```
/// # let _device = doorbell_doc::device();
/// let context = doorbell::open("mlx5_0")?;
/// let attr = context.attr();
/// println!("vendor {:#x}: SRQs of {} receives, CQs of {} entries", attr.vendor_id, attr.max_srq_wr, attr.max_cqe);
/// # Ok::<(), doorbell::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Vendor, for example `0x02c9`, NVIDIA.
    pub vendor_id: u32,
    /// Model, as the vendor numbers it.
    pub vendor_part_id: u32,
    /// GUID of the device, in network byte order.
    pub node_guid: u64,
    /// Ports.
    pub phys_port_cnt: u8,
    /// Bytes of a memory region, at most.
    pub max_mr_size: u64,
    /// Memory regions.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Queue pairs.
    pub max_qp: u32,
    /// Requests that can be outstanding on a queue of a queue pair.
    pub max_qp_wr: u32,
    /// Buffers of a request.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives of a shared receive queue.
    pub max_srq_wr: u32,
    /// Buffers of a receive of a shared receive queue.
    pub max_srq_sge: u32,
    /// Partitions of a port.
    pub max_pkeys: u16,
    /// RDMA READs and atomics that a queue pair serves at a time.
    pub max_qp_rd_atom: u32,
    /// RDMA READs and atomics of a queue pair that can be outstanding.
    pub max_qp_init_rd_atom: u32,
}

impl DeviceAttr {
    pub(crate) fn new(raw: &sys::ibv_device_attr) -> Self {
        let count = |count: c_int| count.max(0) as u32;
        Self {
            vendor_id: raw.vendor_id,
            vendor_part_id: raw.vendor_part_id,
            node_guid: raw.node_guid,
            phys_port_cnt: raw.phys_port_cnt,
            max_mr_size: raw.max_mr_size,
            max_mr: count(raw.max_mr),
            max_pd: count(raw.max_pd),
            max_qp: count(raw.max_qp),
            max_qp_wr: count(raw.max_qp_wr),
            max_sge: count(raw.max_sge),
            max_cq: count(raw.max_cq),
            max_cqe: count(raw.max_cqe),
            max_srq: count(raw.max_srq),
            max_srq_wr: count(raw.max_srq_wr),
            max_srq_sge: count(raw.max_srq_sge),
            max_pkeys: raw.max_pkeys,
            max_qp_rd_atom: count(raw.max_qp_rd_atom),
            max_qp_init_rd_atom: count(raw.max_qp_init_rd_atom),
        }
    }
}

/// State and limits of a port (`ibv_query_port(3)`), from [`Context::query_port`](crate::Context::query_port).
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::caps::PortState;
///
/// let port = doorbell::open("mlx5_0")?.query_port(1)?;
/// println!("{}, {}, LID {}", port.state, port.link_layer, port.lid);
/// assert_eq!(port.state, PortState::Active);
/// # Ok::<(), doorbell::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttr {
    /// Messages pass only [`PortState::Active`].
    pub state: PortState,
    /// Network of the port.
    pub link_layer: LinkLayer,
    /// Largest MTU.
    pub max_mtu: Option<Mtu>,
    /// MTU now; `None` if the port has none, as one that is down.
    pub active_mtu: Option<Mtu>,
    /// Bytes of a message, at most.
    pub max_msg_sz: u32,
    /// Local identifier on InfiniBand.
    pub lid: u16,
    /// Entries of the table of GIDs.
    pub gid_tbl_len: u32,
    /// `true` if every address needs a GRH.
    pub grh_required: bool,
    /// Lanes, as a code of the InfiniBand specification: 1, 2, 4, 8, 16 for 1, 4, 8, 12, 2 lanes.
    pub active_width: u8,
    /// Speed of a lane, as a bit of the InfiniBand specification: 32 for EDR, 64 for HDR, 128 for NDR, 256 for XDR.
    /// Versions of rdma-core without `active_speed_ex` report another code for XDR.
    pub active_speed: u32,
}

impl PortAttr {
    pub(crate) fn new(raw: &sys::ibv_port_attr, active_speed: u32) -> Self {
        let link_layer = match raw.link_layer {
            LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
            LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            _ => LinkLayer::Unspecified,
        };
        Self {
            state: PortState::from_raw(raw.state),
            link_layer,
            max_mtu: Mtu::from_raw(raw.max_mtu),
            active_mtu: Mtu::from_raw(raw.active_mtu),
            max_msg_sz: raw.max_msg_sz,
            lid: raw.lid,
            gid_tbl_len: raw.gid_tbl_len.max(0) as u32,
            grh_required: raw.flags & sys::IBV_QPF_GRH_REQUIRED != 0,
            active_width: raw.active_width,
            active_speed,
        }
    }
}

/// State of a port (`enum ibv_port_state`).
///
/// ```
/// use doorbell::caps::PortState;
///
/// assert_eq!(PortState::Init.to_string(), "init");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortState {
    /// No link.
    Down,
    /// A link, but no subnet manager has configured the port.
    Init,
    /// Configured, but not active yet.
    Armed,
    /// Messages pass.
    Active,
    /// Another state, as the header numbers it.
    Other(u32),
}

impl PortState {
    fn from_raw(state: sys::ibv_port_state) -> Self {
        match state {
            sys::IBV_PORT_DOWN => Self::Down,
            sys::IBV_PORT_INIT => Self::Init,
            sys::IBV_PORT_ARMED => Self::Armed,
            sys::IBV_PORT_ACTIVE => Self::Active,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("down"),
            Self::Init => f.write_str("init"),
            Self::Armed => f.write_str("armed"),
            Self::Active => f.write_str("active"),
            Self::Other(state) => write!(f, "state {state}"),
        }
    }
}

/// Network of a port (`IBV_LINK_LAYER_*`).
///
/// ```
/// use doorbell::caps::LinkLayer;
///
/// assert_eq!(LinkLayer::InfiniBand.to_string(), "InfiniBand");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// An InfiniBand switch, or another InfiniBand port.
    InfiniBand,
    /// Ethernet: messages are RoCE packets.
    Ethernet,
    /// The driver does not say.
    Unspecified,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
            Self::Unspecified => "unspecified",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_headers() {
        let raw = sys::ibv_port_attr { state: 4, link_layer: 2, active_mtu: 3, gid_tbl_len: -1, ..Default::default() };
        let port = PortAttr::new(&raw, 256);
        assert_eq!((port.state, port.link_layer), (PortState::Active, LinkLayer::Ethernet));
        assert_eq!((port.active_mtu, port.max_mtu, port.gid_tbl_len), (Some(Mtu::Mtu1024), None, 0));
        assert_eq!(port.active_speed, 256);
        assert_eq!(PortState::from_raw(1).to_string(), "down");
        assert_eq!(PortState::from_raw(9).to_string(), "state 9");
        let device = DeviceAttr::new(&sys::ibv_device_attr { max_cqe: -1, max_qp_wr: 7, ..Default::default() });
        assert_eq!((device.max_cqe, device.max_qp_wr), (0, 7));
    }
}
