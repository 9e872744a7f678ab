//! How a data-path function finds the record of its object: in the object itself.
//!
//! libmlx5 allocates each CQ and each queue pair with the function pointers of an extended object. An object with a record has
//! this library's first function ([`start_poll`](extended::start_poll), [`wr_start`](builder::wr_start)). Its record replaces a
//! function that no covered object has, until the object is destroyed or forgotten. An object that libmlx5 drives has libmlx5's
//! first function again. SRQs have no function pointers: a table holds their records.

use core::sync::atomic::{AtomicUsize, Ordering};

use rdma_core_sys::{ibv_cq, ibv_cq_ex, ibv_qp, ibv_qp_ex};

use crate::builder;
use crate::extended;
use crate::objects::{Cq, Qp};

/// Returns where a CQ has its record: in the reader of tag matching.
///
/// # Safety
/// `cq` is a CQ of libmlx5.
#[inline(always)]
pub(crate) const unsafe fn place_in_cq(cq: *mut ibv_cq_ex) -> *mut *const Cq {
    // SAFETY: the caller's CQ; a pointer has the size of a function pointer.
    unsafe { (&raw mut (*cq).read_tm_info).cast() }
}

/// Returns where a queue pair has its record: in the builder of memory windows.
///
/// # Safety
/// `qp` is a queue pair of libmlx5.
#[inline(always)]
pub(crate) const unsafe fn place_in_qp(qp: *mut ibv_qp_ex) -> *mut *const Qp {
    // SAFETY: the caller's queue pair; a pointer has the size of a function pointer.
    unsafe { (&raw mut (*qp).wr_bind_mw).cast() }
}

/// Returns the record of a CQ that doorbell drives, or that is undecided.
///
/// # Safety
/// [verbs] `cq` is a CQ of libmlx5.
#[inline(always)]
pub(crate) unsafe fn cq<'a>(cq: *mut ibv_cq) -> Option<&'a Cq> {
    let cq = cq.cast::<ibv_cq_ex>();
    // SAFETY: [record-lives] a CQ with this function has its record there.
    unsafe {
        let start_poll =
            (*(&raw const (*cq).start_poll).cast::<AtomicUsize>()).load(Ordering::Relaxed);
        let is_ours = start_poll == extended::start_poll as *const () as usize;
        if is_ours { Some(&**place_in_cq(cq)) } else { None }
    }
}

/// Returns the record of a queue pair that doorbell drives, or that is undecided.
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
        if is_ours { Some(&**place_in_qp(qp)) } else { None }
    }
}
