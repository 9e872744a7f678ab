//! Calls that map memory: a program's, and those of libmlx5, which map the pages of a device.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{mem, ptr};

use libc::{off_t, size_t};

use super::{ours, raw};
use crate::uverbs::kernel::{MapRequest, mappings};

pub const ANCHOR: *const c_void = mmap as *const c_void;

type Map = unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
type Advise = unsafe extern "C" fn(*mut c_void, size_t, c_int) -> c_int;

/// libc's mmap, which may hold hooks of other libraries; null before main.
pub static LIBC_MMAP: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// libc's madvise, likewise.
pub static LIBC_MADVISE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Maps a page of a device; returns `None` if the descriptor is not a device's.
fn map_device(
    addr: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> Option<*mut c_void> {
    let entry = ours::uverbs(fd).filter(|_| flags & libc::MAP_ANONYMOUS == 0)?;
    let request = MapRequest { offset: offset as u64, length: length as u64, protection, flags };
    Some(match ours::call(entry, |core| core.map(entry.id, request)) {
        Ok((fd, offset)) => raw::mmap(addr, length, protection, flags, fd, offset as off_t),
        Err(error) => {
            raw::fail(error);
            libc::MAP_FAILED
        }
    })
}

fn map(addr: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
    if let Some(mapped) = map_device(addr, length, protection, flags, fd, offset) {
        return mapped;
    }
    let libc_mmap = LIBC_MMAP.load(Ordering::Acquire);
    if libc_mmap.is_null() {
        return raw::mmap(addr, length, protection, flags, fd, offset);
    }
    // SAFETY: libc's function of this name has this type; the arguments are the program's.
    unsafe { mem::transmute::<*mut c_void, Map>(libc_mmap)(addr, length, protection, flags, fd, offset) }
}

/// `mmap`: a UAR page.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    addr: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    map(addr, length, protection, flags, fd, offset)
}

/// `mmap64`.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    map(addr, length, protection, flags, fd, offset)
}

/// Takes the place of mmap for libmlx5.
pub extern "C" fn provider_mmap(
    addr: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    map_device(addr, length, protection, flags, fd, offset)
        // SAFETY: the arguments are libmlx5's for this very call.
        .unwrap_or_else(|| unsafe { mmap(addr, length, protection, flags, fd, offset) })
}

/// `madvise`: the pages of a registration, which a child must not get.
///
/// # Safety
/// The contract of the libc function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(addr: *mut c_void, length: size_t, advice: c_int) -> c_int {
    if advice == libc::MADV_DONTFORK && mappings::are_limited() && mappings::are_used_up() {
        return raw::fail(libc::ENOMEM);
    }
    let libc_madvise = LIBC_MADVISE.load(Ordering::Acquire);
    if libc_madvise.is_null() {
        return raw::madvise(addr, length, advice);
    }
    // SAFETY: libc's function of this name has this type; the arguments are the program's.
    unsafe { mem::transmute::<*mut c_void, Advise>(libc_madvise)(addr, length, advice) }
}
