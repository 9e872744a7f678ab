//! Completion queue entry (`struct mlx5_cqe64`) and its error form (`struct mlx5_err_cqe`).
//!
//! With 128-byte CQEs these 64 bytes are the second half; the first half holds inline data or is
//! unused.

use crate::be::{Be16, Be32, Be64};
use crate::opcode::CqeOpcode;

/// `op_own`: bit that alternates with each lap of the queue.
pub const OWNER: u8 = 1;
/// `op_own`: the sender asked for a solicited event.
pub const SOLICITED_EVENT: u8 = 1 << 1;
/// `op_own` of a CQE that was never written: opcode 15, owner 0.
pub const FRESH_OP_OWN: u8 = 0xf0;
/// `app` of a CQE that tag matching wrote (`MLX5_CQE_APP_TAG_MATCHING`).
pub const APP_TAG_MATCHING: u8 = 1;
/// Distance of the layer 3 header type in `l4_hdr_type_etc`.
const L3_HDR_TYPE_SHIFT: u8 = 2;
/// Layer 3 header type of IPv4 (`MLX5_CQE_L3_HDR_TYPE_IPV4`).
const L3_HDR_TYPE_IPV4: u8 = 2;
/// `hds_ip_ext`: layer 3 checksum is good (`MLX5_CQE_L3_OK`).
pub const L3_OK: u8 = 1 << 1;
/// `hds_ip_ext`: layer 4 checksum is good (`MLX5_CQE_L4_OK`).
pub const L4_OK: u8 = 1 << 2;

/// Where the payload of a completion is: bits 2..3 of `op_own`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CqeFormat {
    /// In the posted buffer.
    Plain,
    /// Up to 32 bytes, in bytes 0..31 of this CQE.
    Inline32,
    /// Up to 64 bytes, in the 64 bytes before this CQE.
    Inline64,
    /// This CQE is the title of a compressed block.
    Compressed,
}

impl CqeFormat {
    /// The format in bits 2..3 of `op_own`.
    #[inline]
    pub const fn from_op_own(op_own: u8) -> Self {
        match op_own >> 2 & 3 {
            0 => Self::Plain,
            1 => Self::Inline32,
            2 => Self::Inline64,
            _ => Self::Compressed,
        }
    }

    /// The bits to put into `op_own`.
    #[inline]
    pub const fn bits(self) -> u8 {
        (match self {
            Self::Plain => 0,
            Self::Inline32 => 1,
            Self::Inline64 => 2,
            Self::Compressed => 3,
        }) << 2
    }
}

/// `op_own` of a CQE.
#[inline]
pub const fn op_own(opcode: CqeOpcode, format: CqeFormat, solicited: bool, owner: u8) -> u8 {
    opcode.bits() << 4 | format.bits() | if solicited { SOLICITED_EVENT } else { 0 } | owner & OWNER
}

/// Returns `true` if `hds_ip_ext` and `l4_hdr_type_etc` say that the checksums of layers 3 and 4 of an IPv4 packet are
/// good: what libmlx5 reports as `IBV_WC_IP_CSUM_OK`.
#[inline]
pub const fn is_checksum_ok(hds_ip_ext: u8, l4_hdr_type_etc: u8) -> bool {
    let ipv4 = l4_hdr_type_etc >> L3_HDR_TYPE_SHIFT & 3 == L3_HDR_TYPE_IPV4;
    ipv4 && hds_ip_ext & (L3_OK | L4_OK) == L3_OK | L4_OK
}

layout! {
    /// A completion that is not an error.
    pub struct Cqe64: 64 {
        /// Reserved, or the first bytes of inline data, a TMH or a tag-matching result.
        0 => reserved0: [u8; 2],
        /// WQE of a striding receive queue.
        2 => wqe_id: Be16,
        /// Reserved.
        4 => reserved4: [u8; 8],
        /// RSS hash result (`rss_hash_result` of `struct mlx5_cqe64` in Linux, `include/linux/mlx5/device.h`).
        12 => rx_hash_result: Be32,
        /// RSS hash type.
        16 => rx_hash_type: u8,
        /// Path bits of the destination LID.
        17 => ml_path: u8,
        /// Reserved.
        18 => reserved18: [u8; 2],
        /// Checksum of the packet, of a CQ that was created with the checksum mini-CQE format (`check_sum` in the
        /// same).
        20 => check_sum: Be16,
        /// Source LID.
        22 => slid: Be16,
        /// GRH flag (bits 28..29), service level (24..27) and source QP number.
        24 => flags_rqpn: Be32,
        /// Checksum results.
        28 => hds_ip_ext: u8,
        /// Header types.
        29 => l4_hdr_type_etc: u8,
        /// VLAN tag.
        30 => vlan_info: Be16,
        /// User index of the QP, or of the SRQ for XRC and tag matching (CQE version 1), else SRQ
        /// number.
        32 => srqn_uidx: Be32,
        /// Immediate data, invalidated key or partition key.
        36 => imm_inval_pkey: Be32,
        /// Application: [`APP_TAG_MATCHING`].
        40 => app: u8,
        /// Operation of the application, see [`crate::tm::AppOp`].
        41 => app_op: u8,
        /// Index of the tag list entry.
        42 => app_info: Be16,
        /// Bytes of the message; in a title CQE the number of CQEs in the block.
        44 => byte_cnt: Be32,
        /// Device clock, in ticks.
        48 => timestamp: Be64,
        /// Opcode of the send WQE (bits 24..31) and QP number.
        56 => sop_drop_qpn: Be32,
        /// SRQ: slot. Receive queue: running index. Send queue: index of the basic block.
        60 => wqe_counter: Be16,
        /// Checksum of the CQE, see [`crate::signature`].
        62 => signature: u8,
        /// Opcode, format, solicited event and owner.
        63 => op_own: u8,
    }
}

