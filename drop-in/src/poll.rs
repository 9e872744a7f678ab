//! `ibv_poll_cq`.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::Ordering;
use std::sync::PoisonError;

use mlx5_ring::completion::{Cqe, CqeKind};
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use rdma_core_sys::{
    IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_GRH, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE,
    IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, IBV_WC_SUCCESS, IBV_WC_WITH_IMM,
    IBV_WC_WITH_INV, ibv_cq, ibv_wc, ibv_wc_opcode, ibv_wc_status,
};

use crate::complete::{Outcome, Side};
use crate::context;
use crate::decide;
use crate::find;
use crate::lock::Lock;
use crate::log::LIBMLX5;
use crate::objects::{Cq, CqSide, Path, Qp, RqSide, SendSide, SrqSide};

/// What libmlx5 returns for a CQE that is of no request.
pub(crate) const STRAY: c_int = -2;

/// Bytes that an atomic brings.
const ATOMIC_SIZE: u32 = 8;

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        if let Some(record) = find::cq(cq) {
            let mut guard = record.side.lock();
            if let Some(side) = &mut *guard {
                // Most polls of a program that waits find nothing, and all that was taken before is published.
                return if side.ring.is_empty() {
                    0
                } else {
                    side.poll(record, Room { next: wc, left: count })
                };
            }
        }
        poll_undecided(cq, count, wc)
    }
}

/// Polls a CQ that doorbell does not drive, or not yet.
#[cold]
unsafe fn poll_undecided(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*cq).context);
        let record = context.cqs.get((*cq).handle);
        let polled = match record.filter(|record| record.status.path() == Path::Undecided) {
            None => (context.original.poll_cq)(cq, count, wc),
            Some(record) => {
                // No code decides meanwhile, so libmlx5 does not take a CQE that is doorbell's.
                let undecided = context.undecided.lock().unwrap_or_else(PoisonError::into_inner);
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
        LIBMLX5.add_polls(polled.try_into().unwrap_or(0));
        polled
    }
}

/// Why a CQ has completions before anything was posted.
pub(crate) const UNSEEN: &str = "a queue that was made past libibverbs completes on it";

impl CqSide {
    /// Takes completions for which there is room; returns what `ibv_poll_cq` returns.
    ///
    /// # Safety
    /// `record` is that of this CQ, and `room` is writable.
    #[inline(never)]
    unsafe fn poll(&mut self, record: &Cq, mut room: Room) -> c_int {
        let count = room.left;
        let mut result = 0;
        while room.left > 0 {
            let Some(cqe) = self.ring.peek() else { break };
            let (kind, qpn) = (cqe.kind(), cqe.qpn());
            let is_known = match self.qp(record, qpn) {
                None => false,
                // SAFETY: the next CQE is of this queue.
                Some(qp) => unsafe {
                    if SendSide::has(kind) {
                        self.take_run::<SendSide>(record, qp, &mut room)
                    } else if qp.srq.is_some() {
                        self.take_run::<SrqSide>(record, qp, &mut room)
                    } else {
                        self.take_run::<RqSide>(record, qp, &mut room)
                    }
                },
            };
            if !is_known && !self.skip_if_destroyed(record) {
                // Completions before it are not lost: it is found again.
                if room.left == count {
                    result = STRAY;
                    self.ring.advance();
                }
                break;
            }
        }
        self.publish(record);
        let polled = count.wrapping_sub(room.left).max(0);
        record.polls.add(polled as u64);
        if result < 0 { result } else { polled }
    }

    /// Takes the next CQE, which is of `qp`, and those that follow, for as long as they are of the same queue, under one
    /// lock. Returns `false` at a CQE that no request of the queue is over with.
    ///
    /// # Safety
    /// The next CQE is of a queue `S` of `qp`. There is room.
    #[inline(always)]
    unsafe fn take_run<S: Side>(&mut self, record: &Cq, qp: &Qp, room: &mut Room) -> bool {
        let Some(lock) = S::of(qp) else { return false };
        let mut guard = S::lock(lock);
        let Some(side) = &mut *guard else { return false };
        let mut qpn = qp.qpn;
        while room.left > 0 {
            // SAFETY: there is room.
            let wc = unsafe { &mut *room.next };
            let Some(cqe) = S::peek_plain(&self.ring) else {
                // SAFETY: as above.
                match unsafe { self.take_any(record, lock, side, wc) } {
                    Taken::Shown => room.advance(),
                    Taken::Hidden => {}
                    Taken::Stray => return false,
                    Taken::Nothing => return true,
                }
                continue;
            };
            // SAFETY: the consumer index is published when the poll ends.
            let cqe = unsafe { cqe.detach() };
            if cqe.qpn() != qpn {
                qpn = cqe.qpn();
                if !self.is_next_in(record, lock) {
                    return true;
                }
            }
            let Some(wr_id) = side.complete_plain(cqe) else { return false };
            fill(wc, wr_id, IBV_WC_SUCCESS, qpn);
            S::fill_plain(wc, cqe);
            self.ring.advance();
            room.advance();
        }
        true
    }

