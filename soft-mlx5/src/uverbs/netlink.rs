//! RDMA netlink: how the `rdma` tool and libibverbs ask the kernel for devices (`NETLINK_RDMA`, family `nldev`).
//!
//! The program's descriptor is a netlink socket of the protocol that the kernel leaves to programs, so that binding,
//! polling and receiving work without help. What the program sends to the kernel is answered here, from a socket that
//! lives for one request. All answers are about the devices of this process.

mod abi;
mod message;
mod nldev;

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::{io, mem};

use self::message::Writer;
use super::kernel::Core;
use super::registry::{self, STAND_INS};
use crate::objects::Errno;

/// A device as the netlink interface shows it.
#[derive(Debug)]
pub struct Described {
    /// Number of the device.
    pub index: u32,
    /// Name of the device.
    pub name: String,
    /// Number of its uverbs device, and the character device that it is.
    pub uverbs: u32,
    /// Major and minor number of that.
    pub dev: (u32, u32),
    /// The port and the objects.
    pub core: super::kernel::Description,
}

/// Makes the socket that a program asked for as one of `NETLINK_RDMA`.
pub fn open(kind: c_int) -> io::Result<RawFd> {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_USERSOCK) };
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
}

/// Answers the requests that a program sends on its socket `fd`.
pub fn answer(fd: RawFd, requests: &[u8]) -> Result<(), Errno> {
    let port = port_id(fd).map_err(errno)?;
    let mut rest = requests;
    while let Some((header, body, next)) = message::split(rest) {
        let mut writer = Writer::new(header, port);
        // Data that no request starts is not answered, as by the kernel.
        if header.flags & message::REQUEST != 0 {
            nldev::run(&header, body, &devices(), &mut writer);
        }
        send(port, writer.finish()).map_err(errno)?;
        rest = next;
    }
    Ok(())
}

fn errno(error: io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

fn devices() -> Vec<Described> {
    if !registry::is_ours() {
        return Vec::new();
    }
    let devices = registry::lock().devices();
    let described = devices.into_iter().filter_map(|device| {
        let core = device.command().describe()?;
        let (major, minor) = STAND_INS[device.slot].1.split_once(':')?;
        Some(Described {
            index: device.slot as u32,
            name: device.names.ibdev.clone(),
            uverbs: device.names.uverbs,
            dev: (major.parse().ok()?, minor.parse().ok()?),
            core,
        })
    });
    described.collect()
}

/// Runs a command on a device of this process.
fn device<T>(index: u32, command: impl FnOnce(&mut Core) -> Result<T, Errno>) -> Result<T, Errno> {
    let device = registry::lock().device(index as usize).ok_or(Errno(libc::ENODEV))?;
    command(&mut device.command())
}

fn address(port: u32) -> libc::sockaddr_nl {
    // SAFETY: all bytes zero is a valid address.
    let mut address: libc::sockaddr_nl = unsafe { mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_pid = port;
    address
}

const SIZE: libc::socklen_t = size_of::<libc::sockaddr_nl>() as libc::socklen_t;

// Returns the address of a program's socket. A socket without one gets it with the first request.
fn port_id(fd: RawFd) -> io::Result<u32> {
    let mut own = address(0);
    for _ in 0..2 {
        let mut size = SIZE;
        // SAFETY: the address has the size that is named.
        if unsafe { libc::getsockname(fd, (&raw mut own).cast(), &mut size) } != 0 {
            break;
        }
        if own.nl_pid != 0 {
            return Ok(own.nl_pid);
        }
        // SAFETY: as above. The kernel chooses an address in place of 0.
        if unsafe { libc::bind(fd, (&raw const own).cast(), SIZE) } != 0 {
            break;
        }
    }
    Err(io::Error::last_os_error())
}

fn send(port: u32, datagrams: Vec<Vec<u8>>) -> io::Result<()> {
    if datagrams.is_empty() {
        return Ok(());
    }
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the descriptor was just made and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(open(kind)?) };
    let to = address(port);
    for bytes in datagrams {
        let (at, size) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the bytes and the address are valid for their sizes.
        let sent = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::sendto(socket.as_raw_fd(), at, size, flags, (&raw const to).cast(), SIZE)
        };
        if sent < 0 {
            let error = io::Error::last_os_error();
            // The receive queue is full: a kernel's answer would be lost as well.
            return Err(match error.raw_os_error() {
                Some(libc::EAGAIN) => io::Error::from_raw_os_error(libc::ENOBUFS),
                _ => error,
            });
        }
    }
    Ok(())
}
