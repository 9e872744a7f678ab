//! Memory regions of a dma-buf: memory of another device, which the program names by a descriptor.
//!
//! An adapter reaches the memory without the processor. The model maps the dma-buf for itself, so the exporter must
//! allow that; udmabuf and the system heap do. A memfd may stand for a dma-buf where the kernel would refuse it,
//! because few machines have an exporter without a graphics device.

use std::mem;
use std::os::fd::RawFd;

use super::Call;
use super::attrs::{Attrs, Carries, FLAGS, Spec, exactly, room};
use super::errno::{EBADF, EINVAL, ENODEV, EOPNOTSUPP};
use super::mapping::Mapping;
use super::mr::{Memory, access, check_access};
use super::pd::Pd;
use crate::objects::{MkeyAttr, Result};

const HANDLE: u16 = 0;
const PD: u16 = 1;
const OFFSET: u16 = 2;
const LENGTH: u16 = 3;
const IOVA: u16 = 4;
const FD: u16 = 5;
const ACCESS: u16 = 6;
const RESP_LKEY: u16 = 7;
const RESP_RKEY: u16 = 8;
const DRIVER_FLAGS: u16 = 0x1000;

/// Attributes of the registration.
pub const REGISTER: &[Spec] = &[
    Spec::needs(HANDLE, Carries::New),
    Spec::needs(PD, Carries::Handle),
    Spec::needs(OFFSET, exactly(8)),
    Spec::needs(LENGTH, exactly(8)),
    Spec::needs(IOVA, exactly(8)),
    Spec::needs(FD, exactly(4)),
    Spec::needs(ACCESS, FLAGS),
    Spec::needs(RESP_LKEY, room(4)),
    Spec::needs(RESP_RKEY, room(4)),
    Spec::takes(DRIVER_FLAGS, FLAGS),
];

const ALLOWED: u32 =
    access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC | access::RELAXED_ORDERING;
/// The memory is reached through a PCI function of its own (`MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT`).
const DATA_DIRECT: u32 = 1;
const IN_PAGE: u64 = 4095;

/// Registers a dma-buf. The order of the checks is the kernel's: programs probe for the function with a descriptor that
/// does not exist, and whatever length, and expect `EBADF`.
pub fn register(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let pd = attrs.handle(PD)?;
    call.get::<Pd>(pd)?;
    let [offset, length, iova]: [u64; 3] = [attrs.get(OFFSET)?, attrs.get(LENGTH)?, attrs.get(IOVA)?];
    if (offset ^ iova) & IN_PAGE != 0 {
        return Err(EINVAL);
    }
    let fd: u32 = attrs.get(FD)?;
    let flags = attrs.flags(ACCESS, ALLOWED)?;
    check_access(flags)?;
    if attrs.flags(DRIVER_FLAGS, DATA_DIRECT)? & DATA_DIRECT != 0 {
        // The device has no such function.
        return Err(if iova & IN_PAGE != 0 { EOPNOTSUPP } else { EINVAL });
    }
    let mapping = map(fd as RawFd, offset, length, flags & access::WRITING != 0)?;
    let va = mapping.addr() + offset;
    let attr = MkeyAttr { pd: call.get::<Pd>(pd)?.pdn, va, iova, length, access: flags };
    let memory = Memory { mapping: Some(mapping), ..Memory::default() };
    let (handle, mkey) = call.add_mr(pd, attr, memory)?;
    let answered = attrs
        .put(RESP_LKEY, &mkey.0)
        .and_then(|()| attrs.put(RESP_RKEY, &mkey.0))
        .and_then(|()| attrs.put_new(HANDLE, handle));
    call.or_destroy(handle, answered)
}

/// Maps a dma-buf that has this range.
pub fn map(fd: RawFd, offset: u64, length: u64, writable: bool) -> Result<Mapping> {
    let end = offset.checked_add(length).ok_or(EINVAL)?;
    let size = size(fd)?;
    if size < end || length == 0 {
        return Err(EINVAL);
    }
    Mapping::new(fd, size, writable)
}

/// Returns the size of a dma-buf, or of a memfd that stands for it.
fn size(fd: RawFd) -> Result<u64> {
    const DMA_BUF_MAGIC: u64 = 0x444d_4142;
    // SAFETY: no memory is involved.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 || flags & libc::O_PATH != 0 {
        return Err(EBADF);
    }
    // SAFETY: all bytes zero is a valid value of both, which outlive the calls.
    let (mut system, mut file): (libc::statfs, libc::stat) = unsafe { (mem::zeroed(), mem::zeroed()) };
    // SAFETY: as above.
    let known = unsafe { libc::fstatfs(fd, &mut system) == 0 && libc::fstat(fd, &mut file) == 0 };
    if !known {
        return Err(EINVAL);
    }
    if system.f_type as u64 == DMA_BUF_MAGIC {
        // The size of a dma-buf is the place of its end.
        // SAFETY: no memory is involved.
        let end = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
        // SAFETY: as above.
        unsafe { libc::lseek(fd, 0, libc::SEEK_SET) };
        return u64::try_from(end).map_err(|_| EINVAL);
    }
    // A memfd has seals, and no name in a file system.
    // SAFETY: no memory is involved.
    let is_memfd = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) } >= 0 && file.st_nlink == 0;
    if is_memfd { Ok(file.st_size as u64) } else { Err(EINVAL) }
}

/// Attributes of the question for the PCI function of [`DATA_DIRECT`].
pub const DATA_DIRECT_PATH: &[Spec] = &[Spec::needs(0x1000, Carries::Out(0, u16::MAX))];

/// Refuses to name a PCI function that the device does not have.
pub fn data_direct_path(call: &mut Call, _: &Attrs) -> Result<()> {
    call.context()?;
    Err(ENODEV)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn only_a_dma_buf_or_a_memfd_has_a_size() {
        // SAFETY: the name is a string.
        let memfd = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: the descriptor was just made.
        assert_eq!(unsafe { libc::ftruncate(memfd, 0x3000) }, 0);
        assert_eq!(size(memfd), Ok(0x3000));
        // SAFETY: as above; nothing else uses it.
        unsafe { libc::close(memfd) };
        assert_eq!(size(-1), Err(EBADF));
        for path in ["/dev/null", "/proc/self/status", "/"] {
            assert_eq!(size(File::open(path).unwrap().as_raw_fd()), Err(EINVAL), "{path}");
        }
    }
}
