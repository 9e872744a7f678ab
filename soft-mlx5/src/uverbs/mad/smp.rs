//! Subnet management agents: of the port, and of the switch.

use super::bytes::{get16, put16, put64};
use super::records::{self, Attribute, Node};
use super::{CLASS_SUBNET_DIRECTED, DATA, GET, INVALID, OK, SET, Surroundings, UNSUPPORTED, response};
use crate::commands::limits;
use crate::fabric::address::{self, SWITCH_LID};
use crate::fabric::mad::{Header, Mad};

const NODE_DESCRIPTION: u16 = 0x10;
const NODE_INFO: u16 = 0x11;
const SWITCH_INFO: u16 = 0x12;
const GUID_INFO: u16 = 0x14;
const PORT_INFO: u16 = 0x15;
const PKEY_TABLE: u16 = 0x16;
const SL_TO_VL: u16 = 0x17;
const VL_ARBITRATION: u16 = 0x18;
const LINEAR_TABLE: u16 = 0x19;
const SM_INFO: u16 = 0x20;
/// Speeds of a lane that only adapters of this vendor have: none is supported or active.
const EXTENDED_PORT_INFO: u16 = 0xff90;

/// Bit of the status of a datagram on its way back.
const DIRECTION: u16 = 1 << 15;
const HOP_POINTER: usize = 6;
const HOP_COUNT: usize = 7;
const DIRECTED_SLID: usize = 32;
const DIRECTED_DLID: usize = 34;
const INITIAL_PATH: usize = 128;
const RETURN_PATH: usize = 192;
const PERMISSIVE: u16 = 0xffff;
const MOST_HOPS: u8 = 63;
/// Port of a channel adapter.
const PORT: u8 = 1;

/// Where a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To the port itself.
    Here,
    /// To the switch.
    Switch,
    /// To the device with this LID.
    Device(u16),
    /// To nobody: the datagram is lost.
    Lost,
}

/// Returns `true` if the datagram answers another one.
pub fn is_response(mad: &Mad) -> bool {
    match mad[1] {
        CLASS_SUBNET_DIRECTED => get16(mad, 4) & DIRECTION != 0,
        _ => mad[3] & super::RESPONSE != 0,
    }
}

/// Returns where a datagram of a program goes, whose address vector names `dlid`.
pub fn way(mad: &Mad, dlid: u16, around: &Surroundings) -> Way {
    let by_lid = |lid: u16| match lid {
        SWITCH_LID => Way::Switch,
        lid if lid == around.lid => Way::Here,
        lid if around.peers.contains(&lid) => Way::Device(lid),
        _ => Way::Lost,
    };
    if mad[1] != CLASS_SUBNET_DIRECTED {
        return by_lid(dlid);
    }
    // Paths that begin or end with a route by LID are for subnet managers.
    let is_pure = [DIRECTED_SLID, DIRECTED_DLID].iter().all(|at| get16(mad, *at) == PERMISSIVE);
    let hops = mad[HOP_COUNT];
    if !is_pure || hops > MOST_HOPS || hops > 0 && mad[INITIAL_PATH + 1] != PORT {
        return Way::Lost;
    }
    match hops {
        0 => Way::Here,
        1 => Way::Switch,
        2 => by_lid(mad[INITIAL_PATH + 2].into()),
        // A channel adapter passes nothing on.
        _ => Way::Lost,
    }
}

/// Prepares a datagram with a path for its way to its end.
pub fn depart(mad: &mut Mad) {
    if mad[1] == CLASS_SUBNET_DIRECTED {
        mad[HOP_POINTER] = mad[HOP_COUNT];
    }
}

/// Answers as the port with LID `around.lid` what port `from` asks; `None` if the datagram asks for nothing.
pub fn port(request: &Mad, around: &Surroundings, from: u16) -> Option<Mad> {
    answer(request, around, Node::Device(around.lid), from)
}

/// Answers as the switch what this port asks.
pub fn switch(request: &Mad, around: &Surroundings) -> Option<Mad> {
    answer(request, around, Node::Switch, around.lid)
}

fn answer(request: &Mad, around: &Surroundings, node: Node, from: u16) -> Option<Mad> {
    let came_in = records::switch_port_to(around, from).unwrap_or(u8::MAX);
    let through = if node == Node::Switch { came_in } else { PORT };
    let header = Header::parse(request)?;
    let found = match header.method {
        GET => attribute(&header, around, node, through),
        // Nothing can be set: the fabric is as it is.
        SET => Err(UNSUPPORTED),
        _ => return None,
    };
    let directed = header.class == CLASS_SUBNET_DIRECTED;
    let status = found.err().unwrap_or(OK) | if directed { DIRECTION } else { 0 };
    let mut answer = response(request, status);
    if let Ok(attribute) = found {
        answer[DATA..DATA + attribute.len()].copy_from_slice(&attribute);
    }
    if directed {
        answer[HOP_POINTER] = 0;
        let hops = request[HOP_COUNT];
        // The ports through which the datagram came in: of the switch, and of the device behind it.
        let ports = [came_in, PORT];
        for (hop, port) in ports.into_iter().take(hops.into()).enumerate() {
            answer[RETURN_PATH + 1 + hop] = port;
        }
    }
    Some(answer)
}

fn attribute(header: &Header, around: &Surroundings, node: Node, through: u8) -> Result<Attribute, u16> {
    let modifier = header.modifier;
    let is_switch = node == Node::Switch;
    let mut data = [0; 64];
    match header.attribute {
        NODE_DESCRIPTION => data = records::node_description(node),
        NODE_INFO => data = records::node_info(around, node, through),
        SWITCH_INFO if is_switch => data = records::switch_info(),
        PORT_INFO => {
            let port = match modifier {
                0 if !is_switch => PORT,
                port => u8::try_from(port).map_err(|_| INVALID)?,
            };
            data = records::port_info(around, node, port, through).ok_or(INVALID)?;
        }
        GUID_INFO if modifier == 0 => {
            let lid = if let Node::Device(lid) = node { lid } else { SWITCH_LID };
            put64(&mut data, 0, address::guid(lid));
        }
        // 32 keys a block; the upper half of the modifier is a port of a switch.
        PKEY_TABLE if modifier & 0xffff < u32::from(limits::PKEYS) / 32 => {
            if modifier & 0xffff == 0 {
                put16(&mut data, 0, limits::DEFAULT_PKEY);
            }
        }
        // All service levels use the first lane.
        SL_TO_VL | VL_ARBITRATION => {}
        EXTENDED_PORT_INFO if !is_switch => {}
        LINEAR_TABLE if is_switch && modifier <= u32::from(SWITCH_LID) / 64 => {
            for (lid, port) in (64 * modifier..).zip(&mut data) {
                *port = records::switch_port_to(around, lid as u16).unwrap_or(u8::MAX);
            }
        }
        SM_INFO if is_switch => data = records::sm_info(around),
        GUID_INFO | PKEY_TABLE | LINEAR_TABLE => return Err(INVALID),
        _ => return Err(UNSUPPORTED),
    }
    Ok(data)
}
