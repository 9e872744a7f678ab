//! The GIDs of a device.

use std::fmt;
use std::net::Ipv6Addr;

use rdma_core_sys as sys;

use crate::context::Context;

/// An entry of a port's GID table (`ibv_query_gid_table(3)`). Displays as an IPv6 address.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::GidKind;
///
/// let context = doorbell::open("mlx5_0")?;
/// for gid in context.gids() {
///     let carries = match gid.kind {
///         GidKind::InfiniBand => "InfiniBand",
///         GidKind::RoceV1 => "Ethernet, not routed",
///         GidKind::RoceV2 => "UDP",
///         _ => "something newer",
///     };
///     println!("port {}, index {}: {gid}, {carries}", gid.port, gid.index);
/// }
/// # assert!(!context.gids().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gid {
    /// Port of the device, counted from 1.
    pub port: u32,
    /// Index in the table of the port, for [`QpConfig::gid_index`](crate::QpConfig::gid_index).
    pub index: u32,
    /// The address, in network byte order.
    pub raw: [u8; 16],
    /// The kind of packets that use it.
    pub kind: GidKind,
}

/// The kind of packets that use a GID (`enum ibv_gid_type`).
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{GidKind, QpConfig};
///
/// // The entry that a queue pair on Ethernet sends with; left alone, doorbell takes one of RoCE v2.
/// let context = doorbell::open("mlx5_0")?;
/// let gids = context.gids();
/// let config = match gids.iter().find(|gid| gid.kind == GidKind::RoceV2) {
///     Some(gid) => QpConfig::rc().gid_index(gid.index as u8),
///     None => QpConfig::rc(),
/// };
/// # let _ = config;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: Ethernet, not routed.
    RoceV1,
    /// RoCE version 2: UDP.
    RoceV2,
    /// A value that the headers of rdma-core 44 do not name.
    Other(u32),
}

impl Context {
    /// Returns the GIDs of all ports, or an empty list if the system cannot report their kinds.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// for gid in doorbell::open("mlx5_0")?.gids() {
    ///     println!("port {} index {}: {gid} ({:?})", gid.port, gid.index, gid.kind);
    /// }
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    pub fn gids(&self) -> Vec<Gid> {
        let gid = |entry: &sys::ibv_gid_entry| Gid {
            port: entry.port_num,
            index: entry.gid_index,
            // SAFETY: every bit pattern is a GID in raw form.
            raw: unsafe { entry.gid.raw },
            kind: GidKind::from_raw(entry.gid_type),
        };
        table(self).iter().map(gid).collect()
    }
}

impl GidKind {
    const fn from_raw(kind: u32) -> Self {
        match kind {
            sys::IBV_GID_TYPE_IB => Self::InfiniBand,
            sys::IBV_GID_TYPE_ROCE_V1 => Self::RoceV1,
            sys::IBV_GID_TYPE_ROCE_V2 => Self::RoceV2,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.raw), f)
    }
}

/// All entries that hold a GID.
pub(crate) fn table(context: &Context) -> Vec<sys::ibv_gid_entry> {
    let mut entries = vec![sys::ibv_gid_entry::default(); 256];
    // SAFETY: an open context and an array of that many entries.
    let count = unsafe { sys::ibv_query_gid_table(context.as_raw(), entries.as_mut_ptr(), entries.len(), 0) };
    entries.truncate(count.max(0) as usize);
    entries
}
