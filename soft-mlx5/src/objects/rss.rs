//! Receive side scaling: the hash that spreads flows over queues.

use crate::fabric::frame_header::{Headers, Ip, TCP, UDP};

/// Bytes of a key.
pub const KEY: usize = 40;

/// Fields that may be hashed (`enum mlx5_rx_hash_fields`).
pub mod field {
    pub const SRC_IPV4: u64 = 1 << 0;
    pub const DST_IPV4: u64 = 1 << 1;
    pub const SRC_IPV6: u64 = 1 << 2;
    pub const DST_IPV6: u64 = 1 << 3;
    pub const SRC_PORT_TCP: u64 = 1 << 4;
    pub const DST_PORT_TCP: u64 = 1 << 5;
    pub const SRC_PORT_UDP: u64 = 1 << 6;
    pub const DST_PORT_UDP: u64 = 1 << 7;

    /// The fields are those of the packet in a tunnel (`MLX5_RX_HASH_INNER`).
    pub const INNER: u64 = 1 << 31;

    /// All of them.
    pub const ALL: u64 = 0xff | INNER;
}
use field::*;

/// Fields and key of a hash.
#[derive(Debug, Clone, Copy)]
pub struct HashAttr {
    /// Fields.
    pub fields: u64,
    /// Key of the Toeplitz function.
    pub key: [u8; KEY],
}

/// A hash, and its fields as a CQE names them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hash {
    /// Result.
    pub result: u32,
    /// `rx_hash_type`, two bits each: version of the IP source and destination, protocol of the source and destination
    /// port, from the lowest on; 0 for a field that was left out.
    pub kind: u8,
}

/// Computes the Toeplitz function: the sum of the 32-bit windows of the key that begin at a set bit of the input.
pub fn toeplitz(key: &[u8; KEY], input: &[u8]) -> u32 {
    let mut window = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
    let mut result = 0;
    for (index, byte) in input.iter().enumerate() {
        let next = key.get(index + 4).copied().unwrap_or(0);
        for bit in (0..8).rev() {
            if byte >> bit & 1 != 0 {
                result ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    result
}

impl HashAttr {
    /// Returns the hash of a frame, or 0 if the frame lacks a header with one of the fields.
    pub fn of(&self, headers: &Headers) -> Hash {
        let inner = headers.gre.as_ref().and_then(|gre| gre.ip.as_ref());
        let ip = if self.fields & INNER != 0 { inner } else { headers.ip.as_ref() };
        ip.and_then(|ip| self.of_packet(ip)).unwrap_or_default()
    }

    fn of_packet(&self, ip: &Ip) -> Option<Hash> {
        let wants = |field| self.fields & field != 0;
        let (addresses, from, version) = match ip.version {
            4 => ([SRC_IPV4, DST_IPV4], 12, 1),
            _ => ([SRC_IPV6, DST_IPV6], 0, 2),
        };
        let any = SRC_IPV4 | DST_IPV4 | SRC_IPV6 | DST_IPV6;
        if wants(any) && !wants(addresses[0] | addresses[1]) {
            return None;
        }
        let mut hash = Hash::default();
        let mut input = Vec::with_capacity(36);
        for (index, address) in [&ip.source, &ip.destination].into_iter().enumerate() {
            if wants(addresses[index]) {
                input.extend(&address[from..]);
                hash.kind |= version << (2 * index);
            }
        }
        for (protocol, ports, kind) in [(TCP, [SRC_PORT_TCP, DST_PORT_TCP], 1), (UDP, [SRC_PORT_UDP, DST_PORT_UDP], 2)]
        {
            if !wants(ports[0] | ports[1]) {
                continue;
            }
            let transport = ip.transport.filter(|_| ip.protocol == protocol)?;
            for (index, number) in [transport.source, transport.destination].into_iter().enumerate() {
                if wants(ports[index]) {
                    input.extend(number.to_be_bytes());
                    hash.kind |= kind << (4 + 2 * index);
                }
            }
        }
        hash.result = toeplitz(&self.key, &input);
        Some(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::samples::Sample;

    /// The key of "Verifying the RSS Hash Calculation" (Microsoft).
    const PUBLISHED: [u8; KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ];

    fn hash(sample: &Sample, fields: u64) -> Hash {
        let frame = sample.build();
        HashAttr { fields, key: PUBLISHED }.of(&Headers::parse(&frame).unwrap())
    }

    type Endpoint = ([u8; 4], u16);

    // Destination, source, hash of the addresses and hash with the ports: the table of the same page.
    const VECTORS: [(Endpoint, Endpoint, [u32; 2]); 5] = [
        (([161, 142, 100, 80], 1766), ([66, 9, 149, 187], 2794), [0x323e_8fc2, 0x51cc_c178]),
        (([65, 69, 140, 83], 4739), ([199, 92, 111, 2], 14230), [0xd718_262a, 0xc626_b0ea]),
        (([12, 22, 207, 184], 38024), ([24, 19, 198, 95], 12898), [0xd2d0_a5de, 0x5c2b_394a]),
        (([209, 142, 163, 6], 2217), ([38, 27, 205, 30], 48228), [0x8298_9176, 0xafc7_327f]),
        (([202, 188, 127, 2], 1303), ([153, 39, 163, 191], 44251), [0x5d18_09c5, 0x10e8_28a2]),
    ];

    #[test]
    fn the_packet_in_a_tunnel() {
        let udp = Sample::udp([161, 142, 100, 80], 1766, b"x").from([66, 9, 149, 187], 2794);
        let fields = SRC_IPV4 | DST_IPV4 | SRC_PORT_UDP | DST_PORT_UDP;
        let hash = |frame: &[u8], fields| HashAttr { fields, key: PUBLISHED }.of(&Headers::parse(frame).unwrap());
        assert_eq!(hash(&udp.tunnel(None), fields | INNER), Hash { result: 0x51cc_c178, kind: 0xa5 });
        // The outer packet has no ports, and a frame without a tunnel no inner packet.
        assert_eq!(hash(&udp.tunnel(None), fields), Hash::default());
        assert_eq!(hash(&udp.build(), fields | INNER), Hash::default());
    }

    #[test]
    fn the_published_hashes() {
        for ((to, to_port), (from, from_port), [addresses, with_ports]) in VECTORS {
            let udp = Sample::udp(to, to_port, b"x").from(from, from_port);
            let ip = SRC_IPV4 | DST_IPV4;
            assert_eq!(hash(&udp, ip), Hash { result: addresses, kind: 0x05 });
            let fields = ip | SRC_PORT_UDP | DST_PORT_UDP;
            assert_eq!(hash(&udp, fields), Hash { result: with_ports, kind: 0xa5 });
            let fields = ip | SRC_PORT_TCP | DST_PORT_TCP;
            assert_eq!(hash(&udp.clone().tcp(), fields), Hash { result: with_ports, kind: 0x55 });
            // The protocol or the version differs from the fields.
            assert_eq!(hash(&udp, fields), Hash::default());
            assert_eq!(hash(&udp.ipv6(), fields), Hash::default());
        }
    }

    #[test]
    fn the_published_hash_over_ipv6() {
        let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let [from, to] = ["3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1"].map(address);
        let input = [from, to].concat();
        assert_eq!(toeplitz(&PUBLISHED, &input), 0x2cc1_8cd5);
        let ports = [input, vec![0x0a, 0xea, 0x06, 0xe6]].concat();
        assert_eq!(toeplitz(&PUBLISHED, &ports), 0x4020_7d3d);
    }
}
