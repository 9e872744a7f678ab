//! Source addresses of a port, and routes to others.
//!
//! A port has the addresses that follow from its LID, unless a driver fills the table itself. Such a driver resolves
//! the MAC address of a destination, too, so its routes need no table of foreign GIDs.

use super::AddressVector;
use crate::fabric::LinkLayer;
use crate::fabric::address::{self, GidType};
use crate::fabric::packet::Route;

const DEFAULT_HOP_LIMIT: u8 = 64;

/// A source address.
pub type Entry = (GidType, [u8; 16]);

/// The table of a driver, if it fills one.
#[derive(Debug, Default)]
pub struct GidTable(Option<Vec<Option<Entry>>>);

impl GidTable {
    fn holds(&self, gid: &[u8; 16]) -> bool {
        self.0.iter().flatten().flatten().any(|(_, own)| own == gid)
    }

    /// Forgets the driver's table: the port has the addresses that follow from its LID.
    pub fn forget(&mut self) {
        self.0 = None;
    }

    /// Sets an entry of the table, or clears it. The whole table is the driver's from now on.
    pub fn set(&mut self, index: u16, entry: Option<Entry>) {
        let table = self.0.get_or_insert_default();
        let at = usize::from(index);
        if table.len() <= at {
            table.resize(at + 1, None);
        }
        table[at] = entry;
    }

    /// Returns the route from port `slid` to the destination of an address vector, or `None` if the destination or the
    /// source address does not exist. On Ethernet the vector has the LID of the destination's MAC address where a
    /// driver fills the table.
    pub fn route(&self, av: &AddressVector, slid: u16, layer: LinkLayer) -> Option<Route> {
        if layer == LinkLayer::InfiniBand || self.0.is_none() {
            return self.route_to(av, slid, derived(av, layer)?, layer);
        }
        let dgid = av.grh?.dgid;
        let named = Some(av.dlid).filter(|dlid| *dlid != 0);
        let own = || self.holds(&dgid).then_some(slid);
        let dlid = named.or_else(own).or_else(|| address::lid_of_gid(&dgid))?;
        self.route_to(av, slid, dlid, layer)
    }

    /// Returns the route from port `slid` to port `dlid`.
    pub fn route_to(&self, av: &AddressVector, slid: u16, dlid: u16, layer: LinkLayer) -> Option<Route> {
        let index = av.grh.map_or(0, |grh| grh.sgid_index);
        let sgid = match &self.0 {
            Some(table) if layer == LinkLayer::Ethernet => table.get(usize::from(index)).copied().flatten()?,
            _ => address::table_entry(slid, layer, index.into())?,
        };
        Some(Route {
            slid,
            dlid,
            sl: av.sl,
            global: av.grh.is_some(),
            sgid,
            dgid: av.grh.map_or_else(|| address::gid(dlid), |grh| grh.dgid),
            flow_label: av.grh.map_or(0, |grh| grh.flow_label),
            traffic_class: av.grh.map_or(0, |grh| grh.traffic_class),
            hop_limit: av.grh.map_or(DEFAULT_HOP_LIMIT, |grh| grh.hop_limit),
        })
    }
}

/// Returns the destination of an address vector where addresses follow from LIDs.
fn derived(av: &AddressVector, layer: LinkLayer) -> Option<u16> {
    match layer {
        LinkLayer::InfiniBand if av.dlid != 0 => Some(av.dlid),
        _ => address::lid_of_gid(&av.grh?.dgid),
    }
}
