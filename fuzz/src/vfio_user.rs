//! Bytes on the socket of a virtual machine: whatever a client sends, and wherever it stops, its connection ends and
//! nothing else.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;

use mlx5_wire::firmware::command::{Numbered, Request};
use soft_mlx5::pci::vfio_user::Server;

use crate::firmware::opcodes;
use crate::input::Input;

/// Begins an operation, see [`run`].
pub mod op {
    /// `command: u8`, `flags: u8`, `length: u8`, then the payload.
    pub const REQUEST: u8 = 0;
    /// `region: u8`, `offset: u32`, `length: u8`, then the bytes.
    pub const WRITE: u8 = 1;
    /// `region: u8`, `offset: u32`, `length: u8`.
    pub const READ: u8 = 2;
    /// `flags: u8`, `address: u16` and `offset: u16` in pages, `pages: u8`: memory, with a file or without.
    pub const MAP: u8 = 3;
    /// `action: u8`, `start: u8`, `count: u8`, `descriptors: u8`.
    pub const IRQS: u8 = 4;
    /// `slot: u8`, `opcode: u8`, `number: u32`: puts a command into the queue at page 1.
    pub const COMMAND: u8 = 5;
    /// `offset: u16` in units of eight bytes, `value: u64`: into the memory of the guest.
    pub const POKE: u8 = 6;
    /// `length: u8`, then bytes that are no message.
    pub const GARBAGE: u8 = 7;
    /// Number of operations.
    pub const COUNT: u8 = 8;
}

const PAGES: u64 = 64;
const PAGE: u64 = 4096;
const QUEUE: u64 = PAGE;
/// Commands of the protocol, and of the guest.
const REGION_READ: u8 = 9;
const REGION_WRITE: u8 = 10;
const DMA_MAP: u8 = 2;
const SET_IRQS: u8 = 8;
const NO_REPLY: u8 = 0x10;
const MOST_FDS: usize = 8;

