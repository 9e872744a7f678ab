//! Packets that reach the port of the device: with any content the device touches only memory that is registered
//! for a peer, and stays intact.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::time::Duration;

use mlx5_wire::data::DataSegment;
use soft_mlx5::Device;

use crate::input::Input;
use crate::memory::ARENA;
use crate::world::{Queues, Scene, World};

/// Begins an operation, see [`run`].
pub mod op {
    /// `length: u16`, then a packet from its local route header on. Without [`RAW`](super::RAW) its lengths and its
    /// ICRC are corrected, and it is for one of the queue pairs.
    pub const PACKET: u8 = 0;
    /// The device gets the packets that were sent, and works, `u8` milliseconds later.
    pub const STEP: u8 = 1;
    /// `length: u16`: a receive of `length` bytes.
    pub const RECEIVE: u8 = 2;
    /// `opcode: u8, length: u16`: a send WQE with one data segment.
    pub const SEND: u8 = 3;
    /// Number of operations.
    pub const COUNT: u8 = 4;
}

/// In the byte of an operation: nothing is put right.
pub const RAW: u8 = 0x80;
/// In the byte of an operation: it is for the second queue pair, or the third.
pub const SECOND: u8 = 0x20;

/// LID at which the fuzzer listens.
pub const LID: u16 = 2;
/// Number of the queue pair that the queue pairs of the device are connected to.
pub const QPN: u32 = 0x99;

const IP: usize = 8;
const UDP: usize = 48;
const BTH: usize = 56;
const TRANSPORT: usize = 68;
const ICRC: usize = 4;
const MAX_PACKET: usize = 4300;

struct Target {
    world: World,
    socket: UnixDatagram,
    device: SocketAddr,
}

fn target() -> &'static Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let fabric = format!("fuzz-{}", std::process::id());
        let world = World::new(Device::builder().fabric(fabric.as_str()));
        // SAFETY: no arguments, no memory.
        let user = unsafe { libc::getuid() };
        let name = |lid| SocketAddr::from_abstract_name(format!("soft-mlx5/{user}/{fabric}/{lid}"));
        let socket = UnixDatagram::bind_addr(&name(LID).expect("a name")).expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        let device = name(world.lid()).expect("a name");
        Target { world, socket, device }
    })
}

/// The ICRC of a packet without it, as InfiniBand defines it: fields that routers change count as ones.
pub(crate) fn icrc(covered: &[u8]) -> [u8; ICRC] {
    let mut front = [0xff; 8 + TRANSPORT - IP];
    front[8..].copy_from_slice(&covered[IP..TRANSPORT]);
    front[8] |= 0xf;
    for at in [9, 10, 11, 15, 8 + UDP - IP + 6, 8 + UDP - IP + 7, 8 + BTH - IP + 4] {
        front[at] = 0xff;
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&front);
    crc.update(&covered[TRANSPORT..]);
    crc.finalize().to_le_bytes()
}

/// Puts lengths, ports, versions, the ICRC and the queue pair right.
fn put_right(packet: &mut Vec<u8>, qpn: u32) {
    let len = packet.len().max(TRANSPORT + ICRC).next_multiple_of(4);
    packet.resize(len, 0);
    let source = packet[6..8].to_vec();
    packet[0] &= 0xf0;
    packet[1] = packet[1] & 0xfd | 2;
    packet[4..6].copy_from_slice(&((len / 4) as u16).to_be_bytes());
    // Packets come from the LID of the fuzzer, except for the LID 0xffff.
    let slid = if source == [0xff, 0xff] { source } else { LID.to_be_bytes().to_vec() };
    packet[6..8].copy_from_slice(&slid);
    packet[IP] = 0x60 | packet[IP] & 0xf;
    packet[IP + 6] = 17;
    let udp = ((len - UDP) as u16).to_be_bytes();
    packet[IP + 4..IP + 6].copy_from_slice(&udp);
    packet[UDP + 4..UDP + 6].copy_from_slice(&udp);
    packet[UDP + 2..UDP + 4].copy_from_slice(&4791u16.to_be_bytes());
    packet[BTH + 1] &= 0xf0;
    packet[BTH + 5..BTH + 8].copy_from_slice(&qpn.to_be_bytes()[1..]);
    let at = len - ICRC;
    let crc = icrc(&packet[..at]);
    packet[at..].copy_from_slice(&crc);
}

impl Target {
    fn step(&self, time: u8) {
        self.world.device.advance(Duration::from_millis(time.into()));
        self.world.device.step();
        let mut answer = [0; 64];
        while self.socket.recv(&mut answer).is_ok() {}
    }

    fn operation(&self, queues: &mut Queues, waiting: &mut Vec<u8>, input: &mut Input) -> Option<()> {
        let byte = input.u8()?;
        let index = usize::from(byte / SECOND % 4) % queues.qps.len();
        let qp = &mut queues.qps[index];
        match byte % SECOND % op::COUNT {
            op::PACKET => {
                let len = usize::from(input.u16()?) % MAX_PACKET;
                let mut packet = input.bytes(len).to_vec();
                if byte & RAW == 0 {
                    put_right(&mut packet, qp.number());
                }
                // As many as a datagram takes.
                if waiting.len() + packet.len() > 16 * 1024 {
                    self.deliver(waiting);
                }
                waiting.extend(packet);
            }
            op::STEP => {
                self.deliver(waiting);
                self.step(input.u8()?);
            }
            op::RECEIVE => {
                let length = u32::from(input.u16()?).max(1);
                let segment = DataSegment::new(ARENA, length, self.world.key()).to_bytes();
                match &mut queues.srq {
                    Some(srq) if index > 0 => srq.receive(&segment, None),
                    _ => qp.receive(&segment),
                }
            }
            _ => {
                let (opcode, length) = (input.u8()?, u32::from(input.u16()?).max(1));
                let mut block = [0; 64];
                block[1..3].copy_from_slice(&qp.sent().to_be_bytes());
                block[3] = opcode;
                block[4..7].copy_from_slice(&qp.number().to_be_bytes()[1..]);
                // Segments that are not remote segments are data segments: three segments fit all opcodes.
                block[7] = 4;
                block[11] = 8;
                for at in [16, 32, 48] {
                    let segment = DataSegment::new(ARENA, length, self.world.key()).to_bytes();
                    block[at..at + 16].copy_from_slice(&segment);
                }
                let control: [u8; 8] = block[..8].try_into().expect("eight bytes");
                qp.put(&[block]);
                qp.ring(u64::from_ne_bytes(control));
            }
        }
        Some(())
    }

    fn deliver(&self, waiting: &mut Vec<u8>) {
        if !waiting.is_empty() {
            let _ = self.socket.send_to_addr(waiting, &self.device);
            waiting.clear();
        }
    }
}

/// Makes the queues of a `Scene`, the first byte, with the fuzzer as their peer, and executes the other
/// bytes: operations as [`op`] lists them, until the end.
pub fn run(bytes: &[u8]) {
    let target = target();
    let mut input = Input(bytes);
    let Some(scene) = input.u8() else { return };
    target.world.arena.clear();
    let mut queues = target.world.queues(Scene::from_byte(scene), Some((LID, QPN)));
    let mut waiting = Vec::new();
    while target.operation(&mut queues, &mut waiting, &mut input).is_some() {}
    target.deliver(&mut waiting);
    target.step(1);
    target.step(1);
    drop(queues);
    target.step(200);
    target.world.check();
}
