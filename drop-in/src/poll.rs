//! `ibv_poll_cq`.

use core::ffi::c_int;
use core::mem;
use core::sync::atomic::Ordering;

use mlx5_ring::completion::{Cqe, CqeKind, LastWord};
use rdma_core_sys::{IBV_WC_SUCCESS, ibv_cq, ibv_wc};

use crate::complete::{Form, Message, Outcome, Request, is_sent};
use crate::context;
use crate::decide;
use crate::find;
use crate::lock::Guard;
use crate::log::{self, LIBMLX5};
use crate::objects::{Cq, CqSide, Path};
use crate::wc::{fill, fill_receive, fill_send};

/// The value that libmlx5 returns for a CQE of no request.
pub(crate) const STRAY: c_int = -2;

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
    // SAFETY: [verbs], [polled]; this thread holds the lock, also after `guard` was forgotten.
    unsafe {
        let side = record.held();
        let Some(cqe) = side.ring.peek().filter(|_| count > 0) else { return 0 };
        let (kind, is_request, word) = (cqe.kind(), cqe.is_plain_requester(), cqe.last_word());
        mem::forget(guard);
        match kind {
            CqeKind::Send | CqeKind::Written => {
                poll_form::<Message<false>>(record, count, wc, word)
            }
            CqeKind::Inline => poll_form::<Message<true>>(record, count, wc, word),
            _ if is_request => poll_form::<Request>(record, count, wc, word),
            _ => poll_any(record, count, wc, count),
        }
    }
}

/// Takes the next completion, whose CQE has this form and this last word, then others for as long as they have it, and the rest with [`poll_any`].
/// Returns what `ibv_poll_cq` returns.
///
/// # Safety
/// As [`poll_any`], with `count` for `left`, which is above 0; the next CQE has arrived, and has this form and this word.
// A call at the end of a function that cannot unwind is a jump: `poll_cq` has no registers to save.
#[inline(never)]
unsafe extern "C" fn poll_form<F: Form>(
    record: &Cq,
    count: c_int,
    wc: *mut ibv_wc,
    word: LastWord,
) -> c_int {
    // SAFETY: this thread holds the lock, and has no reference to the value; `wc` is writable. The consumer index is published when
    // the poll ends. Each CQE has this form.
    unsafe {
        let side = record.held();
        let mut cqe: Cqe<'static> = side.ring.peeked(word).detach();
        let mut room = Room { next: wc, left: count };
        while side.take::<F>(cqe, &mut *room.next) {
            room.advance();
            if room.left <= 0 {
                return finish(record);
            }
            let Some(next) = F::peek(&side.ring) else { break };
            cqe = next.detach();
        }
        poll_any(record, room.left, room.next, count)
    }
}

/// Ends a poll that has taken completions; returns their number.
///
/// # Safety
/// This thread holds the lock of `record`, whose guard was forgotten, and has no reference to the value.
#[inline(never)]
unsafe extern "C" fn finish(record: &Cq) -> c_int {
    // SAFETY: this thread holds the lock, and has no reference to the value.
    unsafe {
        let taken = record.held().publish(record);
        drop(record.side.regain());
        taken as c_int
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
            let cqe: Cqe<'static> = cqe.detach();
            let wc = &mut *room.next;
            let is_taken = match cqe.kind() {
                CqeKind::Send | CqeKind::Written => side.take::<Message<false>>(cqe, wc),
                CqeKind::Inline => side.take::<Message<true>>(cqe, wc),
                _ => cqe.is_plain_requester() && side.take::<Request>(cqe, wc),
            };
            if is_taken {
                room.advance();
                continue;
            }
            match side.take_any(cqe, wc) {
                Outcome::Done { .. } => room.advance(),
                Outcome::Hidden => {}
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

impl CqSide {
    /// Takes the next completion, whose CQE this is, and writes it to `wc`. Returns `false` if no such request is outstanding, or
    /// another thread uses its SRQ.
    ///
    /// # Safety
    /// This thread holds the lock. The CQE has this form.
    #[inline(always)]
    unsafe fn take<F: Form>(&mut self, cqe: Cqe<'static>, wc: &mut ibv_wc) -> bool {
        let Some(qp) = self.qp(cqe) else { return false };
        // SAFETY: [polled]; the CQE has this form.
        let Some(wr_id) = (unsafe { F::complete(qp, cqe) }) else { return false };
        fill(wc, wr_id, IBV_WC_SUCCESS, qp.qpn);
        F::fill(wc, cqe);
        self.ring.advance_inline();
        true
    }

    /// Takes the next CQE, of any form, and writes its completion, if there is one, to `wc`. A stray CQE stays.
    ///
    /// # Safety
    /// This thread holds the lock. The CQE is the next one.
    #[inline(never)]
    unsafe fn take_any(&mut self, cqe: Cqe<'static>, wc: &mut ibv_wc) -> Outcome {
        // SAFETY: [polled].
        let outcome = self.qp(cqe).map_or(Outcome::Stray, |qp| unsafe { qp.complete_any(cqe) });
        match outcome {
            Outcome::Done { wr_id, status } => {
                fill(wc, wr_id, status, cqe.qpn());
                if is_sent(cqe.kind()) {
                    fill_send(wc, cqe);
                } else {
                    fill_receive(wc, cqe);
                }
                self.ring.advance();
            }
            Outcome::Hidden => self.ring.advance(),
            Outcome::Stray => {}
        }
        outcome
    }

    /// Gives the CQEs that were taken back to the device; returns their number.
    #[inline(always)]
    pub(crate) fn publish(&mut self, record: &Cq) -> u32 {
        let taken = self.ring.publish_taken();
        record.polls.add(taken.into());
        record.consumer_index.store(self.ring.consumer_index(), Ordering::Relaxed);
        taken
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
