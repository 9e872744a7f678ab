//! Path between two ports, as one side sees it.

use super::message::ReqPath;
use crate::fabric::LinkLayer;

/// A path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Path {
    /// LID of this port.
    pub local_lid: u16,
    /// LID of the other port.
    pub remote_lid: u16,
    /// GID of this port.
    pub local_gid: [u8; 16],
    /// GID of the other port.
    pub remote_gid: [u8; 16],
    /// Service level.
    pub sl: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

// LID of a path that has none.
const PERMISSIVE_LID: u16 = 0xffff;

impl Path {
    /// Returns the path as a REQ names it. On Ethernet there are no LIDs.
    pub fn to_req(self, link: LinkLayer, rate: u8, ack_timeout: u8) -> ReqPath {
        let lid = |lid| if link == LinkLayer::InfiniBand { lid } else { PERMISSIVE_LID };
        ReqPath {
            local_lid: lid(self.local_lid),
            remote_lid: lid(self.remote_lid),
            local_gid: self.local_gid,
            remote_gid: self.remote_gid,
            flow_label: self.flow_label,
            rate,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            sl: self.sl,
            subnet_local: self.hop_limit <= 1,
            ack_timeout,
        }
    }

    /// Returns the path that a REQ names, seen from its receiver; the REQ came by `from`.
    pub fn from_req(path: &ReqPath, from: &Self) -> Self {
        let named = |lid: u16| lid != 0 && lid != PERMISSIVE_LID;
        Self {
            local_lid: from.local_lid,
            remote_lid: if named(path.local_lid) { path.local_lid } else { from.remote_lid },
            local_gid: path.remote_gid,
            remote_gid: path.local_gid,
            sl: path.sl,
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
        }
    }
}
