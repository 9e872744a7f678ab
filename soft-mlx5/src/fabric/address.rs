//! Addresses of a port. All of them derive from its LID, so a peer's LID follows from its GID.

use super::LinkLayer;

/// First LID given to a port.
pub const FIRST_LID: u16 = 1;
/// Last LID given to a port.
pub const LAST_LID: u16 = 0xbffe;
/// LID of the switch between the ports of a fabric, the last unicast LID. No process plays it: each device answers for
/// it, and for the subnet manager behind it, from what it knows of the fabric.
pub const SWITCH_LID: u16 = 0xbfff;

// The GUID is the EUI-64 of a locally administered MAC address, 02:db:00:00:xx:xx, whose last two
// bytes are the LID: the port GID is then the link-local IPv6 address of that MAC, as RoCE wants it.
const GUID_BASE: u64 = 0x00db_00ff_fe00_0000;
const SUBNET_PREFIX: u64 = 0xfe80_0000_0000_0000;

// The IPv4 address is 10.219.x.x, whose last two bytes are the LID; as a GID it is mapped to IPv6.
const IPV4_BASE: u128 = 0xffff_0adb_0000;

/// Kind of packets that a GID is for (numbers of `enum ibv_gid_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum GidType {
    /// InfiniBand.
    InfiniBand = 0,
    /// RoCE v1: a GRH after the Ethernet header.
    RoceV1 = 1,
    /// RoCE v2: IPv4 or IPv6, and UDP.
    RoceV2 = 2,
}

/// Returns the entry at `index` of the GID table of the port with this LID, or `None` if it is empty. An Ethernet
/// port has the entries of an interface with a link-local and an IPv4 address.
pub const fn table_entry(lid: u16, layer: LinkLayer, index: u32) -> Option<(GidType, [u8; 16])> {
    match (layer, index) {
        (LinkLayer::InfiniBand, 0) => Some((GidType::InfiniBand, gid(lid))),
        (LinkLayer::Ethernet, 0) => Some((GidType::RoceV1, gid(lid))),
        (LinkLayer::Ethernet, 1) => Some((GidType::RoceV2, gid(lid))),
        (LinkLayer::Ethernet, 2) => Some((GidType::RoceV1, ipv4_gid(lid))),
        (LinkLayer::Ethernet, 3) => Some((GidType::RoceV2, ipv4_gid(lid))),
        _ => None,
    }
}

/// Returns the GUID of the port (and node) with this LID.
pub const fn guid(lid: u16) -> u64 {
    GUID_BASE | lid as u64
}

/// Returns the node description of the device with this LID.
pub fn node_description(lid: u16) -> String {
    format!("soft-mlx5 lid {lid}")
}

/// Returns the GID at index 0 of the port with this LID: default subnet prefix and GUID.
pub const fn gid(lid: u16) -> [u8; 16] {
    ((SUBNET_PREFIX as u128) << 64 | guid(lid) as u128).to_be_bytes()
}

const fn ipv4_gid(lid: u16) -> [u8; 16] {
    (IPV4_BASE | lid as u128).to_be_bytes()
}

/// Returns the IPv4 address that a GID stands for.
pub fn ipv4_of_gid(gid: &[u8; 16]) -> Option<[u8; 4]> {
    gid.strip_prefix(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])?.first_chunk().copied()
}

/// Returns the MAC address of the port with this LID.
pub const fn mac(lid: u16) -> [u8; 6] {
    [0x02, 0xdb, 0, 0, (lid >> 8) as u8, lid as u8]
}

/// Returns the LID of the port that has this MAC address.
pub fn lid_of_mac(mac: &[u8; 6]) -> Option<u16> {
    let lid = u16::from_be_bytes([mac[4], mac[5]]);
    ((FIRST_LID..=LAST_LID).contains(&lid) && *mac == self::mac(lid)).then_some(lid)
}

/// Returns the LID of the port that has this GID.
pub fn lid_of_gid(gid: &[u8; 16]) -> Option<u16> {
    let gid = u128::from_be_bytes(*gid);
    let guid = gid as u64;
    let link_local = (gid >> 64) as u64 == SUBNET_PREFIX && guid & !0xffff == GUID_BASE;
    let ipv4 = gid & !0xffff == IPV4_BASE;
    let lid = guid as u16;
    ((link_local || ipv4) && (FIRST_LID..=LAST_LID).contains(&lid)).then_some(lid)
}