fn memfd() -> File {
    // SAFETY: the name is a C string; the new descriptor has no other owner.
    let file = unsafe {
        let fd = libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    file.set_len(PAGES * PAGE).expect("memory");
    file
}

struct Client {
    socket: UnixStream,
    memory: File,
}

impl Client {
    /// Sends a message with descriptors; `None` if the socket is full, which ends the client.
    fn send(&mut self, command: u8, flags: u8, payload: &[u8], fds: &[RawFd]) -> Option<()> {
        let mut bytes = vec![1, 0, command, 0];
        bytes.extend((16 + payload.len() as u32).to_le_bytes());
        bytes.extend([flags, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(payload);
        if fds.is_empty() {
            return self.socket.write_all(&bytes).ok();
        }
        let mut control = [0u64; 16];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let len = size_of_val(fds) as u32;
        // SAFETY: the header names one part, which is `bytes`, and `control`, which has room for the descriptors and is
        // aligned; both outlive the call.
        let sent = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(len) as usize;
            let first = libc::CMSG_FIRSTHDR(&message);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(len) as usize;
            libc::CMSG_DATA(first).copy_from_nonoverlapping(fds.as_ptr().cast(), len as usize);
            libc::sendmsg(self.socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
        };
        (sent == bytes.len() as isize).then_some(())
    }

    fn access(&mut self, command: u8, region: u8, offset: u32, data: &[u8], count: u32) -> Option<()> {
        let head = [u64::from(offset).to_le_bytes(), (u64::from(count) << 32 | u64::from(region)).to_le_bytes()];
        self.send(command, 0, &[&head.concat(), data].concat(), &[])
    }

    fn map(&mut self, flags: u8, address: u64, offset: u64, pages: u64) -> Option<()> {
        let words = [32 | u64::from(flags & 3) << 32, offset * PAGE, address * PAGE, pages * PAGE];
        let payload = words.map(u64::to_le_bytes).concat();
        let fd = [self.memory.as_raw_fd()];
        let fds = if flags & 4 == 0 { &fd[..] } else { &[] };
        self.send(DMA_MAP, 0, &payload, fds)
    }

    fn operation(&mut self, input: &mut Input) -> Option<()> {
        match input.u8()? % op::COUNT {
            op::REQUEST => {
                let (command, flags, length) = (input.u8()?, input.u8()?, input.u8()?);
                let mut payload = input.bytes(length.into()).to_vec();
                // A longer answer than the socket holds would wait for a reader.
                if let (REGION_READ, Some(count)) = (command, payload.get_mut(13..16)) {
                    count.fill(0);
                }
                self.send(command, flags & NO_REPLY, &payload, &[])
            }
            op::WRITE => {
                let (region, offset, length) = (input.u8()?, input.u32()?, input.u8()?);
                let data = input.bytes(length.into());
                self.access(REGION_WRITE, region, offset, data, data.len() as u32)
            }
            op::READ => {
                let (region, offset, length) = (input.u8()?, input.u32()?, input.u8()?);
                self.access(REGION_READ, region, offset, &[], length.into())
            }
            op::MAP => {
                let (flags, address, offset) = (input.u8()?, input.u16()?, input.u16()?);
                self.map(flags, address.into(), offset.into(), input.u8()?.into())
            }
            op::IRQS => {
                let (action, start, count, fds) = (input.u8()?, input.u8()?, input.u8()?, input.u8()?);
                let flags = if action & 1 == 0 { 0x24 } else { 0x21 };
                let words = [20, flags, 2, start.into(), count.into()].map(u32::to_le_bytes).concat();
                let fds = vec![self.memory.as_raw_fd(); usize::from(fds) % (MOST_FDS + 2)];
                self.send(SET_IRQS, 0, &words, &fds)
            }
            op::COMMAND => {
                let (slot, opcode, number) = (input.u8()? % 32, input.u8()?, input.u32()?);
                let request = Request::new(opcodes()[usize::from(opcode) % opcodes().len()]);
                let mut entry = [0; 64];
                // Type, length of the input, length of the output, owner.
                (entry[0], entry[7], entry[59], entry[63]) = (7, 16, 16, 1);
                entry[16..32].copy_from_slice(&Numbered { request, number, ..Numbered::ZERO }.to_bytes());
                self.memory.write_all_at(&entry, QUEUE + u64::from(slot) * 64).ok()
            }
            op::POKE => {
                let (at, value) = (u64::from(input.u16()?) * 8 % (PAGES * PAGE), input.u64()?);
                self.memory.write_all_at(&value.to_be_bytes(), at).ok()
            }
            _ => {
                let length = input.u8()?;
                self.socket.write_all(input.bytes(length.into())).ok()
            }
        }
    }
}

/// Connects a client, sends what `bytes` describe as [`op`] lists it, posts the commands of the queue, hangs up, and
/// serves the client until it is gone.
pub fn run(bytes: &[u8]) {
    static MEMORY: OnceLock<File> = OnceLock::new();
    let memory = MEMORY.get_or_init(memfd).try_clone().expect("a descriptor");
    memory.set_len(0).and_then(|()| memory.set_len(PAGES * PAGE)).expect("memory");
    let (ours, theirs) = UnixStream::pair().expect("a socket");
    for socket in [&ours, &theirs] {
        socket.set_write_timeout(Some(Duration::from_millis(10))).expect("a socket");
    }
    let mut client = Client { socket: theirs, memory };
    let mut input = Input(bytes);
    let posted = input.u32().unwrap_or(0);
    client.map(3, 0, 0, PAGES);
    client.access(REGION_WRITE, 0, 0x10, &QUEUE.to_be_bytes(), 8);
    while client.operation(&mut input).is_some() {}
    client.access(REGION_WRITE, 0, 0x18, &posted.to_be_bytes(), 4);
    // The descriptors of the client outlive it here, but not its connection.
    client.socket.shutdown(std::net::Shutdown::Write).expect("a socket");
    // An error is the end of the connection, too.
    let _ = Server::new("").serve(ours);
}
