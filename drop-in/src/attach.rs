//! Objects that a program attaches one by one, without a preload: the C interface, `include/doorbell.h`.

use core::ffi::c_int;
use core::mem::zeroed;
use core::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use rdma_core_sys::{
    IBV_QP_CAP, IBV_QP_STATE, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, ibv_context,
    ibv_cq, ibv_cq_ex, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_srq,
};

use crate::builder::functions;
use crate::context::{self, Context};
use crate::create;
use crate::decide;
use crate::extended;
use crate::find;
use crate::install::{self, Scope};
use crate::log;
use crate::objects::{Path, Status};

/// One thread attaches at a time.
static ATTACHING: Mutex<()> = Mutex::new(());

/// Lets doorbell poll and arm a CQ. Those queue pairs that it has must be attached before something is posted to them.
///
/// A queue pair that is created on it later is doorbell's, too. The other CQ and the SRQ of that queue pair must be attached
/// before: otherwise its creation fails with `EOPNOTSUPP`. No object can be detached.
///
/// Returns 0, also if doorbell drives it already, or `EOPNOTSUPP`: then nothing has changed, and libmlx5 drives the CQ.
/// `DOORBELL_LOG=1` shows why.
///
/// # Safety
/// The CQ is of `ibv_create_cq`, or of `ibv_create_cq_ex` and was cast by `ibv_cq_ex_to_cq`; not of `mlx5dv_create_cq`.
/// It was neither polled nor resized, and no other thread uses it during the call; other threads may use, create and destroy
/// other objects. The program uses no memory windows of this context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_attach_cq(cq: *mut ibv_cq) -> c_int {
    let _attaching = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: `cq` is a CQ that no other thread uses.
    unsafe {
        let Some(context) = context_of((*cq).context) else { return libc::EOPNOTSUPP };
        let fresh = record_cq(context, cq);
        let Some(record) = context.cq(cq) else { return libc::EOPNOTSUPP };
        decide::for_cq(context, record);
        let error = error_of(&record.status);
        if error != 0 {
            fresh.forget();
        }
        error
    }
}

/// Lets doorbell post to an SRQ. Attach all queue pairs of the SRQ, too: for a receive of another one `ibv_poll_cq` of libmlx5
/// returns a wrong `wr_id`.
///
/// Returns as `doorbell_attach_cq`.
///
/// # Safety
/// The SRQ is a plain one, neither of XRC nor of tag matching. Nothing was posted to it, and no other thread uses it during
/// the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_attach_srq(srq: *mut ibv_srq) -> c_int {
    let _attaching = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: `srq` is an SRQ that no other thread uses.
    unsafe {
        let Some(context) = context_of((*srq).context) else { return libc::EOPNOTSUPP };
        let fresh = record_srq(context, srq);
        let Some(record) = context.srq(srq) else { return libc::EOPNOTSUPP };
        decide::for_srq(context, record);
        let error = error_of(&record.status);
        if error != 0 {
            fresh.forget();
        }
        error
    }
}

/// Lets doorbell post to a queue pair; attaches its CQs and its SRQ, too.
///
/// Returns as `doorbell_attach_cq`. On failure none of these objects was attached by the call.
///
/// # Safety
/// The queue pair is of `ibv_create_qp`, or of `ibv_create_qp_ex` without creation flags, for SEND, RDMA and atomics; not of
/// `mlx5dv_create_qp`. Nothing was posted to it since it was in RESET, and no other thread uses it, its CQs or its SRQ during
/// the call. For its CQs and its SRQ holds what `doorbell_attach_cq` and `doorbell_attach_srq` ask for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_attach_qp(qp: *mut ibv_qp) -> c_int {
    let _attaching = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: `qp` is a queue pair that no other thread uses, nor its CQs and its SRQ.
    unsafe {
        let Some(context) = context_of((*qp).context) else { return libc::EOPNOTSUPP };
        if let Some(record) = context.qps.get((*qp).qp_num) {
            decide::for_qp(context, record);
            return error_of(&record.status);
        }
        let (mut attr, mut made) = (zeroed::<ibv_qp_attr>(), zeroed::<ibv_qp_init_attr>());
        let query = context.original.query_qp;
        if query(qp, &mut attr, (IBV_QP_STATE | IBV_QP_CAP) as c_int, &mut made) != 0 {
            return libc::EOPNOTSUPP;
        }
        if attr.qp_state == IBV_QPS_ERR {
            // Nothing tells whether it was ready to send before.
            log::say(format_args!("QP {:#x}: libmlx5 (it is in the error state)", (*qp).qp_num));
            return libc::EOPNOTSUPP;
        }
        let neighbours = [
            record_cq(context, (*qp).send_cq),
            record_cq(context, (*qp).recv_cq),
            record_srq(context, (*qp).srq),
        ];
        // libmlx5 has room for the functions of `ibv_wr_*` in each queue pair.
        let extended = qp.cast::<ibv_qp_ex>();
        let bind_mw = (*extended).wr_bind_mw;
        let original = (*extended).wr_start.map(|_| functions::of(qp, false));
        let signal_all = made.sq_sig_all != 0;
        let error =
            match create::insert_qp(context, qp, context.is_shared, signal_all, None, original) {
                None => libc::EOPNOTSUPP,
                Some(record) => {
                    let can_send =
                        !matches!(attr.qp_state, IBV_QPS_RESET | IBV_QPS_INIT | IBV_QPS_RTR);
                    record.can_send.store(can_send, Ordering::Relaxed);
                    decide::for_qp(context, record);
                    let error = error_of(&record.status);
                    if error != 0 {
                        create::forget_qp(context, record);
                        (*extended).wr_bind_mw = bind_mw;
                    }
                    error
                }
            };
        if error != 0 {
            neighbours.iter().for_each(|fresh| fresh.forget());
        }
        error
    }
}

