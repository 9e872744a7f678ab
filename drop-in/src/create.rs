//! Creation of objects, which libmlx5 does: each gets a record.

use core::ffi::c_int;
use core::mem::transmute;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, OnceLock};

use rdma_core_sys::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQT_BASIC, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_pd,
    ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, ibv_wq, ibv_wq_init_attr, mlx5dv_qp_init_attr,
};

use crate::builder::functions;
use crate::context::{self, Context};
use crate::decide;
use crate::extended;
use crate::install::{self, Scope};
use crate::lock::Lock;
use crate::log::{self, Count};
use crate::objects::{Arm, Cq, Path, Qp, SendCompleter, Srq, Status, Transport};
use crate::poll::UNSEEN;
use crate::provider;

const SIGNED: &str = "WQEs with signatures (MLX5_QP_SIGNATURE, MLX5_SRQ_SIGNATURE)";

/// Settings of the environment that change every queue of libmlx5.
pub(crate) fn uncovered_by_environment() -> Option<&'static str> {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| value != "0");
    if std::env::var_os("DOORBELL_PATH").is_some_and(|path| path == "libmlx5") {
        return Some("DOORBELL_PATH says so");
    }
    (is_set("MLX5_QP_SIGNATURE") || is_set("MLX5_SRQ_SIGNATURE")).then_some(SIGNED)
}

pub(crate) unsafe extern "C" fn create_cq(
    ibv: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: [verbs]; no other code has the new CQ.
    unsafe {
        let context = context::of(ibv);
        let cq = (context.original.create_cq)(ibv, cqe, channel, vector);
        if !cq.is_null() {
            record_cq(context, cq, uncovered_by_environment(), None, context.is_shared);
        }
        cq
    }
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    ibv: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: [verbs]; no other code has the new CQ.
    unsafe {
        let context = context::of(ibv);
        let cq = (context.original.create_cq_ex)(ibv, attr);
        if cq.is_null() {
            return cq;
        }
        let is_single = (*attr).comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0
            && (*attr).flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
        record_cq_ex(context, cq, context.is_shared && !is_single);
        cq
    }
}

/// # Safety
/// `cq` is an extended CQ of `context` that no code uses meanwhile.
pub(crate) unsafe fn record_cq_ex(context: &Context, cq: *mut ibv_cq_ex, is_shared: bool) {
    // SAFETY: `cq` is an extended CQ of `context` that no code uses.
    unsafe {
        let uncovered = if (*cq).read_tm_info.is_some() {
            Some("a CQ for tag matching")
        } else if (*cq).read_completion_wallclock_ns.is_some() {
            Some("a CQ with wall-clock timestamps")
        } else {
            uncovered_by_environment()
        };
        let original = Some(Box::new(cq.read()));
        record_cq(context, cq.cast(), uncovered, original, is_shared);
    }
}

/// # Safety
/// `cq` is a CQ of `context` that no code uses meanwhile.
pub(crate) unsafe fn record_cq(
    context: &Context,
    cq: *mut ibv_cq,
    uncovered: Option<&'static str>,
    original: Option<Box<ibv_cq_ex>>,
    is_shared: bool,
) {
    let record = Cq {
        ibv: cq,
        status: Status::new(uncovered),
        side: Lock::new(None, is_shared),
        arm: Lock::new(Arm { doorbell: None, events: 0 }, context.is_shared),
        consumer_index: AtomicU32::new(0),
        resized: AtomicU32::new(0),
        original,
        polls: Count::default(),
    };
    // SAFETY: `cq` is a CQ of `context` that no code uses.
    unsafe {
        if let Some(record) = context.cqs.insert((*cq).handle, Box::new(record)) {
            extended::replace(cq.cast(), record);
        }
    }
}

pub(crate) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: [verbs]; no other code has the new SRQ.
    unsafe {
        let context = context::of((*pd).context);
        let srq = (context.original.create_srq)(pd, attr);
        record_srq(context, srq, uncovered_by_environment(), context.is_shared_in(pd));
        srq
    }
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    ibv: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: [verbs]; no other code has the new SRQ.
    unsafe {
        let context = context::of(ibv);
        let srq = (context.original.create_srq_ex)(ibv, attr);
        let is_basic =
            (*attr).comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || (*attr).srq_type == IBV_SRQT_BASIC;
        let uncovered = if is_basic {
            uncovered_by_environment()
        } else {
            Some("an SRQ of XRC or tag matching")
        };
        let has_pd = (*attr).comp_mask & IBV_SRQ_INIT_ATTR_PD != 0;
        let pd = if has_pd { (*attr).pd } else { ptr::null_mut() };
        record_srq(context, srq, uncovered, context.is_shared_in(pd));
        srq
    }
}

/// # Safety
/// `srq` is null, or an SRQ of `context` that no code uses meanwhile.
pub(crate) unsafe fn record_srq(
    context: &Context,
    srq: *mut ibv_srq,
    uncovered: Option<&'static str>,
    is_shared: bool,
) {
    if srq.is_null() {
        return;
    }
    let record = Srq {
        ibv: srq,
        status: Status::new(uncovered),
        side: Lock::new(None, is_shared),
        posts: Count::default(),
    };
    // SAFETY: `srq` is an SRQ of `context`.
    context.srqs.insert(unsafe { (*srq).handle }, Box::new(record));
}

