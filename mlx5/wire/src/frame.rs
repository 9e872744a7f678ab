//! Fields of a CQE for an Ethernet frame (`struct mlx5_cqe64`; names and bits as in `struct mlx5_cqe` of DPDK), and the
//! WQE of a striding receive queue (`struct mlx5_wqe_mprq` of DPDK's `mlx5_prm.h`).
//!
//! A striding receive queue puts many frames into one WQE. Its buffer is cut into strides of equal size, each frame
//! starts at a stride, and no frame goes on in another WQE.

use crate::be::{Be32, Be64};
use crate::cqe::{Cqe64, L3_OK, L4_OK};
use crate::data::DataSegment;

/// `hds_ip_ext`: the Ethernet header is good. No CQE of RDMA has this bit.
pub const L2_OK: u8 = 1;
/// `l4_hdr_type_etc`: the device took the VLAN tag out of the frame, and `vlan_info` has it.
pub const VLAN_STRIPPED: u8 = 1;

/// Returns `true` if `hds_ip_ext` says that the checksums of layers 3 and 4 are good. A frame without IP, or with
/// another protocol than TCP and UDP, has no such verdict.
#[inline]
pub const fn is_frame_checksum_ok(hds_ip_ext: u8) -> bool {
    hds_ip_ext & (L3_OK | L4_OK) == L3_OK | L4_OK
}

impl Cqe64 {
    /// Returns the TCI of the VLAN tag that was taken out of the frame.
    #[inline]
    pub const fn vlan(&self) -> Option<u16> {
        if self.l4_hdr_type_etc & VLAN_STRIPPED == 0 {
            return None;
        }
        Some(self.vlan_info.get())
    }

    /// Returns the tag of the flow rule that matched: it stands where other CQEs have the QP number.
    #[inline]
    pub const fn flow_tag(&self) -> u32 {
        self.sop_drop_qpn.get() & 0xff_ffff
    }

    /// Returns how many frames the device dropped since the CQE before.
    #[inline]
    pub const fn dropped(&self) -> u8 {
        (self.sop_drop_qpn.get() >> 24) as u8
    }
}

/// `byte_cnt` in a CQE of a striding receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrideCount(pub u32);

impl StrideCount {
    /// Most strides that it can say, which is more than a WQE of fewer than 2^14 strides has.
    pub const MAX_STRIDES: u32 = 0x3fff;

    /// A frame of `len` bytes that takes so many strides.
    #[inline]
    pub const fn frame(len: u16, strides: u32) -> Self {
        Self((strides & Self::MAX_STRIDES) << 16 | len as u32)
    }

    /// No frame: the rest of the WQE, so many strides, stays empty.
    #[inline]
    pub const fn filler(strides: u32) -> Self {
        Self(1 << 31 | (strides & Self::MAX_STRIDES) << 16)
    }

    /// Bytes of the frame.
    #[inline(always)]
    pub const fn len(self) -> u32 {
        self.0 & 0xffff
    }

    /// Returns `true` if the frame has no bytes.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Strides that it takes, padding included.
    #[inline(always)]
    pub const fn strides(self) -> u32 {
        self.0 >> 16 & Self::MAX_STRIDES
    }

    /// Returns `true` if there is no frame.
    #[inline(always)]
    pub const fn is_filler(self) -> bool {
        self.0 >> 31 != 0
    }
}

layout! {
    /// WQE of a striding receive queue.
    pub struct StridingWqe: 32 {
        /// Next segment, which a cyclic queue does not read: zero.
        0 => next: [u8; 16],
        /// Bytes of all strides.
        16 => byte_count: Be32,
        /// Local key of the memory region.
        20 => lkey: Be32,
        /// First byte of the first stride.
        24 => addr: Be64,
    }
}

impl StridingWqe {
    /// Offset of the data segment.
    pub const DATA: usize = 16;

    /// A WQE whose strides are in this memory.
    #[inline]
    pub const fn new(data: DataSegment) -> Self {
        let DataSegment { byte_count, lkey, addr } = data;
        Self { next: [0; 16], byte_count, lkey, addr }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP datagram of market data after a VLAN tag of 0x6064, in stride 5 of WQE 0x1234.
    const CQE: [u8; 64] = {
        let mut bytes = [0; 64];
        [bytes[2], bytes[3]] = [0x12, 0x34];
        [bytes[12], bytes[13], bytes[14], bytes[15]] = [0xde, 0xad, 0xbe, 0xef];
        bytes[16] = 0x88;
        [bytes[20], bytes[21]] = [0xab, 0xcd];
        [bytes[28], bytes[29]] = [0x07, 0x29];
        [bytes[30], bytes[31]] = [0x60, 0x64];
        [bytes[44], bytes[45], bytes[46], bytes[47]] = [0x00, 0x03, 0x00, 0x9a];
        [bytes[56], bytes[57], bytes[58], bytes[59]] = [0x02, 0x0a, 0xbc, 0xde];
        [bytes[60], bytes[61], bytes[63]] = [0x00, 0x05, 0x20];
        bytes
    };

    #[test]
    fn fields_of_a_frame() {
        let cqe = Cqe64::from_bytes(&CQE);
        assert_eq!(cqe.vlan(), Some(0x6064));
        assert_eq!((cqe.flow_tag(), cqe.dropped()), (0x0a_bcde, 2));
        assert_eq!((cqe.rx_hash_result.get(), cqe.rx_hash_type), (0xdead_beef, 0x88));
        assert_eq!(cqe.check_sum.get(), 0xabcd);
        assert_eq!((cqe.wqe_id.get(), cqe.wqe_counter.get()), (0x1234, 5));
        let count = StrideCount(cqe.byte_cnt.get());
        assert_eq!((count.len(), count.strides(), count.is_filler()), (154, 3, false));
        assert_eq!(count, StrideCount::frame(154, 3));
        // A frame with its tag still in it.
        let mut untagged = CQE;
        untagged[29] &= !1;
        assert_eq!(Cqe64::from_bytes(&untagged).vlan(), None);
    }

    #[test]
    fn a_verdict_needs_both_layers() {
        for hds_ip_ext in 0..=255 {
            let good = hds_ip_ext & 0x02 != 0 && hds_ip_ext & 0x04 != 0;
            assert_eq!(is_frame_checksum_ok(hds_ip_ext), good, "{hds_ip_ext:#x}");
        }
    }

    #[test]
    fn the_largest_stride_counts() {
        let frame = StrideCount(0x3fff_ffff);
        assert_eq!((frame.len(), frame.strides(), frame.is_filler()), (65535, 16383, false));
        // Bit 30 is no part of the count.
        assert_eq!(StrideCount(0x4000_0000).strides(), 0);
        let filler = StrideCount(0x8007_0000);
        assert_eq!((filler.len(), filler.strides(), filler.is_filler()), (0, 7, true));
        assert_eq!(filler, StrideCount::filler(7));
    }

    #[test]
    fn striding_wqe() {
        let bytes = [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x02, 0x00, 0x00, 0x00, 0x01, 0x02, 0x03, 0x00, 0x00,
            0x7f, 0x12, 0x34, 0x56, 0x70, 0x00,
        ];
        let wqe = StridingWqe::new(DataSegment::new(0x7f12_3456_7000, 0x2_0000, 0x10203));
        assert_eq!(wqe.to_bytes(), bytes);
        assert_eq!(StridingWqe::from_bytes(&bytes), wqe);
    }
}
