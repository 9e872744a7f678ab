//! The libmlx5 and the libibverbs that a context belongs to.
//!
//! A process may have several of each: packages for Python bring copies of their own, whose names have a hash, and other libraries of
//! the process load those of the system. So neither is looked up by its name: a function leads to the file that has it, and that
//! file to the libraries that it was linked to.

use core::ffi::{CStr, c_int, c_void};
use core::mem::zeroed;
use core::ptr;

use rdma_core_sys::{ibv_context, mlx5dv_obj};

use crate::context;
use crate::install::is_installed;

pub(crate) type InitObj = unsafe extern "C" fn(*mut mlx5dv_obj, u64) -> c_int;

/// Returns the file that has an address.
pub(crate) fn file_of(address: *const c_void) -> Option<libc::Dl_info> {
    // SAFETY: a structure of pointers, which may be null; `dladdr` takes any address.
    unsafe {
        let mut found: libc::Dl_info = zeroed();
        let is_found = libc::dladdr(address, &mut found) != 0 && !found.dli_fname.is_null();
        is_found.then_some(found)
    }
}

/// Returns a function of the library that has `address`, or of one that it was linked to, or else the next one in the order of
/// the loader. It is never one of this library, which stands in front of some.
pub(crate) fn beside(address: *const c_void, name: &CStr) -> Option<*mut c_void> {
    let base_of = |address| file_of(address).map(|file| file.dli_fbase);
    let is_theirs = |found: &*mut c_void| {
        !found.is_null() && base_of(found.cast_const()) != base_of(beside as *const c_void)
    };
    // SAFETY: the loader's name ends with a zero. The library is never closed: its functions may be used until the process ends.
    let open = |file: libc::Dl_info| unsafe {
        libc::dlopen(file.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD)
    };
    let library = file_of(address).map(open).filter(|library| !library.is_null());
    let handles = library.into_iter().chain([libc::RTLD_NEXT]);
    // SAFETY: the handle of a library, or one of the loader's own; the name ends with a zero.
    handles.map(|handle| unsafe { libc::dlsym(handle, name.as_ptr()) }).find(is_theirs)
}

/// Returns a function of the provider of a context, or null if `ibv` is null.
///
/// # Safety
/// `ibv` is a context of libibverbs, or null.
pub(crate) unsafe fn function_of(ibv: *mut ibv_context) -> *const c_void {
    // SAFETY: `ibv` is a context, unless it is null.
    let poll_cq = unsafe {
        match ibv.as_ref() {
            Some(_) if is_installed(ibv) => Some(context::of(ibv).original.poll_cq),
            Some(ibv) => ibv.ops.poll_cq,
            None => None,
        }
    };
    poll_cq.map_or(ptr::null(), |poll_cq| poll_cq as *const c_void)
}