pub(crate) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: [verbs]; no other code has the new queue pair.
    unsafe {
        let context = context::of((*pd).context);
        let qp = (context.original.create_qp)(pd, attr);
        record_qp(context, qp, pd, &*attr, None, None)
    }
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    ibv: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    const COVERED: u32 =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    // SAFETY: [verbs]; extended attributes begin with plain ones, and no other code has the new queue pair.
    unsafe {
        let context = context::of(ibv);
        let mask = (*attr).comp_mask;
        let has_flags = mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && (*attr).create_flags != 0;
        let uncovered =
            (has_flags || mask & !COVERED != 0).then_some("a QP with extended attributes");

        let has_builder = mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let has_more = has_builder && !functions::covers((*attr).send_ops_flags);
        let uncovered =
            uncovered.or(has_more.then_some("a QP for operations that are not covered"));
        let qp = (context.original.create_qp_ex)(ibv, attr);
        let has_builder = has_builder && !qp.is_null();
        let has_windows =
            has_builder && (*attr).send_ops_flags & u64::from(IBV_QP_EX_WITH_BIND_MW) != 0;
        let original = has_builder.then(|| functions::of(qp, has_windows));
        let pd = if mask & IBV_QP_INIT_ATTR_PD != 0 { (*attr).pd } else { ptr::null_mut() };
        record_qp(context, qp, pd, &*attr.cast::<ibv_qp_init_attr>(), uncovered, original)
    }
}

/// Gives a new queue pair a record. Returns null if it cannot join the group of its CQs; then it is destroyed.
///
/// # Safety
/// `qp` was made just now in `context` from `attr`, or is null.
unsafe fn record_qp(
    context: &Context,
    qp: *mut ibv_qp,
    pd: *mut ibv_pd,
    attr: &ibv_qp_init_attr,
    uncovered: Option<&'static str>,
    original: Option<Box<ibv_qp_ex>>,
) -> *mut ibv_qp {
    // SAFETY: `qp` was made just now, or is null.
    let has_cqs =
        unsafe { qp.as_ref() }.is_some_and(|qp| !(qp.send_cq.is_null() && qp.recv_cq.is_null()));
    if !has_cqs {
        // One for RSS posts nothing, and has the number 0, as all of its kind.
        return qp;
    }
    // SAFETY: `qp` was made just now in `context`, so no other code uses it.
    let Some(record) = (unsafe {
        insert_qp(context, qp, context.is_shared_in(pd), attr.sq_sig_all != 0, uncovered, original)
    }) else {
        return qp;
    };
    let neighbours = record.cqs().into_iter().flatten().map(|cq| &cq.status);
    let mut neighbours = neighbours.chain(record.srq().map(|srq| &srq.status));
    if neighbours.any(|status| status.path() == Path::Doorbell) {
        decide::for_new_qp(context, record);
        if record.status.path() != Path::Doorbell {
            log::warn(format_args!(
                "QP {:#x} cannot share a CQ or SRQ that doorbell drives: {}; {}",
                record.qpn,
                record.status.uncovered().unwrap_or("its group stays with libmlx5"),
                match context.scope {
                    Scope::All => "run the program with DOORBELL_PATH=libmlx5",
                    Scope::Attached => "give it CQs and an SRQ that are not attached",
                }
            ));
            // SAFETY: `qp` was made just now, so no other code uses it.
            unsafe {
                forget_qp(context, record);
                (context.original.destroy_qp)(qp);
                *libc::__errno_location() = libc::EOPNOTSUPP;
            }
            return ptr::null_mut();
        }
    } else if context.scope == Scope::Attached {
        // SAFETY: `qp` was made just now, so no other code uses it.
        unsafe { forget_qp(context, record) };
    }
    qp
}

/// Removes the record of a queue pair that stays with libmlx5.
///
/// # Safety
/// No code uses the queue pair meanwhile.
pub(crate) unsafe fn forget_qp(context: &Context, record: &Qp) {
    functions::forget(record);
    context.leave_undecided(record);
    let _undecided = context.undecided();
    // SAFETY: no code uses the queue pair, and no decision includes it.
    unsafe { context.qps.remove(record.qpn, record) };
}

