//! Commands of a program to the connection manager, and datagrams of communication management that a peer sends: the
//! device refuses or obeys, and touches only memory that the program named.

use std::os::fd::RawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::time::Duration;

use soft_mlx5::Device;

use crate::input::Input;
use crate::memory::{ARENA, Arena, tame};
use crate::packets::icrc;

/// Begins an operation, see [`run`].
pub mod op {
    /// `command: u8, room: u16, length: u16`, then the bytes behind the header of a command. Where a command has the
    /// address of its answer first, that is in the arena.
    pub const COMMAND: u8 = 0;
    /// `attribute: u8, length: u8`, then the bytes of a message behind its common header. The identifiers of the
    /// fuzzer's messages stay small, and the device's own are put in where the byte of the operation has
    /// [`ANSWER`](super::ANSWER).
    pub const MESSAGE: u8 = 1;
    /// The device works, `u16` milliseconds later.
    pub const STEP: u8 = 2;
    /// The program reads an event.
    pub const EVENT: u8 = 3;
    /// Number of operations.
    pub const COUNT: u8 = 4;
}

/// In the byte of an operation: the message answers the last one of the device.
pub const ANSWER: u8 = 0x80;

/// LID at which the fuzzer listens.
const LID: u16 = 2;
const OWN: u16 = 1;
const MAD: usize = 256;
const HEADER: usize = 24;
/// Where a frame has its datagram: after the local route header, the IPv6 header, UDP, and the two headers of a
/// datagram.
const PAYLOAD: usize = 8 + 40 + 8 + 12 + 8;
const GET_EVENT: u32 = 12;
const EVENT_SIZE: u16 = 336;
/// Bytes of a command, at most.
const MAX_COMMAND: usize = 300;

struct Target {
    device: Device,
    socket: UnixDatagram,
    peer: SocketAddr,
    arena: Arena,
}

fn target() -> &'static Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let fabric = format!("fuzz-cm-{}", std::process::id());
        let device = Device::builder().fabric(fabric.as_str()).stepped().build();
        // SAFETY: no arguments, no memory.
        let user = unsafe { libc::getuid() };
        let name = |lid| SocketAddr::from_abstract_name(format!("soft-mlx5/{user}/{fabric}/{lid}"));
        let socket = UnixDatagram::bind_addr(&name(LID).expect("a name")).expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        let peer = name(OWN).expect("a name");
        Target { device: device.expect("a stepped device"), socket, peer, arena: Arena::new() }
    })
}

/// A frame that carries a datagram from queue pair 1 of the fuzzer to queue pair 1 of the device.
fn frame(mad: &[u8; MAD]) -> Vec<u8> {
    let len = PAYLOAD + MAD + 4;
    let mut frame = vec![0; len];
    frame[1] = 2;
    frame[2..4].copy_from_slice(&OWN.to_be_bytes());
    frame[4..6].copy_from_slice(&((len / 4) as u16).to_be_bytes());
    frame[6..8].copy_from_slice(&LID.to_be_bytes());
    frame[8] = 0x60;
    let udp = ((len - 48) as u16).to_be_bytes();
    frame[12..14].copy_from_slice(&udp);
    frame[14] = 17;
    frame[50..52].copy_from_slice(&4791u16.to_be_bytes());
    frame[52..54].copy_from_slice(&udp);
    // UD SEND only, partition, queue pair 1; the Q_Key of queue pair 1, and its number.
    frame[56] = 0x64;
    frame[58..60].copy_from_slice(&[0xff, 0xff]);
    frame[63] = 1;
    frame[68..72].copy_from_slice(&0x8001_0000u32.to_be_bytes());
    frame[75] = 1;
    frame[PAYLOAD..PAYLOAD + MAD].copy_from_slice(mad);
    let crc = icrc(&frame[..len - 4]);
    frame[len - 4..].copy_from_slice(&crc);
    frame
}

