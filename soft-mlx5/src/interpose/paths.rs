//! Calls that name a file and that libc does not make of one system call: streams, directories, real paths.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{mem, ptr};

use libc::{size_t, ssize_t};

use super::raw;
use super::tree::{ResolvedPath, as_literal};

pub const ANCHOR: *const c_void = fopen as *const c_void;

/// Returns the function of this name that the program would use without this library.
fn next(found: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let mut function = found.load(Ordering::Relaxed);
    if function.is_null() {
        // SAFETY: the name is a C string.
        function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        found.store(function, Ordering::Relaxed);
    }
    function
}

macro_rules! resolving {
    ($($name:ident($path:ident $(, $argument:ident: $ty:ty)*) -> $result:ty = $failed:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// The contract of the libc function with this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($path: *const c_char $(, $argument: $ty)*) -> $result {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
            let name = concat!(stringify!($name), "\0").as_bytes();
            let function = next(&NEXT, CStr::from_bytes_with_nul(name).unwrap_or_default());
            if function.is_null() {
                raw::fail(libc::ENOSYS);
                return $failed;
            }
            let resolved = ResolvedPath::to_open($path);
            // SAFETY: libc's function of this name takes and returns these types; the arguments are the program's, but
            // for the path, which lives until the call has returned.
            unsafe {
                let function: unsafe extern "C" fn(*const c_char $(, $ty)*) -> $result =
                    mem::transmute(function);
                function(resolved.as_ptr() $(, $argument)*)
            }
        }
    )*};
}

resolving! {
    fopen(path, mode: *const c_char) -> *mut c_void = ptr::null_mut();
    fopen64(path, mode: *const c_char) -> *mut c_void = ptr::null_mut();
    opendir(path) -> *mut c_void = ptr::null_mut();
    scandir(path, list: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int = -1;
    scandir64(path, list: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int = -1;
}

type RealPath = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char;

// SAFETY: `resolved` is null or has PATH_MAX bytes.
unsafe fn real_path(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let function = next(&NEXT, c"realpath");
    if function.is_null() {
        raw::fail(libc::ENOSYS);
        return ptr::null_mut();
    }
    let given = ResolvedPath::new(path);
    // SAFETY: libc's function of this name has this type; the arguments are the program's but for the path, which lives
    // until the call has returned. The result is null or a string: the program's memory of PATH_MAX bytes, or memory to
    // be freed.
    unsafe {
        let function: RealPath = mem::transmute(function);
        let real = function(given.as_ptr(), resolved);
        if !given.is_replaced() || real.is_null() {
            return real;
        }
        let Some(literal) = as_literal(CStr::from_ptr(real)) else { return real };
        if resolved.is_null() {
            libc::free(real.cast());
            return libc::strdup(literal.as_ptr());
        }
        // The literal path is shorter than the path in the tree, which fits.
        libc::strcpy(resolved, literal.as_ptr())
    }
}

/// `realpath`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    // SAFETY: by libc's contract `resolved` is null or has PATH_MAX bytes.
    unsafe { real_path(path, resolved) }
}

/// `realpath` as fortified programs call it.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __realpath_chk(path: *const c_char, resolved: *mut c_char, size: size_t) -> *mut c_char {
    if size < libc::PATH_MAX as size_t {
        // libc ends a program that gives less memory.
        std::process::abort();
    }
    // SAFETY: the size was checked.
    unsafe { real_path(path, resolved) }
}

/// `canonicalize_file_name`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: `resolved` is null: libc allocates.
    unsafe { real_path(path, ptr::null_mut()) }
}

fn read_link(dir: c_int, path: *const c_char, buf: *mut c_char, size: size_t) -> ssize_t {
    raw::readlinkat(dir, ResolvedPath::new(path).as_ptr(), buf, size)
}

/// `readlink`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlink(path: *const c_char, buf: *mut c_char, size: size_t) -> ssize_t {
    read_link(libc::AT_FDCWD, path, buf, size)
}

/// `readlink` as fortified programs call it.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __readlink_chk(
    path: *const c_char,
    buf: *mut c_char,
    size: size_t,
    available: size_t,
) -> ssize_t {
    if size > available {
        std::process::abort();
    }
    read_link(libc::AT_FDCWD, path, buf, size)
}

/// `readlinkat`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlinkat(dir: c_int, path: *const c_char, buf: *mut c_char, size: size_t) -> ssize_t {
    read_link(dir, path, buf, size)
}

/// `getxattr`, which `ls -l` asks for access lists.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getxattr(
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: size_t,
) -> ssize_t {
    raw::getxattr(ResolvedPath::new(path).as_ptr(), name, value, size)
}

/// `lgetxattr`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgetxattr(
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: size_t,
) -> ssize_t {
    raw::lgetxattr(ResolvedPath::new(path).as_ptr(), name, value, size)
}

/// `chdir`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chdir(path: *const c_char) -> c_int {
    raw::chdir(ResolvedPath::new(path).as_ptr())
}
