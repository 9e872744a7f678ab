//! Attributes of nodes and ports, which subnet management and subnet administration show alike.

use super::Surroundings;
use super::bytes::{put16, put32, put64};
use crate::commands::limits;
use crate::fabric::address::{self, SWITCH_LID};

/// Bytes of the attribute in a datagram of subnet management.
pub type Attribute = [u8; 64];

/// Bytes of NodeInfo, SwitchInfo and SMInfo.
pub const NODE_INFO: usize = 40;
pub const SWITCH_INFO: usize = 20;
pub const SM_INFO: usize = 24;

/// A node of the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// The device with this LID.
    Device(u16),
    /// The switch.
    Switch,
}

const CHANNEL_ADAPTER: u8 = 1;
const SWITCH: u8 = 2;
/// IEEE company id of the adapters.
const VENDOR: u32 = limits::VENDOR_ID;
/// PCI device number of a ConnectX-5 Ex.
const DEVICE: u16 = 0x1019;
/// Ports of the switch: a port has a byte for its number, and 255 means none.
const MOST_PORTS: u16 = 254;
const FEWEST_PORTS: u16 = 36;

const ACTIVE: u8 = 4;
const DOWN: u8 = 1;
const LINK_UP: u8 = 5;
const POLLING: u8 = 2;
const DISABLED: u8 = 3;
const WIDTH_1X_4X: u8 = 3;
const WIDTH_4X: u8 = 2;
/// 2.5, 5 and 10 Gb/s; the last is active.
const SPEEDS: u8 = 7;
const SPEED_10: u8 = 4;
/// 14 and 25 Gb/s a lane, FDR and EDR; the last is active.
const EXTENDED_SPEEDS: u8 = 3;
const EXTENDED_25: u8 = 2;
const MTU_4096: u8 = 5;
/// Four virtual lanes.
const LANES: u8 = 3;
const SUBNET_TIMEOUT: u8 = 18;
const CAP_SUBNET_MANAGER: u32 = 1 << 1;
const SM_MASTER: u8 = 3;

/// Returns the number of ports of the switch.
pub fn switch_ports(around: &Surroundings) -> u8 {
    let last = around.lids().last().copied().unwrap_or(0);
    last.clamp(FEWEST_PORTS, MOST_PORTS) as u8
}

/// Returns the port of the switch that leads to a LID, 0 for the switch itself.
pub fn switch_port_to(around: &Surroundings, lid: u16) -> Option<u8> {
    match lid {
        SWITCH_LID => Some(0),
        _ => u8::try_from(lid).ok().filter(|_| around.has(lid) && lid <= MOST_PORTS),
    }
}

/// Returns NodeInfo as it is seen through `port` of the node.
pub fn node_info(around: &Surroundings, node: Node, port: u8) -> Attribute {
    let mut info = [0; 64];
    let (kind, ports, lid, device) = match node {
        Node::Device(lid) => (CHANNEL_ADAPTER, 1, lid, DEVICE),
        Node::Switch => (SWITCH, switch_ports(around), SWITCH_LID, 0),
    };
    // Base version and class version.
    info[..4].copy_from_slice(&[1, 1, kind, ports]);
    for at in [4, 12, 20] {
        put64(&mut info, at, address::guid(lid));
    }
    put16(&mut info, 28, limits::PKEYS);
    put16(&mut info, 30, device);
    put32(&mut info, 36, u32::from(port) << 24 | VENDOR);
    info
}

/// Returns NodeDescription.
pub fn node_description(node: Node) -> Attribute {
    let text = match node {
        Node::Device(lid) => address::node_description(lid),
        Node::Switch => "soft-mlx5 switch".into(),
    };
    let mut description = [0; 64];
    description[..text.len()].copy_from_slice(text.as_bytes());
    description
}

/// Returns PortInfo of a port of a node, seen through port `through` of it, or `None` if there is no such port.
pub fn port_info(around: &Surroundings, node: Node, port: u8, through: u8) -> Option<Attribute> {
    let mut info = [0; 64];
    let is_switch = node == Node::Switch;
    let exists = if is_switch { port <= switch_ports(around) } else { port == 1 };
    if !exists {
        return None;
    }
    let (lid, caps) = match (node, port) {
        (Node::Device(lid), _) => (lid, limits::PORT_CAPS_INFINIBAND),
        (Node::Switch, 0) => (SWITCH_LID, limits::PORT_CAPS_INFINIBAND | CAP_SUBNET_MANAGER),
        // Only the management port of a switch has addresses.
        (Node::Switch, _) => (0, 0),
    };
    let (state, physical) = match node {
        Node::Device(lid) if lid == around.lid && !around.up => (DOWN, DISABLED),
        Node::Switch if port > 0 && !around.has(port.into()) => (DOWN, POLLING),
        Node::Switch if u16::from(port) == around.lid && !around.up => (DOWN, POLLING),
        _ => (ACTIVE, LINK_UP),
    };
    if lid != 0 {
        info[8..16].copy_from_slice(&address::gid(lid)[..8]);
        put16(&mut info, 16, lid);
        put16(&mut info, 18, SWITCH_LID);
        put32(&mut info, 20, caps);
    }
    info[28] = through;
    info[29..32].copy_from_slice(&[WIDTH_1X_4X, WIDTH_1X_4X, WIDTH_4X]);
    info[32] = SPEEDS << 4 | state;
    info[33] = physical << 4 | POLLING;
    info[35] = SPEED_10 << 4 | SPEEDS;
    info[36] = MTU_4096 << 4;
    info[37] = LANES << 4;
    info[41] = MTU_4096;
    info[43] = LANES << 4;
    info[50] = limits::GIDS_INFINIBAND as u8;
    info[51] = SUBNET_TIMEOUT;
    info[52] = SUBNET_TIMEOUT;
    info[62] = EXTENDED_25 << 4 | EXTENDED_SPEEDS;
    info[63] = EXTENDED_SPEEDS;
    Some(info)
}

/// Returns SwitchInfo.
pub fn switch_info() -> Attribute {
    let mut info = [0; 64];
    put16(&mut info, 0, SWITCH_LID + 1);
    put16(&mut info, 6, SWITCH_LID);
    info
}

/// Returns SMInfo of the subnet manager, which is where the switch is.
pub fn sm_info(around: &Surroundings) -> Attribute {
    let mut info = [0; 64];
    put64(&mut info, 0, address::guid(SWITCH_LID));
    put32(&mut info, 16, around.seconds);
    info[20] = SM_MASTER;
    info
}
