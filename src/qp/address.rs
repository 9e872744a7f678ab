//! Where a queue pair is, and how packets get there.

use rdma_core_sys as sys;

use super::config::QpConfig;
use crate::attributes::LinkLayer;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::gid;
use crate::mtu::Mtu;

/// Largest number of a queue pair, and largest PSN.
pub(crate) const MAX_24_BITS: u32 = 0xff_ffff;

/// Least number of a queue pair that programs use: 0 and 1 are the subnet management and the general services
/// interface of the port.
const FIRST_QPN: u32 = 2;

/// The address of a queue pair, which a peer needs to connect to it.
///
/// [`connect_over`](crate::QueuePair::connect_over) exchanges it. A program with its own exchange sends it as
/// [bytes](Self::to_bytes), as text (`Display` and `FromStr`) or with serde (feature `serde`).
///
/// ```
/// use doorbell::{Mtu, QpAddress};
///
/// let peer = QpAddress { lid: 3, gid: [0; 16], qpn: 0x118, psn: 0x4711, mtu: Mtu::Mtu4096 };
/// assert_eq!(peer.to_string().parse(), Ok(peer));
/// assert_eq!(QpAddress::from_bytes(&peer.to_bytes()), Ok(peer));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpAddress {
    /// LID of the port; 0 on Ethernet.
    pub lid: u16,
    /// GID of the port; all zero when packets carry no GRH.
    pub gid: [u8; 16],
    /// Number of the queue pair, 24 bits.
    pub qpn: u32,
    /// PSN of the first packet that this queue pair sends, 24 bits.
    pub psn: u32,
    /// Largest MTU that the queue pair accepts.
    pub mtu: Mtu,
}

/// This side of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Local {
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    /// The least of the port's and the configured one.
    pub(super) mtu: Mtu,
    sgid_index: u8,
    needs_grh: bool,
    ethernet: bool,
}

/// How packets find the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// By LID.
    Lid,
    /// By GID, with a GRH.
    Global { sgid_index: u8 },
}

impl Local {
    pub(super) fn query(context: &Context, config: &QpConfig) -> Result<Self> {
        let QpConfig { port, gid_index, .. } = *config;
        let attr = context.query_port(port)?;
        let ethernet = attr.link_layer == LinkLayer::Ethernet;
        let needs_grh = ethernet || attr.grh_required;
        let entries = u64::from(attr.gid_tbl_len.min(256));
        if let Some(index) = gid_index {
            Error::check_range("gid_index", index.into(), 0, entries.saturating_sub(1))?;
        }
        let sgid_index = match gid_index {
            Some(index) => index,
            None if ethernet => choose_gid(&gid::table(context), port),
            None => 0,
        };
        let mut gid = [0; 16];
        if needs_grh || gid_index.is_some() {
            gid = context.query_gid(port, sgid_index)?;
            if gid == [0; 16] {
                let device = context.name().to_owned();
                return Err(Error::NoGid { device, port, index: sgid_index });
            }
        }
        // A port that is down may report none.
        let mtu = attr.active_mtu.unwrap_or(Mtu::Mtu256);
        let mtu = config.mtu.map_or(mtu, |most| most.min(mtu));
        Ok(Self { lid: attr.lid, gid, mtu, sgid_index, needs_grh, ethernet })
    }

    /// Returns `true` if the port is one of Ethernet (RoCE).
    pub(super) const fn is_ethernet(&self) -> bool {
        self.ethernet
    }

    /// Returns the route of a side that sends no requests, which names only where it is.
    pub(super) const fn as_source(&self) -> Route {
        if self.is_global() { Route::Global { sgid_index: self.sgid_index } } else { Route::Lid }
    }

    /// Returns `true` if packets to this side carry a GRH.
    const fn is_global(&self) -> bool {
        u128::from_be_bytes(self.gid) != 0
    }

    /// How to reach `peer`.
    pub(super) fn route(&self, peer: &QpAddress) -> Result<Route> {
        Error::check_range("qpn of the peer", peer.qpn.into(), FIRST_QPN.into(), MAX_24_BITS.into())?;
        Error::check_range("psn of the peer", peer.psn.into(), 0, MAX_24_BITS.into())?;
        if peer.gid != [0; 16] {
            return Ok(Route::Global { sgid_index: self.sgid_index });
        }
        if self.needs_grh {
            return Err(Error::Handshake("its address has no GID, and this port needs one".to_owned()));
        }
        if peer.lid == 0 {
            return Err(Error::Handshake("its address has neither LID nor GID: check that its port is up".to_owned()));
        }
        Ok(Route::Lid)
    }
}

