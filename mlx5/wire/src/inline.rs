//! Inline segment header: payload bytes that stand in the send WQE itself
//! (`struct mlx5_wqe_inl_data_seg`).

use crate::be::Be32;

/// Bit of `byte_count` that marks an inline segment (`MLX5_INLINE_SEG`).
pub const INLINE_SEG: u32 = 0x8000_0000;

layout! {
    /// Length of the bytes that follow.
    pub struct InlineHeader: 4 {
        /// [`INLINE_SEG`] and the number of bytes.
        0 => byte_count: Be32,
    }
}

impl InlineHeader {
    /// Header of `len` bytes, fewer than 2^31.
    #[inline(always)]
    pub const fn new(len: u32) -> Self {
        Self { byte_count: Be32::new(INLINE_SEG | len) }
    }

    /// Units of 16 bytes of a segment with `len` bytes: the header and the bytes, rounded up. A WQE without bytes
    /// has no inline segment.
    #[inline(always)]
    pub const fn units(len: usize) -> usize {
        if len == 0 { 0 } else { (Self::SIZE + len).div_ceil(16) }
    }

    /// Number of bytes that follow, or `None` when this is not an inline segment.
    #[inline]
    pub const fn count(&self) -> Option<u32> {
        let word = self.byte_count.get();
        if word & INLINE_SEG != 0 { Some(word & !INLINE_SEG) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_marked_form_has_a_length() {
        assert_eq!(InlineHeader::new(12).to_bytes(), [0x80, 0, 0, 12]);
        assert_eq!(InlineHeader::from_bytes(&[0x80, 0, 0, 12]).count(), Some(12));
        assert_eq!(InlineHeader::from_bytes(&[0, 0, 0, 12]).count(), None);
    }

    #[test]
    fn the_header_counts_in_the_size() {
        assert_eq!([0, 1, 12, 13, 28, 29, 100].map(InlineHeader::units), [0, 1, 1, 2, 2, 3, 7]);
    }
}
