//! User-mode memory registration: a WQE that changes a memory key (`struct mlx5_wqe_umr_ctrl_seg`).
//!
//! The control segment names the key in `imm`. [`UmrControl`] follows, then the context of the key
//! ([`MkeyContext`](crate::firmware::mkey::MkeyContext), `struct mlx5_wqe_mkey_context_seg`), then the translation.
//! An entry of the list of a KLM or KSM key has the layout of a [`DataSegment`](crate::data::DataSegment)
//! (`struct mlx5_wqe_data_seg`); in a KSM key its length does not count.

use crate::be::{Be16, Be32, Be64};

/// `flags`: the translation is in the WQE.
pub const INLINE: u8 = 0x80;
/// `flags`: [`CHECK_FREE`], [`CHECK_VALID`], or 0 for no check.
pub const CHECK: u8 = 0x60;
/// `flags`: the key must be free.
pub const CHECK_FREE: u8 = 0x20;
/// `flags`: the key must not be free.
pub const CHECK_VALID: u8 = 0x40;
/// `flags`: the translation is written at [`UmrControl::offset`], and the rest of it stays.
pub const TRANSLATION_OFFSET: u8 = 0x10;
/// `flags`: only the queue pair that the key names may change it.
pub const CHECK_QPN: u8 = 0x08;

/// Fields of the context that a WQE changes: bits of [`UmrControl::mkey_mask`].
pub mod mask {
    /// Length.
    pub const LEN: u64 = 1;
    /// Page size.
    pub const PAGE_SIZE: u64 = 1 << 1;
    /// First address.
    pub const START: u64 = 1 << 6;
    /// Protection domain.
    pub const PD: u64 = 1 << 7;
    /// Peers may invalidate the key.
    pub const REMOTE_INVALIDATE: u64 = 1 << 8;
    /// Signature errors are counted.
    pub const SIGNATURE: u64 = 1 << 9;
    /// A signature is checked.
    pub const BSF: u64 = 1 << 12;
    /// Variant: the lower eight bits of the key.
    pub const KEY: u64 = 1 << 13;
    /// Queue pair that owns the key.
    pub const QPN: u64 = 1 << 14;
    /// Reads through the lkey.
    pub const LOCAL_READ: u64 = 1 << 17;
    /// Writes through the lkey.
    pub const LOCAL_WRITE: u64 = 1 << 18;
    /// READ by peers.
    pub const REMOTE_READ: u64 = 1 << 19;
    /// WRITE by peers.
    pub const REMOTE_WRITE: u64 = 1 << 20;
    /// Atomics by peers.
    pub const ATOMIC: u64 = 1 << 21;
    /// A small fence suffices before answers to READs.
    pub const SMALL_FENCE: u64 = 1 << 23;
    /// Relaxed ordering of writes.
    pub const RELAXED_WRITE: u64 = 1 << 25;
    /// The key is free.
    pub const FREE: u64 = 1 << 29;
    /// Relaxed ordering of reads.
    pub const RELAXED_READ: u64 = 1 << 47;

    /// All bits that have a name.
    pub const ALL: u64 = LEN
        | PAGE_SIZE
        | START
        | PD
        | REMOTE_INVALIDATE
        | SIGNATURE
        | BSF
        | KEY
        | QPN
        | LOCAL_READ
        | LOCAL_WRITE
        | REMOTE_READ
        | REMOTE_WRITE
        | ATOMIC
        | SMALL_FENCE
        | RELAXED_WRITE
        | FREE
        | RELAXED_READ;
}

layout! {
    /// Flags, list and mask of a change of a key.
    pub struct UmrControl: 48 {
        /// [`INLINE`] and the other flags.
        0 => flags: u8,
        /// Reserved.
        1 => reserved1: [u8; 3],
        /// Size of the translation in units of 16 bytes, a multiple of 4.
        4 => xlt_octowords: Be16,
        /// Lower 16 bits of [`UmrControl::offset`].
        6 => xlt_offset: Be16,
        /// [`mask`].
        8 => mkey_mask: Be64,
        /// Upper bits of [`UmrControl::offset`].
        16 => xlt_offset_high: Be32,
        /// Reserved.
        20 => reserved20: [u8; 28],
    }
}

impl UmrControl {
    /// Returns the place of the translation in that of the key, in units of 16 bytes.
    #[inline]
    pub const fn offset(&self) -> u64 {
        (self.xlt_offset_high.get() as u64) << 16 | self.xlt_offset.get() as u64
    }

