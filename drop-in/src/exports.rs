//! The functions of libibverbs and libmlx5 that this library stands in front of: a program that is linked to them calls
//! these.

use core::ffi::{c_int, c_void};
use core::ptr;

use rdma_core_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq,
    ibv_srq_init_attr, mlx5dv_qp_init_attr,
};

use crate::context::{self, Context, real};
use crate::decide::uncovered_by_environment;
use crate::objects::Path;
use crate::{control, create, extended, install, log};

/// Returns the record of a context whose new objects doorbell may drive.
///
/// # Safety
/// `ibv` is a context of libibverbs.
unsafe fn covered<'a>(ibv: *mut ibv_context) -> Option<&'a Context> {
    // SAFETY: `ibv` is a context, which is in use.
    let context = unsafe { install::drives_all().then(|| install::install(ibv)).flatten() }?;
    uncovered_by_environment().is_none().then_some(context)
}

/// Returns null and sets `errno`: libibverbs lacks the function that this library replaces.
fn absent<T>() -> *mut T {
    log::warn(format_args!("the libibverbs of this context was not found"));
    // SAFETY: the place of this thread's `errno`.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
    ptr::null_mut()
}

/// Has extended objects of the context come to this library, too: their functions are in its tables.
///
/// # Safety
/// As libibverbs asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(ibv: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: [verbs]
    unsafe {
        if install::drives_all() {
            install::install(ibv);
        }
        let alloc = real!(ibv, c"ibv_alloc_pd" as fn(*mut ibv_context) -> *mut ibv_pd);
        alloc.map_or_else(absent, |alloc| alloc(ibv))
    }
}

/// Gives the CQ a record.
///
/// # Safety
/// As libibverbs asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    ibv: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: [verbs]; no other code has the new CQ.
    unsafe {
        let create = real!(
            ibv,
            c"ibv_create_cq" as fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq
        );
        let Some(create) = create else { return absent() };
        let cq = create(ibv, cqe, cq_context, channel, vector);
        if let (false, Some(context)) = (cq.is_null(), covered(ibv)) {
            create::record_cq(context, cq, false);
        }
        cq
    }
}

/// Leaves the CQ to libmlx5, which keeps the place of its CQEs to itself. Refuses a CQ that doorbell drives.
///
/// # Safety
/// As libibverbs asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let ibv = (*cq).context;
        let record = context::find(ibv).and_then(|context| context.cqs.get((*cq).handle));
        if let Some(record) = record {
            // In an extended poll of a CQ that doorbell drives this thread holds the lock.
            let undecided = record.status.path() == Path::Undecided;
            let _guard = undecided.then(|| record.side.lock());
            if record.status.path() == Path::Doorbell {
                log::warn(format_args!(
                    "CQ {} is not resized, because doorbell drives it: run the program with DOORBELL_PATH=libmlx5",
                    (*cq).handle
                ));
                return libc::EOPNOTSUPP;
            }
            if undecided {
                extended::leave(record);
                log::say(format_args!("CQ {}: libmlx5 (it is resized)", (*cq).handle));
            }
        }
        let resize = real!(ibv, c"ibv_resize_cq" as fn(*mut ibv_cq, c_int) -> c_int);
        resize.map_or(libc::EOPNOTSUPP, |resize| resize(cq, cqe))
    }
}

/// Counts the event: the number is part of the next arm.
///
/// # Safety
/// As libibverbs asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let ibv = (*channel).context;
        let get =
            real!(ibv, c"ibv_get_cq_event" as fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int);
        let error = get.map_or(-1, |get| get(channel, cq, cq_context));
        if error == 0 {
            let context = context::find(ibv);
            if let Some(record) = context.and_then(|context| context.cqs.get((**cq).handle)) {
                if let Some(doorbell) = &mut *record.doorbell.lock() {
                    doorbell.event();
                }
            }
        }
        error
    }
}