impl Cqe64 {
    /// Opcode.
    #[inline]
    pub const fn opcode(&self) -> CqeOpcode {
        CqeOpcode::from_bits(self.op_own >> 4)
    }

    /// Format.
    #[inline]
    pub const fn format(&self) -> CqeFormat {
        CqeFormat::from_op_own(self.op_own)
    }

    /// Owner bit.
    #[inline]
    pub const fn owner(&self) -> u8 {
        self.op_own & OWNER
    }

    /// Number of the QP that completed.
    #[inline]
    pub const fn qpn(&self) -> u32 {
        self.sop_drop_qpn.get() & 0xff_ffff
    }

    /// Opcode of the send WQE that completed.
    #[inline]
    pub const fn send_opcode(&self) -> u8 {
        (self.sop_drop_qpn.get() >> 24) as u8
    }

    /// Number of the QP that sent the message.
    #[inline]
    pub const fn source_qpn(&self) -> u32 {
        self.flags_rqpn.get() & 0xff_ffff
    }

    /// Returns `true` if the checksums of layers 3 and 4 of an IPv4 packet are good.
    #[inline]
    pub const fn is_checksum_ok(&self) -> bool {
        is_checksum_ok(self.hds_ip_ext, self.l4_hdr_type_etc)
    }

    /// Service level.
    #[inline]
    pub const fn sl(&self) -> u8 {
        (self.flags_rqpn.get() >> 24) as u8 & 0xf
    }

    /// Returns `true` if a GRH came with the message.
    #[inline]
    pub const fn has_grh(&self) -> bool {
        self.flags_rqpn.get() >> 28 & 3 != 0
    }
}

layout! {
    /// A completion in error.
    pub struct ErrorCqe: 64 {
        /// Reserved.
        0 => reserved0: [u8; 32],
        /// User index or SRQ number, as in [`Cqe64::srqn_uidx`].
        32 => srqn_uidx: Be32,
        /// Reserved.
        36 => reserved36: [u8; 16],
        /// Cause in the terms of the hardware (`struct uct_ib_mlx5_err_cqe` in UCX).
        52 => hw_err_synd: u8,
        /// Kind of [`hw_err_synd`](Self::hw_err_synd); UCX prints the upper four bits.
        53 => hw_synd_type: u8,
        /// Cause in the device's own terms, see [`crate::vendor`].
        54 => vendor_err_synd: u8,
        /// Cause, see [`crate::syndrome::Syndrome`].
        55 => syndrome: u8,
        /// Opcode of the send WQE (bits 24..31) and QP number.
        56 => s_wqe_opcode_qpn: Be32,
        /// As in [`Cqe64::wqe_counter`].
        60 => wqe_counter: Be16,
        /// Checksum of the CQE, see [`crate::signature`].
        62 => signature: u8,
        /// Opcode, format, solicited event and owner.
        63 => op_own: u8,
    }
}

impl ErrorCqe {
    /// Number of the QP that failed.
    #[inline]
    pub const fn qpn(&self) -> u32 {
        self.s_wqe_opcode_qpn.get() & 0xff_ffff
    }

    /// Opcode of the send WQE that failed.
    #[inline]
    pub const fn send_opcode(&self) -> u8 {
        (self.s_wqe_opcode_qpn.get() >> 24) as u8
    }
}

