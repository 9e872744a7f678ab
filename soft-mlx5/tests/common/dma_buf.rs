//! Dma-bufs. Tests that register them include this file by path.

use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Returns memory that seals can protect.
pub fn memfd(len: usize) -> OwnedFd {
    // SAFETY: the name is a string; the descriptor has no other owner.
    unsafe {
        let fd = libc::memfd_create(c"test-buffer".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert_eq!(libc::ftruncate(fd, len as i64), 0);
        OwnedFd::from_raw_fd(fd)
    }
}

/// Returns a dma-buf of udmabuf, where the machine has it.
pub fn udmabuf(len: usize) -> Option<OwnedFd> {
    /// `struct udmabuf_create`.
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    const UDMABUF_CREATE: libc::c_ulong = 0x4018_7542;
    let device = File::options().read(true).write(true).open("/dev/udmabuf").ok()?;
    let memory = memfd(len);
    let create = Create { memfd: memory.as_raw_fd() as u32, flags: 1, offset: 0, size: len as u64 };
    // SAFETY: descriptors of ours; the structure outlives the call.
    unsafe {
        assert_eq!(libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
        let fd = libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &raw const create);
        assert!(fd >= 0, "{}", Error::last_os_error());
        Some(OwnedFd::from_raw_fd(fd))
    }
}
