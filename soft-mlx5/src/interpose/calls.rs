//! Calls that name a descriptor, and the socket that libibverbs would list devices with.

use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{mem, ptr, slice};

use libc::{size_t, ssize_t};

use super::{is_active, mapping, ours, raw, rdma_cm, umad};
use crate::uverbs::fd_table::{self, Entry, Kind};
use crate::uverbs::kernel::{self, is_any_closed};
use crate::uverbs::netlink;

pub const ANCHOR: *const c_void = close as *const c_void;

const NETLINK_RDMA: c_int = 20;

/// `socket`: one of RDMA netlink. The request shows that the program is about to list devices.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && is_active() {
        return ours::netlink(kind);
    }
    raw::socket(domain, kind, protocol)
}

/// `close`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if fd_table::get(fd).is_some() {
        ours::closing(fd);
    }
    raw::close(fd)
}

/// `close_range`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if is_active() && flags == 0 {
        for fd in first..=last.min(fd_table::LIMIT as c_uint - 1) {
            if fd_table::get(fd as c_int).is_some() {
                ours::closing(fd as c_int);
            }
        }
    }
    raw::close_range(first, last, flags)
}

/// `closefrom`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: our own function.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

fn is_netlink(fd: c_int) -> bool {
    fd_table::get(fd).is_some_and(|entry| entry.kind == Kind::Netlink)
}

// SAFETY: as for the iovec of `sendmsg`.
unsafe fn send_requests(fd: c_int, parts: &[libc::iovec]) -> ssize_t {
    let mut requests = Vec::new();
    for part in parts {
        // SAFETY: the program names so many bytes of its memory.
        let bytes = unsafe { slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
        requests.extend_from_slice(bytes);
    }
    match netlink::answer(fd, &requests) {
        Ok(()) => requests.len() as ssize_t,
        Err(error) => raw::fail(error.0) as ssize_t,
    }
}

/// `sendto`: requests of RDMA netlink.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const libc::sockaddr,
    to_len: libc::socklen_t,
) -> ssize_t {
    if len > 0 && is_netlink(fd) {
        let part = libc::iovec { iov_base: buf.cast_mut(), iov_len: len };
        // SAFETY: the arguments are the program's.
        return unsafe { send_requests(fd, &[part]) };
    }
    let function = LIBC_SENDTO.load(Ordering::Acquire);
    if function.is_null() {
        return raw::sendto(fd, buf, len, flags, to, to_len);
    }
    // SAFETY: libc's function of this name has this type; the arguments are the program's.
    unsafe { mem::transmute::<*mut c_void, SendTo>(function)(fd, buf, len, flags, to, to_len) }
}

/// `send`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: our own function, which takes no address as its address.
    unsafe { sendto(fd, buf, len, flags, ptr::null(), 0) }
}

/// `sendmsg`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t {
    if !message.is_null() && is_netlink(fd) {
        // SAFETY: by libc's contract the message names an array of parts.
        return unsafe {
            let (parts, count) = ((*message).msg_iov, (*message).msg_iovlen);
            let parts = if count == 0 { &[] } else { slice::from_raw_parts(parts, count) };
            send_requests(fd, parts)
        };
    }
    let function = LIBC_SENDMSG.load(Ordering::Acquire);
    if function.is_null() {
        return raw::sendmsg(fd, message, flags);
    }
    // SAFETY: libc's function of this name has this type; the arguments are the program's.
    unsafe { mem::transmute::<*mut c_void, SendMessage>(function)(fd, message, flags) }
}

/// `write`: a command.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, count: size_t) -> ssize_t {
    match fd_table::get(fd) {
        Some(entry) if entry.kind == Kind::Umad => return umad::write(entry, buf as u64, count),
        Some(entry) if entry.kind == Kind::RdmaCm => {
            return rdma_cm::write(entry, fd, buf as u64, count);
        }
        _ => {}
    }
    let Some(entry) = ours::uverbs(fd) else { return raw::write(fd, buf, count) };
    match ours::call(entry, |core| core.write(entry.id, buf as u64, count)) {
        Ok(taken) => taken as ssize_t,
        Err(error) => raw::fail(error) as ssize_t,
    }
}

fn libc_read(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t {
    let function = LIBC_READ.load(Ordering::Acquire);
    if function.is_null() {
        return raw::read(fd, buf, count);
    }
    // SAFETY: libc's function of this name has this type; the arguments are the program's.
    unsafe { mem::transmute::<*mut c_void, Read>(function)(fd, buf, count) }
}

/// `read`: a management datagram, or an event.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t {
    match fd_table::get(fd) {
        Some(entry) if entry.kind == Kind::Umad => umad::read(entry, fd, buf, count),
        Some(entry) if entry.kind == Kind::Events => read_event(entry, fd, buf, count),
        _ => libc_read(fd, buf, count),
    }
}

