//! Calls on files for management datagrams.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::ptr;
use std::sync::Arc;

use libc::{size_t, ssize_t};

use super::{ours, raw};
use crate::fabric::mad::SIZE;
use crate::uverbs::fd_table::Entry;
use crate::uverbs::registry::{self, STAND_INS};
use crate::uverbs::shared::Shared;
use crate::uverbs::{process, thread};

const UMAD: &[u8] = b"/dev/infiniband/umad";
const ISSM: &[u8] = b"/dev/infiniband/issm";
/// Type of the requests of ioctl.
const MAGIC: u32 = 0x1b;

/// Returns the device with this file, and the path of the device file that stands in for it where it is not opened.
pub fn find(path: *const c_char) -> Option<(Arc<Shared>, &'static CStr)> {
    let number = ours::number_after(UMAD, path).or_else(|| ours::number_after(ISSM, path))?;
    process::prepare();
    let devices = registry::lock().devices();
    let device = devices.into_iter().find(|device| device.names.umad == number)?;
    let stand_in = STAND_INS[device.slot].0;
    Some((device, stand_in))
}

/// Opens a file; returns `None` if the path names none.
pub fn open(path: *const c_char, flags: c_int) -> Option<c_int> {
    let (device, _) = find(path)?;
    if ours::number_after(ISSM, path).is_some() {
        // The fabric has its subnet manager, and takes no other.
        return Some(raw::fail(libc::EBUSY));
    }
    if let Err(error) = thread::start(&device) {
        return Some(raw::fail(error.raw_os_error().unwrap_or(libc::ENOMEM)));
    }
    let opened = device.command().open_umad(flags);
    Some(opened.unwrap_or_else(|error| raw::fail(error.0)))
}

/// Runs an ioctl.
pub fn ioctl(entry: Entry, fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    // Compares 32 bits, as the kernel does. Other requests are for descriptors of any kind.
    if request as u32 >> 8 & 0xff != MAGIC {
        return raw::ioctl(fd, request, argument);
    }
    match ours::call(entry, |core| core.umad_ioctl(entry.id, request as u32, argument)) {
        Ok(()) => 0,
        Err(error) => raw::fail(error),
    }
}

/// Sends a datagram.
pub fn write(entry: Entry, buf: u64, count: size_t) -> ssize_t {
    match ours::call(entry, |core| core.umad_write(entry.id, buf, count)) {
        Ok(taken) => taken as ssize_t,
        Err(error) => raw::fail(error) as ssize_t,
    }
}

/// Receives a datagram. A datagram that is longer than the buffer stays, and the program sees as much as tells the
/// length.
pub fn read(entry: Entry, fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t {
    let look = libc::MSG_PEEK | libc::MSG_TRUNC;
    let len = raw::recv(fd, ptr::null_mut(), 0, look);
    if len <= 0 {
        return if len == 0 { raw::fail(libc::EIO) as ssize_t } else { len };
    }
    let len = len as size_t;
    let header = match ours::call(entry, |core| core.umad_header(entry.id)) {
        Ok(header) => header,
        Err(error) => return raw::fail(error) as ssize_t,
    };
    let first = len.min(header + SIZE);
    if count < first {
        return raw::fail(libc::EINVAL) as ssize_t;
    }
    if count < len {
        raw::recv(fd, buf, first, libc::MSG_PEEK);
        return raw::fail(libc::ENOSPC) as ssize_t;
    }
    raw::recv(fd, buf, count, 0)
}
