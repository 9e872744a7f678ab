//! How a data-path function finds the record of its object: in the object itself.
//!
//! libmlx5 allocates each CQ and each queue pair with the function pointers of an extended object. Its record replaces a
//! function that no covered object has, until the object is destroyed or forgotten. The first function tells whether it is
//! there: that of a CQ is [`start_poll`](extended::start_poll) if doorbell drives it, and that of a queue pair
//! [`wr_start`](builder::wr_start) if libmlx5 does not drive it. Other records are found by number.
//!
//! An SRQ has no function pointers. A plain one that doorbell drives has its record in the field of its XRC domain, which only
//! SRQs for XRC have, with [`OURS`].
//!
//! The record of a CQ or a queue pair is returned from a [`NonNull`], so the compiler does not test it again.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use rdma_core_sys::{IBV_SRQT_BASIC, ibv_cq, ibv_cq_ex, ibv_qp, ibv_qp_ex, ibv_srq, ibv_srq_type};

use crate::builder;
use crate::context::{self, Original};
use crate::extended;
use crate::objects::{Cq, Qp, Srq};

/// Start of the SRQ of each provider of libibverbs: `struct verbs_srq` of its `driver.h`. Tests ran with rdma-core 44 and 56.
/// libibverbs stores the XRC domain of an SRQ for XRC; neither it nor libmlx5 reads the field.
#[repr(C)]
struct VerbsSrq {
    srq: ibv_srq,
    srq_type: ibv_srq_type,
    xrcd: *const c_void,
}

/// Returns where a CQ has its record: in the reader of tag matching.
///
/// # Safety
/// `cq` is a CQ of libmlx5.
#[inline(always)]
pub(crate) const unsafe fn place_in_cq(cq: *mut ibv_cq_ex) -> *mut *const Cq {
    // SAFETY: `cq` is a CQ of libmlx5, each of which has the field.
    unsafe { (&raw mut (*cq).read_tm_info).cast() }
}

/// Returns where a queue pair has its record: in the builder of memory windows.
///
/// # Safety
/// `qp` is a queue pair of libmlx5.
#[inline(always)]
pub(crate) const unsafe fn place_in_qp(qp: *mut ibv_qp_ex) -> *mut *const Qp {
    // SAFETY: `qp` is a queue pair of libmlx5, each of which has the field.
    unsafe { (&raw mut (*qp).wr_bind_mw).cast() }
}

/// Returns the record of a CQ that doorbell drives.
///
/// # Safety
/// [verbs] `cq` is a CQ of libmlx5.
#[inline(always)]
pub(crate) unsafe fn cq<'a>(cq: *mut ibv_cq) -> Option<&'a Cq> {
    let cq = cq.cast::<ibv_cq_ex>();
    // SAFETY: [record-lives] a CQ with this function has its record there.
    unsafe {
        let start_poll =
            (*(&raw const (*cq).start_poll).cast::<AtomicUsize>()).load(Ordering::Acquire);
        let is_ours = start_poll == extended::start_poll as *const () as usize;
        let place: *const NonNull<Cq> = place_in_cq(cq).cast();
        if is_ours { Some((*place).as_ref()) } else { None }
    }
}

/// Returns the record of a queue pair whose first function is this library's.
///
/// # Safety
/// [verbs] `qp` is a queue pair of libmlx5.
#[inline(always)]
pub(crate) unsafe fn qp<'a>(qp: *mut ibv_qp) -> Option<&'a Qp> {
    let qp = qp.cast::<ibv_qp_ex>();
    // SAFETY: [record-lives] a queue pair with this function has its record there.
    unsafe {
        let wr_start = (*(&raw const (*qp).wr_start).cast::<AtomicUsize>()).load(Ordering::Relaxed);
        let is_ours = wr_start == builder::wr_start as *const () as usize;
        let place: *const NonNull<Qp> = place_in_qp(qp).cast();
        if is_ours { Some((*place).as_ref()) } else { None }
    }
}

/// Returns the functions of libmlx5 for a queue pair that libmlx5 drives, unless calls are counted.
///
/// # Safety
/// [verbs] `qp` is a queue pair of libmlx5.
#[inline(always)]
pub(crate) unsafe fn original_of_qp<'a>(qp: *mut ibv_qp) -> Option<&'a Original> {
    // SAFETY: [verbs], [record-lives].
    let (context, number) = unsafe { (context::of((*qp).context), (*qp).qp_num) };
    context.original_of(&context.qps.get(number)?.status)
}

/// As [`original_of_qp`], for an SRQ.
///
/// # Safety
/// [verbs] `srq` is an SRQ of libmlx5.
#[inline(always)]
pub(crate) unsafe fn original_of_srq<'a>(srq: *mut ibv_srq) -> Option<&'a Original> {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*srq).context);
        context.original_of(&context.srq(srq)?.status)
    }
}

/// As [`original_of_qp`], for a CQ.
///
/// # Safety
/// [verbs] `cq` is a CQ of libmlx5.
#[inline(always)]
pub(crate) unsafe fn original_of_cq<'a>(cq: *mut ibv_cq) -> Option<&'a Original> {
    // SAFETY: [verbs], [record-lives].
    unsafe {
        let context = context::of((*cq).context);
        context.original_of(&context.cq(cq)?.status)
    }
}

/// Bit 0 of the field of the XRC domain: an address has 0 there.
const OURS: usize = 1;

/// Puts the record of an SRQ that doorbell drives where [`srq`] finds it, if it is a plain one.
pub(crate) fn set_srq(record: &Srq) {
    let srq = record.ibv.cast::<VerbsSrq>();
    // SAFETY: [record-lives] the SRQ exists, and has the fields of libmlx5's SRQs.
    unsafe {
        if (*srq).srq_type == IBV_SRQT_BASIC {
            let place = ptr::from_ref(record).wrapping_byte_add(OURS).cast_mut();
            (*(&raw const (*srq).xrcd).cast::<AtomicPtr<Srq>>()).store(place, Ordering::Release);
        }
    }
}

/// Forgets the record of an SRQ.
///
/// # Safety
/// No code uses the SRQ meanwhile.
pub(crate) unsafe fn unset_srq(record: &Srq) {
    // SAFETY: [record-lives] the SRQ exists, and has the fields of libmlx5's SRQs.
    unsafe {
        if srq(record.ibv).is_some() {
            (*record.ibv.cast::<VerbsSrq>()).xrcd = ptr::null();
        }
    }
}

/// Returns the record of a plain SRQ that doorbell drives.
///
/// # Safety
/// [verbs] `srq` is an SRQ of libmlx5.
#[inline(always)]
pub(crate) unsafe fn srq<'a>(srq: *mut ibv_srq) -> Option<&'a Srq> {
    let srq = srq.cast::<VerbsSrq>();
    // SAFETY: [record-lives] such an SRQ has its record there, `OURS` bytes before the address.
    unsafe {
        let place = (*(&raw const (*srq).xrcd).cast::<AtomicPtr<Srq>>()).load(Ordering::Acquire);
        let is_ours = place.addr() & OURS != 0;
        if is_ours { Some(&*place.byte_sub(OURS)) } else { None }
    }
}
