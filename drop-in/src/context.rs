//! The record of each context, and where a data-path function finds it.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdma_core_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_mw, ibv_mw_bind,
    ibv_mw_type, ibv_parent_domain_init_attr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, ibv_wc, ibv_wq, ibv_wq_init_attr,
};

use crate::domain::Domains;
use crate::find;
use crate::install::Scope;
use crate::log;
use crate::objects::{Cq, Path, Qp, Srq, Status};
use crate::provider::InitObj;
use crate::table::Table;

/// A context of libmlx5 whose functions were replaced.
pub(crate) struct Context {
    pub(crate) ibv: *mut ibv_context,
    pub(crate) original: Original,
    /// By number of the queue pair.
    pub(crate) qps: Table<Qp>,
    /// By the kernel's handle.
    pub(crate) cqs: Table<Cq>,
    /// By the kernel's handle.
    pub(crate) srqs: Table<Srq>,
    /// Queue pairs that are undecided. The lock is held to decide, to change the state of one of them, and to remove the record of an
    /// object that was destroyed.
    pub(crate) undecided_qps: Mutex<Vec<*const Qp>>,
    /// Whether the program has allocated memory windows.
    pub(crate) has_windows: AtomicBool,
    pub(crate) domains: Domains,
    /// Whether queues are locked that are in no thread domain.
    pub(crate) is_shared: bool,
    pub(crate) scope: Scope,
}

// SAFETY: records are reached by any thread, as verbs objects are; what changes in them is atomic or behind locks.
unsafe impl Sync for Context {}
// SAFETY: verbs objects belong to no thread, and neither do their records.
unsafe impl Send for Context {}

pub(crate) type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
pub(crate) type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
pub(crate) type PostRecv =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
pub(crate) type PostSrqRecv =
    unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// The functions of libmlx5.
#[derive(Clone, Copy)]
pub(crate) struct Original {
    pub(crate) poll_cq: PollCq,
    pub(crate) init_obj: InitObj,
    pub(crate) req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    pub(crate) post_send: PostSend,
    pub(crate) post_recv: PostRecv,
    pub(crate) post_srq_recv: PostSrqRecv,
    pub(crate) alloc_parent_domain:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd,
    pub(crate) dealloc_pd: unsafe extern "C" fn(*mut ibv_pd) -> c_int,
    pub(crate) alloc_mw: unsafe extern "C" fn(*mut ibv_pd, ibv_mw_type) -> *mut ibv_mw,
    pub(crate) bind_mw: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int,
    pub(crate) create_qp_ex:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp,
    pub(crate) create_srq_ex:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq,
    pub(crate) create_wq:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq,
    pub(crate) create_cq:
        unsafe extern "C" fn(*mut ibv_context, c_int, *mut ibv_comp_channel, c_int) -> *mut ibv_cq,
    pub(crate) create_cq_ex:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex,
    pub(crate) create_qp: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
    pub(crate) create_srq:
        unsafe extern "C" fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq,
    pub(crate) destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int,
    pub(crate) destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int,
    pub(crate) destroy_srq: unsafe extern "C" fn(*mut ibv_srq) -> c_int,
    pub(crate) modify_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
    pub(crate) query_qp:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int,
    pub(crate) resize_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    pub(crate) cq_event: unsafe extern "C" fn(*mut ibv_cq),
    pub(crate) free_context: unsafe extern "C" fn(*mut ibv_context),
}

/// All contexts that are open.
static CONTEXTS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

impl Context {
    /// Returns the functions of libmlx5 if libmlx5 drives an object with this status, and calls are not counted.
    #[inline(always)]
    pub(crate) fn original_of(&self, status: &Status) -> Option<&Original> {
        (status.path() == Path::Libmlx5 && !log::is_on()).then_some(&self.original)
    }

    /// Returns the record of a CQ. Once a CQ is destroyed, a new one may have its address and its handle before its record is
    /// removed; the new one does not say that doorbell drives it.
    ///
    /// # Safety
    /// `cq` is a CQ of the context, or null.
    #[inline(always)]
    pub(crate) unsafe fn cq(&self, cq: *mut ibv_cq) -> Option<&Cq> {
        // SAFETY: [record-lives] `cq` is a CQ of the context, or null.
        unsafe {
            let record = self.cqs.get(cq.as_ref()?.handle)?;
            let is_of = record.ibv == cq
                && (record.status.path() != Path::Doorbell
                    || find::cq(cq).is_some_and(|found| ptr::eq(found, record)));
            is_of.then_some(record)
        }
    }

