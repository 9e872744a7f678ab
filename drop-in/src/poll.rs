//! `ibv_poll_cq` and `ibv_req_notify_cq`.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use mlx5_ring::completion::Cqe;
use rdma_core_sys::{ibv_cq, ibv_wc, ibv_wc_opcode};

use crate::complete::Outcome;
use crate::context::{self, Context};
use crate::extended::{self, STRAY};
use crate::log::{DOORBELL, LIBMLX5};
use crate::objects::{Cq, CqSide, Path, Qp};
use crate::wc;

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let (context, record) = (context::of((*cq).context), context::cq(cq));
        if let Some(record) = record.filter(|record| record.status.path() == Path::Doorbell) {
            if let Some(side) = &mut *record.side.lock() {
                return poll(side, context, record, count, wc);
            }
        }
        poll_of_libmlx5(context, record, cq, count, wc)
    }
}

/// Takes completions; returns what `ibv_poll_cq` returns.
///
/// # Safety
/// [verbs]; `record` and `side` are those of the CQ, and this thread holds the lock.
#[inline(always)]
unsafe fn poll(side: &mut CqSide, context: &Context, record: &Cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    let mut taken = 0;
    while taken < count {
        let Some(cqe) = side.ring.peek() else { break };
        // SAFETY: [verbs] there is room for `count` completions; [polled], [record-lives].
        let is_taken = unsafe {
            let wc = &mut *wc.add(taken as usize);
            match context.qps.get(cqe.qpn()) {
                Some(qp) => match qp.complete_message(cqe) {
                    Some(wr_id) => {
                        wc::fill_message(wc, wr_id, cqe);
                        Some(true)
                    }
                    None => other(qp, cqe, wc),
                },
                None => None,
            }
        };
        match is_taken {
            Some(is_taken) => taken += c_int::from(is_taken),
            // After other completions a stray CQE stays: the next poll finds it again.
            None if taken > 0 => break,
            None => {
                side.ring.advance();
                side.publish(record);
                return STRAY;
            }
        }
        side.ring.advance();
    }
    side.publish(record);
    DOORBELL.add_polls(taken as u32);
    taken
}

/// Takes a completion that is not a message outside of its CQE. Returns whether the program sees it; `None` if it is
/// stray.
///
/// # Safety
/// [polled]
#[inline(never)]
unsafe fn other(qp: &Qp, cqe: Cqe<'_>, wc: &mut ibv_wc) -> Option<bool> {
    /// As [`other`], of a change of a key.
    ///
    /// # Safety
    /// [polled]
    #[cold]
    unsafe fn changed(qp: &Qp, cqe: Cqe<'_>, wc: &mut ibv_wc, opcode: ibv_wc_opcode) -> Option<bool> {
        // SAFETY: [polled].
        let Outcome::Done { wr_id, status } = (unsafe { qp.complete(cqe) }) else { return None };
        wc::fill(wc, wr_id, status, cqe);
        wc.opcode = opcode;
        Some(true)
    }
    if let Some(opcode) = wc::change_opcode(Some(qp), cqe) {
        // SAFETY: [polled].
        return unsafe { changed(qp, cqe, wc, opcode) };
    }
    // SAFETY: [polled].
    match unsafe { qp.complete(cqe) } {
        Outcome::Done { wr_id, status } => {
            wc::fill(wc, wr_id, status, cqe);
            Some(true)
        }
        Outcome::Hidden => Some(false),
        Outcome::Stray => None,
    }
}

/// Polls a CQ that doorbell does not drive, or not yet.
///
/// # Safety
/// [verbs]; `record` is that of the CQ, if it has one.
#[cold]
unsafe fn poll_of_libmlx5(
    context: &Context,
    record: Option<&Cq>,
    cq: *mut ibv_cq,
    count: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    let Some(poll_cq) = context.ops.poll_cq else { return STRAY };
    let undecided = record.filter(|record| record.status.path() == Path::Undecided);
    // No code decides for doorbell meanwhile.
    let _guard = undecided.map(|record| record.side.lock());
    if undecided.is_some_and(|record| record.status.path() == Path::Doorbell) {
        // Another thread has just decided, before anything was posted.
        return 0;
    }
    // SAFETY: [verbs]
    let polled = unsafe { poll_cq(cq, count, wc) };
    LIBMLX5.add_polls(polled.max(0) as u32);
    if let Some(record) = undecided.filter(|_| polled != 0) {
        // A queue that was made past this library completes on it.
        extended::leave(record);
    }
    polled
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        // The lock keeps another thread from deciding for doorbell while libmlx5 arms.
        let mut guard = context::cq(cq).map(|record| (record, record.doorbell.lock()));
        if let Some((record, guard)) = &mut guard {
            if let Some(doorbell) = &mut **guard {
                doorbell.arm(record.consumer_index.load(Ordering::Relaxed), solicited_only != 0);
                return 0;
            }
        }
        context::of((*cq).context).ops.req_notify_cq.map_or(libc::EOPNOTSUPP, |arm| arm(cq, solicited_only))
    }
}