    /// Binds a free window of type 2: one KLM entry in the WQE, padded to [`BIND_OCTOWORDS`].
    #[inline]
    pub const fn bind() -> Self {
        let rights = mask::LOCAL_WRITE | mask::REMOTE_READ | mask::REMOTE_WRITE | mask::ATOMIC;
        let mkey_mask = mask::FREE | mask::KEY | mask::QPN | mask::LEN | mask::START | rights;
        Self::change(CHECK_FREE, BIND_OCTOWORDS, mkey_mask)
    }

    /// Makes a key free (`IBV_WR_LOCAL_INV`).
    #[inline]
    pub const fn invalidate() -> Self {
        Self::change(CHECK_QPN, 0, mask::FREE | mask::KEY | mask::QPN)
    }

    /// Binds a window of type 1, whose state does not count and which belongs to no queue pair.
    #[inline]
    pub const fn bind_type_1() -> Self {
        Self::bind().without_owner()
    }

    /// Unbinds a window of type 1.
    #[inline]
    pub const fn unbind_type_1() -> Self {
        Self::invalidate().without_owner()
    }

    /// Returns the same change, without its check and without the queue pair of the key.
    const fn without_owner(self) -> Self {
        Self::change(0, self.xlt_octowords.get(), self.mkey_mask.get() & !mask::QPN)
    }

    const fn change(check: u8, octowords: u16, mkey_mask: u64) -> Self {
        Self {
            flags: INLINE | TRANSLATION_OFFSET | check,
            reserved1: [0; 3],
            xlt_octowords: Be16::new(octowords),
            xlt_offset: Be16::new(0),
            mkey_mask: Be64::new(mkey_mask),
            xlt_offset_high: Be32::new(0),
            reserved20: [0; 28],
        }
    }
}

/// Units of 16 bytes of the translation of a window: that of one KLM entry is padded to four.
pub const BIND_OCTOWORDS: u16 = 4;

/// Opcode of a repeating block.
pub const REPEAT: u32 = 0x400;

layout! {
    /// First entry of a KLM list that repeats the entries after it (`struct mlx5_wqe_umr_repeat_block_seg`).
    pub struct RepeatBlock: 16 {
        /// Bytes of one cycle.
        0 => byte_count: Be32,
        /// [`REPEAT`].
        4 => op: Be32,
        /// Cycles.
        8 => repeat_count: Be32,
        /// Reserved.
        12 => reserved12: [u8; 2],
        /// Entries of a cycle.
        14 => num_ent: Be16,
    }
}

layout! {
    /// Entry of a repeating block: in each cycle it begins `stride` bytes later
    /// (`struct mlx5_wqe_umr_repeat_ent_seg`).
    pub struct RepeatEntry: 16 {
        /// Bytes from one cycle to the next.
        0 => stride: Be16,
        /// Bytes of each cycle.
        2 => byte_count: Be16,
        /// Key of the memory.
        4 => memkey: Be32,
        /// First byte, as that key names it.
        8 => va: Be64,
    }
}

/// MTT entry: the device may read the page.
pub const MTT_READ: u64 = 1;
/// MTT entry: the device may write the page.
pub const MTT_WRITE: u64 = 2;