    /// Takes the next CQE if its queue pair is being destroyed.
    #[cold]
    fn skip_if_destroyed(&mut self, record: &Cq) -> bool {
        // SAFETY: the consumer index is published when the poll ends.
        let cqe = self.ring.peek().map(|cqe| unsafe { cqe.detach() });
        let is_hidden =
            cqe.is_some_and(|cqe| matches!(self.complete(record, cqe), Outcome::Hidden));
        if is_hidden {
            self.ring.advance();
        }
        is_hidden
    }

    /// Returns `true` if the next CQE is of a queue pair with this queue.
    fn is_next_in<S: Side>(&mut self, record: &Cq, queue: &Lock<Option<S>>) -> bool {
        let Some(qpn) = self.ring.peek().map(|cqe| cqe.qpn()) else { return false };
        self.qp(record, qpn).and_then(S::of).is_some_and(|other| ptr::eq(other, queue))
    }

    /// Takes the next CQE, whatever it says, if it is of this queue, and writes its completion to `wc`.
    ///
    /// # Safety
    /// `side` is that of `queue`.
    #[inline(never)]
    unsafe fn take_any<S: Side>(
        &mut self,
        record: &Cq,
        queue: &Lock<Option<S>>,
        side: &mut S,
        wc: &mut ibv_wc,
    ) -> Taken {
        // SAFETY: the consumer index is published when the poll ends.
        let Some(cqe) = self.ring.peek().map(|cqe| unsafe { cqe.detach() }) else {
            return Taken::Nothing;
        };
        if !S::has(cqe.kind()) || !self.is_next_in(record, queue) {
            return Taken::Nothing;
        }
        // SAFETY: a CQE of this queue.
        let taken = match unsafe { side.complete(cqe) } {
            Outcome::Done { wr_id, status } => {
                fill(wc, wr_id, status, cqe.qpn());
                S::fill(wc, cqe);
                Taken::Shown
            }
            Outcome::Hidden => Taken::Hidden,
            Outcome::Stray => return Taken::Stray,
        };
        self.ring.advance();
        taken
    }

    /// Gives the CQEs that were taken back to the device.
    #[inline(always)]
    pub(crate) fn publish(&mut self, record: &Cq) {
        self.ring.publish();
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

/// What became of the next CQE: see [`Outcome`].
enum Taken {
    Shown,
    Hidden,
    Stray,
    /// There is none, or it is not of this queue.
    Nothing,
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
        return;
    }
    fill_message(wc, cqe);
    let opcode = cqe.opcode();
    wc.opcode = receive_opcode(opcode);
    wc.wc_flags |= sent_with(opcode);
    match opcode {
        CqeOpcode::ResponderSend => {}
        CqeOpcode::ResponderSendInv => {
            wc.__bindgen_anon_1.invalidated_rkey = cqe.imm_inval_pkey();
        }
        _ => wc.__bindgen_anon_1.imm_data = cqe.imm_inval_pkey().to_be(),
    }
}

/// Writes what libmlx5 writes of a message that came with neither immediate data nor a key.
#[inline(always)]
pub(crate) fn fill_message(wc: &mut ibv_wc, cqe: Cqe<'_>) {
    let route = cqe.route();
    wc.byte_len = cqe.byte_count();
    wc.src_qp = route.source_qpn();
    wc.sl = route.sl();
    wc.slid = cqe.slid();
    wc.dlid_path_bits = cqe.dlid_path_bits();
    wc.pkey_index = cqe.imm_inval_pkey() as u16;
    wc.opcode = IBV_WC_RECV;
    wc.wc_flags = if route.has_grh() { IBV_WC_GRH } else { 0 };
}

/// Returns opcode and flags of a send that succeeded.
#[inline(always)]
pub(crate) fn request_opcode(cqe: Cqe<'_>) -> (ibv_wc_opcode, u32) {
    match WqeOpcode::new(cqe.send_opcode()) {
        WqeOpcode::RDMA_WRITE => (IBV_WC_RDMA_WRITE, 0),
        WqeOpcode::RDMA_WRITE_IMM => (IBV_WC_RDMA_WRITE, IBV_WC_WITH_IMM),
        WqeOpcode::SEND_IMM => (IBV_WC_SEND, IBV_WC_WITH_IMM),
        WqeOpcode::RDMA_READ => (IBV_WC_RDMA_READ, 0),
        WqeOpcode::ATOMIC_CS => (IBV_WC_COMP_SWAP, 0),
        WqeOpcode::ATOMIC_FA => (IBV_WC_FETCH_ADD, 0),
        _ => (IBV_WC_SEND, 0),
    }
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
