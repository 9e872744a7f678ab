//! `ibv_poll_cq`.

use core::ffi::c_int;
use core::mem;
use core::ptr;
use core::sync::atomic::Ordering;

use mlx5_ring::completion::{Cqe, CqeKind};
use mlx5_wire::be::Be32;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use rdma_core_sys::{
    IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_GRH, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE,
    IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, IBV_WC_SUCCESS, IBV_WC_WITH_IMM,
    IBV_WC_WITH_INV, ibv_cq, ibv_wc, ibv_wc_opcode, ibv_wc_status,
};

use crate::complete::{Outcome, Side, complete_plain_one};
use crate::context;
use crate::decide;
use crate::find;
use crate::lock::Guard;
use crate::log::{self, LIBMLX5};
use crate::objects::{Cq, CqSide, Path, RqSide, SendSide, SrqSide};

/// The value that libmlx5 returns for a CQE of no request.
pub(crate) const STRAY: c_int = -2;

/// Bytes that an atomic brings.
const ATOMIC_SIZE: u32 = 8;

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: [verbs], [record-lives]; doorbell drives the CQ that is found, and `guard` holds the lock of `record`.
    unsafe {
        let Some(record) = find::cq(cq) else {
            return match find::original_of_cq(cq) {
                Some(original) => (original.poll_cq)(cq, count, wc),
                None => poll_undecided(cq, count, wc),
            };
        };
        match record.side.try_lock() {
            Some(guard) => poll_locked(guard, record, count, wc),
            None => poll_contended(record, count, wc),
        }
    }
}

/// Polls a CQ that another thread polls.
///
/// # Safety
/// [verbs]; `record` is that of the CQ, which doorbell drives.
#[cold]
unsafe extern "C" fn poll_contended(record: &Cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: [verbs]; the guard holds the lock of `record`.
    unsafe { poll_locked(record.side.lock(), record, count, wc) }
}

/// Polls a CQ whose lock is held.
///
/// # Safety
/// [verbs]; `record` is that of the CQ, which doorbell drives, and `guard` holds its lock.
#[inline(always)]
unsafe fn poll_locked(
    guard: Guard<'_, Option<CqSide>>,
    record: &Cq,
    count: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    // SAFETY: [verbs], [record-lives]; this thread holds the lock, also after `guard` was forgotten.
    unsafe {
        let side = record.held();
        if count <= 0 {
            return 0;
        }
        let qp = side.ring.peek_message().and_then(|cqe| side.same_qp(cqe.qpn()));
        mem::forget(guard);
        match qp {
            None => poll_other(record, count, wc),
            Some(qp) if qp.srq.is_some() => poll_one::<SrqSide>(record, count, wc),
            Some(_) => poll_one::<RqSide>(record, count, wc),
        }
    }
}

/// Polls a CQ whose next completion, if there is one, is no plain receive of the queue pair of the completion before; returns
/// what `ibv_poll_cq` returns.
///
/// # Safety
/// As [`poll_any`], with `count` for `left`.
#[inline(never)]
unsafe extern "C" fn poll_other(record: &Cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: this thread holds the lock, and has no reference to the value; `wc` is writable; no CQE is taken.
    unsafe {
        let side = record.held();
        let Some(cqe) = side.ring.peek() else {
            // All that was taken before is published.
            drop(record.side.regain());
            return 0;
        };
        let cqe: Cqe<'static> = cqe.detach();
        let is_message = matches!(cqe.kind(), CqeKind::Send | CqeKind::Written);
        match side.qp(cqe) {
            Some(_) if cqe.is_plain_requester() => poll_one::<SendSide>(record, count, wc),
            Some(qp) if is_message && qp.srq.is_some() => poll_one::<SrqSide>(record, count, wc),
            Some(_) if is_message => poll_one::<RqSide>(record, count, wc),
            _ => poll_any(record, count, wc, count),
        }
    }
}

/// Polls a CQ that doorbell does not drive, or not yet.
///
/// # Safety
/// [verbs]
#[cold]
unsafe extern "C" fn poll_undecided(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*cq).context);
        let record = context.cq(cq);
        let polled = match record.filter(|record| record.status.path() != Path::Libmlx5) {
            None => (context.original.poll_cq)(cq, count, wc),
            Some(record) => {
                // No code decides meanwhile, so libmlx5 does not take a CQE that is doorbell's.
                let undecided = context.undecided();
                if record.status.path() == Path::Doorbell {
                    return 0;
                }
                let polled = (context.original.poll_cq)(cq, count, wc);
                drop(undecided);
                if polled != 0 {
                    decide::against(context, record, UNSEEN);
                }
                polled
            }
        };
        if polled > 0 && log::is_on() {
            LIBMLX5.add_polls(polled as u64);
        }
        polled
    }
}

/// Why a CQ has completions before anything was posted.
pub(crate) const UNSEEN: &str = "a queue that was made past libibverbs completes on it";