/// The entry that an Ethernet port uses by default: RoCE v2 can be routed, and switches
/// handle it better over IPv4 than over a link-local address.
fn choose_gid(entries: &[sys::ibv_gid_entry], port: u8) -> u8 {
    let v2 = || {
        entries.iter().filter(|entry| {
            entry.port_num == u32::from(port)
                && entry.gid_type == sys::IBV_GID_TYPE_ROCE_V2
                && entry.gid_index <= u32::from(u8::MAX)
        })
    };
    let ipv4 = v2().find(|entry| {
        // SAFETY: every bit pattern is a GID in raw form.
        let raw = unsafe { entry.gid.raw };
        raw[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
    });
    ipv4.or_else(|| v2().next()).map_or(0, |entry| entry.gid_index as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK_LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1];
    const IPV4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];

    fn entry(index: u32, port: u32, gid_type: u32, raw: [u8; 16]) -> sys::ibv_gid_entry {
        sys::ibv_gid_entry { gid: sys::ibv_gid { raw }, gid_index: index, port_num: port, gid_type, ndev_ifindex: 0 }
    }

    #[test]
    fn an_ethernet_port_prefers_a_roce_v2_gid_of_an_ipv4_address() {
        const V1: u32 = sys::IBV_GID_TYPE_ROCE_V1;
        const V2: u32 = sys::IBV_GID_TYPE_ROCE_V2;
        let table = [
            entry(0, 1, V1, LINK_LOCAL),
            entry(1, 1, V2, LINK_LOCAL),
            entry(2, 1, V1, IPV4),
            entry(3, 1, V2, IPV4),
            entry(5, 2, V2, IPV4),
        ];
        assert_eq!(choose_gid(&table, 1), 3);
        assert_eq!(choose_gid(&table[..3], 1), 1);
        assert_eq!(choose_gid(&table[..1], 1), 0);
        assert_eq!(choose_gid(&table, 2), 5);
        assert_eq!(choose_gid(&[], 1), 0);
    }

    fn local(needs_grh: bool) -> Local {
        Local { lid: 1, gid: [0; 16], mtu: Mtu::Mtu4096, sgid_index: 4, needs_grh, ethernet: needs_grh }
    }

    fn peer(lid: u16, gid: [u8; 16]) -> QpAddress {
        QpAddress { lid, gid, qpn: 0x11, psn: 0, mtu: Mtu::Mtu1024 }
    }

    #[test]
    fn a_gid_is_used_when_there_is_one_and_demanded_where_lids_do_not_work() {
        assert_eq!(local(false).route(&peer(7, [0; 16])).unwrap(), Route::Lid);
        let global = Route::Global { sgid_index: 4 };
        assert_eq!(local(false).route(&peer(7, IPV4)).unwrap(), global);
        assert_eq!(local(true).route(&peer(0, IPV4)).unwrap(), global);
        assert!(matches!(local(true).route(&peer(7, [0; 16])), Err(Error::Handshake(_))));
        assert!(matches!(local(false).route(&peer(0, [0; 16])), Err(Error::Handshake(_))));
    }

    #[test]
    fn numbers_that_no_queue_pair_of_a_program_has_are_refused() {
        let out = |peer| matches!(local(false).route(&peer), Err(Error::OutOfRange { .. }));
        assert!(out(QpAddress { qpn: 1 << 24, ..peer(7, IPV4) }));
        assert!(out(QpAddress { psn: 1 << 24, ..peer(7, IPV4) }));
        assert!(out(QpAddress { qpn: 0, ..peer(7, IPV4) }));
        assert!(out(QpAddress { qpn: 1, ..peer(7, IPV4) }));
        assert!(!out(QpAddress { qpn: 2, ..peer(7, IPV4) }));
        assert!(!out(QpAddress { qpn: 0xff_ffff, psn: 0xff_ffff, ..peer(7, IPV4) }));
    }
}