/// Reads an event. Fails with EIO after the last event of a removed device, as the kernel does.
fn read_event(entry: Entry, fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t {
    let taken = libc_read(fd, buf, count);
    if taken == 0 && count > 0 {
        // No event is empty: the file ended with its device.
        return raw::fail(libc::EIO) as ssize_t;
    }
    let has_ended = taken < 0 && raw::errno() == libc::ECONNRESET;
    if !is_any_closed() || taken < 0 && !has_ended {
        return taken;
    }
    // The read has taken the last event, or the report of the end.
    let reported = ours::call(entry, |core| {
        core.report_end_of_events(entry.id);
        Ok(())
    });
    if has_ended { raw::fail(reported.err().unwrap_or(libc::EIO)) as ssize_t } else { taken }
}

/// `read` as fortified programs call it.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, buf: *mut c_void, count: size_t, available: size_t) -> ssize_t {
    if count > available {
        // libc ends a program that gives less memory.
        std::process::abort();
    }
    // SAFETY: our own function.
    unsafe { read(fd, buf, count) }
}

/// `ioctl`: a command.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    if let Some(entry) = fd_table::get(fd).filter(|entry| entry.kind == Kind::Umad) {
        return umad::ioctl(entry, fd, request, argument);
    }
    let Some(entry) = ours::uverbs(fd) else { return raw::ioctl(fd, request, argument) };
    // Compares 32 bits, as the kernel does. Other requests are for descriptors of any kind.
    if request as u32 != kernel::VERBS_IOCTL {
        return raw::ioctl(fd, request, argument);
    }
    match ours::call(entry, |core| core.ioctl(entry.id, argument)) {
        Ok(()) => 0,
        Err(error) => raw::fail(error),
    }
}

type Read = unsafe extern "C" fn(c_int, *mut c_void, size_t) -> ssize_t;
type SendMessage = unsafe extern "C" fn(c_int, *const libc::msghdr, c_int) -> ssize_t;
type SendTo =
    unsafe extern "C" fn(c_int, *const c_void, size_t, c_int, *const libc::sockaddr, libc::socklen_t) -> ssize_t;

// libc's calls that a thread may be cancelled in, as a bare system call is not; null before main.
static LIBC_READ: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static LIBC_SENDTO: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static LIBC_SENDMSG: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Finds libc's functions, which get all calls that are not for a device.
pub fn find_libc() {
    // SAFETY: the names are C strings; libc is loaded and stays so.
    unsafe {
        let libc = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if !libc.is_null() {
            for (function, name) in [
                (&mapping::LIBC_MMAP, c"mmap"),
                (&mapping::LIBC_MADVISE, c"madvise"),
                (&LIBC_READ, c"read"),
                (&LIBC_SENDTO, c"sendto"),
                (&LIBC_SENDMSG, c"sendmsg"),
            ] {
                function.store(libc::dlsym(libc, name.as_ptr()), Ordering::Release);
            }
        }
    }
}

/// `dup`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let copy = raw::dup(fd);
    match fd_table::get(fd) {
        Some(entry) => ours::copied(entry, copy),
        None => copy,
    }
}

fn dup_to(old: c_int, new: c_int, flags: c_int) -> c_int {
    if old == new {
        // Equal descriptors are an error for dup3 and nothing to do for dup2.
        return raw::dup3(old, new, flags);
    }
    let (source, target) = (fd_table::get(old), fd_table::get(new));
    if target.is_some() && raw::fcntl(old, libc::F_GETFD, 0) >= 0 {
        ours::closing(new);
    }
    let copy = raw::dup3(old, new, flags);
    match source {
        Some(entry) => ours::copied(entry, copy),
        None => copy,
    }
}

/// `dup2`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        return if raw::fcntl(old, libc::F_GETFD, 0) < 0 { -1 } else { new };
    }
    dup_to(old, new, 0)
}

/// `dup3`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    dup_to(old, new, flags)
}

fn control(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    let result = raw::fcntl(fd, command, argument);
    match fd_table::get(fd) {
        Some(entry) if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => ours::copied(entry, result),
        _ => result,
    }
}

/// `fcntl`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    control(fd, command, argument)
}

/// `fcntl64`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    control(fd, command, argument)
}
