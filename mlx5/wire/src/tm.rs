//! Tag matching: the segment of a list operation (`struct mlx5_wqe_tm_seg`) and what CQEs say of it
//! (`struct mlx5_tm_cqe`).

use crate::be::{Be16, Be32, Be64};

/// `flags`: the operation raises a CQE.
pub const CQE_REQUEST: u8 = 0x80;
/// `flags`: `sw_cnt` is valid.
pub const SW_CNT_VALID: u8 = 0x40;

/// Kind of a list operation; stands in the upper half of [`TagMatchingSegment::opcode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TmOpcode {
    /// Nothing but report `sw_cnt`.
    Nop,
    /// Add an entry at the end of the list.
    Append,
    /// Remove an entry.
    Remove,
    /// A value without a name.
    Unknown(u8),
}

impl TmOpcode {
    /// The operation in byte 0 of the segment.
    #[inline]
    pub const fn from_byte(byte: u8) -> Self {
        match byte >> 4 {
            0 => Self::Nop,
            1 => Self::Append,
            2 => Self::Remove,
            other => Self::Unknown(other),
        }
    }

    /// Byte 0 of the segment.
    #[inline]
    pub const fn byte(self) -> u8 {
        (match self {
            Self::Nop => 0,
            Self::Append => 1,
            Self::Remove => 2,
            Self::Unknown(other) => other & 0xf,
        }) << 4
    }
}

layout! {
    /// A list operation; an append is followed by one [`DataSegment`](crate::data::DataSegment).
    pub struct TagMatchingSegment: 32 {
        /// Operation, see [`TmOpcode`].
        0 => opcode: u8,
        /// [`CQE_REQUEST`] and [`SW_CNT_VALID`].
        1 => flags: u8,
        /// Append: the entry that the *next* append will use. Remove: the entry.
        2 => index: Be16,
        /// Reserved.
        4 => reserved4: [u8; 2],
        /// Unexpected messages that software has handled.
        6 => sw_cnt: Be16,
        /// Reserved.
        8 => reserved8: [u8; 8],
        /// Tag to match.
        16 => append_tag: Be64,
        /// Bits of the tag that count.
        24 => append_mask: Be64,
    }
}

impl TagMatchingSegment {
    /// The segment as four words of memory; reserved bytes are zero.
    #[inline(always)]
    pub const fn to_words(&self) -> [Be64; 4] {
        let [upper, lower] = self.index.get().to_be_bytes();
        let head = u32::from_be_bytes([self.opcode, self.flags, upper, lower]);
        let first = (head as u64) << 32 | self.sw_cnt.get() as u64;
        [Be64::new(first), Be64::new(0), self.append_tag, self.append_mask]
    }
}

layout! {
    /// First bytes of the CQE of a list operation.
    pub struct TagMatchingResult: 16 {
        /// Bit 31: a remove found its entry ([`REMOVE_SUCCESS`]).
        0 => success: Be32,
        /// Unexpected messages that the device has counted.
        4 => hw_phase_cnt: Be16,
        /// Reserved.
        6 => reserved6: [u8; 10],
    }
}

/// Bit of [`TagMatchingResult::success`] (`MLX5_TMC_SUCCESS`).
pub const REMOVE_SUCCESS: u32 = 0x8000_0000;

/// `app_op` of a tag-matching CQE; any byte is a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct AppOp(u8);

impl AppOp {
    /// Matched; the data follows with another CQE.
    pub const CONSUMED: Self = Self(0x1);
    /// Data of an earlier match has arrived.
    pub const EXPECTED: Self = Self(0x2);
    /// No entry matched: the message is in an SRQ slot.
    pub const UNEXPECTED: Self = Self(0x3);
    /// The message carries no tag: it is in an SRQ slot.
    pub const NO_TAG: Self = Self(0x4);
    /// An append was executed.
    pub const APPEND: Self = Self(0x5);
    /// A remove was executed.
    pub const REMOVE: Self = Self(0x6);
    /// A no-operation was executed.
    pub const NOOP: Self = Self(0x7);
    /// Matched by a rendezvous that software must finish; another CQE follows.
    pub const CONSUMED_SW_RNDV: Self = Self(0x9);
    /// Matched, and the data has arrived.
    pub const CONSUMED_MSG: Self = Self(0xa);
    /// Matched by a rendezvous that software must finish; no other CQE follows.
    pub const CONSUMED_MSG_SW_RNDV: Self = Self(0xb);
    /// The rendezvous of a match was cancelled.
    pub const MSG_COMPLETION_CANCELED: Self = Self(0xc);

    /// The operation with this number.
    #[inline]
    pub const fn new(value: u8) -> Self {
        Self(value)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn append_segment() {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&[0x10, 0xc0, 0x00, 0x05, 0, 0, 0x00, 0x09]);
        bytes[16..24].copy_from_slice(&0x1122_3344_5566_7788u64.to_be_bytes());
        bytes[24..].copy_from_slice(&u64::MAX.to_be_bytes());
        let segment = TagMatchingSegment::from_bytes(&bytes);
        assert_eq!(TmOpcode::from_byte(segment.opcode), TmOpcode::Append);
        assert_eq!(segment.flags, CQE_REQUEST | SW_CNT_VALID);
        assert_eq!((segment.index.get(), segment.sw_cnt.get()), (5, 9));
        assert_eq!(segment.append_tag.get(), 0x1122_3344_5566_7788);
        assert_eq!(segment.append_mask.get(), u64::MAX);
        assert_eq!(segment.to_bytes(), bytes);
        let words = segment.to_words().map(Be64::get);
        assert_eq!(words, [0x10c0_0005_0000_0009, 0, 0x1122_3344_5566_7788, u64::MAX]);
    }

    #[test]
    fn any_byte_is_an_operation() {
        assert_eq!(AppOp::new(0xc3).get(), 0xc3);
        assert_eq!(AppOp::CONSUMED_MSG.get(), 0x0a);
    }

    #[test]
    fn opcode_stands_in_the_upper_half() {
        assert_eq!(TmOpcode::Remove.byte(), 0x20);
        for byte in 0..16 {
            assert_eq!(TmOpcode::from_byte(byte << 4).byte(), byte << 4);
        }
    }
}
