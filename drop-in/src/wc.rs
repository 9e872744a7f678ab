//! Completions as `struct ibv_wc`: what libmlx5 writes.

#[cfg(target_feature = "ssse3")]
use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_insert_epi16, _mm_loadu_si128, _mm_min_epu8, _mm_setr_epi8,
    _mm_shuffle_epi8, _mm_storeu_si128,
};
#[cfg(target_feature = "ssse3")]
use core::mem::offset_of;

use mlx5_ring::completion::{Cqe, CqeKind};
#[cfg(target_feature = "ssse3")]
use mlx5_wire::cqe::Cqe64;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use rdma_core_sys::{
    IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_GRH, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE,
    IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, ibv_wc,
    ibv_wc_opcode, ibv_wc_status,
};

/// Bytes that an atomic brings.
const ATOMIC_SIZE: u32 = 8;

/// Writes what each completion says.
#[inline(always)]
pub(crate) const fn fill(wc: &mut ibv_wc, wr_id: u64, status: ibv_wc_status, qpn: u32) {
    (wc.wr_id, wc.status, wc.qp_num) = (wr_id, status, qpn);
}

/// Writes what libmlx5 writes of a send.
#[inline(always)]
pub(crate) fn fill_send(wc: &mut ibv_wc, cqe: Cqe<'_>) {
    if cqe.opcode() == CqeOpcode::Requester {
        fill_sent(wc, cqe);
    } else {
        wc.wc_flags = 0;
        wc.vendor_err = cqe.vendor_err_synd().into();
    }
}

/// Writes what libmlx5 writes of a send that succeeded.
#[inline(always)]
pub(crate) fn fill_sent(wc: &mut ibv_wc, cqe: Cqe<'_>) {
    (wc.opcode, wc.wc_flags) = request_opcode(cqe);
    match wc.opcode {
        IBV_WC_RDMA_READ => wc.byte_len = cqe.byte_count(),
        IBV_WC_COMP_SWAP | IBV_WC_FETCH_ADD => wc.byte_len = ATOMIC_SIZE,
        _ => {}
    }
}

/// Writes what libmlx5 writes of a receive.
#[inline(always)]
pub(crate) fn fill_receive(wc: &mut ibv_wc, cqe: Cqe<'_>) {
    if cqe.kind() == CqeKind::Failed {
        wc.wc_flags = 0;
        wc.vendor_err = cqe.vendor_err_synd().into();
    } else {
        fill_received(wc, cqe);
    }
}

/// Writes what libmlx5 writes of a receive that succeeded.
#[inline(always)]
pub(crate) fn fill_received(wc: &mut ibv_wc, cqe: Cqe<'_>) {
    wc.byte_len = cqe.byte_count();
    wc.opcode = IBV_WC_RECV;
    fill_route(wc, cqe);
    if cqe.has_imm_or_key() {
        if cqe.opcode() == CqeOpcode::ResponderSendImm {
            wc.wc_flags |= IBV_WC_WITH_IMM;
            wc.__bindgen_anon_1.imm_data = cqe.imm_inval_pkey().to_be();
        } else {
            fill_write_or_key(wc, cqe);
        }
    }
}

/// Writes what differs from a SEND if a write with immediate data was completed, or a SEND has brought a key to invalidate.
#[cold]
fn fill_write_or_key(wc: &mut ibv_wc, cqe: Cqe<'_>) {
    if cqe.opcode() == CqeOpcode::ResponderSendInv {
        wc.wc_flags |= IBV_WC_WITH_INV;
        wc.__bindgen_anon_1.invalidated_rkey = cqe.imm_inval_pkey();
    } else {
        wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
        wc.wc_flags |= IBV_WC_WITH_IMM;
        wc.__bindgen_anon_1.imm_data = cqe.imm_inval_pkey().to_be();
    }
}

/// Writes how a message came: `src_qp`, `wc_flags`, `pkey_index`, `slid`, `sl` and `dlid_path_bits`.
#[cfg(not(target_feature = "ssse3"))]
#[inline(always)]
fn fill_route(wc: &mut ibv_wc, cqe: Cqe<'_>) {
    fill_route_by_field(wc, cqe);
}