struct Program {
    fd: RawFd,
    target: &'static Target,
    // Identifier that the device sent last as its own.
    seen: [u8; 4],
}

impl Program {
    fn write(&self, command: u32, room: u16, body: &[u8]) {
        let mut bytes = command.to_ne_bytes().to_vec();
        bytes.extend((body.len() as u16).to_ne_bytes());
        bytes.extend(room.to_ne_bytes());
        bytes.extend(body);
        // SAFETY: the descriptor takes commands, with addresses that are in the arena or not mapped.
        unsafe { libc::write(self.fd, bytes.as_ptr().cast(), bytes.len()) };
    }

    fn command(&self, input: &mut Input) -> Option<()> {
        // CREATE_ID has its answer behind the name of the identifier; so have the two that join a group.
        const SECOND: [u32; 3] = [0, 16, 22];
        const NONE: [u32; 12] = [2, 3, 4, 6, 7, 8, 9, 10, 14, 15, 20, 21];
        let (command, room) = (u32::from(input.u8()?) % 25, input.u16()? % 512);
        let len = usize::from(input.u16()?) % MAX_COMMAND;
        let mut body = vec![0; len];
        let given = input.bytes(len);
        body[..given.len()].copy_from_slice(given);
        tame(&mut body);
        let at = if SECOND.contains(&command) { 8 } else { 0 };
        if let Some(place) = body.get_mut(at..at + 8).filter(|_| !NONE.contains(&command)) {
            place.copy_from_slice(&ARENA.to_ne_bytes());
        }
        self.write(command, room, &body);
        Some(())
    }

    fn message(&self, answers: bool, input: &mut Input) -> Option<()> {
        let (attribute, len) = (0x10 + input.u8()? % 10, usize::from(input.u8()?));
        let mut mad = [0; MAD];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = attribute;
        let given = input.bytes(len.min(MAD - HEADER));
        mad[HEADER..HEADER + given.len()].copy_from_slice(given);
        if answers {
            // The identifier of the receiver is the second one, of a lookup the first.
            let at = if attribute == 0x18 { HEADER } else { HEADER + 4 };
            mad[at..at + 4].copy_from_slice(&self.seen);
        }
        let _ = self.target.socket.send_to_addr(&frame(&mad), &self.target.peer);
        Some(())
    }

    fn step(&mut self, milliseconds: u16) {
        self.target.device.advance(Duration::from_millis(milliseconds.into()));
        self.target.device.step();
        let mut bytes = [0; 16 * 1024];
        while let Ok(len) = self.target.socket.recv(&mut bytes) {
            let at = PAYLOAD + HEADER;
            if let Some(id) = bytes[..len].get(at..at + 4) {
                self.seen.copy_from_slice(id);
            }
        }
    }

    fn operation(&mut self, input: &mut Input) -> Option<()> {
        let byte = input.u8()?;
        match byte % op::COUNT {
            op::COMMAND => self.command(input),
            op::MESSAGE => self.message(byte & ANSWER != 0, input),
            op::STEP => {
                let milliseconds = input.u16()?;
                self.step(milliseconds);
                Some(())
            }
            _ => {
                self.write(GET_EVENT, EVENT_SIZE, &ARENA.to_ne_bytes());
                Some(())
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this program's.
        unsafe { libc::close(self.fd) };
    }
}

/// Opens the file of the connection manager and executes `bytes`: operations as [`op`] lists them, until the end.
pub fn run(bytes: &[u8]) {
    let target = target();
    target.arena.clear();
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: a C string.
    let fd = unsafe { libc::open(c"/dev/infiniband/rdma_cm".as_ptr(), flags) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    let mut program = Program { fd, target, seen: [0; 4] };
    let mut input = Input(bytes);
    while program.operation(&mut input).is_some() {}
    program.step(1);
    drop(program);
    // Nothing of the program is left: no timer runs.
    target.device.settle();
    assert_eq!(target.device.next_timer(), None);
}
