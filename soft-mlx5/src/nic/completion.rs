//! The CQEs that queue pairs write.

use mlx5_wire::cqe::{Cqe64, CqeFormat, ErrorCqe, op_own};
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::syndrome::Syndrome;

use super::cq::Completion;
use super::qp::Qp;
use super::transmit::PKEY;

/// Cause of an error, as an error CQE reports it. `docs/soft-mlx5.md` says which bytes adapters were seen to write and
/// which are extrapolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Syndrome for software.
    pub syndrome: Syndrome,
    /// Syndrome for the support of the vendor.
    pub vendor: u8,
    /// `hw_err_synd` and `hw_synd_type`.
    pub hardware: [u8; 2],
}

impl Failure {
    /// A send WQE whose sizes are not legal.
    pub const LOCAL_LENGTH: Self = Self::new(Syndrome::LOCAL_LENGTH, 0x68, [0x60, 0x10]);
    /// A message or answer that is too long for what was posted.
    pub const LOCAL_LENGTH_RECEIVE: Self = Self::new(Syndrome::LOCAL_LENGTH, 0x8e, [0, 0]);
    /// Illegal WQE.
    pub const LOCAL_QP_OP: Self = Self::new(Syndrome::LOCAL_QP_OP, 0x68, [0x01, 0]);
    /// A local key does not allow the access: seen at the requester.
    pub const LOCAL_PROT: Self = Self::new(Syndrome::LOCAL_PROT, 0x53, [0x9d, 0]);
    /// The same, seen at the responder.
    pub const LOCAL_PROT_RECEIVE: Self = Self::new(Syndrome::LOCAL_PROT, 0x32, [0x92, 0]);
    /// The same, of a receive queue of frames.
    pub const LOCAL_PROT_FRAME: Self = Self::new(Syndrome::LOCAL_PROT, 0x32, [0x93, 0]);
    /// The queue pair was in error before the WQE's turn came.
    pub const FLUSH: Self = Self::new(Syndrome::WR_FLUSH, 0xf9, [0x01, 0]);
    /// An answer that does not fit the request.
    pub const BAD_RESPONSE: Self = Self::new(Syndrome::BAD_RESP, 0x83, [0, 0]);
    /// The responder found the request invalid.
    pub const REMOTE_INVALID: Self = Self::new(Syndrome::REMOTE_INVAL_REQ, 0x8a, [0, 0]);
    /// The responder refused the access.
    pub const REMOTE_ACCESS: Self = Self::new(Syndrome::REMOTE_ACCESS, 0x88, [0, 0]);
    /// The responder could not complete the operation.
    pub const REMOTE_OPERATION: Self = Self::new(Syndrome::REMOTE_OP, 0x89, [0, 0]);
    /// No acknowledgement after all retries.
    pub const RETRIES: Self = Self::new(Syndrome::TRANSPORT_RETRY_EXC, 0x81, [0, 0]);
    /// Receiver not ready after all retries.
    pub const RNR_RETRIES: Self = Self::new(Syndrome::RNR_RETRY_EXC, 0x87, [0, 0]);

    /// All failures.
    pub const ALL: &[Self] = &[
        Self::LOCAL_LENGTH,
        Self::LOCAL_LENGTH_RECEIVE,
        Self::LOCAL_QP_OP,
        Self::LOCAL_PROT,
        Self::LOCAL_PROT_RECEIVE,
        Self::LOCAL_PROT_FRAME,
        Self::FLUSH,
        Self::BAD_RESPONSE,
        Self::REMOTE_INVALID,
        Self::REMOTE_ACCESS,
        Self::REMOTE_OPERATION,
        Self::RETRIES,
        Self::RNR_RETRIES,
    ];

    const fn new(syndrome: Syndrome, vendor: u8, hardware: [u8; 2]) -> Self {
        Self { syndrome, vendor, hardware }
    }
}

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
    bytes.s_wqe_opcode_qpn = number(opcode, qp.number).into();
    bytes.wqe_counter = counter.into();
    // Adapters set the bit in each error CQE of a send queue and of a receive queue of RDMA.
    bytes.op_own = op_own(cqe, CqeFormat::Plain, true, 0);
    Completion { cqe: bytes.to_bytes(), front: None }
}

/// Properties of a message besides its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// SEND or WRITE, with or without trailer.
    pub opcode: CqeOpcode,
    /// Immediate data or invalidated key.
    pub immediate: u32,
    /// Bytes of the message, a GRH included.
    pub byte_cnt: u32,
    /// Queue pair that sent it.
    pub source_qpn: u32,
    /// Port that sent it.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// A GRH came with it.
    pub global: bool,
    /// The sender asked for an event.
    pub solicited: bool,
}

impl Arrival {
    /// Describes the arrival of no message, from this queue pair.
    pub fn nothing(source_qpn: u32) -> Self {
        Self {
            opcode: CqeOpcode::ResponderSend,
            immediate: 0,
            byte_cnt: 0,
            source_qpn,
            slid: 0,
            sl: 0,
            global: false,
            solicited: false,
        }
    }
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
    cqe.sop_drop_qpn = qp.number.into();
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
