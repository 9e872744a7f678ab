//! Receiving raw packets: work queues, their indirection tables, and flow rules.

use crate::context::{UNSUPPORTED, entry, unsupported};
use crate::{
    ibv_context, ibv_flow, ibv_flow_attr, ibv_qp, ibv_recv_wr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq,
    ibv_wq_attr, ibv_wq_init_attr,
};
use core::ffi::c_int;

/// Makes a work queue. Returns null and sets errno on failure.
///
/// # Safety
/// `context` is open; `attr` can be read and written and names valid objects.
#[inline]
pub unsafe fn ibv_create_wq(context: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    // SAFETY: `context` is open, and `attr` can be read and written and names valid objects. No other code has
    // a new work queue.
    unsafe {
        let Some(create) = entry!(context, create_wq) else { return unsupported() };
        let wq = create(context, attr);
        if !wq.is_null() {
            (*wq).wq_context = (*attr).wq_context;
            (*wq).events_completed = 0;
            (*wq).mutex = libc::PTHREAD_MUTEX_INITIALIZER;
            (*wq).cond = libc::PTHREAD_COND_INITIALIZER;
        }
        wq
    }
}

/// Changes the state of a work queue. Returns 0 or an errno.
///
/// # Safety
/// `wq` is valid; `attr` can be read.
#[inline]
pub unsafe fn ibv_modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    // SAFETY: `wq` is valid, and `attr` can be read.
    unsafe {
        match entry!((*wq).context, modify_wq) {
            Some(modify) => modify(wq, attr),
            None => UNSUPPORTED,
        }
    }
}

/// Destroys a work queue. Returns 0 or an errno.
///
/// # Safety
/// `wq` is valid, and not used after this returned 0.
#[inline]
pub unsafe fn ibv_destroy_wq(wq: *mut ibv_wq) -> c_int {
    // SAFETY: `wq` is valid, and not used after success.
    unsafe {
        match entry!((*wq).context, destroy_wq) {
            Some(destroy) => destroy(wq),
            None => UNSUPPORTED,
        }
    }
}

/// Posts a list of receives to a work queue. Returns 0, or an errno with `bad_wr` set to the first one that was not
/// posted.
///
/// # Safety
/// As for [`ibv_post_recv`](crate::ibv_post_recv), with `wq` in the place of the queue pair.
#[inline]
pub unsafe fn ibv_post_wq_recv(wq: *mut ibv_wq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: `wq` is valid, the list can be read, the buffers are the device's, and `bad_wr` can be written. The
    // provider fills the entry.
    unsafe { (*wq).post_recv.unwrap_unchecked()(wq, wr, bad_wr) }
}

/// Makes an indirection table of work queues, for RSS. Returns null and sets errno on failure.
///
/// # Safety
/// `context` is open; `attr` can be read and names valid work queues.
#[inline]
pub unsafe fn ibv_create_rwq_ind_table(
    context: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    // SAFETY: `context` is open, and `attr` can be read and names valid work queues.
    unsafe {
        match entry!(context, create_rwq_ind_table) {
            Some(create) => create(context, attr),
            None => unsupported(),
        }
    }
}

/// Destroys an indirection table. Returns 0 or an errno.
///
/// # Safety
/// `table` is valid, and not used after this returned 0.
#[inline]
pub unsafe fn ibv_destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    // SAFETY: `table` is valid, and not used after success.
    unsafe {
        match entry!((*table).context, destroy_rwq_ind_table) {
            Some(destroy) => destroy(table),
            None => UNSUPPORTED,
        }
    }
}

/// Steers matching packets to a queue pair. Returns null and sets errno on failure.
///
/// # Safety
/// `qp` is valid; after `attr` follow as many specifications as it says, in as many bytes.
#[inline]
pub unsafe fn ibv_create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    // SAFETY: `qp` is valid, and the specifications follow `attr`.
    unsafe {
        match entry!((*qp).context, ibv_create_flow) {
            Some(create) => create(qp, attr),
            None => unsupported(),
        }
    }
}

/// Ends a flow rule. Returns 0 or an errno.
///
/// # Safety
/// `flow` is valid, and not used after this returned 0.
#[inline]
pub unsafe fn ibv_destroy_flow(flow: *mut ibv_flow) -> c_int {
    // SAFETY: `flow` is valid, and not used after success.
    unsafe {
        match entry!((*flow).context, ibv_destroy_flow) {
            Some(destroy) => destroy(flow),
            None => UNSUPPORTED,
        }
    }
}