/// Removes the record of the CQ.
///
/// # Safety
/// As libibverbs asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let destroy = real!((*cq).context, c"ibv_destroy_cq" as fn(*mut ibv_cq) -> c_int);
        let destroy = || destroy.map_or(libc::EOPNOTSUPP, |destroy| destroy(cq));
        let Some(context) = context::find((*cq).context) else { return destroy() };
        control::destroyed(&context.cqs, (*cq).handle, |record| &record.users, destroy)
    }
}

/// Gives the SRQ a record.
///
/// # Safety
/// As libibverbs asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: [verbs]; no other code has the new SRQ.
    unsafe {
        let ibv = (*pd).context;
        let create = real!(ibv, c"ibv_create_srq" as fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq);
        let Some(create) = create else { return absent() };
        let srq = create(pd, attr);
        if let (false, Some(context)) = (srq.is_null(), covered(ibv)) {
            create::record_srq(context, srq);
        }
        srq
    }
}

/// Removes the record of the SRQ.
///
/// # Safety
/// As libibverbs asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let destroy = real!((*srq).context, c"ibv_destroy_srq" as fn(*mut ibv_srq) -> c_int);
        let destroy = || destroy.map_or(libc::EOPNOTSUPP, |destroy| destroy(srq));
        let Some(context) = context::find((*srq).context) else { return destroy() };
        control::destroyed(&context.srqs, (*srq).handle, |record| &record.users, destroy)
    }
}

/// Decides for the queue pair.
///
/// # Safety
/// As libibverbs asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: [verbs]; no other code has the new queue pair.
    unsafe {
        let ibv = (*pd).context;
        let create = real!(ibv, c"ibv_create_qp" as fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp);
        let Some(create) = create else { return absent() };
        let Some(context) = context::find(ibv) else { return create(pd, attr) };
        let qp = create::plain_without_payload(context, pd, attr).unwrap_or_else(|| create(pd, attr));
        create::joined(context, qp, None)
    }
}

/// Leaves the queue pair to libmlx5, with its CQs and its SRQ.
///
/// # Safety
/// As libmlx5 asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_create_qp(
    ibv: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    mlx5_attr: *mut mlx5dv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: [verbs]; no other code has the new queue pair.
    unsafe {
        let create = real!(
            ibv,
            c"mlx5dv_create_qp"
                as fn(*mut ibv_context, *mut ibv_qp_init_attr_ex, *mut mlx5dv_qp_init_attr) -> *mut ibv_qp
        );
        let Some(create) = create else { return absent() };
        let qp = create(ibv, attr, mlx5_attr);
        let why = Some("a QP of mlx5dv_create_qp");
        context::find(ibv).map_or(qp, |context| create::joined(context, qp, why))
    }
}

/// Has the rings follow the queue pair.
///
/// # Safety
/// As libibverbs asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::find((*qp).context);
        match context.and_then(|context| context.qps.get((*qp).qp_num)) {
            Some(record) => control::modify_qp(record, attr, mask),
            None => control::modify(qp, attr, mask),
        }
    }
}

/// Removes the record of the queue pair, and its CQEs.
///
/// # Safety
/// As libibverbs asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let destroy = real!((*qp).context, c"ibv_destroy_qp" as fn(*mut ibv_qp) -> c_int);
        let destroy = || destroy.map_or(libc::EOPNOTSUPP, |destroy| destroy(qp));
        let Some(context) = context::find((*qp).context) else { return destroy() };
        match context.qps.get((*qp).qp_num) {
            Some(record) => control::destroy_qp(context, record, destroy),
            None => destroy(),
        }
    }
}

/// Removes the record of the context.
///
/// # Safety
/// As libibverbs asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(ibv: *mut ibv_context) -> c_int {
    // SAFETY: [verbs] no code uses the context any more.
    unsafe {
        let close = real!(ibv, c"ibv_close_device" as fn(*mut ibv_context) -> c_int);
        context::remove(ibv);
        close.map_or(-1, |close| close(ibv))
    }
}