/// Gives a queue pair a record.
///
/// # Safety
/// `qp` is a queue pair of `context` that no code uses meanwhile; `original` are its own functions, if any.
pub(crate) unsafe fn insert_qp<'a>(
    context: &'a Context,
    qp: *mut ibv_qp,
    is_shared: bool,
    signal_all: bool,
    uncovered: Option<&'static str>,
    original: Option<Box<ibv_qp_ex>>,
) -> Option<&'a Qp> {
    // SAFETY: `qp` is a queue pair that no code uses.
    let made = unsafe { &*qp };
    let (transport, unknown) = match made.qp_type {
        IBV_QPT_RC => (Transport::Rc, None),
        IBV_QPT_UC => (Transport::Uc, None),
        IBV_QPT_UD => (Transport::Ud, None),
        _ => (Transport::Ud, Some("a QP that is none of RC, UC and UD")),
    };
    let cq = |cq: *mut ibv_cq| {
        // SAFETY: `cq` is null or a CQ of the queue pair.
        unsafe { context.cq(cq) }.map(NonNull::from)
    };
    // SAFETY: `made.srq` is null or an SRQ of the context.
    let srq = unsafe { context.srq(made.srq) }.map(NonNull::from);
    let (send_cq, recv_cq) = (cq(made.send_cq), cq(made.recv_cq));
    let is_foreign = send_cq.is_none() || recv_cq.is_none() || srq.is_none() != made.srq.is_null();
    let foreign = is_foreign.then_some(match context.scope {
        Scope::All => "its CQ or SRQ was not made through libibverbs",
        Scope::Attached => "its other CQ or its SRQ is not attached",
    });
    let record = Qp {
        ibv: qp,
        qpn: made.qp_num,
        transport,
        signal_all,
        send_cq,
        recv_cq,
        srq,
        status: Status::new(unknown.or(uncovered).or(foreign).or_else(uncovered_by_environment)),
        can_send: AtomicBool::new(false),
        send_queue: Lock::new(None, is_shared).into(),
        send_completer: SendCompleter::default(),
        receive_queue: Lock::new(None, is_shared).into(),
        receive_completer: OnceLock::new(),
        original: Mutex::new(original),
        sends_posted: Count::default().into(),
        receives_posted: Count::default().into(),
    };
    let record = context.qps.insert(made.qp_num, Box::new(record))?;
    context.undecided().push(record);
    // SAFETY: no code uses `qp`, and `record` is its record.
    unsafe { functions::replace(qp, record) };
    Some(record)
}

/// Takes note of a queue pair that has no record; returns `false` if doorbell drives one of its CQs.
///
/// # Safety
/// `qp` is a queue pair of `context`.
pub(crate) unsafe fn note_foreign_qp(context: &Context, qp: *mut ibv_qp) -> bool {
    // SAFETY: `qp` is a queue pair.
    let (qp, cqs) = unsafe { (&*qp, [(*qp).send_cq, (*qp).recv_cq]) };
    // SAFETY: each is null or a CQ of the queue pair.
    if cqs.map(|cq| unsafe { note_foreign(context, cq, UNSEEN) }).contains(&false) {
        let number = qp.qp_num;
        log::warn(format_args!(
            "QP {number:#x} cannot be posted to: doorbell drives its CQ, and libmlx5 the QP; {}",
            match context.scope {
                Scope::All => "run the program with DOORBELL_PATH=libmlx5",
                Scope::Attached => "attach it before its first post",
            }
        ));
        return false;
    }
    true
}

/// Takes note of a queue pair or work queue that completes on a CQ and has no record; returns `false` if doorbell drives
/// that CQ.
///
/// # Safety
/// `cq` is a CQ of `context`, or null.
pub(crate) unsafe fn note_foreign(context: &Context, cq: *mut ibv_cq, why: &'static str) -> bool {
    // SAFETY: `cq` is null or a CQ of the context.
    let Some(record) = (unsafe { context.cq(cq) }) else { return true };
    if record.status.path() == Path::Undecided {
        decide::against(context, record, why);
    }
    record.status.path() != Path::Doorbell
}

pub(crate) unsafe extern "C" fn create_wq(
    ibv: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    // SAFETY: [verbs].
    unsafe {
        let context = context::of(ibv);
        if !note_foreign(context, (*attr).cq, "a work queue completes on it") {
            log::warn(format_args!(
                "a work queue cannot share a CQ that doorbell drives: run the program with DOORBELL_PATH=libmlx5"
            ));
            *libc::__errno_location() = libc::EOPNOTSUPP;
            return ptr::null_mut();
        }
        (context.original.create_wq)(ibv, attr)
    }
}

type CreateQp = unsafe extern "C" fn(
    *mut ibv_context,
    *mut ibv_qp_init_attr_ex,
    *mut mlx5dv_qp_init_attr,
) -> *mut ibv_qp;

/// Stands in front of the function of libmlx5 that makes queue pairs with features of its own.
///
/// # Safety
/// As libmlx5 asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_create_qp(
    ibv: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    mlx5_attr: *mut mlx5dv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: [verbs]; extended attributes begin with plain ones, and no other code has the new queue pair.
    unsafe {
        let Some(create) = provider::beside(provider::function_of(ibv), c"mlx5dv_create_qp") else {
            *libc::__errno_location() = libc::EOPNOTSUPP;
            return ptr::null_mut();
        };
        let create: CreateQp = transmute(create);
        let qp = create(ibv, attr, mlx5_attr);
        if !install::is_installed(ibv) {
            return qp;
        }
        let why = Some("a QP of mlx5dv_create_qp");
        record_qp(
            context::of(ibv),
            qp,
            ptr::null_mut(),
            &*attr.cast::<ibv_qp_init_attr>(),
            why,
            None,
        )
    }
}
