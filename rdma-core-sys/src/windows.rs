//! Memory windows.

use crate::context::{UNSUPPORTED, unsupported};
use crate::{IBV_MW_TYPE_1, ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_pd, ibv_qp};
use core::ffi::c_int;

/// Allocates a memory window. Returns null and sets errno on failure.
///
/// # Safety
/// `pd` is valid.
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: `pd` is valid, and so is its context.
    unsafe {
        match (*(*pd).context).ops.alloc_mw {
            Some(alloc) => alloc(pd, kind),
            None => unsupported(),
        }
    }
}

/// Frees a memory window. Returns 0 or an errno.
///
/// # Safety
/// `mw` is valid and not used again.
#[inline]
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: `mw` is valid and not used again. Who allocated it can free it.
    unsafe { (*(*mw).context).ops.dealloc_mw.map_or(UNSUPPORTED, |dealloc| dealloc(mw)) }
}

/// Posts the bind of a window of type 1. Returns 0 or an errno.
///
/// # Safety
/// `qp` and `mw` are valid; `mw_bind` can be read, and the region that it names is valid.
#[inline]
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: `qp`, `mw` and the region are valid, and `mw_bind` can be read.
    unsafe {
        if (*mw).type_ != IBV_MW_TYPE_1 {
            return libc::EINVAL;
        }
        (*(*mw).context).ops.bind_mw.map_or(UNSUPPORTED, |bind| bind(qp, mw, mw_bind))
    }
}

/// Returns the key with the next variant, its lower eight bits.
#[inline]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}
