//! Queues of work requests: creating the extended forms and posting lists.

use crate::context::{UNSUPPORTED, entry, unsupported};
use crate::{
    IBV_QP_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC, ibv_context, ibv_ops_wr, ibv_qp,
    ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_qp_rate_limit_attr, ibv_recv_wr, ibv_send_wr, ibv_srq,
    ibv_srq_init_attr_ex,
};
use core::ffi::c_int;

/// Makes a queue pair with extended attributes. Returns null and sets errno on failure.
///
/// # Safety
/// `context` is open; `attr` can be read and written and names valid objects.
#[inline]
pub unsafe fn ibv_create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: `context` is open, and `attr` can be read and written and names valid objects. The extended attributes
    // begin with the plain ones.
    unsafe {
        if (*attr).comp_mask == IBV_QP_INIT_ATTR_PD {
            return crate::ibv_create_qp((*attr).pd, attr.cast());
        }
        match entry!(context, create_qp_ex) {
            Some(create) => create(context, attr),
            None => unsupported(),
        }
    }
}

/// Opens a queue pair that another process shares. Returns null and sets errno on failure.
///
/// # Safety
/// `context` is open; `attr` can be read and names valid objects.
#[inline]
pub unsafe fn ibv_open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    // SAFETY: `context` is open, and `attr` can be read and names valid objects.
    unsafe {
        match entry!(context, open_qp) {
            Some(open) => open(context, attr),
            None => unsupported(),
        }
    }
}

/// Changes the rate limit of a queue pair. Returns 0 or an errno.
///
/// # Safety
/// `qp` is valid; `attr` can be read.
#[inline]
pub unsafe fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int {
    // SAFETY: `qp` is valid, and `attr` can be read.
    unsafe {
        match entry!((*qp).context, modify_qp_rate_limit) {
            Some(modify) => modify(qp, attr),
            None => UNSUPPORTED,
        }
    }
}

/// Makes a shared receive queue of any type. Returns null and sets errno on failure.
///
/// # Safety
/// `context` is open; `attr` can be read and written and names valid objects.
#[inline]
pub unsafe fn ibv_create_srq_ex(context: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    // SAFETY: `context` is open, and `attr` can be read and written and names valid objects. The extended attributes
    // begin with the plain ones.
    unsafe {
        let mask = (*attr).comp_mask;
        let only_pd_and_type = mask & !(IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE) == 0;
        let basic = mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || (*attr).srq_type == IBV_SRQT_BASIC;
        if only_pd_and_type && mask & IBV_SRQ_INIT_ATTR_PD != 0 && basic {
            return crate::ibv_create_srq((*attr).pd, attr.cast());
        }
        match entry!(context, create_srq_ex) {
            Some(create) => create(context, attr),
            None => unsupported(),
        }
    }
}

/// Reads the number of an XRC or tag-matching SRQ. Returns 0 or an errno.
///
/// # Safety
/// `srq` is valid; `srq_num` can be written.
#[inline]
pub unsafe fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    // SAFETY: `srq` is valid, and `srq_num` can be written.
    unsafe {
        match entry!((*srq).context, get_srq_num) {
            Some(get) => get(srq, srq_num),
            None => UNSUPPORTED,
        }
    }
}

/// Posts a list of receives to a queue pair. Returns 0, or an errno with `bad_wr` set to the
/// first one that was not posted.
///
/// # Safety
/// `qp` is valid and has no SRQ; the list and what it points to can be read; the buffers belong to
/// the device until their completions were polled; `bad_wr` can be written.
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: `qp` is valid, the list can be read, the buffers are the device's, and `bad_wr` can be written.
    // libibverbs fills every entry of `ops`.
    unsafe { (*(*qp).context).ops.post_recv.unwrap_unchecked()(qp, wr, bad_wr) }
}

/// Posts a list of requests to a send queue. Returns 0, or an errno with `bad_wr` set to the first
/// one that was not posted.
///
/// # Safety
/// `qp` is valid; the list and what it points to can be read; the buffers stay as they are until
/// the completions were polled, except inline ones; `bad_wr` can be written.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: `qp` is valid, the list can be read, the buffers stay as they are, and `bad_wr` can be written.
    // libibverbs fills every entry of `ops`.
    unsafe { (*(*qp).context).ops.post_send.unwrap_unchecked()(qp, wr, bad_wr) }
}

/// Posts a list of receives to a shared receive queue. Returns 0, or an errno with `bad_wr` set to
/// the first one that was not posted.
///
/// # Safety
/// As for [`ibv_post_recv`], with `srq` in the place of the queue pair.
#[inline]
pub unsafe fn ibv_post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: `srq` is valid, the list can be read, the buffers are the device's, and `bad_wr` can be written.
    // libibverbs fills every entry of `ops`.
    unsafe { (*(*srq).context).ops.post_srq_recv.unwrap_unchecked()(srq, wr, bad_wr) }
}

/// Posts a list of tag-matching operations. Returns 0, or an errno with `bad_op` set to the first
/// one that was not posted.
///
/// # Safety
/// `srq` is a valid tag-matching SRQ; the list and what it points to can be read; the buffers of
/// added tags belong to the device until match, cancel or teardown; `bad_op` can be written.
#[inline]
pub unsafe fn ibv_post_srq_ops(srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad_op: *mut *mut ibv_ops_wr) -> c_int {
    // SAFETY: `srq` is valid, the list can be read, the buffers are the device's, and `bad_op` can be written.
    unsafe {
        match entry!((*srq).context, post_srq_ops) {
            Some(post) => post(srq, op, bad_op),
            None => {
                *bad_op = op;
                UNSUPPORTED
            }
        }
    }
}
