//! Packets as they look on Ethernet: RoCE v1, and RoCE v2 over IPv4 and IPv6.
//!
//! Between devices all packets travel with an IPv6 header and UDP, see [`super::packet`]. The difference is visible
//! in the GRH of a datagram and in a capture.

use super::LinkLayer;
use super::address::ipv4_of_gid;
use super::icrc::Crc;
use super::packet::{BASE_TRANSPORT, Frame, Packet, UDP_PROTOCOL};

const GRH: usize = 40;
const IPV4: usize = 20;
const UDP: usize = 8;
const UDP_CHECKSUM: usize = 6;
const BTH_RESERVED: usize = 4;
const ICRC: usize = 4;

const ETHERTYPE_ROCE_V1: u16 = 0x8915;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Returns the 40 bytes that a program finds before a datagram, and the index of the first byte that is written. On
/// InfiniBand and with RoCE v1 the bytes are a GRH without a UDP header after it. With RoCE v2 they end with an IP
/// header, and the bytes before it are undefined.
pub fn delivered_grh(packet: &Packet, link: LinkLayer) -> ([u8; GRH], usize) {
    let mut grh = *packet.grh;
    if link == LinkLayer::InfiniBand || is_v1(packet.grh) {
        return (as_grh(packet.grh), 0);
    }
    let Some(header) = ipv4_header(packet.grh) else { return (grh, 0) };
    grh[GRH - IPV4..].copy_from_slice(&header);
    (grh, GRH - IPV4)
}

/// Returns the bits that the CQE of a datagram has in the place of a service level: bit 3 for UDP, and the kind of
/// the header before UDP (UCX's `uct_ud_iface_check_grh` cites the PRM).
pub fn packet_type(packet: &Packet) -> u8 {
    const UDP_BEHIND: u8 = 1 << 3;
    match ipv4_header(packet.grh) {
        _ if is_v1(packet.grh) => 0,
        None => UDP_BEHIND | 1,
        Some(_) => UDP_BEHIND | 2,
    }
}

/// Appends a packet with the Ethernet type before it.
pub fn emit(frame: &Frame, bytes: &mut Vec<u8>) {
    let packet = frame.ip_packet();
    let Some((ip, behind)) = packet.split_first_chunk::<GRH>() else { return };
    if is_v1(ip) {
        bytes.extend(ETHERTYPE_ROCE_V1.to_be_bytes());
        let from = bytes.len();
        bytes.extend(as_grh(ip));
        bytes.extend(&behind[UDP..]);
        seal(&mut bytes[from..], |grh| {
            grh[0] |= 0x0f;
            grh[1..4].fill(0xff);
            grh[7] = 0xff;
            grh[GRH + BTH_RESERVED] = 0xff;
        });
    } else if let Some(header) = ipv4_header(ip) {
        bytes.extend(ETHERTYPE_IPV4.to_be_bytes());
        let from = bytes.len();
        bytes.extend(header);
        // Without a checksum of UDP, as adapters send them.
        bytes.extend(behind);
        seal(&mut bytes[from..], |ip| {
            ip[1] = 0xff;
            ip[8] = 0xff;
            ip[10..12].fill(0xff);
            ip[IPV4 + UDP_CHECKSUM..IPV4 + UDP].fill(0xff);
            ip[IPV4 + UDP + BTH_RESERVED] = 0xff;
        });
    } else {
        bytes.extend(ETHERTYPE_IPV6.to_be_bytes());
        let from = bytes.len();
        bytes.extend(packet);
        // Programs that do not know RoCE take a checksum of 0 over IPv6 for an error. The ICRC does not cover it.
        let sum = udp_checksum(&bytes[from..]).to_be_bytes();
        bytes[from + GRH + UDP_CHECKSUM..from + GRH + UDP].copy_from_slice(&sum);
    }
}

// Puts the ICRC at the end. `mask` sets the bits that routers change to ones.
fn seal(packet: &mut [u8], mask: impl FnOnce(&mut [u8])) {
    let (covered, icrc) = packet.split_at_mut(packet.len() - ICRC);
    let mut masked = covered.to_vec();
    mask(&mut masked);
    icrc.copy_from_slice(&Crc::new().add(&[0xff; 8]).add(&masked).finish());
}

fn is_v1(ip: &[u8; GRH]) -> bool {
    ip[6] == BASE_TRANSPORT
}

