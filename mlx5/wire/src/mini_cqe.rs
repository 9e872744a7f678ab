//! Mini CQEs: the eight-byte entries of a compressed block (`MLX5DV_CQE_RES_FORMAT_*`).

use crate::be::{Be16, Be32};

/// Mini CQEs in one array, which takes the place of one CQE.
pub const MINI_CQES_PER_ARRAY: usize = 8;

layout! {
    /// Mini CQE of the RSS hash format (`MLX5DV_CQE_RES_FORMAT_HASH`).
    pub struct HashMiniCqe: 8 {
        /// RSS hash result.
        0 => rx_hash_result: Be32,
        /// Bytes of the message.
        4 => byte_cnt: Be32,
    }
}

layout! {
    /// Mini CQE of the checksum format (`MLX5DV_CQE_RES_FORMAT_CSUM`).
    pub struct ChecksumMiniCqe: 8 {
        /// Checksum of the packet.
        0 => checksum: Be16,
        /// Reserved.
        2 => reserved2: [u8; 2],
        /// Bytes of the message.
        4 => byte_cnt: Be32,
    }
}