layout! {
    /// A failed signature check (`struct mlx5_sigerr_cqe` of libmlx5).
    pub struct SignatureErrorCqe: 64 {
        /// Reserved.
        0 => reserved0: [u8; 16],
        /// Expected transaction signature.
        16 => expected_trans_sig: Be32,
        /// Transaction signature found.
        20 => actual_trans_sig: Be32,
        /// Expected reference tag.
        24 => expected_ref_tag: Be32,
        /// Reference tag found.
        28 => actual_ref_tag: Be32,
        /// Fields that differed.
        32 => syndrome: Be16,
        /// Kind of signature.
        34 => sig_type: u8,
        /// Memory or wire.
        35 => domain: u8,
        /// Key whose check failed.
        36 => mkey: Be32,
        /// Offset of the failing block.
        40 => sig_err_offset: Be64,
        /// Reserved.
        48 => reserved48: [u8; 14],
        /// Checksum of the CQE, see [`crate::signature`].
        62 => signature: u8,
        /// Opcode, format, solicited event and owner.
        63 => op_own: u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal() -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[22..24].copy_from_slice(&[0x00, 0x07]);
        bytes[24..28].copy_from_slice(&[0x13, 0x00, 0x01, 0x18]);
        bytes[32..36].copy_from_slice(&[0x00, 0x00, 0x00, 0x2a]);
        bytes[36..40].copy_from_slice(&[0xca, 0xfe, 0xf0, 0x0d]);
        bytes[44..48].copy_from_slice(&[0x00, 0x01, 0x00, 0x00]);
        bytes[48..56].copy_from_slice(&[0, 0, 0, 0, 0, 0, 1, 0]);
        bytes[56..60].copy_from_slice(&[0x00, 0x00, 0x01, 0x20]);
        bytes[60..64].copy_from_slice(&[0x80, 0x01, 0x00, 0x33]);
        bytes
    }

    #[test]
    fn send_with_immediate() {
        let cqe = Cqe64::from_bytes(&literal());
        assert_eq!(cqe.opcode(), CqeOpcode::ResponderSendImm);
        assert_eq!(cqe.format(), CqeFormat::Plain);
        assert_eq!(cqe.owner(), 1);
        assert_eq!((cqe.qpn(), cqe.source_qpn(), cqe.sl()), (0x120, 0x118, 3));
        assert!(cqe.has_grh());
        assert_eq!(cqe.slid.get(), 7);
        assert_eq!(cqe.srqn_uidx.get(), 42);
        assert_eq!(cqe.imm_inval_pkey.get(), 0xcafe_f00d);
        assert_eq!(cqe.byte_cnt.get(), 65536);
        assert_eq!(cqe.timestamp.get(), 256);
        assert_eq!(cqe.wqe_counter.get(), 0x8001);
        assert_eq!(cqe.to_bytes(), literal());
        assert_eq!(op_own(CqeOpcode::ResponderSendImm, CqeFormat::Plain, true, 1), 0x33);
    }

    #[test]
    fn flags_are_bits_of_their_own() {
        assert_eq!((L3_OK, L4_OK), (0x02, 0x04));
        assert_eq!(op_own(CqeOpcode::Requester, CqeFormat::Plain, false, 0xfe), 0);
        let mut bytes = literal();
        bytes[44..48].copy_from_slice(&[0; 4]);
        // Neither the service level nor the source QP number says that there is a GRH.
        bytes[24..28].copy_from_slice(&[0xcf, 0xff, 0xff, 0xff]);
        bytes[56] = 0x0a;
        bytes[63] = 0x32;
        let cqe = Cqe64::from_bytes(&bytes);
        assert!(!cqe.has_grh());
        assert_eq!((cqe.sl(), cqe.source_qpn()), (0xf, 0xff_ffff));
        assert_eq!((cqe.send_opcode(), cqe.qpn()), (0x0a, 0x120));
        assert_eq!(cqe.owner(), 0);
        for bits in 1..4 {
            bytes[24] = bits << 4;
            assert!(Cqe64::from_bytes(&bytes).has_grh());
        }
    }

    #[test]
    fn checksums_are_good_when_both_are_and_the_packet_is_ipv4() {
        for hds_ip_ext in 0..=255 {
            for l4_hdr_type_etc in 0..=255 {
                let cqe = Cqe64 { hds_ip_ext, l4_hdr_type_etc, ..Cqe64::zeroed() };
                let good = hds_ip_ext & 0x06 == 0x06 && l4_hdr_type_etc & 0x0c == 0x08;
                assert_eq!(cqe.is_checksum_ok(), good, "{hds_ip_ext:#x} {l4_hdr_type_etc:#x}");
            }
        }
    }

    #[test]
    fn flushed_receive() {
        let mut bytes = [0; 64];
        bytes[54..56].copy_from_slice(&[0xf9, 0x05]);
        bytes[56..60].copy_from_slice(&[0x0a, 0x00, 0x01, 0x20]);
        bytes[60..64].copy_from_slice(&[0x00, 0x11, 0x00, 0xe0]);
        bytes[52..54].copy_from_slice(&[0x01, 0x20]);
        let cqe = ErrorCqe::from_bytes(&bytes);
        assert_eq!((cqe.hw_err_synd, cqe.hw_synd_type), (0x01, 0x20));
        assert_eq!((cqe.vendor_err_synd, cqe.syndrome), (0xf9, 5));
        assert_eq!((cqe.qpn(), cqe.send_opcode()), (0x120, 0x0a));
        assert_eq!(cqe.wqe_counter.get(), 0x11);
        assert_eq!(cqe.to_bytes(), bytes);
    }

    #[test]
    fn formats_are_two_bits() {
        for format in [CqeFormat::Plain, CqeFormat::Inline32, CqeFormat::Inline64, CqeFormat::Compressed] {
            let byte = op_own(CqeOpcode::Invalid, format, true, 1);
            assert_eq!(CqeFormat::from_op_own(byte), format);
            assert_eq!(CqeOpcode::from_bits(byte >> 4), CqeOpcode::Invalid);
        }
    }
}