/// Takes completions of any form, `left` of `count`; returns what `ibv_poll_cq` returns.
///
/// # Safety
/// This thread holds the lock of `record`, whose guard was forgotten, and has no reference to the value. `wc` is writable for
/// `left` completions.
#[inline(never)]
unsafe extern "C" fn poll_any(record: &Cq, left: c_int, wc: *mut ibv_wc, count: c_int) -> c_int {
    // SAFETY: this thread holds the lock, and has no reference to the value; `wc` is writable.
    unsafe {
        let _guard = record.side.regain();
        let side = record.held();
        let mut room = Room { next: wc, left };
        let mut is_stray = false;
        while room.left > 0 {
            let Some(cqe) = side.ring.peek() else { break };
            // The consumer index is published when the poll ends.
            let cqe: Cqe<'static> = cqe.detach();
            let before = room.left;
            room = match side.qp(cqe) {
                Some(_) if SendSide::has(cqe.kind()) => side.take::<SendSide>(room),
                Some(qp) if qp.srq.is_some() => side.take::<SrqSide>(room),
                Some(_) => side.take::<RqSide>(room),
                None => room,
            };
            if room.left != before {
                continue;
            }
            match side.take_any(&mut *room.next) {
                Outcome::Done { .. } => room.advance(),
                Outcome::Hidden => {}
                Outcome::Waits => break,
                Outcome::Stray => {
                    // After other completions a stray CQE stays: the next poll finds it again.
                    is_stray = room.left == count;
                    break;
                }
            }
        }
        if is_stray {
            side.ring.advance();
        }
        side.publish(record);
        if is_stray { STRAY } else { count.wrapping_sub(room.left) }
    }
}

/// Takes the next completion, which is plain and of the queue `S` of the queue pair of the completion before, and then others;
/// returns what `ibv_poll_cq` returns. Most polls find one, which needs no loop.
///
/// # Safety
/// As [`poll_any`], with `count` for `left`, which is above 0; the next CQE is there, and is such a one.
// The arguments have the order of `ibv_poll_cq`, so they stay in their registers.
#[inline(never)]
unsafe extern "C" fn poll_one<S: Side>(record: &Cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: this thread holds the lock, and has no reference to the value; `wc` is writable.
    unsafe {
        let side = record.held();
        if !side.take_one::<S>(&mut *wc) {
            return poll_any(record, count, wc, count);
        }
        if count > 1 && !side.ring.is_empty() {
            return poll_plain::<S>(record, count - 1, wc.add(1), count);
        }
        side.publish(record);
        drop(record.side.regain());
        1
    }
}

/// Takes completions for as long as they are plain and of queues `S`, and then others; returns what `ibv_poll_cq` returns.
///
/// # Safety
/// As [`poll_any`].
// All calls are at its end: it has no registers to save.
#[inline(never)]
unsafe extern "C" fn poll_plain<S: Side>(
    record: &Cq,
    left: c_int,
    wc: *mut ibv_wc,
    count: c_int,
) -> c_int {
    // SAFETY: this thread holds the lock, and has no reference to the value; `wc` is writable.
    unsafe {
        let side = record.held();
        let room = side.take_run::<S, true>(Room { next: wc, left });
        if room.left == 0 || side.ring.is_empty() {
            side.publish(record);
            drop(record.side.regain());
            return count.wrapping_sub(room.left);
        }
        poll_any(record, room.left, room.next, count)
    }
}

impl CqSide {
    /// Takes the next completion; returns `false` if another thread uses its queue, or no such request is outstanding.
    ///
    /// # Safety
    /// It is there, is plain, and is of the queue `S` of the queue pair of the completion before.
    #[inline(always)]
    unsafe fn take_one<S: Side>(&mut self, wc: &mut ibv_wc) -> bool {
        // SAFETY: it is there; the consumer index is published when the poll ends.
        let cqe = unsafe { self.ring.peek_again().detach() };
        // SAFETY: [record-lives] `last` is that of a queue pair of this CQ, because the completion is of it.
        let qp = unsafe { &*self.last };
        let Some(wr_id) = complete_plain_one::<S>(qp, cqe) else { return false };
        fill(wc, wr_id, IBV_WC_SUCCESS, qp.qpn);
        S::fill(wc, cqe);
        self.ring.advance_inline();
        true
    }

    /// Takes completions for as long as they are of queues `S`, and of requests that have succeeded; returns the room that is
    /// left.
    ///
    /// # Safety
    /// As [`take_run`](Self::take_run).
    #[inline(never)]
    unsafe fn take<S: Side>(&mut self, room: Room) -> Room {
        // SAFETY: as for the caller.
        unsafe { self.take_run::<S, false>(room) }
    }

