//! `ibv_poll_cq` and `ibv_req_notify_cq`.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use rdma_core_sys::{ibv_cq, ibv_wc};

use crate::complete::Outcome;
use crate::context::{self, Context};
use crate::extended::{self, STRAY};
use crate::log::{DOORBELL, LIBMLX5};
use crate::objects::{Cq, CqSide, Path};
use crate::wc;

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*cq).context);
        let record = context.cqs.get((*cq).handle);
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
unsafe fn poll(
    side: &mut CqSide,
    context: &Context,
    record: &Cq,
    count: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    let (mut taken, mut is_stray) = (0, false);
    while taken < count {
        let Some(cqe) = side.ring.peek() else { break };
        // SAFETY: [polled], [record-lives].
        let outcome = unsafe { context.qps.get(cqe.qpn()).map(|qp| qp.complete(cqe)) };
        match outcome {
            Some(Outcome::Done { wr_id, status }) => {
                // SAFETY: [verbs] there is room for `count` completions.
                unsafe { wc::fill(&mut *wc.add(taken as usize), wr_id, status, cqe) };
                taken += 1;
            }
            Some(Outcome::Hidden) => {}
            Some(Outcome::Stray) | None => {
                // After other completions a stray CQE stays: the next poll finds it again.
                is_stray = taken == 0;
                if !is_stray {
                    break;
                }
            }
        }
        side.ring.advance();
        if is_stray {
            break;
        }
    }
    side.publish(record);
    DOORBELL.add_polls(taken as u32);
    if is_stray { STRAY } else { taken }
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
        let context = context::of((*cq).context);
        // The lock keeps another thread from deciding for doorbell while libmlx5 arms.
        let mut guard =
            context.cqs.get((*cq).handle).map(|record| (record, record.doorbell.lock()));
        if let Some((record, guard)) = &mut guard {
            if let Some(doorbell) = &mut **guard {
                doorbell.arm(record.consumer_index.load(Ordering::Relaxed), solicited_only != 0);
                return 0;
            }
        }
        context.ops.req_notify_cq.map_or(libc::EOPNOTSUPP, |arm| arm(cq, solicited_only))
    }
}
