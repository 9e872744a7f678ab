//! The CQEs that queue pairs write.

use mlx5_wire::cqe::{Cqe64, CqeFormat, ErrorCqe, op_own};
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};

use crate::fabric::headers::PKEY;
use crate::fabric::packet::Packet;
use crate::objects::Service;
use crate::objects::completion::{Arrival, Completion, Failure};

use crate::objects::qp::Qp;

fn number(opcode: u8, qpn: u32) -> u32 {
    u32::from(opcode) << 24 | qpn
}

/// Returns the completion of an executed send WQE. `inline` is the result of a READ or atomic that goes into the CQE.
pub fn requester(
    qp: &Qp,
    opcode: WqeOpcode,
    index: u16,
    byte_cnt: u32,
    inline: Option<(CqeFormat, &[u8])>,
    now: u64,
) -> Completion {
    let mut cqe = Cqe64::zeroed();
    cqe.srqn_uidx = qp.attr.user_index.into();
    cqe.byte_cnt = byte_cnt.into();
    cqe.timestamp = now.into();
    cqe.sop_drop_qpn = number(opcode.get(), qp.number).into();
    cqe.wqe_counter = index.into();
    with_inline(cqe, CqeOpcode::Requester, false, inline)
}

/// Returns the completion of a send WQE that failed or was flushed.
pub fn requester_error(qp: &Qp, opcode: WqeOpcode, index: u16, failure: Failure) -> Completion {
    error(qp, CqeOpcode::RequesterError, opcode.get(), index, failure)
}

/// Returns the completion of a receive WQE that failed or was flushed.
pub fn responder_error(qp: &Qp, counter: u16, failure: Failure) -> Completion {
    error(qp, CqeOpcode::ResponderError, 0, counter, failure)
}

fn error(qp: &Qp, cqe: CqeOpcode, opcode: u8, counter: u16, failure: Failure) -> Completion {
    let mut bytes = ErrorCqe::zeroed();
    bytes.srqn_uidx = qp.attr.user_index.into();
    [bytes.hw_err_synd, bytes.hw_synd_type] = failure.hardware;
    bytes.vendor_err_synd = failure.vendor;
    bytes.syndrome = failure.syndrome.get();
    bytes.s_wqe_opcode_qpn = number(opcode, qp.cqe_number()).into();
    bytes.wqe_counter = counter.into();
    // Adapters set the bit in each error CQE of a send queue and of a receive queue of RDMA.
    bytes.op_own = op_own(cqe, CqeFormat::Plain, true, 0);
    Completion { cqe: bytes.to_bytes(), front: None }
}

/// Returns the completion of a filled receive WQE.
pub fn responder(qp: &Qp, counter: u16, arrival: &Arrival, inline: Option<(CqeFormat, &[u8])>, now: u64) -> Completion {
    let mut cqe = Cqe64::zeroed();
    cqe.slid = arrival.slid.into();
    let grh = u32::from(arrival.global) << 28;
    cqe.flags_rqpn = (grh | u32::from(arrival.sl) << 24 | arrival.source_qpn).into();
    cqe.srqn_uidx = qp.attr.user_index.into();
    // Datagrams of management tell their partition key instead of immediate data.
    let manages = qp.wire_number <= 1;
    cqe.imm_inval_pkey = if manages { PKEY.into() } else { arrival.immediate }.into();
    cqe.byte_cnt = arrival.byte_cnt.into();
    cqe.timestamp = now.into();
    cqe.sop_drop_qpn = qp.cqe_number().into();
    cqe.wqe_counter = counter.into();
    with_inline(cqe, arrival.opcode, arrival.solicited, inline)
}

fn with_inline(mut cqe: Cqe64, opcode: CqeOpcode, solicited: bool, inline: Option<(CqeFormat, &[u8])>) -> Completion {
    let format = inline.map_or(CqeFormat::Plain, |(format, _)| format);
    cqe.op_own = op_own(opcode, format, solicited, 0);
    let mut completion = Completion { cqe: cqe.to_bytes(), front: None };
    match inline {
        Some((CqeFormat::Inline32, bytes)) => completion.cqe[..bytes.len()].copy_from_slice(bytes),
        Some((_, bytes)) => {
            let mut front = [0; 64];
            front[..bytes.len()].copy_from_slice(bytes);
            completion.front = Some(front);
        }
        None => {}
    }
    completion
}

/// Returns the opcode of the CQE of a SEND.
pub fn opcode(packet: &Packet) -> CqeOpcode {
    match packet.operation {
        operation if operation.has_immediate() => CqeOpcode::ResponderSendImm,
        operation if operation.has_ieth() => CqeOpcode::ResponderSendInv,
        _ => CqeOpcode::ResponderSend,
    }
}

/// Returns the properties of a message that a packet of a SEND carries.
pub fn arrival(qp: &Qp, packet: &Packet, byte_cnt: u32) -> Arrival {
    let datagram = qp.attr.service == Service::Ud;
    Arrival {
        opcode: opcode(packet),
        immediate: packet.immediate,
        byte_cnt,
        source_qpn: if datagram { packet.deth.source_qpn } else { qp.dest_qpn },
        slid: packet.slid,
        sl: packet.sl,
        global: datagram && packet.global,
        solicited: packet.bth.solicited,
    }
}
