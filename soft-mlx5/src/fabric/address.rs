//! Addresses of a port. All of them derive from its LID, so a peer's LID follows from its GID without
//! asking anybody.

/// First LID given to a port.
pub const FIRST_LID: u16 = 1;
/// Last unicast LID.
pub const LAST_LID: u16 = 0xbfff;

// The GUID is the EUI-64 of a locally administered MAC address, 02:db:00:00:xx:xx, whose last two
// bytes are the LID: the port GID is then the link-local IPv6 address of that MAC, as RoCE wants it.
const GUID_BASE: u64 = 0x00db_00ff_fe00_0000;
const SUBNET_PREFIX: u64 = 0xfe80_0000_0000_0000;

/// GUID of the port (and node) with this LID.
pub const fn guid(lid: u16) -> u64 {
    GUID_BASE | lid as u64
}

/// GID at index 0 of the port with this LID: default subnet prefix and GUID.
pub const fn gid(lid: u16) -> [u8; 16] {
    ((SUBNET_PREFIX as u128) << 64 | guid(lid) as u128).to_be_bytes()
}

/// MAC address of the port with this LID.
pub const fn mac(lid: u16) -> [u8; 6] {
    [0x02, 0xdb, 0, 0, (lid >> 8) as u8, lid as u8]
}

/// LID of the port that has this GID.
pub fn lid_of_gid(gid: &[u8; 16]) -> Option<u16> {
    let gid = u128::from_be_bytes(*gid);
    let guid = gid as u64;
    let unicast = (gid >> 64) as u64 == SUBNET_PREFIX && guid & !0xffff == GUID_BASE;
    let lid = guid as u16;
    (unicast && (FIRST_LID..=LAST_LID).contains(&lid)).then_some(lid)
}

/// Whether this GID is a multicast group.
pub const fn is_multicast_gid(gid: &[u8; 16]) -> bool {
    gid[0] == 0xff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_and_lid_name_the_same_port() {
        for lid in [FIRST_LID, 2, 0x100, LAST_LID] {
            assert_eq!(lid_of_gid(&gid(lid)), Some(lid));
        }
        assert_eq!(
            gid(0x1234),
            [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0xdb, 0, 0xff, 0xfe, 0, 0x12, 0x34]
        );
    }

    #[test]
    fn foreign_gids_have_no_lid() {
        assert_eq!(lid_of_gid(&[0; 16]), None);
        assert_eq!(lid_of_gid(&gid(0)), None);
        assert_eq!(lid_of_gid(&gid(0xc000)), None);
        let mut other_prefix = gid(7);
        other_prefix[1] = 0x81;
        assert_eq!(lid_of_gid(&other_prefix), None);
    }
}
