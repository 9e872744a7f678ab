//! The port: its attributes, GIDs and partition keys.

use super::Call;
use super::abi::Abi;
use super::abi::uverbs::{GidEntry, QueryPort, QueryPortResp, QueryPortRespEx};
use super::attrs::{Attrs, CONSTANT, Carries, FLAGS, Spec, exactly};
use super::errno::{EINVAL, ENODATA};
use super::udata::Request;
use crate::commands::limits;
use crate::fabric::LinkLayer;
use crate::fabric::address::{self, GidType, table_entry};
use crate::objects::Result;
use crate::uverbs::netdev;

/// Attributes of QUERY_PORT.
pub const QUERY: &[Spec] = &[Spec::needs(0, CONSTANT), Spec::needs(1, Carries::Out(42, u16::MAX))];
/// Attributes of the driver's QUERY_PORT.
pub const QUERY_MLX5: &[Spec] = &[Spec::needs(0x1000, exactly(4)), Spec::needs(0x1001, Carries::Out(40, u16::MAX))];
/// Attributes of QUERY_GID_TABLE.
pub const GID_TABLE: &[Spec] = &[
    Spec::needs(0, CONSTANT),
    Spec::takes(1, FLAGS),
    Spec::needs(2, Carries::Out(0, u16::MAX)),
    Spec::needs(3, Carries::Out(8, 8)),
];
/// Attributes of QUERY_GID_ENTRY.
pub const GID_ENTRY: &[Spec] = &[
    Spec::needs(0, CONSTANT),
    Spec::needs(1, CONSTANT),
    Spec::takes(2, FLAGS),
    Spec::needs(3, Carries::Out(GidEntry::SIZE as u16, u16::MAX)),
];

const STATE_DOWN: u8 = 1;
const STATE_ACTIVE: u8 = 4;
const PHYS_DISABLED: u8 = 3;
const PHYS_LINK_UP: u8 = 5;
const MTU_1024: u8 = 3;
const MTU_4096: u8 = 5;
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;

impl Call<'_> {
    pub(super) fn port(&mut self, port: u32) -> Result<QueryPortResp> {
        self.context()?;
        if port != 1 {
            return Err(EINVAL);
        }
        let address = self.nic().port();
        let common = QueryPortResp {
            max_msg_sz: limits::MAX_MESSAGE,
            pkey_tbl_len: limits::PKEYS,
            state: if address.up { STATE_ACTIVE } else { STATE_DOWN },
            phys_state: if address.up { PHYS_LINK_UP } else { PHYS_DISABLED },
            max_mtu: MTU_4096,
            active_width: WIDTH_4X,
            active_speed: SPEED_EDR,
            ..QueryPortResp::default()
        };
        Ok(match self.core.link {
            LinkLayer::InfiniBand => QueryPortResp {
                port_cap_flags: limits::PORT_CAPS_INFINIBAND,
                gid_tbl_len: limits::GIDS_INFINIBAND,
                lid: address.lid,
                sm_lid: address::SWITCH_LID,
                active_mtu: MTU_4096,
                max_vl_num: 4,
                subnet_timeout: 18,
                link_layer: 1,
                ..common
            },
            // An interface with the usual MTU of 1500 carries 1024 bytes of payload per packet.
            LinkLayer::Ethernet => QueryPortResp {
                port_cap_flags: limits::PORT_CAPS_ETHERNET,
                gid_tbl_len: limits::GIDS_ETHERNET,
                active_mtu: MTU_1024,
                link_layer: 2,
                ..common
            },
        })
    }

    pub(super) fn gid(&mut self, port: u32, index: u32) -> Result<GidEntry> {
        if index >= self.port(port)?.gid_tbl_len {
            return Err(EINVAL);
        }
        let lid = self.nic().port().lid;
        let (gid_type, gid) = table_entry(lid, self.core.link, index).ok_or(ENODATA)?;
        let joined = self.core.netdev.as_deref();
        let is_infiniband = gid_type == GidType::InfiniBand;
        let netdev_ifindex = if is_infiniband { 0 } else { netdev::index(joined) };
        let gid_type = gid_type as u32;
        Ok(GidEntry { gid, gid_index: index, port_num: port, gid_type, netdev_ifindex })
    }
}

/// Runs QUERY_PORT, ioctl form.
pub fn query(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let legacy = call.port(attrs.constant(0)?)?;
    attrs.respond(1, &QueryPortRespEx { legacy, ..QueryPortRespEx::default() })
}

/// Runs QUERY_PORT, write form.
pub fn write_query(call: &mut Call, request: &Request) -> Result<()> {
    let query: QueryPort = request.core.input.request()?;
    request.core.output.respond(&call.port(query.port_num.into())?)
}

/// Runs the driver's QUERY_PORT: the place of the port in an embedded switch, which the device does not have.
pub fn query_mlx5(call: &mut Call, attrs: &Attrs) -> Result<()> {
    call.port(attrs.get(0x1000)?)?;
    attrs.respond(0x1001, &0u64)
}

/// Runs QUERY_GID_ENTRY.
pub fn gid_entry(call: &mut Call, attrs: &Attrs) -> Result<()> {
    attrs.flags(2, 0)?;
    let entry = call.gid(attrs.constant(0)?, attrs.constant(1)?)?;
    attrs.respond(3, &entry)
}

/// Runs QUERY_GID_TABLE: all entries that hold a GID.
pub fn gid_table(call: &mut Call, attrs: &Attrs) -> Result<()> {
    attrs.flags(1, 0)?;
    let entry_size = attrs.constant(0)? as usize;
    let room = attrs.output(2);
    if entry_size == 0 || room.len % entry_size != 0 || room.len == 0 {
        return Err(EINVAL);
    }
    let length = call.port(1)?.gid_tbl_len;
    let entries: Vec<_> = (0..length).filter_map(|index| call.gid(1, index).ok()).collect();
    if entries.len() > room.len / entry_size {
        return Err(EINVAL);
    }
    let mut bytes = Vec::new();
    for entry in &entries {
        let end = bytes.len() + entry_size;
        bytes.extend(entry.to_bytes());
        bytes.resize(end, 0);
    }
    room.put_bytes(&bytes)?;
    attrs.mark_written(2)?;
    attrs.put(3, &(entries.len() as u64))
}
