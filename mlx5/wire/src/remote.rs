//! Remote segments: what an RDMA or atomic WQE says about the peer's memory
//! (`struct mlx5_wqe_raddr_seg`, `struct mlx5_wqe_atomic_seg`).

use crate::be::{Be32, Be64};

layout! {
    /// Address and key at the peer.
    pub struct RemoteAddressSegment: 16 {
        /// First byte at the peer.
        0 => raddr: Be64,
        /// Remote key.
        8 => rkey: Be32,
        /// Reserved.
        12 => reserved12: [u8; 4],
    }
}

impl RemoteAddressSegment {
    /// The memory at `raddr` that `rkey` covers.
    #[inline(always)]
    pub const fn new(raddr: u64, rkey: u32) -> Self {
        Self { raddr: Be64::new(raddr), rkey: Be32::new(rkey), reserved12: [0; 4] }
    }

    /// The segment as two words of memory; reserved bytes are zero.
    #[inline(always)]
    pub const fn to_words(self) -> [Be64; 2] {
        [self.raddr, Be64::new((self.rkey.get() as u64) << 32)]
    }
}

layout! {
    /// Operands of an atomic on eight bytes. A fetch and add has no second operand.
    pub struct AtomicSegment: 16 {
        /// Value to store or to add.
        0 => swap_add: Be64,
        /// Value to compare with.
        8 => compare: Be64,
    }
}

impl AtomicSegment {
    /// Adds `add`.
    #[inline(always)]
    pub const fn fetch_add(add: u64) -> Self {
        Self { swap_add: Be64::new(add), compare: Be64::new(0) }
    }

    /// Stores `swap` where `compare` stands.
    #[inline(always)]
    pub const fn compare_swap(compare: u64, swap: u64) -> Self {
        Self { swap_add: Be64::new(swap), compare: Be64::new(compare) }
    }

    /// The segment as two words of memory.
    #[inline(always)]
    pub const fn to_words(self) -> [Be64; 2] {
        [self.swap_add, self.compare]
    }
}

layout! {
    /// Operands of a masked fetch and add on eight bytes (opcode modifier [`MASKED_8`]).
    pub struct MaskedFetchAddSegment: 16 {
        /// Value to add.
        0 => add: Be64,
        /// Bits at which a carry ends.
        8 => field_boundary: Be64,
    }
}

layout! {
    /// Operands of a masked compare and swap on eight bytes (opcode modifier [`MASKED_8`]). It is the only segment of
    /// its kind that can go on at the start of the ring, after its first 16 bytes.
    pub struct MaskedCompareSwapSegment: 32 {
        /// Value to store.
        0 => swap: Be64,
        /// Value to compare with.
        8 => compare: Be64,
        /// Bits to store.
        16 => swap_mask: Be64,
        /// Bits to compare.
        24 => compare_mask: Be64,
    }
}

/// Opcode modifier of a masked atomic on four bytes: 8, and the logarithm of the size less two.
pub const MASKED_4: u8 = 8;
/// Opcode modifier of a masked atomic on eight bytes.
pub const MASKED_8: u8 = 9;

layout! {
    /// SRQ that an XRC send addresses (`struct mlx5_wqe_xrc_seg` of libmlx5).
    pub struct XrcSegment: 16 {
        /// SRQ number at the peer.
        0 => xrc_srqn: Be32,
        /// Reserved.
        4 => reserved4: [u8; 12],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Field;

    #[test]
    fn literal_remote_address() {
        let bytes = [0, 0, 0x7f, 0, 0, 0, 0x20, 0, 0, 0, 0x18, 0x05, 0, 0, 0, 0];
        let segment = RemoteAddressSegment::from_bytes(&bytes);
        assert_eq!((segment.raddr.get(), segment.rkey.get()), (0x7f00_0000_2000, 0x1805));
        assert_eq!(segment.to_bytes(), bytes);
        assert_eq!(RemoteAddressSegment::new(0x7f00_0000_2000, 0x1805), segment);
    }

    #[test]
    fn words_are_the_bytes() {
        let bytes = |words: [Be64; 2]| {
            let mut bytes = [0; 16];
            words[0].write(&mut bytes[..8]);
            words[1].write(&mut bytes[8..]);
            bytes
        };
        let remote = RemoteAddressSegment::new(0x1122_3344_5566_7788, 0x99aa_bbcc);
        assert_eq!(bytes(remote.to_words()), remote.to_bytes());
        let atomic = AtomicSegment::compare_swap(0x0102_0304_0506_0708, 0x1112_1314_1516_1718);
        assert_eq!(bytes(atomic.to_words()), atomic.to_bytes());
        assert_eq!(bytes(AtomicSegment::fetch_add(7).to_words())[7..9], [7, 0]);
    }
}
