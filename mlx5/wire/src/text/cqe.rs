//! CQEs.

use core::fmt::{self, Display, Formatter};

use super::{Field, Value, line};
use crate::cqe::{APP_TAG_MATCHING, Cqe64, CqeFormat, ErrorCqe};
use crate::frame::{L2_OK, StrideCount};
use crate::opcode::CqeOpcode;
use crate::syndrome::Syndrome;

/// A CQE, for printing.
#[derive(Clone, Copy, Debug)]
pub struct CqeText<'a>(pub &'a [u8; Cqe64::SIZE]);

impl Display for CqeText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        line(f, |each| self.fields(each))
    }
}

impl<'a> CqeText<'a> {
    /// Calls `each` for the fields in the order of their offsets. Fields that a CQE of this kind seldom has come only
    /// where they are not 0.
    pub fn fields(&self, each: &mut dyn FnMut(Field<'a>)) {
        let cqe = Cqe64::from_bytes(self.0);
        let mut put = |offset, name, value, note| each(Field { offset, name, value, note });
        let opcode = cqe.opcode();
        let uidx = Value::Hex(u64::from(cqe.srqn_uidx.get() & 0xff_ffff), 6);
        let count = StrideCount(cqe.byte_cnt.get());
        // No CQE of RDMA has this bit, and fillers of a striding queue are known by their count.
        let is_frame = opcode == CqeOpcode::ResponderSend && (cqe.hds_ip_ext & L2_OK != 0 || count.is_filler());
        match opcode {
            CqeOpcode::RequesterError | CqeOpcode::ResponderError => self.error(&mut put),
            _ => {
                if is_frame {
                    put(2, "wqe_id", Value::Count(cqe.wqe_id.get().into()), "");
                    put(12, "rx_hash_result", Value::Hex(cqe.rx_hash_result.get().into(), 8), "");
                    put(28, "hds_ip_ext", Value::Hex(cqe.hds_ip_ext.into(), 2), "");
                    put(29, "l4_hdr_type_etc", Value::Hex(cqe.l4_hdr_type_etc.into(), 2), "");
                    put(30, "vlan_info", Value::Hex(cqe.vlan_info.get().into(), 4), "");
                } else if cqe.format() == CqeFormat::Inline32 {
                    let len = self.0.len().min(cqe.byte_cnt.get() as usize).min(32);
                    put(0, "inline", Value::Bytes(&self.0[..len]), "");
                } else if opcode.is_responder() {
                    put(22, "slid", Value::Hex(cqe.slid.get().into(), 4), "");
                    let note = if cqe.has_grh() { "with a GRH" } else { "" };
                    put(25, "source_qp", Value::Hex(cqe.source_qpn().into(), 0), note);
                }
                put(32, "srqn_uidx", uidx, "");
                if cqe.imm_inval_pkey.get() != 0 {
                    let note = "immediate data, invalidated key or partition key";
                    put(36, "imm_inval_pkey", Value::Hex(cqe.imm_inval_pkey.get().into(), 8), note);
                }
                if cqe.app == APP_TAG_MATCHING {
                    put(40, "app", Value::Hex(cqe.app.into(), 2), "tag matching");
                    put(41, "app_op", Value::AppOp(cqe.app_op), "");
                    let note = "entry of the tag list";
                    put(42, "app_info", Value::Count(cqe.app_info.get().into()), note);
                }
                match cqe.format() {
                    _ if is_frame && count.is_filler() => {
                        put(44, "byte_cnt", Value::Hex(count.0.into(), 8), "strides without a frame")
                    }
                    CqeFormat::Compressed => {
                        put(44, "byte_cnt", Value::Count(count.0.into()), "number of CQEs in the block")
                    }
                    _ => put(44, "byte_cnt", Value::Count(count.0.into()), ""),
                }
                if cqe.timestamp.get() != 0 {
                    put(48, "timestamp", Value::Hex(cqe.timestamp.get(), 0), "");
                }
                match opcode {
                    _ if is_frame => {
                        put(56, "dropped", Value::Count(cqe.dropped().into()), "");
                        put(57, "flow_tag", Value::Hex(cqe.flow_tag().into(), 0), "");
                    }
                    CqeOpcode::Requester => {
                        put(56, "wqe_opcode", Value::Opcode(cqe.send_opcode()), "");
                        put(57, "qp", Value::Hex(cqe.qpn().into(), 0), "");
                    }
                    _ => put(57, "qp", Value::Hex(cqe.qpn().into(), 0), ""),
                }
                put(60, "wqe_counter", Value::Index(cqe.wqe_counter.get()), "");
            }
        }
        put(62, "signature", Value::Hex(cqe.signature.into(), 2), "");
        put(63, "op_own", Value::OpOwn(cqe.op_own), "");
    }

    fn error(&self, put: &mut impl FnMut(usize, &'static str, Value<'a>, &'static str)) {
        let cqe = ErrorCqe::from_bytes(self.0);
        let requester = cqe.op_own >> 4 == CqeOpcode::RequesterError.bits();
        let reserved = |at: &usize| (0..32).chain(36..52).any(|reserved| reserved == *at);
        if let Some(first) = (0..52).filter(reserved).find(|&at| self.0[at] != 0) {
            let note = "; an Ethernet receive queue leaves fields of the packet there";
            put(first, "reserved", Value::Bytes(&self.0[first..52]), note);
        }
        let note = "number of the SRQ, or the index that the library gave the queue";
        put(32, "srqn_uidx", Value::Hex(u64::from(cqe.srqn_uidx.get() & 0xff_ffff), 6), note);
        put(52, "hw_err_synd", Value::Hex(cqe.hw_err_synd.into(), 2), "");
        put(53, "hw_synd_type", Value::Hex(cqe.hw_synd_type.into(), 2), "");
        let vendor = Value::Vendor(cqe.vendor_err_synd, Syndrome::new(cqe.syndrome));
        put(54, "vendor_err_synd", vendor, "");
        put(55, "syndrome", Value::Syndrome(cqe.syndrome), "");
        let [opcode, queue, counter] = match (requester, cqe.qpn()) {
            (true, _) => ["", "", "index of the WQE's first basic block"],
            (false, 0) => [
                "of no meaning for a receive",
                "0: an Ethernet receive queue does not say it",
                "index of the receive; of an SRQ its slot",
            ],
            (false, _) => ["of no meaning for a receive", "", "index of the receive; of an SRQ its slot"],
        };
        put(56, "wqe_opcode", Value::Opcode(cqe.send_opcode()), opcode);
        put(57, "qp", Value::Hex(cqe.qpn().into(), 0), queue);
        put(60, "wqe_counter", Value::Index(cqe.wqe_counter.get()), counter);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;
    use std::vec::Vec;

    use super::super::Meaning;
    use super::*;

    #[test]
    fn cqes() {
        let mut cqe = Cqe64::zeroed();
        cqe.sop_drop_qpn = 0x41.into();
        cqe.wqe_counter = 5.into();
        cqe.byte_cnt = 64.into();
        cqe.flags_rqpn = 0x1000_0042.into();
        cqe.op_own = 0x2a;
        assert_eq!(
            CqeText(&cqe.to_bytes()).to_string(),
            "opcode=RESP_SEND solicited format=2 slid=0x0000 source_qp=0x42 srqn_uidx=0x000000 \
             byte_cnt=64 qp=0x41 wqe_counter=5 signature=0x00"
        );
        let mut error = ErrorCqe::zeroed();
        error.s_wqe_opcode_qpn = 0x0a00_0041.into();
        (error.syndrome, error.vendor_err_synd, error.op_own) = (5, 0xf9, 0xd0);
        assert_eq!(
            CqeText(&error.to_bytes()).to_string(),
            "opcode=REQ_ERR srqn_uidx=0x000000 hw_err_synd=0x00 hw_synd_type=0x00 \
             vendor_err_synd=0xf9 syndrome=0x05 wqe_opcode=SEND qp=0x41 wqe_counter=0 \
             signature=0x00"
        );
        let mut meanings = Vec::new();
        CqeText(&error.to_bytes()).fields(&mut |field| {
            meanings.push((field.offset, field.value.to_string(), Meaning(field).to_string()));
        });
        let syndrome = "WR_FLUSH_ERR: Work Request Flushed Error (status 5 of verbs)";
        assert!(meanings.contains(&(55, "0x05".into(), syndrome.into())), "{meanings:?}");
        let op_own = "REQ_ERR, error of a send queue, owner 0";
        assert!(meanings.contains(&(63, "0xd0".into(), op_own.into())), "{meanings:?}");
    }

    #[test]
    fn cqes_of_frames() {
        let mut cqe = Cqe64::zeroed();
        (cqe.hds_ip_ext, cqe.l4_hdr_type_etc, cqe.op_own) = (7, 0x29, 0x20);
        (cqe.sop_drop_qpn, cqe.byte_cnt) = (0x0200_0abc.into(), 60.into());
        (cqe.wqe_counter, cqe.wqe_id, cqe.vlan_info) = (5.into(), 9.into(), 0x2064.into());
        let text = CqeText(&cqe.to_bytes()).to_string();
        assert!(text.starts_with("opcode=RESP_SEND wqe_id=9 rx_hash_result=0x00000000 "), "{text}");
        for field in ["dropped=2", "flow_tag=0xabc", "vlan_info=0x2064", "byte_cnt=60"] {
            assert!(text.contains(field), "{text}");
        }
        let filler = Cqe64 { byte_cnt: StrideCount::filler(3).0.into(), hds_ip_ext: 0, ..cqe };
        let text = CqeText(&filler.to_bytes()).to_string();
        assert!(text.contains("byte_cnt=0x80030000"), "{text}");
    }
}
