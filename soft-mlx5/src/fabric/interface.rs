//! A network interface of the machine as the other end of the link: frames go to it and come from it (`packet(7)`).

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::{io, mem};

use super::frame_header::{Headers, TAG_AT, VLAN, fill_transport};
use super::packet::MAX_ETHERNET;

/// A socket on an interface.
#[derive(Debug)]
pub struct Interface {
    socket: OwnedFd,
    buffer: Box<[u8; MAX_ETHERNET]>,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Interface {
    /// Opens the interface of this name, which needs `CAP_NET_RAW`.
    pub fn open(name: &str) -> io::Result<Self> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("cannot use network interface {name}: {error}"));
        Self::bind(name).map_err(named)
    }

    fn bind(name: &str) -> io::Result<Self> {
        let text = CString::new(name)?;
        // SAFETY: the name ends in a zero.
        let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
        check(if index == 0 { -1 } else { 0 })?;
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is involved. Without a protocol nothing comes before the socket is bound.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the descriptor was just made and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // Outgoing frames must not come back. The kernel passes VLAN tags and the state of checksums beside a frame.
        set(&socket, libc::PACKET_IGNORE_OUTGOING, &1i32)?;
        set(&socket, libc::PACKET_AUXDATA, &1i32)?;
        let promiscuous = libc::packet_mreq {
            mr_ifindex: index as i32,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set(&socket, libc::PACKET_ADD_MEMBERSHIP, &promiscuous)?;
        // SAFETY: all bytes zero is a valid address.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index as i32;
        let len = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address is valid for `len` bytes.
        check(unsafe { libc::bind(fd, (&raw const address).cast(), len) })?;
        Ok(Self { socket, buffer: Box::new([0; MAX_ETHERNET]) })
    }

    /// Returns the descriptor that becomes readable when a frame waits.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Sends a frame. A frame that the interface does not take is lost, as on a wire.
    pub fn send(&self, frame: &[u8]) -> bool {
        // SAFETY: the bytes are valid, and only read.
        let sent = unsafe { libc::send(self.fd(), frame.as_ptr().cast(), frame.len(), 0) };
        sent == frame.len() as isize
    }

    /// Takes the next frame that has come.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        const CONTROL: usize = 64;
        let mut iovec = libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: self.buffer.len() };
        let mut control = [0u64; CONTROL / 8];
        // SAFETY: all bytes zero is a valid message header.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut iovec, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = CONTROL as _;
        // SAFETY: the header names buffers that outlive the call.
        let len = unsafe { libc::recvmsg(self.fd(), &raw mut message, libc::MSG_DONTWAIT) };
        let mut frame = self.buffer.get(..usize::try_from(len).ok()?)?.to_vec();
        if message.msg_flags & libc::MSG_TRUNC == 0 {
            complete(&mut frame, auxiliary(&message));
        }
        Some(frame)
    }
}

fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let value: *const T = value;
    // SAFETY: the value is valid for its size, and only read.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, value.cast(), len) })?;
    Ok(())
}

fn auxiliary(message: &libc::msghdr) -> Option<libc::tpacket_auxdata> {
    // SAFETY: the kernel filled the control buffer that the header names.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message).as_ref()?;
        let ours = header.cmsg_level == libc::SOL_PACKET
            && header.cmsg_type == libc::PACKET_AUXDATA
            && header.cmsg_len as usize >= size_of::<libc::tpacket_auxdata>();
        ours.then(|| libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned())
    }
}

// Completes a received frame: the kernel takes VLAN tags out, and may leave checksums to the sending hardware.
fn complete(frame: &mut Vec<u8>, auxiliary: Option<libc::tpacket_auxdata>) {
    let Some(auxiliary) = auxiliary else { return };
    let says = |bit: u32| auxiliary.tp_status & bit != 0;
    if says(libc::TP_STATUS_CSUMNOTREADY) {
        let ip = Headers::parse(frame).and_then(|headers| headers.ip);
        if let Some(ip) = ip.filter(|ip| ip.body <= frame.len()) {
            fill_transport(frame, &ip);
        }
    }
    if says(libc::TP_STATUS_VLAN_VALID) && frame.len() >= TAG_AT {
        let known = says(libc::TP_STATUS_VLAN_TPID_VALID);
        let kind = if known { auxiliary.tp_vlan_tpid } else { VLAN };
        let [a, b] = kind.to_be_bytes();
        let [c, d] = auxiliary.tp_vlan_tci.to_be_bytes();
        frame.splice(TAG_AT..TAG_AT, [a, b, c, d]);
    }
}
