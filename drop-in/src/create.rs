//! Creation of objects, which libmlx5 does: CQs and SRQs that doorbell may drive get a record, and queue pairs that it
//! drives.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::AtomicU32;

use rdma_core_sys::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQT_BASIC, MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE, MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS, ibv_context,
    ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq,
    ibv_srq_init_attr_ex, mlx5dv_qp_init_attr,
};

use crate::context::{self, Context, real};
use crate::decide::{self, Refusal, may_drive, uncovered_by_environment};
use crate::lock::Lock;
use crate::objects::{Cq, Srq, Status};
use crate::{builder, extended, log};

/// Gives a new CQ a record.
///
/// # Safety
/// `cq` is a CQ of `context` that no code uses meanwhile; if `is_extended`, an extended one.
pub(crate) unsafe fn record_cq(context: &Context, cq: *mut ibv_cq, is_extended: bool) {
    let cq_ex = cq.cast::<ibv_cq_ex>();
    // SAFETY: the CQ is an extended one if `is_extended`, and no code uses it.
    let original = is_extended.then(|| unsafe { Box::new(cq_ex.read()) });
    let record = Cq {
        ibv: cq,
        status: Status::undecided(),
        side: Lock::new(None),
        doorbell: Lock::new(None),
        consumer_index: AtomicU32::new(0),
        original,
        users: AtomicU32::new(0),
    };
    // SAFETY: as above.
    unsafe {
        if context.cqs.insert((*cq).handle, Box::new(record)).is_ok() && is_extended {
            extended::replace(&mut *cq_ex);
        }
    }
}

/// Gives a new SRQ a record.
///
/// # Safety
/// `srq` is an SRQ of `context` that no code uses meanwhile.
pub(crate) unsafe fn record_srq(context: &Context, srq: *mut ibv_srq) {
    let record = Srq { ibv: srq, status: Status::undecided(), side: Lock::new(None), users: AtomicU32::new(0) };
    // SAFETY: `srq` is an SRQ. One whose handle has too many bits has no record.
    let _ = context.srqs.insert(unsafe { (*srq).handle }, Box::new(record));
}

/// Creates a queue pair without payload in CQEs, if doorbell may drive it; `None` if libmlx5 is to create it as the
/// program asks. The processor would copy such payload, and a key does not tell whether the processor reaches the
/// memory: a pointer of a GPU is registered as other memory is. With `MLX5_SCATTER_TO_CQE` the program decides.
///
/// # Safety
/// [verbs], for `ibv_create_qp_ex` of `context`.
unsafe fn without_payload(context: &Context, attr: *mut ibv_qp_init_attr_ex) -> Option<*mut ibv_qp> {
    // SAFETY: [verbs]; the types are libmlx5's.
    unsafe {
        if std::env::var_os("MLX5_SCATTER_TO_CQE").is_some() || !may_drive(context, &*attr) {
            return None;
        }
        let create = real!(
            context.ibv,
            c"mlx5dv_create_qp"
                as fn(*mut ibv_context, *mut ibv_qp_init_attr_ex, *mut mlx5dv_qp_init_attr) -> *mut ibv_qp
        )?;
        let mut flags = mlx5dv_qp_init_attr {
            comp_mask: MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS.into(),
            create_flags: MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
            ..Default::default()
        };
        Some(create(context.ibv, attr, &mut flags))
    }
}

