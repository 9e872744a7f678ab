//! Paths to a peer: the checks of address vectors, which queue pairs and address handles share.

use super::Call;
use super::abi::uverbs::GidEntry;
use super::errno::{EINVAL, ENETUNREACH, ETIMEDOUT};
use crate::fabric::LinkLayer;
use crate::fabric::address::{self, GidType};
use crate::objects::Result;

/// Highest rate that the driver knows (`IBV_RATE_800_GBPS`), and the number that no rate has.
const HIGHEST_RATE: u8 = 23;
const NO_RATE: u8 = 1;

/// Hop limit of the routes of a machine that was not configured otherwise.
const HOP_LIMIT: u8 = 64;

/// Result of the kernel's look-up of a destination on Ethernet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// MAC address.
    pub mac: [u8; 6],
    /// Hop limit of the route, if the kernel has looked for a route.
    pub hop_limit: Option<u8>,
}

/// Checks a static rate: `IBV_RATE_MAX`, or one of the rates.
pub fn check_rate(rate: u8) -> Result<()> {
    if rate == NO_RATE || rate > HIGHEST_RATE { Err(EINVAL) } else { Ok(()) }
}

impl Call<'_> {
    /// Returns the source of a path with this index, or `None` for a path without a GRH, which Ethernet does not have.
    pub(super) fn source(&mut self, global: bool, index: u8) -> Result<Option<GidEntry>> {
        match (global, self.core.link) {
            (true, _) => self.gid(1, index.into()).map(Some),
            (false, LinkLayer::InfiniBand) => Ok(None),
            (false, LinkLayer::Ethernet) => Err(EINVAL),
        }
    }

    /// Finds the MAC address of a destination on Ethernet. The kernel computes those of groups and, from a source of
    /// RoCE v1, those of link-local addresses. For all others it needs a route and an answer of the neighbour, which
    /// the devices of the fabric give; it waits a second for the answer, and the model does not.
    pub(super) fn neighbour(&self, source: &GidEntry, dgid: &[u8; 16]) -> Result<Neighbour> {
        let known = |mac| Ok(Neighbour { mac, hop_limit: None });
        if address::is_multicast_gid(dgid) {
            return known(address::multicast_mac(dgid));
        }
        if source.gid_type == GidType::RoceV1 as u32 && address::is_link_local(dgid) {
            return known(address::mac_of_link_local(dgid));
        }
        let is_ipv4 = |gid| address::ipv4_of_gid(gid).is_some();
        if is_ipv4(&source.gid) != is_ipv4(dgid) {
            return Err(EINVAL);
        }
        match address::lid_of_gid(dgid) {
            Some(lid) if self.core.nic.reaches(lid) => {
                Ok(Neighbour { mac: address::mac(lid), hop_limit: Some(HOP_LIMIT) })
            }
            _ if address::is_on_link(dgid) => Err(ETIMEDOUT),
            _ => Err(ENETUNREACH),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_driver() {
        let refused: Vec<u8> = (0..=255).filter(|rate| check_rate(*rate).is_err()).collect();
        assert_eq!(refused[..2], [1, 24]);
        assert_eq!(refused.len(), 1 + 232);
    }
}
