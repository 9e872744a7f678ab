//! Calls that name a file: open, stat, access.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::mode_t;

use super::tree::ResolvedPath;
use super::{is_active, ours, raw, rdma_cm, umad};

pub const ANCHOR: *const c_void = open as *const c_void;

fn open_at(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    if is_active() {
        if let Some((device, stand_in)) = ours::find(path) {
            return ours::open(&device, stand_in, flags);
        }
        if let Some(opened) = umad::open(path, flags) {
            return opened;
        }
        if rdma_cm::is_path(path) {
            if let Some(fd) = rdma_cm::open(flags) {
                return fd;
            }
        }
    }
    raw::openat(dir, ResolvedPath::to_open(path).as_ptr(), flags, mode)
}

// Variadic in libc: the mode is passed like any third argument, and is ignored without O_CREAT.

/// `open`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    open_at(libc::AT_FDCWD, path, flags, mode)
}

/// `open64`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    open_at(libc::AT_FDCWD, path, flags, mode)
}

/// `open` as fortified programs call it.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    open_at(libc::AT_FDCWD, path, flags, 0)
}

/// `open64` as fortified programs call it.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    open_at(libc::AT_FDCWD, path, flags, 0)
}

/// `openat`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    open_at(dir, path, flags, mode)
}

/// `openat64`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    open_at(dir, path, flags, mode)
}

/// `openat` as fortified programs call it.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    open_at(dir, path, flags, 0)
}

/// `openat64` as fortified programs call it.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    open_at(dir, path, flags, 0)
}

fn stat_at(dir: c_int, path: *const c_char, buf: *mut c_void, flags: c_int) -> c_int {
    raw::fstatat(dir, ResolvedPath::with_devices(path).as_ptr(), buf, flags)
}

fn access_at(dir: c_int, path: *const c_char, mode: c_int) -> c_int {
    raw::faccessat(dir, ResolvedPath::with_devices(path).as_ptr(), mode)
}

macro_rules! calls {
    ($($name:ident($($argument:ident: $ty:ty),*) => $run:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// The contract of the libc function with this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $ty),*) -> c_int {
            $run
        }
    )*};
}

const HERE: c_int = libc::AT_FDCWD;
const NO_FOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;

// Programs built for glibc before 2.33 call the functions with a version; the structure is the kernel's.
calls! {
    stat(path: *const c_char, buf: *mut c_void) => stat_at(HERE, path, buf, 0);
    stat64(path: *const c_char, buf: *mut c_void) => stat_at(HERE, path, buf, 0);
    lstat(path: *const c_char, buf: *mut c_void) => stat_at(HERE, path, buf, NO_FOLLOW);
    lstat64(path: *const c_char, buf: *mut c_void) => stat_at(HERE, path, buf, NO_FOLLOW);
    fstatat(dir: c_int, path: *const c_char, buf: *mut c_void, flags: c_int)
        => stat_at(dir, path, buf, flags);
    fstatat64(dir: c_int, path: *const c_char, buf: *mut c_void, flags: c_int)
        => stat_at(dir, path, buf, flags);
    __xstat(_version: c_int, path: *const c_char, buf: *mut c_void) => stat_at(HERE, path, buf, 0);
    __xstat64(_version: c_int, path: *const c_char, buf: *mut c_void) => stat_at(HERE, path, buf, 0);
    __lxstat(_version: c_int, path: *const c_char, buf: *mut c_void)
        => stat_at(HERE, path, buf, NO_FOLLOW);
    __lxstat64(_version: c_int, path: *const c_char, buf: *mut c_void)
        => stat_at(HERE, path, buf, NO_FOLLOW);
    __fxstatat(_version: c_int, dir: c_int, path: *const c_char, buf: *mut c_void, flags: c_int)
        => stat_at(dir, path, buf, flags);
    __fxstatat64(_version: c_int, dir: c_int, path: *const c_char, buf: *mut c_void, flags: c_int)
        => stat_at(dir, path, buf, flags);
    statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, buf: *mut c_void)
        => raw::statx(dir, ResolvedPath::with_devices(path).as_ptr(), flags, mask, buf);
    faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int)
        => raw::faccessat2(dir, ResolvedPath::with_devices(path).as_ptr(), mode, flags);
    access(path: *const c_char, mode: c_int) => access_at(HERE, path, mode);
    euidaccess(path: *const c_char, mode: c_int) => access_at(HERE, path, mode);
    eaccess(path: *const c_char, mode: c_int) => access_at(HERE, path, mode);
}
