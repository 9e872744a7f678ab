//! Control segment: the head of each send WQE (`struct mlx5_wqe_ctrl_seg`).

use crate::be::{Be32, Be64};
use crate::opcode::WqeOpcode;

/// Bytes of a basic block, the unit in which a send queue is indexed (`MLX5_SEND_WQE_BB`).
pub const SEND_WQE_BB: usize = 64;

/// `fm_ce_se`: raise a CQE (`MLX5_WQE_CTRL_CQ_UPDATE`).
pub const CQ_UPDATE: u8 = 2 << 2;
/// `fm_ce_se`: the receiver's CQE is solicited (`MLX5_WQE_CTRL_SOLICITED`).
pub const SOLICITED: u8 = 1 << 1;
/// `fm_ce_se`: start after all earlier RDMA READs and atomics (`MLX5_WQE_CTRL_FENCE`).
pub const FENCE: u8 = 4 << 5;
/// `fm_ce_se`: start after earlier local operations (`MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE`).
pub const SMALL_FENCE: u8 = 1 << 5;
/// The fence bits of `fm_ce_se`.
pub const FENCE_MASK: u8 = 7 << 5;

/// Bytes of the unit in which a WQE is measured.
pub const UNIT: usize = 16;
/// Units of a basic block.
pub const UNITS_PER_BB: u32 = (SEND_WQE_BB / UNIT) as u32;
/// Most units of a WQE: `ds` has six bits.
pub const MAX_DS: u32 = 63;

layout! {
    /// Opcode, index, size and flags of a send WQE.
    ///
    /// The first eight bytes are also what a driver writes to a UAR register to ring it.
    pub struct ControlSegment: 16 {
        /// Opcode modifier, index of the first basic block, opcode.
        0 => opmod_idx_opcode: Be32,
        /// QP number and size in 16-byte units.
        4 => qpn_ds: Be32,
        /// Checksum of the WQE, when the QP was created with signatures.
        8 => signature: u8,
        /// Stream of a DCI.
        9 => dci_stream_channel_id: [u8; 2],
        /// Fence mode, CQE mode and solicited event.
        11 => fm_ce_se: u8,
        /// Immediate data, invalidated key or UMR key.
        12 => imm: Be32,
    }
}

impl ControlSegment {
    /// A control segment without modifier, stream or immediate. `ds` counts 16-byte units, this
    /// segment included; `index` is the 16-bit producer index of the first basic block.
    #[inline]
    pub const fn new(opcode: u8, index: u16, qpn: u32, ds: u8, fm_ce_se: u8) -> Self {
        Self {
            opmod_idx_opcode: Be32::new((index as u32) << 8 | opcode as u32),
            qpn_ds: Be32::new(qpn << 8 | ds as u32),
            signature: 0,
            dci_stream_channel_id: [0; 2],
            fm_ce_se,
            imm: Be32::new(0),
        }
    }

    /// Addend to the first of [`to_words`](Self::to_words) that adds one to the index, as long as the index does not
    /// overflow.
    pub const NEXT_INDEX: u64 = 1 << 40;
    /// Addend to the first of [`to_words`](Self::to_words) that adds one to the size.
    pub const UNIT: u64 = 1;

    /// The first of [`to_words`](Self::to_words), as a number: opcode, index, QP number and size.
    #[inline(always)]
    pub const fn first_word(opcode: u8, index: u16, qpn: u32, ds: u8) -> u64 {
        let upper = (index as u32) << 8 | opcode as u32;
        (upper as u64) << 32 | (qpn << 8 | ds as u32) as u64
    }

    /// The second of [`to_words`](Self::to_words), as a number: flags and immediate.
    #[inline(always)]
    pub const fn second_word(fm_ce_se: u8, imm: u32) -> u64 {
        (fm_ce_se as u64) << 32 | imm as u64
    }

    /// The index that a first word says.
    #[inline(always)]
    pub const fn index_of(first: u64) -> u16 {
        (first / Self::NEXT_INDEX) as u16
    }

    /// The size that a first word says, in units.
    #[inline(always)]
    pub const fn units_of(first: u64) -> u8 {
        first as u8 & 0x3f
    }