/// Returns the record of a context, whose functions are replaced if they were not; `None` if it is not libmlx5's.
///
/// # Safety
/// `ibv` is a context of libibverbs that no code closes meanwhile, and this thread holds [`ATTACHING`].
unsafe fn context_of<'a>(ibv: *mut ibv_context) -> Option<&'a Context> {
    // SAFETY: `ibv` is an open context, and no other thread attaches.
    unsafe {
        if !install::is_installed(ibv) {
            install::install(ibv, Scope::Attached);
        }
        install::is_installed(ibv).then(|| context::of(ibv))
    }
}

fn error_of(status: &Status) -> c_int {
    if status.path() == Path::Doorbell { 0 } else { libc::EOPNOTSUPP }
}

/// A record that the call has made.
enum Fresh<'a> {
    No,
    Cq(&'a Context, u32),
    Srq(&'a Context, u32),
}

impl Fresh<'_> {
    /// Removes the record.
    ///
    /// # Safety
    /// No code uses the object meanwhile.
    unsafe fn forget(&self) {
        // SAFETY: no code uses the object.
        unsafe {
            match *self {
                Fresh::No => {}
                Fresh::Cq(context, handle) => {
                    let _undecided = context.undecided();
                    if let Some(record) = context.cqs.get(handle) {
                        extended::forget(record);
                        context.cqs.remove(handle, record);
                    }
                }
                Fresh::Srq(context, handle) => {
                    let _undecided = context.undecided();
                    if let Some(record) = context.srqs.get(handle) {
                        find::unset_srq(record);
                        context.srqs.remove(handle, record);
                    }
                }
            }
        }
    }
}

/// Gives a CQ a record, if it has none.
///
/// # Safety
/// `cq` is null, or a CQ of `context` that no code uses.
unsafe fn record_cq(context: &Context, cq: *mut ibv_cq) -> Fresh<'_> {
    // SAFETY: no code uses `cq`, which is null or of `context`. libmlx5 has room for the functions of an extended CQ in each.
    unsafe {
        if cq.is_null() || context.cq(cq).is_some() {
            return Fresh::No;
        }
        let extended = cq.cast::<ibv_cq_ex>();
        if (*extended).start_poll.is_some() {
            create::record_cq_ex(context, extended, context.is_shared);
        } else {
            let uncovered = create::uncovered_by_environment();
            create::record_cq(context, cq, uncovered, None, context.is_shared);
        }
        Fresh::Cq(context, (*cq).handle)
    }
}

/// Gives an SRQ a record, if it has none.
///
/// # Safety
/// `srq` is null, or an SRQ of `context` that no code uses.
unsafe fn record_srq(context: &Context, srq: *mut ibv_srq) -> Fresh<'_> {
    // SAFETY: `srq` is null or an SRQ of `context` that no code uses.
    unsafe {
        if srq.is_null() || context.srq(srq).is_some() {
            return Fresh::No;
        }
        create::record_srq(context, srq, create::uncovered_by_environment(), context.is_shared);
        Fresh::Srq(context, (*srq).handle)
    }
}
