//! The record of each context, and where a function finds it.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Mutex;

use rdma_core_sys::{
    ibv_context, ibv_context_ops, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_qp, ibv_qp_init_attr_ex, ibv_srq,
    ibv_srq_init_attr_ex, ibv_wc, mlx5dv_obj,
};

use crate::objects::{Cq, Qp, Srq};
use crate::provider;
use crate::table::Table;

pub(crate) type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
pub(crate) type InitObj = unsafe extern "C" fn(*mut mlx5dv_obj, u64) -> c_int;
pub(crate) type CreateCqEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
pub(crate) type CreateQpEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
pub(crate) type CreateSrqEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq;

/// A context of libmlx5 whose functions were replaced.
pub(crate) struct Context {
    pub(crate) ibv: *mut ibv_context,
    /// The functions of libmlx5.
    pub(crate) ops: ibv_context_ops,
    pub(crate) create_cq_ex: Option<CreateCqEx>,
    pub(crate) create_qp_ex: Option<CreateQpEx>,
    pub(crate) create_srq_ex: Option<CreateSrqEx>,
    pub(crate) init_obj: InitObj,
    /// By number of the queue pair.
    pub(crate) qps: Table<Qp>,
    /// By the kernel's handle.
    pub(crate) cqs: Table<Cq>,
    /// By the kernel's handle.
    pub(crate) srqs: Table<Srq>,
    /// Held to decide for a CQ, an SRQ or a queue pair.
    pub(crate) deciding: Mutex<()>,
}

// SAFETY: records are reached by any thread, as verbs objects are; what changes in them is atomic or behind locks.
unsafe impl Sync for Context {}
// SAFETY: verbs objects belong to no thread, and neither do their records.
unsafe impl Send for Context {}

/// The contexts that are open. All that come when there are as many stay with libmlx5.
struct Place {
    ibv: AtomicPtr<ibv_context>,
    record: AtomicPtr<Context>,
}

static OPEN: [Place; 64] =
    [const { Place { ibv: AtomicPtr::new(ptr::null_mut()), record: AtomicPtr::new(ptr::null_mut()) } }; 64];

/// Returns the record of a context, if its functions were replaced.
///
/// # Safety
/// The context is not closed during `'a`.
#[inline(always)]
pub(crate) unsafe fn find<'a>(ibv: *mut ibv_context) -> Option<&'a Context> {
    // Most programs have one.
    let first = &OPEN[0];
    let place = if first.ibv.load(Ordering::Acquire) == ibv { first } else { other(ibv)? };
    // SAFETY: a record goes when its context is closed.
    unsafe { place.record.load(Ordering::Relaxed).as_ref() }
}

#[cold]
fn other(ibv: *mut ibv_context) -> Option<&'static Place> {
    OPEN.iter().find(|place| place.ibv.load(Ordering::Acquire) == ibv)
}

/// As [`find`], of a context whose functions were replaced.
///
/// # Safety
/// As for [`find`].
#[inline(always)]
pub(crate) unsafe fn of<'a>(ibv: *mut ibv_context) -> &'a Context {
    // SAFETY: the context is not closed.
    unsafe { find(ibv) }.unwrap_or_else(|| closed())
}

/// Returns the record of a queue pair, if it has one.
///
/// # Safety
/// [verbs], [record-lives]
#[inline(always)]
pub(crate) unsafe fn qp<'a>(qp: *mut ibv_qp) -> Option<&'a Qp> {
    // SAFETY: [verbs], [record-lives].
    unsafe { Qp::find(qp).or_else(|| qp_by_number(qp)) }
}

/// Returns the record of a queue pair by its number: the path of [`qp`] for a queue pair without a place for a record.
///
/// # Safety
/// As [`qp`].
#[cold]
unsafe fn qp_by_number<'a>(qp: *mut ibv_qp) -> Option<&'a Qp> {
    // SAFETY: [verbs], [record-lives].
    unsafe { of((*qp).context).qps.get((*qp).qp_num) }
}

/// Returns the record of a CQ, if it has one.
///
/// # Safety
/// [verbs], [record-lives]
#[inline(always)]
pub(crate) unsafe fn cq<'a>(cq: *mut ibv_cq) -> Option<&'a Cq> {
    // SAFETY: [verbs], [record-lives].
    unsafe { Cq::find(cq).or_else(|| cq_by_number(cq)) }
}

/// As [`cq`], of one that has no place.
///
/// # Safety
/// As [`cq`].
#[cold]
unsafe fn cq_by_number<'a>(cq: *mut ibv_cq) -> Option<&'a Cq> {
    // SAFETY: [verbs], [record-lives].
    unsafe { of((*cq).context).cqs.get((*cq).handle) }
}

#[cold]
fn closed() -> ! {
    panic!("doorbell: an object of a context that was closed is used")
}

/// Puts a record where [`find`] finds it; returns `false` if there are too many. One thread at a time calls it.
pub(crate) fn insert(record: Box<Context>) -> bool {
    let Some(place) = OPEN.iter().find(|place| place.ibv.load(Ordering::Relaxed).is_null()) else {
        return false;
    };
    let ibv = record.ibv;
    place.record.store(Box::into_raw(record), Ordering::Relaxed);
    place.ibv.store(ibv, Ordering::Release);
    true
}

/// Drops the record of a context, if it has one.
///
/// # Safety
/// No code uses the context any more.
pub(crate) unsafe fn remove(ibv: *mut ibv_context) {
    if let Some(place) = other(ibv) {
        let record = place.record.load(Ordering::Relaxed);
        place.ibv.store(ptr::null_mut(), Ordering::Release);
        // SAFETY: it came from a box, and no code uses it any more.
        drop(unsafe { Box::from_raw(record) });
    }
}

/// Returns the function with this name of the libibverbs or libmlx5 that a context belongs to.
///
/// # Safety
/// `ibv` is a context of libibverbs.
pub(crate) unsafe fn function(ibv: *mut ibv_context, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `ibv` is a context.
    let ops = unsafe { find(ibv).map_or((*ibv).ops, |context| context.ops) };
    provider::beside(ops.poll_cq? as *const c_void, name)
}

/// Returns the function of libibverbs or libmlx5 that this library stands in front of: `real!(context, c"name" as
/// fn(..) -> ..)`, an `Option`.
macro_rules! real {
    ($ibv:expr, $name:literal as fn($($argument:ty),* $(,)?) -> $result:ty) => {
        $crate::context::function($ibv, $name).map(|function| {
            core::mem::transmute::<
                *mut core::ffi::c_void,
                unsafe extern "C" fn($($argument),*) -> $result,
            >(function)
        })
    };
}
pub(crate) use real;
