//! Reading a CQE that belongs to software.

use core::fmt;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::slice;

use mlx5_wire::be::{Be16, Be32, Be64};
use mlx5_wire::cqe::{self, Cqe64, CqeFormat, ErrorCqe};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::syndrome::{Syndrome, is_odp_page_fault};
use mlx5_wire::tm::{AppOp, TagMatchingResult};
use mlx5_wire::tmh::Tmh;

/// A CQE that has arrived and was not given back yet.
///
/// The last word says who owns the CQE and what kind it is. It was read once, when the CQE was found: every decision
/// that depends on it uses that one reading, whatever the device writes. The other fields are read when asked for.
#[derive(Clone, Copy)]
pub struct Cqe<'a> {
    cqe: NonNull<u8>,
    last_word: LastWord,
    /// Bytes of the whole entry: 64, or 128 of which this is the second half.
    size: u16,
    kind: CqeKind,
    batch: PhantomData<&'a ()>,
}

/// `wqe_counter`, `signature` and `op_own` as they stand in memory: one aligned word, which the device cannot write in
/// halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct LastWord(u32);

impl LastWord {
    /// Reads the last word of a CQE.
    ///
    /// # Safety
    /// `cqe` is a CQE in mapped memory, aligned to 64 bytes.
    #[inline(always)]
    pub(crate) unsafe fn read(cqe: NonNull<u8>) -> Self {
        // SAFETY: inside the CQE, and aligned; volatile because the device writes it.
        Self(unsafe { cqe.add(offset_of!(Cqe64, wqe_counter)).cast::<u32>().read_volatile() })
    }

    #[inline(always)]
    pub(crate) const fn op_own(self) -> u8 {
        self.0.to_ne_bytes()[3]
    }

    /// Returns the kind of a CQE with this word, on a lap with this owner bit.
    #[inline(always)]
    pub(crate) const fn kind(self, owner: u8) -> CqeKind {
        kind(self.op_own() ^ owner)
    }

    /// Returns `true` for a CQE of software's, on a lap with this owner bit, that has this `op_own` except for the
    /// owner bit.
    #[inline(always)]
    pub(crate) const fn is(self, op_own: u8, owner: u8) -> bool {
        self.op_own() ^ owner == op_own
    }

    /// Returns `true` for a CQE that the device has not written yet, on a lap with this owner bit: as
    /// [`kind`](Self::kind) says, without the table.
    #[inline(always)]
    pub(crate) const fn is_pending(self, owner: u8) -> bool {
        const { assert!(cqe::OWNER == 1 && matches!(CqeOpcode::from_bits(15), CqeOpcode::Invalid)) }
        // One comparison finds both the wrong owner bit, which becomes the largest, and the largest opcode.
        (self.op_own() ^ owner).rotate_right(1) >= 0xf0 >> 1
    }

    #[inline(always)]
    const fn wqe_counter(self) -> u16 {
        let [upper, lower, ..] = self.0.to_ne_bytes();
        u16::from_be_bytes([upper, lower])
    }
}

/// `op_own` of a send WQE that succeeded, with owner bit 0.
pub const REQUESTER: u8 = cqe::op_own(CqeOpcode::Requester, CqeFormat::Plain, false, 0);

/// `op_own` of a frame or a SEND that was received, without immediate data or solicited event, with owner bit 0.
pub const SEND: u8 = cqe::op_own(CqeOpcode::ResponderSend, CqeFormat::Plain, false, 0);

/// Bits of the opcodes of messages: a SEND without immediate data or a key has none of them, and each other message has
/// one.
const IMM_OR_KEY: u8 = cqe::op_own(CqeOpcode::ResponderWriteImm, CqeFormat::Plain, false, 0)
    | cqe::op_own(CqeOpcode::ResponderSendInv, CqeFormat::Plain, false, 0);

/// Kind of a CQE, from its last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CqeKind {
    /// A SEND arrived, with or without immediate data, that invalidated no key; the payload is in the posted buffers.
    Send,
    /// A SEND arrived that invalidated a key; the payload is in the posted buffers.
    Invalidated,
    /// An RDMA WRITE with immediate data was completed: nothing is in the posted buffers or in the CQE, and the byte
    /// count is of what was written elsewhere.
    Written,
    /// A message arrived whose payload, if it is short enough, is in the CQE.
    Inline,
    /// The device has not written it yet.
    Pending,
    /// Title of a compressed block.
    Compressed,
    /// A receive failed.
    Failed,
    /// Something other than a receive: a send, a tag-list operation.
    NotAReceive,
    /// No device writes this, except while the CQ is resized.
    Impossible,
}

