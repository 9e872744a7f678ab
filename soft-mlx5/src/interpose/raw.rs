//! System calls without libc's wrappers, which here lead back to us.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{mode_t, off_t, size_t, ssize_t};

macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: the arguments are those of the program, which the kernel checks.
        unsafe { libc::syscall(libc::$number $(, $argument)*) }
    };
}

/// Sets errno and returns what a failed call returns.
pub fn fail(error: c_int) -> c_int {
    // SAFETY: the location is valid in every thread.
    unsafe { *libc::__errno_location() = error };
    -1
}

pub fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    call!(SYS_openat, dir, path, flags, mode) as c_int
}

pub fn close(fd: c_int) -> c_int {
    call!(SYS_close, fd) as c_int
}

pub fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    call!(SYS_close_range, first, last, flags) as c_int
}

pub fn write(fd: c_int, buf: *const c_void, count: size_t) -> ssize_t {
    call!(SYS_write, fd, buf, count) as ssize_t
}

pub fn read(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t {
    call!(SYS_read, fd, buf, count) as ssize_t
}

pub fn recv(fd: c_int, buf: *mut c_void, count: size_t, flags: c_int) -> ssize_t {
    let none = std::ptr::null_mut::<c_void>();
    call!(SYS_recvfrom, fd, buf, count, flags, none, none) as ssize_t
}

pub fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    call!(SYS_ioctl, fd, request, argument) as c_int
}

pub fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    call!(SYS_fcntl, fd, command, argument) as c_int
}

pub fn dup(fd: c_int) -> c_int {
    call!(SYS_dup, fd) as c_int
}

pub fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    call!(SYS_dup3, old, new, flags) as c_int
}

pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    call!(SYS_socket, domain, kind, protocol) as c_int
}

pub fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const libc::sockaddr,
    to_len: libc::socklen_t,
) -> ssize_t {
    call!(SYS_sendto, fd, buf, len, flags, to, to_len) as ssize_t
}

pub fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t {
    call!(SYS_sendmsg, fd, message, flags) as ssize_t
}

pub fn mmap(
    addr: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let mapped: c_long = call!(SYS_mmap, addr, length, protection, flags, fd, offset);
    mapped as *mut c_void
}

pub fn fstatat(dir: c_int, path: *const c_char, buf: *mut c_void, flags: c_int) -> c_int {
    call!(SYS_newfstatat, dir, path, buf, flags) as c_int
}

pub fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, buf: *mut c_void) -> c_int {
    call!(SYS_statx, dir, path, flags, mask, buf) as c_int
}

pub fn readlinkat(dir: c_int, path: *const c_char, buf: *mut c_char, size: size_t) -> ssize_t {
    call!(SYS_readlinkat, dir, path, buf, size) as ssize_t
}

pub fn getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t {
    call!(SYS_getxattr, path, name, value, size) as ssize_t
}

pub fn lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t {
    call!(SYS_lgetxattr, path, name, value, size) as ssize_t
}

pub fn chdir(path: *const c_char) -> c_int {
    call!(SYS_chdir, path) as c_int
}

/// Calls `faccessat2`. Flags need Linux 5.8; calls without flags work on older kernels, too.
pub fn faccessat2(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    if flags == 0 {
        return faccessat(dir, path, mode);
    }
    call!(SYS_faccessat2, dir, path, mode, flags) as c_int
}

pub fn faccessat(dir: c_int, path: *const c_char, mode: c_int) -> c_int {
    call!(SYS_faccessat, dir, path, mode) as c_int
}
