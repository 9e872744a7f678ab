//! Next segment: the head of each SRQ WQE (`struct mlx5_wqe_srq_next_seg`).

use crate::be::Be16;

layout! {
    /// Link from one SRQ WQE to the one that the device takes after it.
    pub struct NextSegment: 16 {
        /// Reserved.
        0 => reserved0: [u8; 2],
        /// Slot of the WQE after this one.
        2 => next_wqe_index: Be16,
        /// Checksum of the WQE, when the SRQ was created with signatures.
        4 => signature: u8,
        /// Reserved.
        5 => reserved5: [u8; 11],
    }
}

impl NextSegment {
    /// A link to slot `next_wqe_index`.
    #[inline]
    pub const fn new(next_wqe_index: u16) -> Self {
        Self { reserved0: [0; 2], next_wqe_index: Be16::new(next_wqe_index), signature: 0, reserved5: [0; 11] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_at_byte_two() {
        let bytes = [0, 0, 0x01, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(NextSegment::new(0x1fe).to_bytes(), bytes);
        assert_eq!(NextSegment::from_bytes(&bytes).next_wqe_index.get(), 0x1fe);
    }
}
