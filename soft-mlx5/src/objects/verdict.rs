//! Properties of a frame's headers and checksums in its CQE.

use mlx5_wire::cqe::{Cqe64, L3_OK, L4_OK};
use mlx5_wire::frame::{L2_OK, VLAN_STRIPPED};

use crate::fabric::checksum;
use crate::fabric::frame_header::{Headers, Ip, TCP, UDP};
use crate::fabric::icrc::Crc;

// Bits of `l4_hdr_type_etc`.
const IP_OPTIONS: u8 = 1 << 1;
const L3_IPV6: u8 = 1 << 2;
const L3_IPV4: u8 = 2 << 2;
const L4_TCP: u8 = 1 << 4;
const L4_UDP: u8 = 2 << 4;
const L4_TCP_ACK: u8 = 3 << 4;
const L4_TCP_ACK_DATA: u8 = 4 << 4;
const FRAGMENT: u8 = 1 << 7;

const ACK: u8 = 1 << 4;

/// Returns the frame check sequence, as it follows a frame.
pub fn check_sequence(frame: &[u8]) -> [u8; 4] {
    Crc::new().add(frame).finish()
}

/// Returns the fields of a CQE that follow from a frame; all others are 0.
pub fn of(frame: &[u8], headers: &Headers, stripped: bool) -> Cqe64 {
    let end = headers.ip.map_or(frame.len(), |ip| ip.end);
    let mut cqe = Cqe64 {
        // The sum includes neither tags nor padding.
        check_sum: checksum::sum(frame.get(headers.body..end).unwrap_or_default()).into(),
        hds_ip_ext: L2_OK,
        l4_hdr_type_etc: if stripped { VLAN_STRIPPED } else { 0 },
        ..Cqe64::zeroed()
    };
    if let Some(ip) = &headers.ip {
        cqe.l4_hdr_type_etc |= types(ip);
        let sound = ip.transport.is_some_and(|transport| transport.sound);
        let verdicts = [(ip.sound, L3_OK), (sound && ip.sound, L4_OK)];
        cqe.hds_ip_ext |= verdicts.iter().filter(|(ok, _)| *ok).fold(0, |all, (_, bit)| all | bit);
    }
    cqe
}

fn types(ip: &Ip) -> u8 {
    let mut types = if ip.version == 4 { L3_IPV4 } else { L3_IPV6 };
    for (set, bit) in [(ip.options, IP_OPTIONS), (ip.fragment, FRAGMENT)] {
        types |= if set { bit } else { 0 };
    }
    let Some(transport) = &ip.transport else { return types };
    types
        | match ip.protocol {
            UDP => L4_UDP,
            TCP if transport.flags & ACK == 0 => L4_TCP,
            TCP if transport.payload == 0 => L4_TCP_ACK,
            TCP => L4_TCP_ACK_DATA,
            _ => 0,
        }
}
