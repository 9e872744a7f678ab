//! System calls without libc's wrappers, which here lead back to us.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use libc::{mode_t, off_t, size_t, ssize_t};

macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: the arguments are those of the program, which the kernel checks.
        unsafe { libc::syscall(libc::$number $(, $argument)*) }
    };
}

/// Defines a function for each system call, with its arguments.
macro_rules! calls {
    ($($number:ident $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(pub fn $name($($argument: $kind),*) -> $result {
            call!($number $(, $argument)*) as $result
        })*
    };
}

calls! {
    SYS_openat openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    SYS_close close(fd: c_int) -> c_int;
    SYS_close_range close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    SYS_write write(fd: c_int, buf: *const c_void, count: size_t) -> ssize_t;
    SYS_read read(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t;
    SYS_ioctl ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int;
    SYS_fcntl fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    SYS_dup dup(fd: c_int) -> c_int;
    SYS_dup3 dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    SYS_socket socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    SYS_sendto sendto(
        fd: c_int, buf: *const c_void, len: size_t, flags: c_int, to: *const libc::sockaddr, to_len: libc::socklen_t
    ) -> ssize_t;
    SYS_sendmsg sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t;
    SYS_mmap mmap(
        addr: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t
    ) -> *mut c_void;
    SYS_madvise madvise(addr: *mut c_void, length: size_t, advice: c_int) -> c_int;
    SYS_newfstatat fstatat(dir: c_int, path: *const c_char, buf: *mut c_void, flags: c_int) -> c_int;
    SYS_statx statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, buf: *mut c_void) -> c_int;
    SYS_readlinkat readlinkat(dir: c_int, path: *const c_char, buf: *mut c_char, size: size_t) -> ssize_t;
    SYS_getxattr getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t;
    SYS_lgetxattr lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t;
    SYS_chdir chdir(path: *const c_char) -> c_int;
    SYS_faccessat faccessat(dir: c_int, path: *const c_char, mode: c_int) -> c_int;
}

/// Sets errno and returns what a failed call returns.
pub fn fail(error: c_int) -> c_int {
    // SAFETY: the location is valid in every thread.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Returns the errno of the last call that failed.
pub fn errno() -> c_int {
    // SAFETY: the location is valid in every thread.
    unsafe { *libc::__errno_location() }
}

pub fn recv(fd: c_int, buf: *mut c_void, count: size_t, flags: c_int) -> ssize_t {
    let none = std::ptr::null_mut::<c_void>();
    call!(SYS_recvfrom, fd, buf, count, flags, none, none) as ssize_t
}

/// Calls `faccessat2`. Flags need Linux 5.8; calls without flags work on older kernels, too.
pub fn faccessat2(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    if flags == 0 {
        return faccessat(dir, path, mode);
    }
    call!(SYS_faccessat2, dir, path, mode, flags) as c_int
}
