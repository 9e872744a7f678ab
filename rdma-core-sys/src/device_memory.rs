//! Memory of the device: allocation, copies and registration.

use crate::context::{UNSUPPORTED, entry, unsupported};
use crate::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use core::ffi::{c_int, c_uint, c_void};

/// Allocates memory of the device. Returns null and sets errno on failure.
///
/// # Safety
/// `context` is open; `attr` can be read.
#[inline]
pub unsafe fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    // SAFETY: `context` is open, and `attr` can be read.
    unsafe {
        match entry!(context, alloc_dm) {
            Some(alloc) => alloc(context, attr),
            None => unsupported(),
        }
    }
}

/// Frees memory of the device. Returns 0 or an errno.
///
/// # Safety
/// `dm` is valid and not used again.
#[inline]
pub unsafe fn ibv_free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: `dm` is valid and not used again.
    unsafe {
        match entry!((*dm).context, free_dm) {
            Some(free) => free(dm),
            None => UNSUPPORTED,
        }
    }
}

/// Copies `length` bytes to memory of the device. Returns 0 or an errno.
///
/// # Safety
/// `dm` is valid; `length` bytes at `host_addr` can be read.
#[inline]
pub unsafe fn ibv_memcpy_to_dm(dm: *mut ibv_dm, dm_offset: u64, host_addr: *const c_void, length: usize) -> c_int {
    // SAFETY: `dm` is valid, and the bytes at `host_addr` can be read.
    unsafe {
        match (*dm).memcpy_to_dm {
            Some(copy) => copy(dm, dm_offset, host_addr, length),
            None => UNSUPPORTED,
        }
    }
}

/// Copies `length` bytes from memory of the device. Returns 0 or an errno.
///
/// # Safety
/// `dm` is valid; `length` bytes at `host_addr` can be written.
#[inline]
pub unsafe fn ibv_memcpy_from_dm(host_addr: *mut c_void, dm: *mut ibv_dm, dm_offset: u64, length: usize) -> c_int {
    // SAFETY: `dm` is valid, and the bytes at `host_addr` can be written.
    unsafe {
        match (*dm).memcpy_from_dm {
            Some(copy) => copy(host_addr, dm, dm_offset, length),
            None => UNSUPPORTED,
        }
    }
}

/// Registers memory of the device; `access` has `IBV_ACCESS_ZERO_BASED`. Returns null and sets errno on failure.
///
/// # Safety
/// `pd` and `dm` are valid, and the region is destroyed before `dm` is freed.
#[inline]
pub unsafe fn ibv_reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: `pd` and `dm` are valid, and the region is destroyed before `dm` is freed.
    unsafe {
        match entry!((*pd).context, reg_dm_mr) {
            Some(register) => register(pd, dm, dm_offset, length, access),
            None => unsupported(),
        }
    }
}