    /// As [`cq`](Self::cq), of an SRQ.
    ///
    /// # Safety
    /// `srq` is an SRQ of the context, or null.
    #[inline(always)]
    pub(crate) unsafe fn srq(&self, srq: *mut ibv_srq) -> Option<&Srq> {
        // SAFETY: [record-lives] `srq` is an SRQ of the context, or null.
        unsafe {
            let record = self.srqs.get(srq.as_ref()?.handle)?;
            let is_of = record.ibv == srq
                && (record.status.path() != Path::Doorbell
                    || find::srq(srq).is_some_and(|found| ptr::eq(found, record)));
            is_of.then_some(record)
        }
    }

    /// Locks the queue pairs that are undecided.
    pub(crate) fn undecided(&self) -> MutexGuard<'_, Vec<*const Qp>> {
        self.undecided_qps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has no decision include a queue pair. Returns `true` if it was undecided.
    pub(crate) fn leave_undecided(&self, qp: &Qp) -> bool {
        let mut undecided = self.undecided();
        let before = undecided.len();
        undecided.retain(|known| !ptr::eq(*known, qp));
        undecided.len() != before
    }

    /// Puts the record where [`of`] finds it. libibverbs keeps `_compat_rereg_mr` for programs of before 2009 that called
    /// it themselves, which none can: it has no type any more.
    pub(crate) fn publish(self: Box<Self>) {
        let ibv = self.ibv;
        let record = Box::into_raw(self);
        CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner).push(record as usize);
        // SAFETY: a pointer has the size of a function pointer, and the function is never called.
        unsafe {
            (&raw mut (*ibv).ops._compat_rereg_mr).cast::<*mut c_void>().write(record.cast());
        }
    }
}

/// Returns `true` if a context has a record.
pub(crate) fn is_open(ibv: *mut ibv_context) -> bool {
    let contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: a context leaves the list before it is freed.
    contexts.iter().any(|context| unsafe { (*(*context as *const Context)).ibv } == ibv)
}

pub(crate) unsafe extern "C" fn free_context(ibv: *mut ibv_context) {
    // SAFETY: [verbs] the context is closed: no code uses it or finds the record, which came from a box, any more.
    unsafe {
        let record: *const Context = of(ibv);
        let free = (*record).original.free_context;
        let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|context| *context != record as usize);
        drop(contexts);
        drop(Box::from_raw(record.cast_mut()));
        free(ibv);
    }
}

/// Returns the record of a context.
///
/// # Safety
/// `ibv` is a context whose functions were replaced, and which is not closed during `'a`.
#[inline(always)]
pub(crate) unsafe fn of<'a>(ibv: *mut ibv_context) -> &'a Context {
    // SAFETY: `publish` has stored the pointer there.
    unsafe { &*(&raw const (*ibv).ops._compat_rereg_mr).cast::<*const Context>().read() }
}

/// Returns the posts and polls of all objects that exist. A child process can find locks held for ever, and other threads may
/// go on: contexts that are locked are left out.
pub(crate) fn counts() -> (u64, u64) {
    let (mut posts, mut polls) = (0, 0);
    let Ok(contexts) = CONTEXTS.try_lock() else { return (0, 0) };
    for context in contexts.iter() {
        // SAFETY: a context leaves the list before it is freed.
        let context = unsafe { &*(*context as *const Context) };
        // Records of destroyed objects stay meanwhile.
        let Ok(_undecided) = context.undecided_qps.try_lock() else { continue };
        posts += context
            .qps
            .iter()
            .map(|qp| qp.sends_posted.get() + qp.receives_posted.get())
            .sum::<u64>();
        posts += context.srqs.iter().map(|srq| srq.posts.get()).sum::<u64>();
        polls += context.cqs.iter().map(|cq| cq.polls.get()).sum::<u64>();
    }
    (posts, polls)
}
