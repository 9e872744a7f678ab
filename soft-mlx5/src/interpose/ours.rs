//! Calls on paths and descriptors of a device.

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::sync::Arc;

use super::{provider, raw};
use crate::uverbs::fd_table::{self, Entry, Kind};
use crate::uverbs::registry::{self, STAND_INS};
use crate::uverbs::shared::Shared;
use crate::uverbs::{kernel, netlink, process, real_paths, thread};

/// Beginning of the paths of uverbs devices.
const UVERBS: &[u8] = b"/dev/infiniband/uverbs";

/// Returns the number of the device file that a path names, if the path has this beginning and then a number.
pub fn number_after(beginning: &[u8], path: *const c_char) -> Option<u32> {
    if path.is_null() {
        return None;
    }
    // Byte by byte: most paths are shorter, and no path may be read beyond its end.
    for (index, &byte) in beginning.iter().enumerate() {
        // SAFETY: all bytes before were not zero, so this one still belongs to the string.
        if unsafe { *path.add(index) } as u8 != byte {
            return None;
        }
    }
    // SAFETY: the string continues here, as the bytes before were not zero.
    let rest = unsafe { CStr::from_ptr(path.add(beginning.len())) };
    let rest = rest.to_str().ok()?;
    let canonical = rest == "0" || !rest.starts_with('0');
    if canonical && rest.bytes().all(|byte| byte.is_ascii_digit()) { rest.parse().ok() } else { None }
}

/// Returns the device with this path, and the path of the device file that stands in for it.
pub fn find(path: *const c_char) -> Option<(Arc<Shared>, &'static CStr)> {
    let number = number_after(UVERBS, path)?;
    process::prepare();
    let device = registry::lock().by_uverbs(number)?;
    let stand_in = STAND_INS[device.slot].0;
    Some((device, stand_in))
}

/// Opens a device.
pub fn open(device: &Arc<Shared>, stand_in: &CStr, flags: c_int) -> c_int {
    provider::lead();
    if let Err(error) = thread::start(device) {
        return raw::fail(error.raw_os_error().unwrap_or(libc::ENOMEM));
    }
    let fd = raw::openat(libc::AT_FDCWD, stand_in.as_ptr(), flags & !libc::O_CREAT, 0);
    if fd >= 0 {
        let opened = device.command().open();
        let id = match opened {
            Ok(id) => id,
            Err(error) => {
                raw::close(fd);
                return raw::fail(error.0);
            }
        };
        let entry = Entry { kind: Kind::Uverbs, slot: device.slot as u8, id };
        if !fd_table::set(fd, entry) {
            device.command().close(entry);
            raw::close(fd);
            return raw::fail(libc::EMFILE);
        }
    }
    fd
}

/// Returns the entry of a descriptor of a uverbs device.
pub fn uverbs(fd: c_int) -> Option<Entry> {
    fd_table::get(fd).filter(|entry| matches!(entry.kind, Kind::Uverbs | Kind::Inherited))
}

/// Returns the device of a descriptor, or `None` in a child process and after the device was dropped.
fn device(entry: Entry) -> Option<Arc<Shared>> {
    if matches!(entry.kind, Kind::Inherited | Kind::Netlink) || !registry::is_ours() {
        return None;
    }
    registry::lock().device(entry.slot.into())
}

/// Runs a call on an open device.
pub fn call<T>(entry: Entry, work: impl FnOnce(&mut kernel::Core) -> crate::objects::Result<T>) -> Result<T, c_int> {
    provider::lead();
    let device = device(entry).ok_or(libc::EIO)?;
    let (result, time) = {
        let mut core = device.command();
        (work(&mut core), core.take_command_time())
    };
    if !time.is_zero() {
        std::thread::sleep(time);
    }
    result.map_err(|error| error.0)
}

/// Makes a socket of RDMA netlink. With real devices in the machine there is none, because only sysfs shows all
/// devices.
pub fn netlink(kind: c_int) -> c_int {
    process::prepare();
    let real = real_paths::during(|| std::fs::read_dir("/sys/class/infiniband"));
    let opened = match real.is_ok_and(|mut devices| devices.next().is_some()) {
        true => Err(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT)),
        false => netlink::open(kind),
    };
    match opened {
        Ok(fd) if fd_table::set(fd, Entry { kind: Kind::Netlink, slot: 0, id: 0 }) => fd,
        Ok(fd) => {
            raw::close(fd);
            raw::fail(libc::EMFILE)
        }
        Err(error) => raw::fail(error.raw_os_error().unwrap_or(libc::EPROTONOSUPPORT)),
    }
}

/// Closes the device's side of a descriptor that is about to be closed.
pub fn closing(fd: c_int) {
    // A child that shares our memory closes its own descriptors, not ours.
    if registry::is_ours() {
        if let Some(entry) = fd_table::clear(fd) {
            if let Some(device) = device(entry) {
                device.command().close(entry);
            }
        }
    } else if registry::is_forked_child() {
        fd_table::clear(fd);
    }
}

/// Enters a descriptor as a copy of a descriptor of a device.
pub fn copied(entry: Entry, copy: c_int) -> c_int {
    if copy < 0 || !registry::is_ours() {
        return copy;
    }
    if !fd_table::set(copy, entry) {
        raw::close(copy);
        return raw::fail(libc::EMFILE);
    }
    if let Some(device) = device(entry) {
        device.command().duplicate(entry);
    }
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_uverbs_paths_are_looked_at() {
        let number = |path: &CStr| number_after(UVERBS, path.as_ptr());
        assert_eq!(number(c"/dev/infiniband/uverbs0"), Some(0));
        assert_eq!(number(c"/dev/infiniband/uverbs12"), Some(12));
        assert_eq!(number(c"/dev/infiniband/uverbs"), None);
        assert_eq!(number(c"/dev/infiniband/uverbs01"), None);
        assert_eq!(number(c"/dev/infiniband/uverbs1/x"), None);
        assert_eq!(number(c"/dev/infiniband/uverbs-1"), None);
        assert_eq!(number(c"/dev/infiniband/rdma_cm"), None);
        assert_eq!(number(c""), None);
        assert_eq!(number_after(UVERBS, std::ptr::null()), None);
    }
}
