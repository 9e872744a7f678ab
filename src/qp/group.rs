//! Multicast groups.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rdma_core_sys as sys;

use crate::error::{Error, Result};

/// A multicast group, for [`QueuePair::join`](crate::QueuePair::join) and
/// [`QueuePair::multicast_handle`](crate::QueuePair::multicast_handle).
///
/// ```
/// use doorbell::MulticastGroup;
///
/// // RoCE v2: an IP address, here for a queue pair with an IPv6 GID.
/// let group = MulticastGroup::ip("ff0e::1:2".parse()?);
/// assert_eq!((group.gid[0], group.lid), (0xff, 0));
/// // InfiniBand: the group as the subnet manager knows it, with its LID.
/// let group = MulticastGroup { gid: group.gid, lid: 0xc001 };
/// # let _ = group;
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MulticastGroup {
    /// GID of the group, in network byte order.
    pub gid: [u8; 16],
    /// Multicast LID, from 0xc000 to 0xfffe on InfiniBand; 0 on Ethernet.
    pub lid: u16,
}

impl MulticastGroup {
    /// Names the group of an IP multicast address on Ethernet (RoCE v2). The address must be of the family of the
    /// queue pair's GID ([`QpConfig::gid_index`](crate::QpConfig::gid_index)), which selects IPv4 or IPv6.
    pub const fn ip(address: IpAddr) -> Self {
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Self { gid: address.octets(), lid: 0 }
    }

    /// Refuses what no adapter takes for a group.
    pub(super) fn check(&self, operation: &'static str) -> Result<()> {
        let v4 = Ipv6Addr::from(self.gid).to_ipv4_mapped();
        if self.gid[0] == 0xff || v4.is_some_and(|address: Ipv4Addr| address.is_multicast()) {
            return Ok(());
        }
        Err(Error::NotMulticast { operation, gid: self.gid })
    }

    pub(super) const fn raw(&self) -> sys::ibv_gid {
        sys::ibv_gid { raw: self.gid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_differ_from_other_addresses() {
        let group = |address: &str| MulticastGroup::ip(address.parse().unwrap());
        assert_eq!(group("239.1.2.3").gid[10..], [0xff, 0xff, 239, 1, 2, 3]);
        for address in ["239.1.2.3", "224.0.0.1", "ff02::1", "ff0e::1:2"] {
            assert!(group(address).check("join").is_ok(), "{address}");
        }
        for address in ["192.0.2.1", "255.255.255.255", "2001:db8::1", "::ffef:102"] {
            let refused = group(address).check("join").unwrap_err();
            assert!(matches!(refused, Error::NotMulticast { .. }), "{refused}");
            assert!(refused.to_string().starts_with(&format!("join: {address} is no")), "{refused}");
        }
    }
}