/// As [`without_payload`], with the attributes of `ibv_create_qp`.
///
/// # Safety
/// [verbs], for `ibv_create_qp` of `context`.
pub(crate) unsafe fn plain_without_payload(
    context: &Context,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Option<*mut ibv_qp> {
    // SAFETY: [verbs]
    unsafe {
        let mut extended = ibv_qp_init_attr_ex {
            qp_context: (*attr).qp_context,
            send_cq: (*attr).send_cq,
            recv_cq: (*attr).recv_cq,
            srq: (*attr).srq,
            cap: (*attr).cap,
            qp_type: (*attr).qp_type,
            sq_sig_all: (*attr).sq_sig_all,
            comp_mask: IBV_QP_INIT_ATTR_PD,
            pd,
            ..Default::default()
        };
        let qp = without_payload(context, &mut extended)?;
        if !qp.is_null() {
            (*attr).cap = extended.cap;
        }
        Some(qp)
    }
}

/// Decides for a new queue pair. Returns null if it cannot share its CQs or its SRQ with doorbell; then it is
/// destroyed.
///
/// # Safety
/// `qp` was created just now in `context`, or is null.
pub(crate) unsafe fn joined(context: &Context, qp: *mut ibv_qp, uncovered: Option<&'static str>) -> *mut ibv_qp {
    // SAFETY: `qp` was created just now, so no other code uses it. One for RSS has no CQs.
    unsafe {
        if qp.is_null() || ((*qp).send_cq.is_null() && (*qp).recv_cq.is_null()) {
            return qp;
        }
        let Err(Refusal::Conflict(why)) = decide::join(context, qp, uncovered) else { return qp };
        log::warn(format_args!(
            "QP {:#x} cannot share a CQ or SRQ that doorbell drives: {why}; give it CQs and an SRQ of its own, or run the program with DOORBELL_PATH=libmlx5",
            (*qp).qp_num
        ));
        if let Some(destroy) = real!(context.ibv, c"ibv_destroy_qp" as fn(*mut ibv_qp) -> c_int) {
            destroy(qp);
        }
        *libc::__errno_location() = libc::EOPNOTSUPP;
        ptr::null_mut()
    }
}

/// Stands in the place of libibverbs' function in a context.
pub(crate) unsafe extern "C" fn create_cq_ex(ibv: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    // SAFETY: [verbs]; no other code has the new CQ.
    unsafe {
        let context = context::of(ibv);
        let Some(create) = context.create_cq_ex else { return ptr::null_mut() };
        let cq = create(ibv, attr);
        if !cq.is_null() {
            match extended::uncovered(&*cq).or_else(uncovered_by_environment) {
                None => record_cq(context, cq.cast(), true),
                Some(why) => log::say(format_args!("CQ {}: libmlx5 ({why})", (*cq).handle)),
            }
        }
        cq
    }
}

/// Stands in the place of libibverbs' function in a context.
pub(crate) unsafe extern "C" fn create_srq_ex(ibv: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    // SAFETY: [verbs]; no other code has the new SRQ.
    unsafe {
        let context = context::of(ibv);
        let Some(create) = context.create_srq_ex else { return ptr::null_mut() };
        let srq = create(ibv, attr);
        let is_basic = (*attr).comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || (*attr).srq_type == IBV_SRQT_BASIC;
        if !srq.is_null() {
            match uncovered_by_environment() {
                None if is_basic => record_srq(context, srq),
                why => log::say(format_args!(
                    "SRQ {}: libmlx5 ({})",
                    (*srq).handle,
                    why.unwrap_or("an SRQ of XRC or tag matching")
                )),
            }
        }
        srq
    }
}

/// Stands in the place of libibverbs' function in a context.
pub(crate) unsafe extern "C" fn create_qp_ex(ibv: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    const COVERED: u32 = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    // SAFETY: [verbs]; no other code has the new queue pair.
    unsafe {
        let context = context::of(ibv);
        let Some(create) = context.create_qp_ex else { return ptr::null_mut() };
        let qp = without_payload(context, attr).unwrap_or_else(|| create(ibv, attr));
        let mask = (*attr).comp_mask;
        let has_flags = mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && (*attr).create_flags != 0;
        let has_builder = mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let uncovered = if has_flags || mask & !COVERED != 0 {
            Some("a QP with extended attributes")
        } else if has_builder && !builder::covers((*attr).send_ops_flags) {
            Some("a QP for operations that are not covered")
        } else {
            None
        };
        joined(context, qp, uncovered)
    }
}
