//! Which path an object takes: decided when a queue pair is created, for it and for the CQs and the SRQ that it is
//! created on.

use core::ptr::NonNull;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdma_core_sys::{IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, ibv_cq, ibv_qp, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_qp_type};

use crate::context::{Context, real};
use crate::lock::Lock;
use crate::objects::{Cq, Path, Qp, Srq, Status};
use crate::{builder, extended, log, rings};

type Why = &'static str;

/// Why a queue pair stays with libmlx5.
pub(crate) enum Refusal {
    /// All of its CQs and its SRQ stay, too.
    Libmlx5(Why),
    /// doorbell drives one of its CQs, or its SRQ.
    Conflict(Why),
}

/// Returns what in the environment keeps objects with libmlx5 that are created now.
pub(crate) fn uncovered_by_environment() -> Option<Why> {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| value != "0");
    if std::env::var_os("DOORBELL_PATH").is_some_and(|path| path == "libmlx5") {
        return Some("DOORBELL_PATH says so");
    }
    (is_set("MLX5_QP_SIGNATURE") || is_set("MLX5_SRQ_SIGNATURE"))
        .then_some("WQEs with signatures (MLX5_QP_SIGNATURE, MLX5_SRQ_SIGNATURE)")
}

fn is_covered(qp_type: ibv_qp_type) -> bool {
    [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD].contains(&qp_type)
}

/// Returns `true` if doorbell may drive a queue pair that is about to be created.
///
/// # Safety
/// The CQs of `attr` are null or of `context`.
pub(crate) unsafe fn may_drive(context: &Context, attr: &ibv_qp_init_attr_ex) -> bool {
    let is_ours = |cq: *mut ibv_cq| {
        // SAFETY: the CQ is null or of `context`. [record-lives]
        let record = unsafe { cq.as_ref().and_then(|cq| context.cqs.get(cq.handle)) };
        record.is_some_and(|record| record.status.path() != Path::Libmlx5)
    };
    is_covered(attr.qp_type) && is_ours(attr.send_cq) && is_ours(attr.recv_cq) && uncovered_by_environment().is_none()
}

/// Decides for a new queue pair, for those of its CQs and its SRQ that are undecided, and gives it a record if doorbell
/// drives it.
///
/// # Safety
/// `qp` is a queue pair of `context` that no code uses meanwhile.
pub(crate) unsafe fn join(context: &Context, qp: *mut ibv_qp, uncovered: Option<Why>) -> Result<(), Refusal> {
    let _deciding = context.deciding.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: `qp` is a queue pair, and so its CQs and its SRQ exist. [record-lives]
    let (made, cqs, srq) = unsafe {
        let made = &*qp;
        let cq = |cq: *mut ibv_cq| context.cqs.get(cq.as_ref()?.handle);
        let srq = made.srq.as_ref().and_then(|srq| context.srqs.get(srq.handle));
        (made, [made.send_cq, made.recv_cq].map(cq), srq)
    };
    let statuses = || cqs.iter().flatten().map(|cq| &cq.status).chain(srq.map(|srq| &srq.status));
    let has = |path| statuses().any(|status: &Status| status.path() == path);
    let why = uncovered.or_else(|| {
        if !is_covered(made.qp_type) {
            Some("a QP that is none of RC, UC and UD")
        } else if cqs.iter().any(Option::is_none) || srq.is_none() != made.srq.is_null() {
            Some("doorbell does not cover its CQ or its SRQ, or has not seen its creation")
        } else if has(Path::Libmlx5) {
            Some("it shares a CQ or SRQ that libmlx5 drives")
        } else {
            uncovered_by_environment()
        }
    });
    let joined = match (why, cqs) {
        // SAFETY: no code uses `qp`, which has these CQs and this SRQ.
        (None, [Some(send_cq), Some(recv_cq)]) => unsafe { adopt(context, qp, send_cq, recv_cq, srq) },
        (why, _) => Err(why.unwrap_or_default()),
    };
    let Err(why) = joined else {
        log::say(format_args!("QP {:#x}: doorbell", made.qp_num));
        return Ok(());
    };
    if has(Path::Doorbell) {
        return Err(Refusal::Conflict(why));
    }
    for cq in cqs.into_iter().flatten() {
        let _guard = cq.side.lock();
        extended::leave(cq);
    }
    if let Some(srq) = srq {
        let _guard = srq.side.lock();
        srq.status.set(Path::Libmlx5);
    }
    log::say(format_args!("QP {:#x}, its CQs and its SRQ: libmlx5 ({why})", made.qp_num));
    Err(Refusal::Libmlx5(why))
}

