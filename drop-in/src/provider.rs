//! The libmlx5 and the libibverbs that a context belongs to.
//!
//! A process may have several of each: packages for Python bring copies of their own. So neither is looked up by its
//! name: a function of the context leads to the file that has it, and that file to the libraries that it was linked to.

use core::ffi::{CStr, c_void};
use core::mem::zeroed;

/// Returns the file that has an address.
fn file_of(address: *const c_void) -> Option<libc::Dl_info> {
    // SAFETY: a structure of pointers, which may be null; `dladdr` takes any address.
    unsafe {
        let mut found: libc::Dl_info = zeroed();
        let is_found = libc::dladdr(address, &mut found) != 0 && !found.dli_fname.is_null();
        is_found.then_some(found)
    }
}

/// Returns a function of the library that has `address`, or of one that it was linked to. It is never one of this
/// library, which stands in front of some.
pub(crate) fn beside(address: *const c_void, name: &CStr) -> Option<*mut c_void> {
    let file = file_of(address)?;
    // SAFETY: the loader's name ends with a zero. The library is never closed: its functions may be used until the
    // process ends.
    let found = unsafe {
        let library = libc::dlopen(file.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        libc::dlsym(library, name.as_ptr())
    };
    let base_of = |address| file_of(address).map(|file| file.dli_fbase);
    let is_theirs = !found.is_null() && base_of(found.cast_const()) != base_of(beside as *const c_void);
    is_theirs.then_some(found)
}

/// Returns `true` if a call of this function by its name reaches this library: it comes before libibverbs in the order
/// in which the loader looks for symbols.
pub(crate) fn stands_in_front(name: &CStr, function: *const c_void) -> bool {
    // SAFETY: the name ends with a zero.
    let called = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    called.cast_const() == function
}
