//! Fields of a completion beside the message.

use mlx5_ring::completion::Cqe;
use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::opcode::CqeOpcode;
use rdma_core_sys as sys;

use super::failure::{Cause, Failure};
use crate::clock::{Timestamp, TimestampClock};
use crate::cq::Wc;
use crate::message_source::MessageSource;
use crate::status::WcStatus;
use crate::wc_flags::WcFlags;

/// A completion, read when asked for.
pub(super) enum CompletionInfo<'a> {
    /// A completion of the direct path.
    Cqe(Cqe<'a>),
    /// A completion of the verbs path.
    Wc(&'a Wc),
}

impl CompletionInfo<'_> {
    pub(super) fn qp_num(&self) -> u32 {
        match self {
            Self::Cqe(cqe) => cqe.qpn(),
            Self::Wc(wc) => wc.wc.qp_num,
        }
    }

    /// Describes a receive that failed, without its buffers.
    pub(super) fn failure<B>(&self) -> Failure<B> {
        let (cause, vendor_err) = match self {
            Self::Cqe(cqe) => {
                let cause = if cqe.is_odp_page_fault() {
                    Cause::PageFault
                } else {
                    Cause::Status(WcStatus::from_raw(cqe.syndrome().status()))
                };
                (cause, cqe.vendor_err_synd().into())
            }
            Self::Wc(Wc { wc, .. }) => (Cause::Status(WcStatus::from_raw(wc.status)), wc.vendor_err),
        };
        Failure { vendor_err, ..Failure::of(self.qp_num(), cause) }
    }

    pub(super) fn imm(&self) -> Option<u32> {
        match self {
            Self::Cqe(cqe) => match cqe.opcode() {
                CqeOpcode::ResponderSendImm | CqeOpcode::ResponderWriteImm => Some(cqe.imm_inval_pkey()),
                _ => None,
            },
            Self::Wc(wc) => match wc.wc.wc_flags & sys::IBV_WC_WITH_IMM {
                0 => None,
                // SAFETY: the flag says which member of the union was written.
                _ => Some(u32::from_be(unsafe { wc.wc.__bindgen_anon_1.imm_data })),
            },
        }
    }

    pub(super) fn invalidated_rkey(&self) -> Option<u32> {
        match self {
            Self::Cqe(cqe) => (cqe.opcode() == CqeOpcode::ResponderSendInv).then(|| cqe.imm_inval_pkey()),
            Self::Wc(wc) => match wc.wc.wc_flags & sys::IBV_WC_WITH_INV {
                0 => None,
                // SAFETY: the flag says which member of the union was written.
                _ => Some(unsafe { wc.wc.__bindgen_anon_1.invalidated_rkey }),
            },
        }
    }

    /// Bytes that the peer wrote elsewhere, for the notice of an RDMA WRITE.
    pub(super) fn written(&self) -> Option<u32> {
        match self {
            Self::Cqe(cqe) => (cqe.opcode() == CqeOpcode::ResponderWriteImm).then(|| cqe.byte_count()),
            Self::Wc(wc) => (wc.wc.opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM).then_some(wc.wc.byte_len),
        }
    }

    /// `None` where inline data overwrote it.
    pub(super) fn source(&self) -> Option<MessageSource> {
        match self {
            Self::Cqe(cqe) => (cqe.format() != CqeFormat::Inline32).then(|| MessageSource {
                qp_num: cqe.source_qpn(),
                lid: cqe.slid(),
                sl: cqe.sl(),
                dlid_path_bits: cqe.dlid_path_bits(),
            }),
            Self::Wc(Wc { wc, .. }) => {
                Some(MessageSource { qp_num: wc.src_qp, lid: wc.slid, sl: wc.sl, dlid_path_bits: wc.dlid_path_bits })
            }
        }
    }

    /// `of_packets`: the queue pair is of a type whose packets the device checks.
    pub(super) fn flags(&self, of_packets: bool) -> WcFlags {
        let cqe = match self {
            Self::Wc(wc) => return WcFlags::from_bits_retain(wc.wc.wc_flags),
            Self::Cqe(cqe) => cqe,
        };
        let mut flags = WcFlags::empty();
        if self.imm().is_some() {
            flags |= WcFlags::WITH_IMM;
        }
        if self.invalidated_rkey().is_some() {
            flags |= WcFlags::WITH_INV;
        }
        if cqe.format() != CqeFormat::Inline32 {
            if cqe.has_grh() {
                flags |= WcFlags::GRH;
            }
            if of_packets && cqe.is_checksum_ok() {
                flags |= WcFlags::IP_CSUM_OK;
            }
        }
        flags
    }

    /// Time of completion, if it was asked for, by this clock.
    pub(super) fn timestamp(&self, clock: Option<TimestampClock>) -> Option<Timestamp> {
        let raw = match self {
            Self::Cqe(cqe) => cqe.timestamp(),
            Self::Wc(wc) => wc.timestamp?,
        };
        Some(Timestamp::new(raw, clock?))
    }
}
