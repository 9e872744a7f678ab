//! Memory regions, and the domains that memory and queues live in.

use crate::context::{UNSUPPORTED, entry, unsupported};
use crate::{
    IBV_ACCESS_OPTIONAL_RANGE, ib_uverbs_advise_mr_advice, ibv_context, ibv_mr, ibv_parent_domain_init_attr, ibv_pd,
    ibv_sge, ibv_td, ibv_td_init_attr, ibv_xrcd, ibv_xrcd_init_attr,
};
use core::ffi::{c_int, c_uint, c_void};

mod linked {
    use crate::{ibv_mr, ibv_pd};
    use core::ffi::{c_int, c_void};

    unsafe extern "C" {
        pub(super) fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
        pub(super) fn ibv_reg_mr_iova(
            pd: *mut ibv_pd,
            addr: *mut c_void,
            length: usize,
            iova: u64,
            access: c_int,
        ) -> *mut ibv_mr;
    }
}

/// Registers memory. Returns null and sets errno on failure.
///
/// Optional access flags are dropped where the kernel does not know them.
///
/// # Safety
/// `pd` is valid; `addr` and `length` name memory that stays mapped while the region exists; only the
/// device touches the parts that the device may write.
#[inline]
pub unsafe fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_uint) -> *mut ibv_mr {
    // SAFETY: `pd` is valid, and the memory stays mapped and untouched as `ibv_reg_mr` requires.
    unsafe {
        if access & IBV_ACCESS_OPTIONAL_RANGE == 0 {
            linked::ibv_reg_mr(pd, addr, length, access as c_int)
        } else {
            crate::ibv_reg_mr_iova2(pd, addr, length, addr as u64, access)
        }
    }
}

/// Registers memory which work requests address from `iova` on. Returns null and sets errno on
/// failure.
///
/// # Safety
/// As for [`ibv_reg_mr`].
#[inline]
pub unsafe fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: `pd` is valid, and the memory stays mapped and untouched as `ibv_reg_mr` requires.
    unsafe {
        if access & IBV_ACCESS_OPTIONAL_RANGE == 0 {
            linked::ibv_reg_mr_iova(pd, addr, length, iova, access as c_int)
        } else {
            crate::ibv_reg_mr_iova2(pd, addr, length, iova, access)
        }
    }
}

/// Advises the device about memory it is about to use. Returns 0 or an errno.
///
/// # Safety
/// `pd` is valid; `sg_list` points to `num_sge` entries.
#[inline]
pub unsafe fn ibv_advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    // SAFETY: `pd` is valid, and `sg_list` points to `num_sge` entries.
    unsafe {
        match entry!((*pd).context, advise_mr) {
            Some(advise) => advise(pd, advice, flags, sg_list, num_sge),
            None => UNSUPPORTED,
        }
    }
}

/// Makes a thread domain: a promise that its queues are used by one thread at a time. Returns
/// null and sets errno on failure.
///
/// # Safety
/// `context` is open; `init_attr` can be read.
#[inline]
pub unsafe fn ibv_alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: `context` is open, and `init_attr` can be read.
    unsafe {
        match entry!(context, alloc_td) {
            Some(alloc) => alloc(context, init_attr),
            None => unsupported(),
        }
    }
}

/// Frees a thread domain. Returns 0 or an errno.
///
/// # Safety
/// `td` is valid and not used again.
#[inline]
pub unsafe fn ibv_dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: `td` is valid and not used again.
    unsafe {
        match entry!((*td).context, dealloc_td) {
            Some(dealloc) => dealloc(td),
            None => UNSUPPORTED,
        }
    }
}

/// Makes a protection domain that adds a thread domain or allocators to another one. Returns null
/// and sets errno on failure; freed by [`ibv_dealloc_pd`](crate::ibv_dealloc_pd).
///
/// # Safety
/// `context` is open; `attr` can be read and names valid objects and callbacks.
#[inline]
pub unsafe fn ibv_alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: `context` is open, and `attr` can be read and names valid objects and callbacks.
    unsafe {
        match entry!(context, alloc_parent_domain) {
            Some(alloc) => alloc(context, attr),
            None => unsupported(),
        }
    }
}

/// Opens an XRC domain. Returns null and sets errno on failure.
///
/// # Safety
/// `context` is open; `attr` can be read.
#[inline]
pub unsafe fn ibv_open_xrcd(context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    // SAFETY: `context` is open, and `attr` can be read.
    unsafe {
        match entry!(context, open_xrcd) {
            Some(open) => open(context, attr),
            None => unsupported(),
        }
    }
}

/// Closes an XRC domain. Returns 0 or an errno.
///
/// # Safety
/// `xrcd` is valid and not used again.
#[inline]
pub unsafe fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: `xrcd` is valid and not used again; a context that could open it can close it.
    unsafe { entry!((*xrcd).context, close_xrcd).unwrap_unchecked()(xrcd) }
}
