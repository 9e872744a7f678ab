//! Data segment: one scatter or gather entry of a WQE (`struct mlx5_wqe_data_seg`).

use crate::be::{Be32, Be64};

/// Key that no memory has: ends a scatter list shorter than its WQE (`MLX5_INVALID_LKEY`).
pub const INVALID_LKEY: u32 = 0x100;

layout! {
    /// Address, length and key of one piece of memory.
    pub struct DataSegment: 16 {
        /// Bytes; in a send WQE 0 means 2 GiB, bit 31 marks an inline segment.
        0 => byte_count: Be32,
        /// Local key of the memory region.
        4 => lkey: Be32,
        /// First byte, as the memory region names it.
        8 => addr: Be64,
    }
}

impl DataSegment {
    /// Ends a list shorter than the WQE: the device stops scattering here.
    pub const TERMINATOR: Self = Self { byte_count: Be32::new(0), lkey: Be32::new(INVALID_LKEY), addr: Be64::new(0) };

    /// A piece of `byte_count` bytes at `addr`.
    #[inline(always)]
    pub const fn new(addr: u64, byte_count: u32, lkey: u32) -> Self {
        Self { byte_count: Be32::new(byte_count), lkey: Be32::new(lkey), addr: Be64::new(addr) }
    }

    /// The segment as two words of memory: length and key, address.
    #[inline(always)]
    pub const fn to_words(self) -> [Be64; 2] {
        [Be64::new((self.byte_count.get() as u64) << 32 | self.lkey.get() as u64), self.addr]
    }

    /// Returns `true` if this segment ends the list.
    #[inline]
    pub const fn is_terminator(&self) -> bool {
        self.lkey.get() == INVALID_LKEY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One SGE on a receive WQE with room for two.
    const LIST: [u8; 32] = [
        0x00, 0x00, 0x10, 0x00, 0x00, 0x01, 0x02, 0x03, 0x00, 0x00, 0x7f, 0x12, 0x34, 0x56, 0x70, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn parses_and_emits_a_list() {
        let first = DataSegment::from_bytes(LIST[..16].try_into().unwrap());
        assert_eq!(first, DataSegment::new(0x7f12_3456_7000, 4096, 0x10203));
        assert!(!first.is_terminator());
        assert_eq!(first.to_bytes(), LIST[..16]);
        let second = DataSegment::from_bytes(LIST[16..].try_into().unwrap());
        assert!(second.is_terminator());
        assert_eq!(DataSegment::TERMINATOR.to_bytes(), LIST[16..]);
    }

    #[test]
    fn words_are_the_bytes() {
        let segment = DataSegment::from_bytes(LIST[..16].try_into().unwrap());
        let mut bytes = [0; 16];
        for (word, to) in segment.to_words().into_iter().zip(bytes.chunks_exact_mut(8)) {
            crate::layout::Field::write(&word, to);
        }
        assert_eq!(bytes, LIST[..16]);
    }
}
