//! The socket of a client: whole messages with their descriptors.
//!
//! A message is read as far as it has arrived, so a client that stops in the middle of one stops nothing else.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use super::message::{HEADER, Header};

/// Most descriptors in one message, as the VERSION reply says.
pub const MAX_FDS: usize = 8;

/// A request as it came.
#[derive(Debug)]
pub struct Message {
    /// Header.
    pub header: Header,
    /// Payload.
    pub payload: Vec<u8>,
    /// Descriptors.
    pub fds: Vec<OwnedFd>,
}

/// A connection, and the message that arrives on it.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    // The header first, so that no byte of the next message is read: descriptors belong to the message whose bytes
    // they came with.
    header: Option<Header>,
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Channel {
    /// Takes over a connection.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, header: None, bytes: Vec::new(), fds: Vec::new() }
    }

    /// Returns the descriptor that becomes readable when [`Self::receive`] has something to do.
    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Returns the next message, or `None` if it has not arrived as a whole. The error ends the connection.
    pub fn receive(&mut self) -> io::Result<Option<Message>> {
        loop {
            let wanted = self.header.map_or(HEADER, |header| header.payload());
            if self.bytes.len() < wanted && !self.read(wanted)? {
                return Ok(None);
            }
            if self.bytes.len() < wanted {
                continue;
            }
            let bytes = std::mem::take(&mut self.bytes);
            match self.header.take() {
                Some(header) => {
                    let fds = std::mem::take(&mut self.fds);
                    return Ok(Some(Message { header, payload: bytes, fds }));
                }
                None => {
                    let bytes = bytes.try_into().map_err(|_| invalid("the header is cut"))?;
                    let header = Header::parse(&bytes);
                    self.header = Some(header.map_err(|_| invalid("the header is not one"))?);
                }
            }
        }
    }

    // Reads at most up to `wanted` bytes; returns `false` if none has arrived.
    fn read(&mut self, wanted: usize) -> io::Result<bool> {
        let have = self.bytes.len();
        self.bytes.resize(wanted, 0);
        let got = receive(self.stream.as_raw_fd(), &mut self.bytes[have..], &mut self.fds);
        self.bytes.truncate(have + *got.as_ref().unwrap_or(&0));
        match got {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if self.fds.len() > MAX_FDS => Err(invalid("too many descriptors")),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a message, and a descriptor with it.
    pub fn send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut sent = 0;
        let mut fd = fd;
        while sent < bytes.len() {
            match send(self.stream.as_raw_fd(), &bytes[sent..], fd) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                // The descriptor went with the first byte.
                Ok(count) => (sent, fd) = (sent + count, None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

// Room for the descriptors of one message, aligned as control messages must be.
const CONTROL: usize = 16;
type Control = [u64; CONTROL];

/// Receives bytes and descriptors without waiting.
fn receive(socket: RawFd, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut control: Control = [0; CONTROL];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero is a valid header of a message without address, bytes and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>();
    // SAFETY: the header names one part, which is `bytes`, and `control`, with their lengths; both outlive the call.
    let got = unsafe { libc::recvmsg(socket, &mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel filled the control buffer that the header names, and set its length.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&message) };
    while !next.is_null() {
        // SAFETY: a control message inside of the buffer, as the macro found it.
        let found = unsafe { *next };
        if found.cmsg_level == libc::SOL_SOCKET && found.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: no memory is accessed.
            let len = found.cmsg_len - unsafe { libc::CMSG_LEN(0) } as usize;
            for at in 0..len / size_of::<RawFd>() {
                // SAFETY: the kernel put `len` bytes of descriptors here, each new and without another owner.
                fds.push(unsafe {
                    OwnedFd::from_raw_fd(libc::CMSG_DATA(next).cast::<RawFd>().add(at).read_unaligned())
                });
            }
        }
        // SAFETY: as for the first.
        next = unsafe { libc::CMSG_NXTHDR(&message, next) };
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(invalid("descriptors were cut off"));
    }
    Ok(got as usize)
}

fn send(socket: RawFd, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut control: Control = [0; CONTROL];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero is a valid header of a message without address, bytes and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
    if let Some(fd) = fd {
        const LEN: u32 = size_of::<RawFd>() as u32;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: no memory is accessed.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(LEN) } as usize;
        // SAFETY: the control buffer has room for one descriptor and is aligned.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&message);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(LEN) as usize;
            libc::CMSG_DATA(first).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        }
    }
    // SAFETY: the header names one part, which is `bytes` and only read, and `control`; both outlive the call.
    let sent = unsafe { libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    fn pair() -> (Channel, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Channel::new(ours), theirs)
    }

    fn message(payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![1, 0, 9, 0, (HEADER + payload.len()) as u8, 0, 0, 0];
        bytes.resize(HEADER, 0);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn a_message_arrives_byte_by_byte() {
        let (mut channel, mut peer) = pair();
        let bytes = message(&[1, 2, 3]);
        for byte in &bytes[..bytes.len() - 1] {
            peer.write_all(&[*byte]).unwrap();
            assert!(channel.receive().unwrap().is_none());
        }
        peer.write_all(&bytes[bytes.len() - 1..]).unwrap();
        peer.write_all(&message(&[])).unwrap();
        assert_eq!(channel.receive().unwrap().unwrap().payload, [1, 2, 3]);
        assert_eq!(channel.receive().unwrap().unwrap().payload, [0; 0]);
        assert!(channel.receive().unwrap().is_none());
    }

    #[test]
    fn descriptors_stay_with_their_message() {
        let (mut channel, peer) = pair();
        let sender = Channel::new(peer);
        let (one, other) = UnixStream::pair().unwrap();
        sender.send(&message(&[1]), None).unwrap();
        sender.send(&message(&[2; 100]), Some(one.as_fd())).unwrap();
        sender.send(&message(&[3]), None).unwrap();
        let counts: Vec<usize> = (0..3).map(|_| channel.receive().unwrap().unwrap().fds.len()).collect();
        assert_eq!(counts, [0, 1, 0]);
        // The descriptors of dropped messages were closed, so only `one` holds that end.
        drop(one);
        assert_eq!(receive(other.as_raw_fd(), &mut [0], &mut Vec::new()).unwrap(), 0);
    }

    #[test]
    fn a_client_that_dies_in_the_middle_ends_the_connection() {
        for cut in 0..HEADER + 3 {
            let (mut channel, mut peer) = pair();
            peer.write_all(&message(&[1, 2, 3])[..cut]).unwrap();
            drop(peer);
            let error = channel.receive().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{cut}");
        }
    }

    #[test]
    fn a_header_without_sense_ends_the_connection() {
        let (mut channel, mut peer) = pair();
        peer.write_all(&[0xff; HEADER]).unwrap();
        assert_eq!(channel.receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn more_descriptors_than_agreed_end_the_connection() {
        let (mut channel, peer) = pair();
        let sender = Channel::new(peer);
        let bytes = message(&[0; 12]);
        for at in 0..=MAX_FDS {
            sender.send(&bytes[at..at + 1], Some(sender.stream.as_fd())).unwrap();
        }
        let error = std::iter::from_fn(|| channel.receive().err()).next().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