/// Returns the kind of a CQE with this `op_own`, where the owner bit is 0 for software's.
#[inline(always)]
pub(crate) const fn kind(op_own: u8) -> CqeKind {
    KINDS[op_own as usize]
}

/// Kinds of CQEs by `op_own`, where the owner bit is 0 for software's.
const KINDS: [CqeKind; 256] = {
    let mut kinds = [CqeKind::Pending; 256];
    let mut op_own = 0;
    while op_own < 256 {
        kinds[op_own] = kind_of(op_own as u8);
        op_own += 1;
    }
    kinds
};

const fn kind_of(op_own: u8) -> CqeKind {
    if op_own & cqe::OWNER != 0 {
        return CqeKind::Pending;
    }
    match (CqeOpcode::from_bits(op_own >> 4), CqeFormat::from_op_own(op_own)) {
        (CqeOpcode::Invalid, _) => CqeKind::Pending,
        (CqeOpcode::ResizeCq | CqeOpcode::Unknown(_), _) => CqeKind::Impossible,
        (_, CqeFormat::Compressed) => CqeKind::Compressed,
        (CqeOpcode::ResponderError, _) => CqeKind::Failed,
        (CqeOpcode::ResponderWriteImm, _) => CqeKind::Written,
        (opcode, CqeFormat::Inline32 | CqeFormat::Inline64) if opcode.is_responder() => CqeKind::Inline,
        (CqeOpcode::ResponderSendInv, _) => CqeKind::Invalidated,
        (opcode, _) if opcode.is_responder() => CqeKind::Send,
        _ => CqeKind::NotAReceive,
    }
}

macro_rules! field {
    ($self:ident, $format:ident.$field:ident: $type:ty) => {{
        // SAFETY: inside the CQE by its layout, and aligned because CQEs are to 64 bytes; volatile
        // because the device wrote it.
        unsafe { $self.cqe.add(offset_of!($format, $field)).cast::<$type>().read_volatile() }
    }};
}

mod frame;

impl<'a> Cqe<'a> {
    /// # Safety
    /// - `cqe` is an aligned CQE in mapped memory that the device does not write during `'a`.
    /// - `last_word` was read from it since it is software's, and `kind` follows from that; `size` is that of the
    ///   entries of its CQ.
    #[inline(always)]
    pub(crate) const unsafe fn new(cqe: NonNull<u8>, last_word: LastWord, kind: CqeKind, size: usize) -> Self {
        Self { cqe, last_word, size: size as u16, kind, batch: PhantomData }
    }

    /// Reads the last word of a CQE that is software's on a lap with this owner bit.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    #[inline(always)]
    pub(crate) unsafe fn read(cqe: NonNull<u8>, owner: u8, size: usize) -> Self {
        // SAFETY: the caller passes an aligned CQE that is software's, and that the device does not write during `'a`.
        unsafe {
            let last_word = LastWord::read(cqe);
            Self::new(cqe, last_word, last_word.kind(owner), size)
        }
    }

    /// Returns the CQE for a borrow of another length.
    ///
    /// # Safety
    /// The consumer index is not published past it during `'b`.
    #[inline(always)]
    pub const unsafe fn detach<'b>(self) -> Cqe<'b> {
        let Self { cqe, last_word, size, kind, .. } = self;
        Cqe { cqe, last_word, size, kind, batch: PhantomData }
    }

    /// Returns where the CQE is.
    #[inline(always)]
    pub const fn place(&self) -> NonNull<u8> {
        self.cqe
    }

    /// Returns the word that was read when the CQE was found.
    #[inline(always)]
    pub const fn last_word(&self) -> LastWord {
        self.last_word
    }

    /// Opcode, format, solicited event and owner.
    #[inline(always)]
    pub fn op_own(&self) -> u8 {
        self.last_word.op_own()
    }

    /// Returns the kind of the CQE.
    #[inline(always)]
    pub const fn kind(&self) -> CqeKind {
        self.kind
    }