/// As [`fill_route`], field by field.
#[cfg(any(test, not(target_feature = "ssse3")))]
#[inline(always)]
fn fill_route_by_field(wc: &mut ibv_wc, cqe: Cqe<'_>) {
    let route = cqe.route();
    wc.src_qp = route.source_qpn();
    wc.wc_flags = if route.has_grh() { IBV_WC_GRH } else { 0 };
    wc.pkey_index = cqe.imm_inval_pkey() as u16;
    wc.slid = cqe.slid();
    wc.sl = route.sl();
    wc.dlid_path_bits = cqe.dlid_path_bits();
}

/// Writes how a message came: `src_qp`, `wc_flags`, `pkey_index`, `slid`, `sl` and `dlid_path_bits`, which are the last 16 bytes of
/// `ibv_wc`, from 16 bytes of the CQE with one shuffle.
#[cfg(target_feature = "ssse3")]
#[inline(always)]
fn fill_route(wc: &mut ibv_wc, cqe: Cqe<'_>) {
    const TO: usize = offset_of!(ibv_wc, src_qp);
    const FROM: usize = 16;
    /// The partition key is beside those 16 bytes, and takes the place of the VLAN tag.
    const PKEY: usize = offset_of!(Cqe64, imm_inval_pkey) + 2;
    const PLACE: usize = offset_of!(Cqe64, vlan_info) - FROM;
    const QPN: i8 = (offset_of!(Cqe64, flags_rqpn) - FROM) as i8;
    const SLID: i8 = (offset_of!(Cqe64, slid) - FROM) as i8;
    const PATH: i8 = (offset_of!(Cqe64, ml_path) - FROM) as i8;
    const VLAN: i8 = PLACE as i8;
    const {
        assert!(offset_of!(ibv_wc, wc_flags) == TO + 4 && offset_of!(ibv_wc, pkey_index) == TO + 8);
        assert!(offset_of!(ibv_wc, slid) == TO + 10 && offset_of!(ibv_wc, sl) == TO + 12);
        assert!(offset_of!(ibv_wc, dlid_path_bits) == TO + 13 && size_of::<ibv_wc>() == TO + 16);
    }
    // SAFETY: 16 bytes and two bytes of the CQE, which is software's; the last 16 bytes of `wc`.
    unsafe {
        let from = cqe.place().as_ptr();
        let pkey = from.add(PKEY).cast::<i16>().read_unaligned();
        let fields = _mm_loadu_si128(from.add(FROM).cast());
        let fields = _mm_insert_epi16::<{ PLACE as i32 / 2 }>(fields, pkey.into());
        // The first byte of the word with the number of the source QP has the bits of the GRH and the service level.
        #[rustfmt::skip]
        let order = _mm_setr_epi8(
            QPN + 3, QPN + 2, QPN + 1, -1, QPN, -1, -1, -1,
            VLAN + 1, VLAN, SLID + 1, SLID, QPN, PATH, -1, -1,
        );
        let bits = _mm_setr_epi8(-1, -1, -1, 0, 0x30, 0, 0, 0, -1, -1, -1, -1, 0xf, 0x7f, 0, 0);
        // Any of the two bits makes the flag.
        const { assert!(IBV_WC_GRH == 1) }
        let most = _mm_setr_epi8(-1, -1, -1, 0, 1, 0, 0, 0, -1, -1, -1, -1, 0xf, 0x7f, 0, 0);
        let fields = _mm_and_si128(_mm_shuffle_epi8(fields, order), bits);
        let to = (&raw mut *wc).cast::<u8>().add(TO).cast::<__m128i>();
        _mm_storeu_si128(to, _mm_min_epu8(fields, most));
    }
}

