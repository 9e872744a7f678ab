//! Ethernet segment: the offloads of a frame of a raw packet QP (`struct mlx5_wqe_eth_seg`).

use crate::be::{Be16, Be32, Be64};

/// `cs_flags`: the device writes the layer 3 checksum (`MLX5_ETH_WQE_L3_CSUM`).
pub const L3_CSUM: u8 = 1 << 6;
/// `cs_flags`: the device writes the layer 4 checksum (`MLX5_ETH_WQE_L4_CSUM`).
pub const L4_CSUM: u8 = 1 << 7;
/// `cs_flags`: as [`L3_CSUM`], of the packet inside a tunnel.
pub const L3_INNER_CSUM: u8 = 1 << 4;
/// `cs_flags`: as [`L4_CSUM`], of the packet inside a tunnel.
pub const L4_INNER_CSUM: u8 = 1 << 5;
/// `inline_hdr_sz`: the device inserts the VLAN tag that stands in place of the header.
pub const INSERT_VLAN: u16 = 1 << 15;
/// Bytes of the frame that stand in the segment itself. Longer headers go on in units of 16 bytes.
pub const INLINE_HEADER_START: usize = 2;

layout! {
    /// Offloads, and the first bytes of the frame.
    pub struct EthSegment: 16 {
        /// Offsets of headers for checksums by software parsing.
        0 => swp_offsets: [u8; 4],
        /// Checksums that the device writes.
        4 => cs_flags: u8,
        /// Kinds of the headers at the offsets.
        5 => swp_flags: u8,
        /// Bytes of payload in each segment of a TSO.
        6 => mss: Be16,
        /// For flow rules.
        8 => flow_metadata: Be32,
        /// Bytes of the inline header, or [`INSERT_VLAN`].
        12 => inline_hdr_sz: Be16,
        /// First bytes of the inline header, or the VLAN tag.
        14 => inline_hdr_start: [u8; INLINE_HEADER_START],
    }
}

/// Bytes of a frame that the usual inline header holds: an Ethernet header with a VLAN tag. Adapters whose steering
/// needs the header inline (`wqe_inline_mode` L2) take it from there.
pub const INLINE_L2_HEADER: usize = 18;

/// Most frames of a multi-packet WQE ([`ENHANCED_MPSW`](crate::opcode::WqeOpcode::ENHANCED_MPSW)), as DPDK writes them
/// (`MLX5_EMPW_MAX_PACKETS`).
pub const MULTI_PACKET_FRAMES: usize = 32;
/// Units of a multi-packet WQE before its frames: control segment and Ethernet segment.
pub const MULTI_PACKET_HEAD: u32 = 2;
/// Most units of a multi-packet WQE: DPDK and the kernel write at most 15 basic blocks.
pub const MULTI_PACKET_UNITS: u32 = 60;

impl EthSegment {
    /// Returns the segment of frames without an inline header, whose checksums the device writes as `cs_flags` says, as
    /// words of memory.
    #[inline]
    pub const fn without_header(cs_flags: u8) -> [Be64; 2] {
        [Be64::new((cs_flags as u64) << 24), Be64::new(0)]
    }

    /// A frame whose first 18 bytes stand inline, and whose checksums the device writes as `cs_flags` says. Returns the
    /// segment and the unit of 16 bytes that the header goes on in, as words of memory.
    #[inline]
    pub const fn with_header(cs_flags: u8, header: &[u8; INLINE_L2_HEADER]) -> [Be64; 4] {
        let [a, b, rest @ ..] = *header;
        let [c, d, e, f, g, h, i, j, rest @ ..] = rest;
        [
            Be64::new((cs_flags as u64) << 24),
            Be64::new((INLINE_L2_HEADER as u64) << 16 | (a as u64) << 8 | b as u64),
            Be64::new(u64::from_be_bytes([c, d, e, f, g, h, i, j])),
            Be64::new(u64::from_be_bytes(rest)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_with_a_vlan_tag_is_inline() {
        let header: [u8; INLINE_L2_HEADER] = core::array::from_fn(|i| i as u8 + 1);
        let words = EthSegment::with_header(L3_CSUM | L4_CSUM, &header);
        let mut bytes = [0; 32];
        for (word, to) in words.into_iter().zip(bytes.chunks_exact_mut(8)) {
            crate::layout::Field::write(&word, to);
        }
        let segment = EthSegment::from_bytes(bytes[..16].try_into().unwrap());
        assert_eq!((segment.cs_flags, segment.inline_hdr_sz.get()), (0xc0, 18));
        assert_eq!(bytes[14..], header);
        assert_eq!(bytes[..4], [0; 4]);
        assert_eq!(bytes[5..12], [0; 7]);
    }

    #[test]
    fn a_segment_without_a_header() {
        let mut bytes = [0xff; 16];
        for (word, to) in EthSegment::without_header(L3_CSUM | L4_CSUM).into_iter().zip(bytes.chunks_exact_mut(8)) {
            crate::layout::Field::write(&word, to);
        }
        assert_eq!(bytes, [0, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_tso_of_a_header_of_54_bytes() {
        let bytes = [0, 0, 0, 0, 0xc0, 0, 0x05, 0xb4, 0, 0, 0, 0, 0, 0x36, 0xaa, 0xbb];
        let segment = EthSegment::from_bytes(&bytes);
        assert_eq!(segment.cs_flags, L3_CSUM | L4_CSUM);
        assert_eq!((segment.mss.get(), segment.inline_hdr_sz.get()), (1460, 54));
        assert_eq!(segment.inline_hdr_start, [0xaa, 0xbb]);
        assert_eq!(segment.to_bytes(), bytes);
        assert_eq!((L3_INNER_CSUM, L4_INNER_CSUM, INSERT_VLAN), (0x10, 0x20, 0x8000));
    }
}
