//! Modification and destruction of objects, which libmlx5 does: the rings follow.

use core::ffi::c_int;
use core::mem::zeroed;
use core::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

use mlx5_ring::completion::Cqe;
use mlx5_ring::receive::ReceiveRing;
use mlx5_wire::opcode::CqeOpcode;
use rdma_core_sys::{
    IBV_QP_STATE, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTS, ibv_cq, ibv_mw, ibv_mw_bind,
    ibv_mw_type, ibv_pd, ibv_qp, ibv_qp_attr, ibv_srq,
};

use crate::builder::functions;
use crate::context;
use crate::objects::{CqSide, NO_QP, Path, Qp};

pub(crate) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*qp).context);
        let record = context.qps.get((*qp).qp_num);
        let Some(record) = record.filter(|_| mask & IBV_QP_STATE as c_int != 0) else {
            return (context.original.modify_qp)(qp, attr, mask);
        };
        let state = (*attr).qp_state;
        // No code decides meanwhile: a decision reads the state, and a batch can follow it at once.
        let undecided = (record.status.path() == Path::Undecided)
            .then(|| context.undecided())
            .filter(|_| record.status.path() == Path::Undecided);
        let is_ours = record.status.path() == Path::Doorbell;
        let is_reset = is_ours && state == IBV_QPS_RESET;
        // A batch that ends meanwhile rings nothing.
        let could_send = is_reset && record.can_send.swap(false, Ordering::Relaxed);
        // libmlx5 puts its own function to end a batch in the place of the library's.
        // SAFETY: [batch] this thread has no reference to the queue.
        let batch = is_ours.then(|| record.send_queue.lock_for_a_moment());
        let error = (context.original.modify_qp)(qp, attr, mask);
        functions::replace_after_modify(record);
        drop((batch, undecided));
        if error != 0 {
            if could_send {
                record.can_send.store(true, Ordering::Relaxed);
            }
            return error;
        }
        if is_reset {
            reset(record);
        }
        if matches!(state, IBV_QPS_RESET | IBV_QPS_INIT) {
            if let Some(side) = &mut *record.receive_queue.lock() {
                side.is_ready = state == IBV_QPS_INIT;
            }
        }
        if matches!(state, IBV_QPS_RESET | IBV_QPS_RTS) {
            record.can_send.store(state == IBV_QPS_RTS, Ordering::Relaxed);
        }
        0
    }
}

/// Follows a queue pair that doorbell drives to RESET.
fn reset(record: &Qp) {
    // The device completes nothing more. No lock of a CQ is held while the send queue is waited for: the thread that builds a
    // batch may wait for the CQ.
    remove_completions(record);
    if let Some(side) = &mut *record.receive_queue.lock() {
        side.is_ready = false;
        side.queue.reset(|_| {});
        side.queue.clear_record();
    }
    // SAFETY: [batch] this thread has no reference to the queue.
    if let Some(side) = &mut *unsafe { record.send_queue.lock_or_reenter() } {
        side.look(&record.send_completer);
        // SAFETY: the queue pair is in RESET, and its CQEs are removed.
        unsafe { side.queue.reset(|_| {}) };
        record.send_completer.progress.reset();
        record.send_completer.retire(side.posted);
        side.draft.discard();
    }
}

/// Removes the CQEs of a queue pair that is in RESET from its CQs.
fn remove_completions(record: &Qp) {
    for cq in record.cqs().into_iter().flatten() {
        if let Some(side) = &mut *cq.side.lock() {
            side.forget(record);
            side.publish(cq);
        }
    }
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: [verbs], [record-lives], [batch].
    unsafe {
        let context = context::of((*qp).context);
        let (destroy, number) = (context.original.destroy_qp, (*qp).qp_num);
        let Some(record) = context.qps.get(number).filter(|record| record.ibv == qp) else {
            return destroy(qp);
        };
        // No decision includes it from here on.
        let was_undecided = context.leave_undecided(record);
        let mut is_reset = true;
        if record.status.path() == Path::Doorbell {
            // Once it is destroyed, a new queue pair may have its number, and its WQEs are gone.
            let mut attr = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..zeroed() };
            is_reset = modify_qp(qp, &mut attr, IBV_QP_STATE as c_int) == 0;
        }
        // No lock is held in the kernel, which may wait until a thread that polls has acknowledged an event.
        let error = destroy(qp);
        if error != 0 {
            if was_undecided {
                context.undecided().push(record);
            }
            return error;
        }
        if !is_reset {
            // The device is gone, and completes nothing more. A child that inherited the queue pair destroys nothing, and may lack
            // the memory of its CQs.
            remove_completions(record);
        }
        let _undecided = context.undecided();
        context.qps.remove(number, record);
        0
    }
}

impl CqSide {
    /// Removes the CQEs of a queue pair that is in RESET.
    fn forget(&mut self, qp: &Qp) {
        if ptr::eq(self.last.as_ptr(), qp) {
            (self.last, self.last_qpn) = (NonNull::dangling(), NO_QP);
        }
        self.ring.purge(|cqe| {
            let is_of = cqe.qpn() == qp.qpn;
            if is_of {
                give_back(qp, cqe);
            }
            is_of
        });
    }
}

/// Gives the slot of an SRQ back if `cqe`, which is never polled, completes one.
fn give_back(qp: &Qp, cqe: Cqe<'_>) {
    let opcode = cqe.opcode();
    if !opcode.is_responder() && opcode != CqeOpcode::ResponderError {
        return;
    }
    let Some(srq) = qp.srq() else { return };
    if let Some(side) = &mut *srq.side.lock() {
        if let Some(slot) = side.queue.complete(cqe.wqe_counter()) {
            // SAFETY: `complete` has returned the slot, which is held.
            unsafe { side.queue.release(slot) };
        }
    }
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: [verbs], [record-lives]; the kernel refuses while a queue pair has the CQ.
    unsafe {
        let context = context::of((*cq).context);
        let handle = (*cq).handle;
        let record = context.cq(cq).map(ptr::from_ref);
        let error = (context.original.destroy_cq)(cq);
        if let (0, Some(record)) = (error, record) {
            let _undecided = context.undecided();
            context.cqs.remove(handle, record);
        }
        error
    }
}

pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: [verbs], [record-lives]; the kernel refuses while a queue pair has the SRQ.
    unsafe {
        let context = context::of((*srq).context);
        let handle = (*srq).handle;
        let record = context.srq(srq).map(ptr::from_ref);
        let error = (context.original.destroy_srq)(srq);
        if let (0, Some(record)) = (error, record) {
            let _undecided = context.undecided();
            context.srqs.remove(handle, record);
        }
        error
    }
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: [verbs].
    unsafe {
        let context = context::of((*pd).context);
        let window = (context.original.alloc_mw)(pd, kind);
        if !window.is_null() {
            context.has_windows.store(true, Ordering::Relaxed);
        }
        window
    }
}

pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*qp).context);
        let record = context.qps.get((*qp).qp_num);
        if record.is_some_and(|record| record.status.path() == Path::Doorbell) {
            // libmlx5 would post to the send queue, which doorbell drives.
            return libc::EOPNOTSUPP;
        }
        (context.original.bind_mw)(qp, mw, bind)
    }
}
