//! The file of the connection manager: opening, commands, and what it looks like.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use libc::{size_t, ssize_t};

use super::{ours, provider, raw};
use crate::uverbs::fd_table::{self, Entry, Kind};
use crate::uverbs::shared::Shared;
use crate::uverbs::{process, registry, thread};

pub const ANCHOR: *const c_void = fstat as *const c_void;

const PATH: &CStr = c"/dev/infiniband/rdma_cm";

/// Device file whose kind and number the file shows. Its descriptor is really a socket.
pub const STAND_IN: &CStr = c"/dev/null";

/// Returns `true` if a path names the file.
pub fn is_path(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    let name = PATH.to_bytes_with_nul();
    // SAFETY: byte by byte: all bytes before were equal and not zero, so each still belongs to the string.
    name.iter().enumerate().all(|(index, &byte)| unsafe { *path.add(index) } as u8 == byte)
}

/// Returns the device that the file belongs to: the first of the process.
pub fn device() -> Option<Arc<Shared>> {
    process::prepare();
    registry::lock().devices().into_iter().next()
}

/// Opens the file; returns `None` if the process has no device.
pub fn open(flags: c_int) -> Option<c_int> {
    let device = device()?;
    provider::lead();
    if let Err(error) = thread::start(&device) {
        return Some(raw::fail(error.raw_os_error().unwrap_or(libc::ENOMEM)));
    }
    let opened = device.command().open_rdma_cm();
    let (id, fd) = match opened {
        Ok(opened) => opened,
        Err(error) => return Some(raw::fail(error.0)),
    };
    if flags & libc::O_CLOEXEC == 0 {
        raw::fcntl(fd, libc::F_SETFD, 0);
    }
    if flags & libc::O_NONBLOCK != 0 {
        raw::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK as _);
    }
    let entry = Entry { kind: Kind::RdmaCm, slot: device.slot as u8, id };
    if !fd_table::set(fd, entry) {
        device.command().close(entry);
        raw::close(fd);
        return Some(raw::fail(libc::EMFILE));
    }
    Some(fd)
}

/// Runs a command.
pub fn write(entry: Entry, fd: c_int, addr: u64, count: size_t) -> ssize_t {
    loop {
        match ours::call(entry, |core| core.begin_rdma_cm_wait(entry.id, addr, count)) {
            Ok(true) => {
                // The token of an event. The kernel waits here, or says that it would.
                let mut token = [0u8];
                let got = raw::read(fd, token.as_mut_ptr().cast(), 1);
                let error = std::io::Error::last_os_error().raw_os_error();
                let _ = ours::call(entry, |core| {
                    core.end_rdma_cm_wait(entry.id);
                    Ok(())
                });
                if got != 1 {
                    let error = error.filter(|_| got < 0).unwrap_or(libc::EIO);
                    return raw::fail(error) as ssize_t;
                }
            }
            Ok(false) => {}
            Err(error) => return raw::fail(error) as ssize_t,
        }
        match ours::call(entry, |core| core.write_rdma_cm(entry.id, addr, count)) {
            Ok(Some(taken)) => return taken as ssize_t,
            // The event was of an identifier that was destroyed meanwhile.
            Ok(None) => {}
            Err(error) => return raw::fail(error) as ssize_t,
        }
    }
}

// The file is a character device to everybody who asks.
fn stat_fd(fd: c_int, buf: *mut c_void) -> c_int {
    if fd_table::get(fd).is_some_and(|entry| entry.kind == Kind::RdmaCm) {
        return raw::fstatat(libc::AT_FDCWD, STAND_IN.as_ptr(), buf, 0);
    }
    raw::fstatat(fd, c"".as_ptr(), buf, libc::AT_EMPTY_PATH)
}

macro_rules! calls {
    ($($name:ident($($argument:ident: $ty:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// The contract of the libc function with this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $ty,)* fd: c_int, buf: *mut c_void) -> c_int {
            stat_fd(fd, buf)
        }
    )*};
}

calls! {
    fstat();
    fstat64();
    __fxstat(_version: c_int);
    __fxstat64(_version: c_int);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_path_is_the_file() {
        assert!(is_path(c"/dev/infiniband/rdma_cm".as_ptr()));
        for other in [c"/dev/infiniband/rdma_cm0", c"/dev/infiniband/rdma", c"", c"/"] {
            assert!(!is_path(other.as_ptr()), "{other:?}");
        }
        assert!(!is_path(std::ptr::null()));
    }
}
