//! Fields of a CQE for an Ethernet frame: see [`mlx5_wire::frame`].

use core::mem::offset_of;

use mlx5_wire::be::{Be16, Be32};
use mlx5_wire::cqe::Cqe64;
use mlx5_wire::frame::{StrideCount, VLAN_STRIPPED, is_frame_checksum_ok};

use super::Cqe;

impl Cqe<'_> {
    /// WQE of a striding receive queue, of which [`wqe_counter`](Self::wqe_counter) names the stride.
    #[inline(always)]
    pub fn wqe_id(&self) -> u16 {
        field!(self, Cqe64.wqe_id: Be16).get()
    }

    /// Bytes and strides of a frame on a striding receive queue.
    #[inline(always)]
    pub fn stride_count(&self) -> StrideCount {
        StrideCount(self.byte_count())
    }

    /// Returns `true` if the checksums of layers 3 and 4 of a frame are good.
    #[inline(always)]
    pub fn is_frame_checksum_ok(&self) -> bool {
        is_frame_checksum_ok(field!(self, Cqe64.hds_ip_ext: u8))
    }

    /// TCI of the VLAN tag that the device took out of the frame.
    #[inline(always)]
    pub fn vlan(&self) -> Option<u16> {
        let stripped = field!(self, Cqe64.l4_hdr_type_etc: u8) & VLAN_STRIPPED != 0;
        stripped.then(|| field!(self, Cqe64.vlan_info: Be16).get())
    }

    /// Tag of the flow rule that matched, which stands in the place of the QP number.
    #[inline(always)]
    pub fn flow_tag(&self) -> u32 {
        self.qpn()
    }

    /// Frames that the device dropped since the CQE before.
    #[inline(always)]
    pub fn dropped(&self) -> u8 {
        (field!(self, Cqe64.sop_drop_qpn: Be32).get() >> 24) as u8
    }
}