    /// [`CQ_UPDATE`] in the second of [`to_words`](Self::to_words).
    pub const CQ_UPDATE: u64 = (CQ_UPDATE as u64) << 32;

    /// The segment as two words of memory, of which the first is also what is written to a UAR register.
    #[inline(always)]
    pub const fn to_words(&self) -> [Be64; 2] {
        let first = (self.opmod_idx_opcode.get() as u64) << 32 | self.qpn_ds.get() as u64;
        let [channel, id] = self.dci_stream_channel_id;
        let middle = u32::from_be_bytes([self.signature, channel, id, self.fm_ce_se]);
        [Be64::new(first), Be64::new((middle as u64) << 32 | self.imm.get() as u64)]
    }

    /// Opcode.
    #[inline]
    pub const fn opcode(&self) -> WqeOpcode {
        WqeOpcode::new(self.opmod_idx_opcode.get() as u8)
    }

    /// Opcode modifier.
    #[inline]
    pub const fn opmod(&self) -> u8 {
        (self.opmod_idx_opcode.get() >> 24) as u8
    }

    /// Producer index of the first basic block.
    #[inline]
    pub const fn index(&self) -> u16 {
        (self.opmod_idx_opcode.get() >> 8) as u16
    }

    /// QP number.
    #[inline]
    pub const fn qpn(&self) -> u32 {
        self.qpn_ds.get() >> 8
    }

    /// Size in 16-byte units.
    #[inline]
    pub const fn ds(&self) -> u8 {
        self.qpn_ds.get() as u8 & 0x3f
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A signaled SEND_IMM with one data segment on QP 0x1234, third basic block.
    const SEND_IMM: [u8; 16] =
        [0x00, 0x00, 0x02, 0x0b, 0x00, 0x12, 0x34, 0x02, 0x00, 0x00, 0x00, 0x08, 0xde, 0xad, 0xbe, 0xef];

    #[test]
    fn parses_and_emits() {
        let ctrl = ControlSegment::from_bytes(&SEND_IMM);
        assert_eq!(ctrl.opcode(), WqeOpcode::SEND_IMM);
        assert_eq!((ctrl.index(), ctrl.qpn(), ctrl.ds(), ctrl.opmod()), (2, 0x1234, 2, 0));
        assert_eq!(ctrl.fm_ce_se, CQ_UPDATE);
        assert_eq!(ctrl.imm.get(), 0xdead_beef);
        let mut built = ControlSegment::new(0x0b, 2, 0x1234, 2, CQ_UPDATE);
        built.imm = Be32::new(0xdead_beef);
        assert_eq!(built.to_bytes(), SEND_IMM);
        assert_eq!(built.to_words().map(Be64::get), [0x0000_020b_0012_3402, 0x8_dead_beef]);
        assert_eq!(ControlSegment::first_word(0x0b, 2, 0x1234, 2), 0x0000_020b_0012_3402);
        let silent = ControlSegment { fm_ce_se: 0, ..built };
        assert_eq!(silent.to_words()[1].get() | ControlSegment::CQ_UPDATE, 0x8_dead_beef);
    }

    #[test]
    fn a_first_word_can_be_counted_on() {
        let first = |index, units| ControlSegment::new(0x0b, index, 0x1234, units, 0).to_words()[0].get();
        assert_eq!(first(7, 2) + ControlSegment::NEXT_INDEX, first(8, 2));
        assert_eq!(first(7, 2) + 2 * ControlSegment::UNIT, first(7, 4));
        assert_eq!(ControlSegment::index_of(first(0xfffe, 2)), 0xfffe);
        // One too far is the index that follows, whatever else the word says.
        let over = first(u16::MAX, 2) + ControlSegment::NEXT_INDEX;
        assert_eq!(ControlSegment::index_of(over), 0);
    }

    #[test]
    fn flags_and_modifier() {
        assert_eq!((SOLICITED, CQ_UPDATE), (0x02, 0x08));
        assert_eq!((SMALL_FENCE, FENCE, FENCE_MASK), (0x20, 0x80, 0xe0));
        let ctrl = ControlSegment::from_bytes(&[0x5a; 16]);
        assert_eq!((ctrl.opmod(), ctrl.index()), (0x5a, 0x5a5a));
    }
}