// The length of a GRH counts no UDP header.
fn as_grh(ip: &[u8; GRH]) -> [u8; GRH] {
    let mut grh = *ip;
    grh[6] = BASE_TRANSPORT;
    let length = u16::from_be_bytes([ip[4], ip[5]]).saturating_sub(UDP as u16);
    grh[4..6].copy_from_slice(&length.to_be_bytes());
    grh
}

// Returns the IPv4 header of a packet between mapped addresses.
fn ipv4_header(ip: &[u8; GRH]) -> Option<[u8; IPV4]> {
    let address = |at: usize| ipv4_of_gid(ip[at..].first_chunk()?);
    let (from, to) = (address(8)?, address(24)?);
    let length = u16::from_be_bytes([ip[4], ip[5]]).saturating_add(IPV4 as u16);
    let traffic_class = ip[0] << 4 | ip[1] >> 4;
    let mut header = [0; IPV4];
    // Version 4, five words; not to be fragmented.
    header[..2].copy_from_slice(&[0x45, traffic_class]);
    header[2..4].copy_from_slice(&length.to_be_bytes());
    header[6..10].copy_from_slice(&[0x40, 0, ip[7], UDP_PROTOCOL]);
    header[12..16].copy_from_slice(&from);
    header[16..].copy_from_slice(&to);
    let sum = !folded(words(&header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    Some(header)
}

fn udp_checksum(packet: &[u8]) -> u16 {
    const ADDRESSES: std::ops::Range<usize> = 8..40;
    let udp = &packet[GRH..];
    match !folded(words(&packet[ADDRESSES]) + udp.len() as u32 + u32::from(UDP_PROTOCOL) + words(udp)) {
        0 => 0xffff,
        sum => sum,
    }
}

fn words(bytes: &[u8]) -> u32 {
    let low = |pair: &[u8]| pair.get(1).map_or(0, |low| u32::from(*low));
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | low(pair)).sum()
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::address::table_entry;
    use crate::fabric::headers::Bth;
    use crate::fabric::packet::Route;

    fn frame(index: u32) -> Frame {
        let gid = |lid| table_entry(lid, LinkLayer::Ethernet, index).unwrap();
        let mut frame = Frame::default();
        let route = Route {
            slid: 3,
            dlid: 5,
            sl: 0,
            global: true,
            sgid: gid(3),
            dgid: gid(5).1,
            flow_label: 0x12345,
            traffic_class: 0x20,
            hop_limit: 64,
        };
        frame.begin(&route, &Bth { opcode: 4, pkey: 0xffff, dest_qpn: 0x77, psn: 9, ..Bth::default() });
        frame.payload_mut(8).copy_from_slice(b"payload!");
        frame.finish();
        frame.seal();
        frame
    }

    fn hex(index: u32) -> String {
        let mut bytes = Vec::new();
        emit(&frame(index), &mut bytes);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    // The ICRCs were made by another program: zlib's CRC-32 over the fields as the RoCE annexes list them.
    #[test]
    fn literal_bytes() {
        const BTH: &str = "0440ffff0000007700000009";
        const PAYLOAD: &str = "7061796c6f616421";
        const PORTS: &str = "c07712b7";
        let gids = "fe8000000000000000db00fffe000003fe8000000000000000db00fffe000005";
        assert_eq!(hex(0), format!("89156201234500181b40{gids}{BTH}{PAYLOAD}c400b880"));
        let ipv4 = "08004520003400004000401124dc";
        assert_eq!(hex(3), format!("{ipv4}0adb00030adb0005{PORTS}00200000{BTH}{PAYLOAD}7cddd10e"));
    }

    #[test]
    fn an_ipv6_packet_is_what_travels_but_for_its_checksum() {
        let mut bytes = Vec::new();
        emit(&frame(1), &mut bytes);
        assert_eq!(bytes[..2], [0x86, 0xdd]);
        let packet = &mut bytes[2..];
        // A receiver adds up all bytes, the checksum included, and must get all ones.
        assert_ne!(packet[GRH + UDP_CHECKSUM..GRH + UDP], [0, 0]);
        assert_eq!(udp_checksum(packet), 0xffff);
        packet[GRH + UDP_CHECKSUM..GRH + UDP].fill(0);
        assert_eq!(packet, frame(1).ip_packet());
    }
}