/// Returns the address of the page in an MTT entry.
#[inline]
pub const fn mtt_page(entry: u64) -> u64 {
    entry & !7
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctrl::ControlSegment;
    use crate::data::DataSegment;
    use crate::firmware::mkey::MkeyContext;
    use crate::opcode::WqeOpcode;

    // The bind of a window of type 2 by libmlx5: key 0x1234 with variant 0x57, 4,096 bytes at 0x7f0000002000 of the
    // region 0x1805, for READ and WRITE by peers.
    const BIND: [[u8; 16]; 12] = [
        [0, 0, 7, 0x25, 0, 0, 0x42, 12, 0, 0, 0, 0x28, 0, 0x12, 0x34, 0x56],
        [0xb0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x20, 0x3c, 0x60, 0x41],
        [0; 16],
        [0; 16],
        [0, 0, 0x34, 0, 0, 0, 0x42, 0x57, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0x7f, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0x10, 0],
        [0; 16],
        [0; 16],
        [0, 0, 0x10, 0, 0, 0, 0x18, 5, 0, 0, 0x7f, 0, 0, 0, 0x20, 0],
        [0; 16],
        [0; 16],
        [0; 16],
    ];

    #[test]
    fn a_bind_of_a_window() {
        let bytes = BIND.concat();
        let ctrl = ControlSegment::from_bytes(bytes.first_chunk().unwrap());
        assert_eq!((ctrl.opcode(), ctrl.ds(), ctrl.imm.get()), (WqeOpcode::UMR, 12, 0x12_3456));
        let control = UmrControl::from_bytes(bytes[16..].first_chunk().unwrap());
        assert_eq!(control.flags, INLINE | CHECK_FREE | TRANSLATION_OFFSET);
        assert_eq!((control.xlt_octowords.get(), control.offset()), (4, 0));
        let rights = mask::LOCAL_WRITE | mask::REMOTE_READ | mask::REMOTE_WRITE | mask::ATOMIC;
        let changed = mask::FREE | mask::KEY | mask::LEN | mask::START | mask::QPN | rights;
        assert_eq!(control.mkey_mask.get(), changed);
        assert_eq!(control.to_bytes(), bytes[16..64]);
        assert_eq!(control, UmrControl::bind());
        let context = MkeyContext::from_prefix(&bytes[64..]).unwrap();
        assert!(context.remote_read && context.remote_write && !context.atomic && !context.free);
        assert_eq!((context.qpn, context.variant), (0x42, 0x57));
        assert_eq!((context.start, context.len), (0x7f00_0000_2000, 0x1000));
        let entry = DataSegment::from_bytes(bytes[128..].first_chunk().unwrap());
        assert_eq!(entry, DataSegment::new(0x7f00_0000_2000, 0x1000, 0x1805));
    }

    #[test]
    fn an_invalidation() {
        // By libmlx5: the key becomes free, belongs to no queue pair, and has the variant 0.
        let mut bytes = [0; 48];
        bytes[..16].copy_from_slice(&[0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0x60, 0]);
        let control = UmrControl::from_bytes(&bytes);
        assert_eq!(control.flags, INLINE | CHECK_QPN | TRANSLATION_OFFSET);
        assert_eq!(control.mkey_mask.get(), mask::FREE | mask::KEY | mask::QPN);
        assert_eq!(control, UmrControl::invalidate());
        bytes[..16].copy_from_slice(&[0x90, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0x20, 0]);
        assert_eq!(UmrControl::from_bytes(&bytes), UmrControl::unbind_type_1());
        bytes[..16].copy_from_slice(&[0x90, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x20, 0x3c, 0x20, 0x41]);
        assert_eq!(UmrControl::from_bytes(&bytes), UmrControl::bind_type_1());
        let mut context = [0; 64];
        context[..8].copy_from_slice(&[0x40, 0, 0, 0, 0xff, 0xff, 0xff, 0]);
        let expected = MkeyContext { free: true, qpn: 0xff_ffff, ..MkeyContext::ZERO };
        assert_eq!(MkeyContext::from_prefix(&context).map(|context| context.to_bytes()), Some(expected.to_bytes()));
    }

    #[test]
    fn a_repeating_block() {
        let block = [0, 0, 0, 12, 0, 0, 4, 0, 0, 0, 0, 3, 0, 0, 0, 2];
        let entry = [0, 16, 0, 8, 0, 0, 0x18, 5, 0, 0, 0x7f, 0, 0, 0, 0x20, 0];
        let head = RepeatBlock::from_bytes(&block);
        assert_eq!((head.byte_count.get(), head.op.get()), (12, REPEAT));
        assert_eq!((head.repeat_count.get(), head.num_ent.get()), (3, 2));
        assert_eq!(head.to_bytes(), block);
        let first = RepeatEntry::from_bytes(&entry);
        assert_eq!((first.stride.get(), first.byte_count.get()), (16, 8));
        assert_eq!((first.memkey.get(), first.va.get()), (0x1805, 0x7f00_0000_2000));
        assert_eq!(first.to_bytes(), entry);
    }

    #[test]
    fn offsets_have_48_bits_and_pages_lose_their_rights() {
        let mut bytes = [0; 48];
        bytes[6..8].copy_from_slice(&[0x12, 0x34]);
        bytes[16..20].copy_from_slice(&[0, 0, 0xab, 0xcd]);
        assert_eq!(UmrControl::from_bytes(&bytes).offset(), 0xabcd_1234);
        assert_eq!(mtt_page(0x7000 | MTT_READ | MTT_WRITE), 0x7000);
    }
}
