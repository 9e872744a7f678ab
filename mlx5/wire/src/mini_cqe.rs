//! Mini CQEs: the eight-byte entries of a compressed block (`MLX5DV_CQE_RES_FORMAT_*`).

use crate::be::{Be16, Be32};

/// Mini CQEs in one array, which takes the place of one CQE.
pub const MINI_CQES_PER_ARRAY: usize = 8;

/// Contents of a mini CQE beside the length of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MiniCqeFormat {
    /// The RSS hash result (`MLX5DV_CQE_RES_FORMAT_HASH`): [`HashMiniCqe`].
    Hash = 1 << 0,
    /// The checksum of the packet (`MLX5DV_CQE_RES_FORMAT_CSUM`): [`ChecksumMiniCqe`].
    Checksum = 1 << 1,
}

/// Where the array that holds mini CQE `index` of a block stands, in CQEs from the title (basic layout): the
/// first follows the title, and each other one is in the place of the first CQE that it describes.
#[inline]
pub const fn array_of(index: u32) -> u32 {
    let array = index & !(MINI_CQES_PER_ARRAY as u32 - 1);
    if array == 0 { 1 } else { array }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_array_is_seven_after_the_first_and_then_every_eight() {
        assert_eq!([0, 7, 8, 15, 16, 63].map(array_of), [1, 1, 8, 8, 16, 56]);
    }

    #[test]
    fn formats_are_the_bits_of_mlx5dv() {
        assert_eq!([MiniCqeFormat::Hash as u8, MiniCqeFormat::Checksum as u8], [1, 2]);
    }

    #[test]
    fn fields_stand_where_they_should() {
        let bytes = [1, 2, 3, 4, 0, 0, 0x10, 0];
        let hash = HashMiniCqe::from_bytes(&bytes);
        assert_eq!((hash.rx_hash_result.get(), hash.byte_cnt.get()), (0x0102_0304, 4096));
        assert_eq!(ChecksumMiniCqe::from_bytes(&bytes).checksum.get(), 0x0102);
        assert_eq!(hash.to_bytes(), bytes);
    }
}
