//! Agents that answer management datagrams: of a port, and of the switch and subnet administrator that each device
//! plays for itself.
//!
//! A fabric is one switch to which each device is connected: the device with LID 5 at its port 5. Switch and subnet
//! manager have no process. Everything about them follows from the LIDs on the fabric, so a device answers for them
//! when its own program asks.

mod bytes;
pub mod pma;
mod records;
pub mod sa;
pub mod smp;

use crate::base::counters;
use crate::fabric::groups::{Member, Membership};
use crate::fabric::mad::{CLASS_CM, Header, Mad};

/// Class of subnet management, by LID and by path.
pub const CLASS_SUBNET_LID: u8 = 0x01;
/// See [`CLASS_SUBNET_LID`].
pub const CLASS_SUBNET_DIRECTED: u8 = 0x81;
/// Class of subnet administration.
pub const CLASS_SA: u8 = 0x03;
/// Class of performance management.
pub const CLASS_PERFORMANCE: u8 = 0x04;

const GET: u8 = 0x01;
const SET: u8 = 0x02;
const GET_TABLE: u8 = 0x12;
const DELETE: u8 = 0x15;
/// Bit of the method of a response.
pub const RESPONSE: u8 = 0x80;

const OK: u16 = 0;
/// The method and the attribute do not go together.
const UNSUPPORTED: u16 = 0x000c;
/// A value of the attribute or of its modifier.
const INVALID: u16 = 0x001c;

/// Class port information, of all classes.
const CLASS_PORT_INFO: u16 = 0x0001;

/// Where the attribute is in a datagram of subnet or performance management.
const DATA: usize = 64;

/// A port and what is around it.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// LID of the port.
    pub lid: u16,
    /// State of its link.
    pub up: bool,
    /// LIDs of the other devices on the fabric.
    pub peers: Vec<u16>,
    /// Counters of the port.
    pub counters: counters::Port,
    /// Members of multicast groups.
    pub members: Vec<Member>,
    /// Time in seconds.
    pub seconds: u32,
}

impl Surroundings {
    /// Returns the LIDs of all devices, in order.
    fn lids(&self) -> Vec<u16> {
        let mut lids: Vec<_> = self.peers.iter().copied().chain([self.lid]).collect();
        lids.sort_unstable();
        lids.dedup();
        lids
    }

    fn has(&self, lid: u16) -> bool {
        lid == self.lid || self.peers.contains(&lid)
    }
}

/// Change of the port that an answer makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Set these counters to 0.
    Reset(pma::SelectedCounters),
    /// Become a member of a group, or another kind of member.
    Join(Membership),
    /// Leave a group.
    Leave([u8; 16]),
}

/// Returns the datagram that answers `request` with this status; its data are those of the request.
fn response(request: &Mad, status: u16) -> Mad {
    let mut answer = *request;
    if let Some(header) = Header::parse(request) {
        let method = if header.method == SET { GET } else { header.method } | RESPONSE;
        Header { method, status, ..header }.emit(&mut answer);
    }
    // In a datagram with a path these bytes are its hops.
    answer[6..8].copy_from_slice(&request[6..8]);
    answer
}

/// Returns the refusal of a request that no agent takes, or `None` if the sender expects none.
pub fn refuse(request: &Mad) -> Option<Mad> {
    Header::parse(request)?;
    // Datagrams with a path are for agents of subnet management alone.
    let known = matches!(request[1], CLASS_CM | CLASS_SUBNET_DIRECTED);
    let asks = matches!(request[3], GET | SET) && !known;
    asks.then(|| response(request, UNSUPPORTED))
}

#[cfg(test)]
mod tests;