/// Returns `true` if this GID is a link-local IPv6 address.
pub fn is_link_local(gid: &[u8; 16]) -> bool {
    (u128::from_be_bytes(*gid) >> 64) as u64 == SUBNET_PREFIX
}

/// Returns the MAC address from which a link-local IPv6 address was made.
pub fn mac_of_link_local(gid: &[u8; 16]) -> [u8; 6] {
    [gid[8] ^ 2, gid[9], gid[10], gid[13], gid[14], gid[15]]
}

/// Returns `true` if this GID is of the networks of the fabric: its neighbours answer for it.
pub fn is_on_link(gid: &[u8; 16]) -> bool {
    is_link_local(gid) || u128::from_be_bytes(*gid) & !0xffff == IPV4_BASE
}

/// Returns `true` if this GID is a multicast group: of IPv6, or a mapped one of IPv4.
pub fn is_multicast_gid(gid: &[u8; 16]) -> bool {
    gid[0] == 0xff || ipv4_of_gid(gid).is_some_and(|ipv4| ipv4[0] >> 4 == 0xe)
}

/// Returns the MAC address of a multicast group.
pub fn multicast_mac(gid: &[u8; 16]) -> [u8; 6] {
    match ipv4_of_gid(gid) {
        Some([_, a, b, c]) => [0x01, 0x00, 0x5e, a & 0x7f, b, c],
        None => [0x33, 0x33, gid[12], gid[13], gid[14], gid[15]],
    }
}

/// Returns the LID of a multicast group, which a subnet manager would choose. Packets find the members by their GID;
/// groups may share a LID.
pub fn mlid_of_group(gid: &[u8; 16]) -> u16 {
    const FIRST: u16 = 0xc000;
    const COUNT: u32 = 0x3fff;
    let sum = gid
        .chunks(2)
        .fold(0u32, |sum, pair| sum.wrapping_mul(31).wrapping_add(u32::from(pair[0]) << 8 | u32::from(pair[1])));
    FIRST + (sum % COUNT) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_and_lid_name_the_same_port() {
        for lid in [FIRST_LID, 2, 0x100, LAST_LID] {
            for layer in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
                for (_, gid) in (0..8).filter_map(|index| table_entry(lid, layer, index)) {
                    assert_eq!(lid_of_gid(&gid), Some(lid));
                }
            }
        }
        assert_eq!(ipv4_of_gid(&ipv4_gid(0x1234)), Some([10, 219, 0x12, 0x34]));
        assert_eq!(ipv4_of_gid(&gid(1)), None);
        assert_eq!(gid(0x1234), [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0xdb, 0, 0xff, 0xfe, 0, 0x12, 0x34]);
    }

    #[test]
    fn link_local_addresses_hold_their_mac() {
        for lid in [1, 0x1234] {
            assert_eq!(mac_of_link_local(&gid(lid)), mac(lid));
            assert!(is_link_local(&gid(lid)) && !is_link_local(&ipv4_gid(lid)));
            assert!(is_on_link(&gid(lid)) && is_on_link(&ipv4_gid(lid)));
        }
        let mut elsewhere = ipv4_gid(1);
        elsewhere[13] = 1;
        assert!(!is_on_link(&elsewhere) && !is_on_link(&[0; 16]));
    }

    #[test]
    fn groups_of_both_families() {
        let mut group = ipv4_gid(1);
        assert!(!is_multicast_gid(&group) && !is_multicast_gid(&gid(1)));
        group[12..].copy_from_slice(&[239, 129, 2, 3]);
        assert!(is_multicast_gid(&group));
        assert_eq!(multicast_mac(&group), [0x01, 0x00, 0x5e, 1, 2, 3]);
        let group = 0xff12_0000_0000_0000_0000_0000_0102_0304_u128.to_be_bytes();
        assert!(is_multicast_gid(&group));
        assert_eq!(multicast_mac(&group), [0x33, 0x33, 1, 2, 3, 4]);
    }

    #[test]
    fn foreign_gids_have_no_lid() {
        assert_eq!(lid_of_gid(&[0; 16]), None);
        assert_eq!(lid_of_gid(&gid(0)), None);
        assert_eq!(lid_of_gid(&ipv4_gid(0)), None);
        assert_eq!(lid_of_gid(&gid(0xc000)), None);
        let mut other_prefix = gid(7);
        other_prefix[1] = 0x81;
        assert_eq!(lid_of_gid(&other_prefix), None);
    }
}
