//! Contents of CQEs: messages that arrived, causes of errors.

use mlx5_wire::cqe::{Cqe64, SOLICITED_EVENT};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::syndrome::Syndrome;

const CQE_SIZE: usize = Cqe64::SIZE;

/// A CQE on its way into a queue.
#[derive(Debug, Clone)]
pub struct Completion {
    /// The CQE; the queue sets the owner bit and the signature.
    pub cqe: [u8; CQE_SIZE],
    /// Payload for the 64 bytes in front of it, in a queue of 128-byte CQEs.
    pub front: Option<[u8; CQE_SIZE]>,
}

impl Completion {
    /// Returns `true` if it raises an event of a CQ that is armed for solicited CQEs.
    pub fn is_solicited(&self) -> bool {
        let op_own = self.cqe[CQE_SIZE - 1];
        let error = matches!(CqeOpcode::from_bits(op_own >> 4), CqeOpcode::RequesterError | CqeOpcode::ResponderError);
        error || op_own & SOLICITED_EVENT != 0
    }
}

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
    /// A local key does not allow the access: seen at the responder.
    pub const LOCAL_PROT_RECEIVE: Self = Self::new(Syndrome::LOCAL_PROT, 0x32, [0x92, 0]);
    /// A local key does not allow the access: seen at a receive queue of frames.
    pub const LOCAL_PROT_FRAME: Self = Self::new(Syndrome::LOCAL_PROT, 0x32, [0x93, 0]);
    /// A list of a size that UMR does not have.
    pub const UMR_SIZE: Self = Self::new(Syndrome::LOCAL_QP_OP, 0x68, [0x86, 0]);
    /// A change of a memory key that the key does not allow.
    pub const MW_BIND: Self = Self::new(Syndrome::MW_BIND, 0x78, [0x08, 0]);
    /// The queue pair was in error before the WQE's turn came.
    pub const FLUSH: Self = Self::new(Syndrome::WR_FLUSH, 0xf9, [0x01, 0]);
    /// An answer that does not fit the request.
    pub const BAD_RESPONSE: Self = Self::new(Syndrome::BAD_RESP, 0x83, [0, 0]);
    /// The responder found the request invalid.
    pub const REMOTE_INVALID: Self = Self::new(Syndrome::REMOTE_INVAL_REQ, 0x8a, [0, 0]);
    /// A key that the peer cannot invalidate: seen at the responder.
    pub const INVALIDATE_RECEIVE: Self = Self::new(Syndrome::REMOTE_INVAL_REQ, 0x32, [0, 0]);
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
        Self::UMR_SIZE,
        Self::MW_BIND,
        Self::INVALIDATE_RECEIVE,
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
