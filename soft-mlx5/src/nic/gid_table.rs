//! Source addresses of a port, and routes to others.
//!
//! A port has the addresses that follow from its LID, unless a driver fills the table itself. Such a driver resolves
//! the MAC address of a destination, too, so its routes need no table of foreign GIDs.

use super::Nic;
use super::core::Core;
use super::objects::AddressVector;
use super::qp;
use crate::fabric::LinkLayer;
use crate::fabric::address::{self, GidType};
use crate::fabric::packet::Route;

/// A source address.
pub type Entry = (GidType, [u8; 16]);

/// The table of a driver, if it fills one.
#[derive(Debug, Default)]
pub struct GidTable(Option<Vec<Option<Entry>>>);

impl GidTable {
    fn holds(&self, gid: &[u8; 16]) -> bool {
        self.0.iter().flatten().flatten().any(|(_, own)| own == gid)
    }
}

impl Nic {
    /// Forgets the driver's table: the port has the addresses that follow from its LID.
    pub(crate) fn forget_gids(&mut self) {
        self.core.gids.0 = None;
    }

    /// Sets an entry of the table, or clears it. The whole table is the driver's from now on.
    pub(crate) fn set_gid(&mut self, index: u16, entry: Option<Entry>) {
        let table = self.core.gids.0.get_or_insert_default();
        let at = usize::from(index);
        if table.len() <= at {
            table.resize(at + 1, None);
        }
        table[at] = entry;
    }
}

impl Core {
    /// Returns the route to the destination of an address vector, or `None` if the destination or the source address
    /// does not exist. On Ethernet the vector has the LID of the destination's MAC address where a driver fills the
    /// table.
    pub fn route(&self, av: &AddressVector) -> Option<Route> {
        let lid = self.link.lid();
        if self.link_layer == LinkLayer::InfiniBand || self.gids.0.is_none() {
            return qp::route(av, lid, self.link_layer);
        }
        let dgid = av.grh?.dgid;
        let named = Some(av.dlid).filter(|dlid| *dlid != 0);
        let own = || self.gids.holds(&dgid).then_some(lid);
        let dlid = named.or_else(own).or_else(|| address::lid_of_gid(&dgid))?;
        self.route_to(av, dlid)
    }

    /// Does the same for port `dlid`.
    pub fn route_to(&self, av: &AddressVector, dlid: u16) -> Option<Route> {
        let index = av.grh.map_or(0, |grh| grh.sgid_index);
        let sgid = match &self.gids.0 {
            Some(table) if self.link_layer == LinkLayer::Ethernet => {
                table.get(usize::from(index)).copied().flatten()?
            }
            _ => address::table_entry(self.link.lid(), self.link_layer, index.into())?,
        };
        Some(qp::route_from(av, self.link.lid(), dlid, sgid))
    }
}