    /// As [`take`](Self::take), with `PLAIN` for as long as they are plain.
    ///
    /// # Safety
    /// `room` is writable, and `last` is not null.
    #[inline(always)]
    unsafe fn take_run<S: Side, const PLAIN: bool>(&mut self, mut room: Room) -> Room {
        // SAFETY: [record-lives] `last` is that of a queue pair of this CQ.
        let mut qp = unsafe { &*self.last };
        'queues: loop {
            let Some(lock) = S::of(qp) else { return room };
            let Some(mut guard) = lock.try_lock() else { return room };
            let Some(side) = guard.as_mut() else { return room };
            let (mut qpn, mut qpn_of_cqe) = (self.last_qpn.get(), self.last_qpn);
            while room.left > 0 {
                let cqe = if PLAIN { S::peek_plain(&self.ring) } else { self.ring.peek() };
                let Some(cqe) = cqe else { return room };
                // SAFETY: the consumer index is published when the poll ends.
                let cqe: Cqe<'static> = unsafe { cqe.detach() };
                let next_qpn = cqe.qpn();
                if Be32::new(next_qpn) != qpn_of_cqe {
                    let Some(next) = self.other_qp(next_qpn) else { return room };
                    let is_same =
                        S::IS_SHARED && S::of(next).is_some_and(|next| ptr::eq(next, lock));
                    if !is_same {
                        qp = next;
                        continue 'queues;
                    }
                    (qpn, qpn_of_cqe) = (next_qpn, self.last_qpn);
                }
                // SAFETY: `cqe` is of this queue, and `room` is writable for one more.
                let (wr_id, wc) = unsafe {
                    let wr_id =
                        if PLAIN { side.complete_plain(cqe) } else { side.complete_succeeded(cqe) };
                    (wr_id, &mut *room.next)
                };
                let Some(wr_id) = wr_id else { return room };
                fill(wc, wr_id, IBV_WC_SUCCESS, qpn);
                S::fill(wc, cqe);
                self.ring.advance_inline();
                room.advance();
            }
            return room;
        }
    }

    /// Takes the next CQE, of any form, and writes its completion, if there is one, to `wc`.
    ///
    /// # Safety
    /// It has arrived.
    #[inline(never)]
    unsafe fn take_any(&mut self, wc: &mut ibv_wc) -> Outcome {
        // SAFETY: it has arrived; the consumer index is published when the poll ends.
        let cqe = unsafe { self.ring.peek_again().detach() };
        let outcome = self.complete(cqe);
        match outcome {
            Outcome::Done { wr_id, status } => {
                fill(wc, wr_id, status, cqe.qpn());
                if SendSide::has(cqe.kind()) {
                    fill_send(wc, cqe)
                } else {
                    fill_receive(wc, cqe)
                }
                self.ring.advance();
            }
            Outcome::Hidden => self.ring.advance(),
            Outcome::Waits | Outcome::Stray => {}
        }
        outcome
    }

    /// Gives the CQEs that were taken back to the device, and counts them.
    #[inline(always)]
    pub(crate) fn publish(&mut self, record: &Cq) {
        record.polls.add(self.ring.publish_taken().into());
        record.consumer_index.store(self.ring.consumer_index(), Ordering::Relaxed);
    }
}

/// Room for completions.
struct Room {
    next: *mut ibv_wc,
    left: c_int,
}

impl Room {
    #[inline(always)]
    const fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.left -= 1;
    }
}

/// Writes what each completion says.
#[inline(always)]
const fn fill(wc: &mut ibv_wc, wr_id: u64, status: ibv_wc_status, qpn: u32) {
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
    let route = cqe.route();
    wc.byte_len = cqe.byte_count();
    wc.src_qp = route.source_qpn();
    wc.sl = route.sl();
    wc.slid = cqe.slid();
    wc.dlid_path_bits = cqe.dlid_path_bits();
    wc.pkey_index = cqe.imm_inval_pkey() as u16;
    let grh = if route.has_grh() { IBV_WC_GRH } else { 0 };
    (wc.opcode, wc.wc_flags) = (IBV_WC_RECV, grh);
    if cqe.has_imm_or_key() {
        if cqe.opcode() == CqeOpcode::ResponderSendInv {
            wc.wc_flags = grh | IBV_WC_WITH_INV;
            wc.__bindgen_anon_1.invalidated_rkey = cqe.imm_inval_pkey();
        } else {
            if cqe.opcode() == CqeOpcode::ResponderWriteImm {
                wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
            }
            wc.wc_flags = grh | IBV_WC_WITH_IMM;
            wc.__bindgen_anon_1.imm_data = cqe.imm_inval_pkey().to_be();
        }
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
    grh | sent_with(opcode)
}

/// Returns the flag of what a receive brings beside its bytes.
#[inline(always)]
const fn sent_with(opcode: CqeOpcode) -> u32 {
    match opcode {
        CqeOpcode::ResponderSendImm | CqeOpcode::ResponderWriteImm => IBV_WC_WITH_IMM,
        CqeOpcode::ResponderSendInv => IBV_WC_WITH_INV,
        _ => 0,
    }
}