    /// Returns `true` for a send WQE that succeeded, and that left no data in the CQE.
    #[inline(always)]
    pub fn is_plain_requester(&self) -> bool {
        const BITS: u8 = !(cqe::OWNER | cqe::SOLICITED_EVENT);
        self.op_own() & BITS == REQUESTER
    }

    /// Opcode.
    #[inline(always)]
    pub fn opcode(&self) -> CqeOpcode {
        CqeOpcode::from_bits(self.op_own() >> 4)
    }

    /// Returns `true` if the message that this CQE reports came with immediate data or a key to invalidate.
    #[inline(always)]
    pub fn has_imm_or_key(&self) -> bool {
        self.op_own() & IMM_OR_KEY != 0
    }

    /// Format.
    #[inline(always)]
    pub fn format(&self) -> CqeFormat {
        CqeFormat::from_op_own(self.op_own())
    }

    /// SRQ: slot. Receive queue: running index. Send queue: index of the basic block.
    #[inline(always)]
    pub fn wqe_counter(&self) -> u16 {
        self.last_word.wqe_counter()
    }

    /// Bytes of the message.
    #[inline(always)]
    pub fn byte_count(&self) -> u32 {
        field!(self, Cqe64.byte_cnt: Be32).get()
    }

    /// Number of the QP that completed.
    #[inline(always)]
    pub fn qpn(&self) -> u32 {
        field!(self, Cqe64.sop_drop_qpn: Be32).get() & 0xff_ffff
    }

    /// Opcode of the send WQE that completed.
    #[inline(always)]
    pub fn send_opcode(&self) -> u8 {
        (field!(self, Cqe64.sop_drop_qpn: Be32).get() >> 24) as u8
    }

    /// Immediate data or invalidated key, as the sender gave it.
    #[inline(always)]
    pub fn imm_inval_pkey(&self) -> u32 {
        field!(self, Cqe64.imm_inval_pkey: Be32).get()
    }

    /// Device clock when the CQE was made, in ticks.
    #[inline(always)]
    pub fn timestamp(&self) -> u64 {
        field!(self, Cqe64.timestamp: Be64).get()
    }

    /// User index or SRQ number.
    #[inline(always)]
    pub fn srqn_uidx(&self) -> u32 {
        field!(self, Cqe64.srqn_uidx: Be32).get() & 0xff_ffff
    }

    /// Cause of an error CQE.
    #[inline]
    pub fn syndrome(&self) -> Syndrome {
        Syndrome::new(field!(self, ErrorCqe.syndrome: u8))
    }

    /// Cause of an error CQE in the device's own terms.
    #[inline]
    pub fn vendor_err_synd(&self) -> u8 {
        field!(self, ErrorCqe.vendor_err_synd: u8)
    }

    /// Application that wrote the CQE: [`APP_TAG_MATCHING`](mlx5_wire::cqe::APP_TAG_MATCHING) or 0.
    #[inline(always)]
    pub fn app(&self) -> u8 {
        field!(self, Cqe64.app: u8)
    }

    /// Tag-matching operation that the CQE reports.
    #[inline(always)]
    pub fn app_op(&self) -> AppOp {
        AppOp::new(field!(self, Cqe64.app_op: u8))
    }

    /// Entry of the tag list.
    #[inline(always)]
    pub fn app_info(&self) -> u16 {
        field!(self, Cqe64.app_info: Be16).get()
    }

    /// Result of a list operation.
    #[inline]
    pub fn list_result(&self) -> TagMatchingResult {
        TagMatchingResult {
            success: field!(self, TagMatchingResult.success: Be32),
            hw_phase_cnt: field!(self, TagMatchingResult.hw_phase_cnt: Be16),
            ..TagMatchingResult::zeroed()
        }
    }

    /// Header of the message that matched, in the CQE that reports the match.
    #[inline]
    pub fn tmh(&self) -> Tmh {
        Tmh {
            opcode: field!(self, Tmh.opcode: u8),
            reserved1: field!(self, Tmh.reserved1: [u8; 3]),
            app_ctx: field!(self, Tmh.app_ctx: Be32),
            tag: field!(self, Tmh.tag: Be64),
        }
    }