/// Opcode and flags of a send that succeeded, by the opcode of its WQE.
const SENT: [(ibv_wc_opcode, u32); 256] = {
    let mut sent = [(IBV_WC_SEND, 0); 256];
    let mut opcode = 0;
    while opcode < 256 {
        sent[opcode] = match WqeOpcode::new(opcode as u8) {
            WqeOpcode::RDMA_WRITE => (IBV_WC_RDMA_WRITE, 0),
            WqeOpcode::RDMA_WRITE_IMM => (IBV_WC_RDMA_WRITE, IBV_WC_WITH_IMM),
            WqeOpcode::SEND_IMM => (IBV_WC_SEND, IBV_WC_WITH_IMM),
            WqeOpcode::RDMA_READ => (IBV_WC_RDMA_READ, 0),
            WqeOpcode::ATOMIC_CS => (IBV_WC_COMP_SWAP, 0),
            WqeOpcode::ATOMIC_FA => (IBV_WC_FETCH_ADD, 0),
            _ => (IBV_WC_SEND, 0),
        };
        opcode += 1;
    }
    sent
};

/// Returns opcode and flags of a send that succeeded.
#[inline(always)]
pub(crate) fn request_opcode(cqe: Cqe<'_>) -> (ibv_wc_opcode, u32) {
    SENT[cqe.send_opcode() as usize]
}

/// Returns the opcode of a receive.
#[inline(always)]
pub(crate) fn receive_opcode(opcode: CqeOpcode) -> ibv_wc_opcode {
    if opcode == CqeOpcode::ResponderWriteImm { IBV_WC_RECV_RDMA_WITH_IMM } else { IBV_WC_RECV }
}

/// Returns the flags of a receive.
#[inline(always)]
pub(crate) fn receive_flags(opcode: CqeOpcode, cqe: Cqe<'_>) -> u32 {
    let grh = if cqe.has_grh() { IBV_WC_GRH } else { 0 };
    match opcode {
        CqeOpcode::ResponderSendImm | CqeOpcode::ResponderWriteImm => grh | IBV_WC_WITH_IMM,
        CqeOpcode::ResponderSendInv => grh | IBV_WC_WITH_INV,
        _ => grh,
    }
}

#[cfg(all(test, target_feature = "ssse3"))]
mod tests {
    use core::mem::MaybeUninit;
    use core::ptr::NonNull;

    use mlx5_ring::cq::{CompletionQueue, Layout};
    use mlx5_wire::be::Be32;
    use mlx5_wire::cqe::{CqeFormat, op_own};

    use super::*;

    #[repr(align(64))]
    struct Memory([u8; Cqe64::SIZE], [Be32; 2]);

    #[test]
    fn a_shuffle_writes_what_writing_by_field_does() {
        let mut state = 1_u64;
        for _ in 0..10_000 {
            let mut memory = Memory([0xff; Cqe64::SIZE], [Be32::new(0); 2]);
            let start = NonNull::from(&mut memory.0).cast();
            let dbrec = NonNull::from(&mut memory.1).cast();
            let layout = Layout { buf: start, dbrec, cqe_cnt: 1, cqe_size: Cqe64::SIZE as u32 };
            // SAFETY: memory of the test, with an opcode that no device writes.
            let ring = unsafe { CompletionQueue::new(layout) }.unwrap();
            let mut bytes = [0; Cqe64::SIZE];
            for word in bytes.chunks_mut(4) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                word.copy_from_slice(&((state >> 32) as u32).to_ne_bytes());
            }
            bytes[offset_of!(Cqe64, op_own)] =
                op_own(CqeOpcode::ResponderSend, CqeFormat::Plain, false, 0);
            // SAFETY: a CQE of the test; a completion of integers, which may be 0.
            let [mut one, mut other] = unsafe {
                start.cast().write(bytes);
                [MaybeUninit::<ibv_wc>::zeroed().assume_init(); 2]
            };
            let cqe = ring.peek().unwrap();
            fill_route(&mut one, cqe);
            fill_route_by_field(&mut other, cqe);
            let fields = |wc: &ibv_wc| {
                (wc.src_qp, wc.wc_flags, wc.pkey_index, wc.slid, wc.sl, wc.dlid_path_bits)
            };
            assert_eq!(fields(&one), fields(&other), "{bytes:x?}");
        }
    }
}