/// Gives a queue pair a record, and its CQs and its SRQ the rings that they lack.
///
/// # Safety
/// `qp` is a queue pair of `context` with these CQs and this SRQ that no code uses, and this thread decides.
unsafe fn adopt(context: &Context, qp: *mut ibv_qp, send_cq: &Cq, recv_cq: &Cq, srq: Option<&Srq>) -> Result<(), Why> {
    // SAFETY: no code uses `qp`. A queue pair has functions of `ibv_wr_*` if libibverbs says so.
    let (sides, ex) = unsafe {
        let ex = real!(context.ibv, c"ibv_qp_to_qp_ex" as fn(*mut ibv_qp) -> *mut ibv_qp_ex);
        (rings::qp(context, qp)?, ex.and_then(|ex| ex(qp).as_mut()))
    };
    let ex = ex.filter(|_| sides.send.is_some());
    if let Some(srq) = srq {
        adopt_srq(context, srq)?;
    }
    adopt_cq(context, send_cq)?;
    adopt_cq(context, recv_cq)?;
    // SAFETY: `qp` is a queue pair.
    let made = unsafe { &*qp };
    let record = Qp {
        ibv: qp,
        qpn: made.qp_num,
        transport: made.qp_type,
        signal_all: sides.signal_all,
        has_builder: ex.is_some(),
        send_cq: NonNull::from(send_cq),
        recv_cq: NonNull::from(recv_cq),
        srq: srq.map(NonNull::from),
        av_offset: AtomicUsize::new(0),
        send: sides.send,
        receive: Lock::new(sides.receive),
    };
    record.users().for_each(|users| _ = users.fetch_add(1, Ordering::Relaxed));
    context.qps.insert(made.qp_num, Box::new(record)).map_err(|_| "its number has over 24 bits")?;
    if let Some(ex) = ex {
        builder::replace(ex);
    }
    Ok(())
}

/// Gives a CQ a ring, if it is undecided.
fn adopt_cq(context: &Context, cq: &Cq) -> Result<(), Why> {
    // In an extended poll of the CQ this thread holds the lock.
    if cq.status.path() == Path::Doorbell {
        return Ok(());
    }
    // As for `ibv_req_notify_cq`: libmlx5 arms until the doorbell is there.
    let (mut side, mut doorbell) = (cq.side.lock(), cq.doorbell.lock());
    match cq.status.path() {
        Path::Doorbell => return Ok(()),
        Path::Libmlx5 => return Err("a queue that doorbell has not seen completes on its CQ"),
        Path::Undecided => {}
    }
    // SAFETY: [record-lives] the CQ exists; its functions lead to this library, which holds both locks.
    let (ring, arm) = unsafe { rings::cq(context, cq.ibv) }?;
    (*side, *doorbell) = (Some(ring), Some(arm));
    cq.status.set(Path::Doorbell);
    // SAFETY: [record-lives]
    log::say(format_args!("CQ {}: doorbell", unsafe { (*cq.ibv).handle }));
    Ok(())
}

/// Gives an SRQ a ring, if it is undecided.
fn adopt_srq(context: &Context, srq: &Srq) -> Result<(), Why> {
    let mut side = srq.side.lock();
    match srq.status.path() {
        Path::Doorbell => return Ok(()),
        Path::Libmlx5 => return Err("libmlx5 drives its SRQ"),
        Path::Undecided => {}
    }
    // SAFETY: [record-lives] the SRQ exists; its functions lead to this library, which holds the lock.
    *side = Some(unsafe { rings::srq(context, srq.ibv) }?);
    srq.status.set(Path::Doorbell);
    // SAFETY: [record-lives]
    log::say(format_args!("SRQ {}: doorbell", unsafe { (*srq.ibv).handle }));
    Ok(())
}

/// Decides for a CQ, before it has a queue pair.
pub(crate) fn for_cq(context: &Context, cq: &Cq) {
    let _deciding = context.deciding.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(why) = adopt_cq(context, cq) {
        let _guard = cq.side.lock();
        extended::leave(cq);
        log::say(format_args!("a CQ: libmlx5 ({why})"));
    }
}

/// Decides for an SRQ, before it has a queue pair.
#[cold]
pub(crate) fn for_srq(context: &Context, srq: &Srq) {
    let _deciding = context.deciding.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(why) = adopt_srq(context, srq) {
        let _guard = srq.side.lock();
        srq.status.set(Path::Libmlx5);
        log::say(format_args!("an SRQ: libmlx5 ({why})"));
    }
}
