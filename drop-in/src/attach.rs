//! Objects that a program attaches one by one, without a preload: the C interface, `include/doorbell.h`.

use core::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use rdma_core_sys::{ibv_context, ibv_cq, ibv_qp, ibv_srq};

use crate::context::Context;
use crate::decide::{self, Refusal};
use crate::objects::Path;
use crate::{create, exports, install, log, provider};

/// One thread attaches at a time.
static ATTACHING: Mutex<()> = Mutex::new(());

/// Lets doorbell poll and arm a CQ. Those queue pairs that it has must be attached before something is posted to them.
///
/// A queue pair that is created on it later is doorbell's, too. The other CQ and the SRQ of that queue pair must be
/// attached before: otherwise its creation fails with `EOPNOTSUPP`. No object can be detached.
///
/// Returns 0, also if doorbell drives it already, or `EOPNOTSUPP`: then libmlx5 drives the CQ, and `DOORBELL_LOG=1`
/// shows why.
///
/// # Safety
/// `cq` points to a live CQ of `ibv_create_cq`. It was neither polled nor resized, no event of it was taken, and no
/// other thread uses it during the call; other threads may use, create and destroy other objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_attach_cq(cq: *mut ibv_cq) -> c_int {
    let _attaching = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: `cq` points to a live CQ of `ibv_create_cq`, and no other thread uses it during the call.
    unsafe {
        let Some(context) = context_of((*cq).context) else { return libc::EOPNOTSUPP };
        let is_fresh = record_cq(context, cq);
        let Some(record) = context.cqs.get((*cq).handle) else { return libc::EOPNOTSUPP };
        decide::for_cq(context, record);
        if record.status.path() == Path::Doorbell {
            return 0;
        }
        if is_fresh {
            drop(context.cqs.take((*cq).handle));
        }
        libc::EOPNOTSUPP
    }
}

/// Lets doorbell post to an SRQ. Attach all queue pairs of the SRQ, too: for a receive of another one `ibv_poll_cq` of
/// libmlx5 returns a wrong `wr_id`.
///
/// Returns as `doorbell_attach_cq`.
///
/// # Safety
/// `srq` points to a live SRQ, neither of XRC nor of tag matching. Nothing was posted to it, and no other thread uses
/// it during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_attach_srq(srq: *mut ibv_srq) -> c_int {
    let _attaching = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: `srq` points to a live SRQ, and no other thread uses it during the call.
    unsafe {
        let Some(context) = context_of((*srq).context) else { return libc::EOPNOTSUPP };
        let is_fresh = record_srq(context, srq);
        let Some(record) = context.srqs.get((*srq).handle) else { return libc::EOPNOTSUPP };
        decide::for_srq(context, record);
        if record.status.path() == Path::Doorbell {
            return 0;
        }
        if is_fresh {
            drop(context.srqs.take((*srq).handle));
        }
        libc::EOPNOTSUPP
    }
}

/// Lets doorbell post to a queue pair; attaches its CQs and its SRQ, too.
///
/// Returns as `doorbell_attach_cq`. On failure the call has attached none of these objects.
///
/// # Safety
/// `qp` points to a live queue pair of `ibv_create_qp`, or of `ibv_create_qp_ex` without creation flags, for SEND,
/// RDMA, atomics and windows; not of `mlx5dv_create_qp`. Nothing was posted to it since it was in RESET, and no other
/// thread uses it, its CQs or its SRQ during the call. For its CQs and its SRQ holds what `doorbell_attach_cq` and
/// `doorbell_attach_srq` ask for. The processor can write to all memory that the program receives, reads or posts
/// atomics into, at the addresses that it posts; or the queue pair was created with `MLX5_SCATTER_TO_CQE=0` in the
/// environment, or on an attached CQ.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_attach_qp(qp: *mut ibv_qp) -> c_int {
    let _attaching = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: `qp` points to a live queue pair, its members to its live CQs and its SRQ; no other thread uses them.
    unsafe {
        let Some(context) = context_of((*qp).context) else { return libc::EOPNOTSUPP };
        if context.qps.get((*qp).qp_num).is_some() {
            return 0;
        }
        let (send_cq, recv_cq, srq) = ((*qp).send_cq, (*qp).recv_cq, (*qp).srq);
        let fresh_cqs = [send_cq, recv_cq].map(|cq| (cq, record_cq(context, cq)));
        let is_fresh = !srq.is_null() && record_srq(context, srq);
        let joined = decide::join(context, qp, None);
        let Err(Refusal::Libmlx5(why) | Refusal::Conflict(why)) = joined else { return 0 };
        for (cq, _) in fresh_cqs.into_iter().filter(|(_, is_fresh)| *is_fresh) {
            drop(context.cqs.take((*cq).handle));
        }
        if is_fresh {
            drop(context.srqs.take((*srq).handle));
        }
        log::say(format_args!("QP {:#x} is not attached: {why}", (*qp).qp_num));
        libc::EOPNOTSUPP
    }
}

/// Returns the record of a context, whose functions are replaced if they were not; `None` if it is not libmlx5's, or if
/// calls that modify and destroy objects do not come to this library.
///
/// # Safety
/// `ibv` is a context of libibverbs that no code closes meanwhile.
unsafe fn context_of<'a>(ibv: *mut ibv_context) -> Option<&'a Context> {
    let ours = exports::ibv_destroy_qp as *const c_void;
    if !provider::stands_in_front(c"ibv_destroy_qp", ours) {
        log::warn(format_args!("nothing can be attached: link the doorbell library before libibverbs"));
        return None;
    }
    // SAFETY: `ibv` is an open context.
    unsafe { install::install(ibv) }
}

/// Gives a CQ a record, if it has none; returns whether it had none.
///
/// # Safety
/// `cq` points to a live CQ of `context` that no other code uses, and that is not extended.
unsafe fn record_cq(context: &Context, cq: *mut ibv_cq) -> bool {
    // SAFETY: `cq` points to a live CQ of `context` that no other code uses.
    unsafe {
        let is_fresh = context.cqs.get((*cq).handle).is_none();
        if is_fresh {
            create::record_cq(context, cq, false);
        }
        is_fresh
    }
}

/// Gives an SRQ a record, if it has none; returns whether it had none.
///
/// # Safety
/// `srq` points to a live SRQ of `context` that no other code uses.
unsafe fn record_srq(context: &Context, srq: *mut ibv_srq) -> bool {
    // SAFETY: `srq` points to a live SRQ of `context` that no other code uses.
    unsafe {
        let is_fresh = context.srqs.get((*srq).handle).is_none();
        if is_fresh {
            create::record_srq(context, srq);
        }
        is_fresh
    }
}
