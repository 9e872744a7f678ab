//! Modification and destruction of objects, which libmlx5 does: the rings follow.

use core::ffi::c_int;
use core::mem::zeroed;
use core::sync::atomic::{AtomicU32, Ordering};

use mlx5_ring::completion::Cqe;
use mlx5_ring::receive::ReceiveRing;
use mlx5_wire::opcode::CqeOpcode;
use rdma_core_sys::{IBV_QP_STATE, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTS, ibv_qp, ibv_qp_attr, ibv_qp_ex};

use crate::builder;
use crate::context::{Context, real};
use crate::objects::Qp;
use crate::table::{Record, Table};

/// Calls `ibv_modify_qp` of libibverbs.
///
/// # Safety
/// [verbs]
pub(crate) unsafe fn modify(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: [verbs]
    unsafe {
        let modify = real!((*qp).context, c"ibv_modify_qp" as fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int);
        modify.map_or(libc::EOPNOTSUPP, |modify| modify(qp, attr, mask))
    }
}

/// Modifies a queue pair that doorbell drives; its rings follow.
///
/// On the way to RESET and to RTS libmlx5 stores its own `wr_complete`, which a batch of `ibv_wr_*` must not call: it
/// returns `EBUSY` while there is one.
///
/// # Safety
/// [verbs]; `record` is that of the queue pair.
pub(crate) unsafe fn modify_qp(record: &Qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: [verbs]
    unsafe {
        if mask & IBV_QP_STATE as c_int == 0 {
            return modify(record.ibv, attr, mask);
        }
        let state = (*attr).qp_state;
        let error = match &record.send {
            Some(sends) if [IBV_QPS_RESET, IBV_QPS_RTS].contains(&state) => {
                // Requests posted during the call wait.
                let is_building = || sends.is_building.load(Ordering::Relaxed);
                let Some(mut side) = sends.side.lock_unless(is_building) else { return libc::EBUSY };
                let error = modify(record.ibv, attr, mask);
                if record.has_builder {
                    builder::replace(&mut *record.ibv.cast::<ibv_qp_ex>());
                }
                if error == 0 {
                    side.can_send = state == IBV_QPS_RTS;
                }
                error
            }
            _ => modify(record.ibv, attr, mask),
        };
        match state {
            IBV_QPS_RESET if error == 0 => reset(record),
            IBV_QPS_INIT if error == 0 => {
                if let Some(side) = &mut *record.receive.lock() {
                    side.is_ready = true;
                }
            }
            _ => {}
        }
        error
    }
}

/// Follows a queue pair to RESET.
fn reset(record: &Qp) {
    // The device completes nothing more.
    remove_completions(record);
    if let Some(side) = &mut *record.receive.lock() {
        side.is_ready = false;
        side.queue.reset(|_| {});
        side.queue.clear_record();
    }
    if let Some(sends) = &record.send {
        let side = &mut *sends.side.lock();
        // SAFETY: the queue pair is in RESET, and its CQEs are removed: nobody takes any. The lock keeps others from
        // posting.
        unsafe {
            side.queue.reset(|_| {});
            sends.progress.reset();
        }
        sends.retired.store(side.posted, Ordering::Relaxed);
        (side.batch, side.built) = (side.queue.batch(), side.posted);
    }
}

/// Removes the CQEs of a queue pair that is in RESET from its CQs.
fn remove_completions(record: &Qp) {
    for cq in record.cqs() {
        if let Some(side) = &mut *cq.side.lock() {
            side.ring.purge(|cqe| {
                let is_of = cqe.qpn() == record.qpn;
                if is_of {
                    give_back(record, cqe);
                }
                is_of
            });
            side.publish(cq);
        }
    }
}

/// Gives the slot of an SRQ back if `cqe`, which is never polled, completes one.
fn give_back(record: &Qp, cqe: Cqe<'_>) {
    let opcode = cqe.opcode();
    if !opcode.is_responder() && opcode != CqeOpcode::ResponderError {
        return;
    }
    let Some(srq) = record.srq() else { return };
    if let Some(side) = &mut *srq.side.lock() {
        if let Some(slot) = side.queue.complete(cqe.wqe_counter()) {
            // SAFETY: `complete` has returned the slot, which is held.
            unsafe { side.queue.release(slot) };
        }
    }
}

/// Destroys a queue pair that doorbell drives; `destroy` is libibverbs' function.
///
/// # Safety
/// [verbs]; `record` is that of `qp`.
pub(crate) unsafe fn destroy_qp(context: &Context, record: &Qp, destroy: impl FnOnce() -> c_int) -> c_int {
    // Once it is destroyed, a new queue pair may have its number, and its WQEs are gone.
    // SAFETY: [verbs]; integers, which may be 0.
    let is_reset = unsafe {
        if let Some(sends) = record.send.as_ref().filter(|sends| sends.is_building.load(Ordering::Relaxed)) {
            // The program has forgotten to end a batch.
            sends.end_batch();
        }
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..zeroed() };
        modify_qp(record, &mut attr, IBV_QP_STATE as c_int) == 0
    };
    without_record(&context.qps, record.qpn, destroy, |record| {
        // Else the device is gone, and completes nothing more. A child that inherited the queue pair destroys nothing,
        // and may lack the memory of its CQs.
        if !is_reset {
            remove_completions(record);
        }
    })
}

/// Destroys a CQ or an SRQ; `users` returns the count of queue pairs that have it.
pub(crate) fn destroyed<T: Record>(
    records: &Table<T>,
    number: u32,
    users: impl FnOnce(&T) -> &AtomicU32,
    destroy: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: [record-lives]
    let record = unsafe { records.get(number) };
    if record.is_some_and(|record| users(record).load(Ordering::Relaxed) > 0) {
        // The kernel refuses, and other threads may use the object meanwhile.
        return destroy();
    }
    without_record(records, number, destroy, |_| {})
}

/// Destroys an object whose record nothing finds meanwhile: a new object may have its number at once. Calls `end` with
/// the record if it was destroyed.
fn without_record<T: Record>(
    records: &Table<T>,
    number: u32,
    destroy: impl FnOnce() -> c_int,
    end: impl FnOnce(&T),
) -> c_int {
    let record = records.take(number);
    let error = destroy();
    match record {
        Some(record) if error == 0 => end(&record),
        Some(record) => _ = records.insert(number, record),
        None => {}
    }
    error
}