    /// Returns `true` if an error CQE reports a receive whose memory is registered on demand (ODP) and was not there:
    /// the QP has not failed, and the message will come again.
    #[inline]
    pub fn is_odp_page_fault(&self) -> bool {
        is_odp_page_fault(self.syndrome(), self.vendor_err_synd())
    }

    /// How the message came. Inline data of up to 32 bytes overwrites this field and those of the functions down to
    /// [`is_checksum_ok`](Self::is_checksum_ok).
    #[inline(always)]
    pub fn route(&self) -> Route {
        Route(field!(self, Cqe64.flags_rqpn: Be32).get())
    }

    /// Number of the QP that sent the message: see [`route`](Self::route).
    #[inline]
    pub fn source_qpn(&self) -> u32 {
        self.route().source_qpn()
    }

    /// Service level: see [`route`](Self::route).
    #[inline]
    pub fn sl(&self) -> u8 {
        self.route().sl()
    }

    /// Returns `true` if a GRH came with the message: see [`route`](Self::route).
    #[inline]
    pub fn has_grh(&self) -> bool {
        self.route().has_grh()
    }

    /// Source LID.
    #[inline(always)]
    pub fn slid(&self) -> u16 {
        field!(self, Cqe64.slid: Be16).get()
    }

    /// Path bits of the destination LID.
    #[inline(always)]
    pub fn dlid_path_bits(&self) -> u8 {
        field!(self, Cqe64.ml_path: u8) & 0x7f
    }

    /// RSS hash result.
    #[inline]
    pub fn rx_hash_result(&self) -> u32 {
        field!(self, Cqe64.rx_hash_result: Be32).get()
    }

    /// Checksum of the packet.
    #[inline]
    pub fn check_sum(&self) -> u16 {
        field!(self, Cqe64.check_sum: Be16).get()
    }

    /// Returns `true` if the checksums of layers 3 and 4 of an IPv4 packet are good.
    #[inline]
    pub fn is_checksum_ok(&self) -> bool {
        let (ip, l4) = (field!(self, Cqe64.hds_ip_ext: u8), field!(self, Cqe64.l4_hdr_type_etc: u8));
        cqe::is_checksum_ok(ip, l4)
    }

    /// All 64 bytes.
    pub fn bytes(&self) -> [u8; Cqe64::SIZE] {
        let mut bytes = [0; Cqe64::SIZE];
        for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
            // SAFETY: inside the CQE and aligned.
            let value = unsafe { self.cqe.cast::<u64>().add(i).read_volatile() };
            word.copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }

    /// A copy of the CQE as a struct.
    pub fn to_cqe64(&self) -> Cqe64 {
        Cqe64::from_bytes(&self.bytes())
    }

    /// Returns the payload of an inline CQE: 32 or 64 bytes, of which the message may need fewer.
    #[inline]
    pub fn inline_payload(&self) -> Option<&'a [u8]> {
        // The bits are compared: for the enumeration the compiler makes a table of jumps.
        let format = self.op_own() & CqeFormat::Compressed.bits();
        let (start, len) = if format == CqeFormat::Inline32.bits() {
            (self.cqe, 32)
        } else if format == CqeFormat::Inline64.bits() && self.size == 128 {
            // SAFETY: an entry of 128 bytes, whose first half stands before the CQE proper.
            (unsafe { self.cqe.sub(64) }, 64)
        } else {
            return None;
        };
        // SAFETY: inside the entry, which the device does not write during `'a`.
        Some(unsafe { slice::from_raw_parts(start.as_ptr(), len) })
    }
}

/// The word of a CQE that says how a message came, read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route(u32);

impl Route {
    /// Number of the QP that sent the message.
    #[inline(always)]
    pub const fn source_qpn(self) -> u32 {
        self.0 & 0xff_ffff
    }

    /// Service level.
    #[inline(always)]
    pub const fn sl(self) -> u8 {
        (self.0 >> 24) as u8 & 0xf
    }

    /// Returns `true` if a GRH came with the message.
    #[inline(always)]
    pub const fn has_grh(self) -> bool {
        self.0 >> 28 & 3 != 0
    }
}

impl fmt::Debug for Cqe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(self.opcode(), CqeOpcode::RequesterError | CqeOpcode::ResponderError) {
            ErrorCqe::from_bytes(&self.bytes()).fmt(f)
        } else {
            self.to_cqe64().fmt(f)
        }
    }
}

#[cfg(test)]
mod tests;
