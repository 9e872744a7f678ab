//! WQEs, doorbell records and registers of a program: with any content the device touches registered memory
//! only, and stays intact.

use std::sync::OnceLock;
use std::time::Duration;

use mlx5_wire::ctrl::{CQ_UPDATE, ControlSegment};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::remote::RemoteAddressSegment;
use mlx5_wire::umr::{UmrControl, mask};
use soft_mlx5::Device;

use crate::input::Input;
use crate::memory::ARENA;
use crate::world::{Queues, Scene, World};

/// Begins an operation, see [`run`].
pub mod op {
    /// `blocks: u8`, then `blocks` blocks of 64 bytes, which are posted. Index and queue pair number of the
    /// control segment are corrected, unless [`RAW`](super::RAW).
    pub const SEND: u8 = 0;
    /// 64 bytes of data segments, which are posted as a receive.
    pub const RECEIVE: u8 = 1;
    /// `word: u8, value: u32`, which is added to the right value.
    pub const RECORD: u8 = 2;
    /// `u64`.
    pub const REGISTER: u8 = 3;
    /// The device works, `u8` milliseconds later.
    pub const STEP: u8 = 4;
    /// `u8`.
    pub const STATE: u8 = 5;
    /// `key: u8`, 48 bytes of a UMR segment, 64 bytes of context, 64 bytes of list: a WQE that changes the key of a
    /// memory window, or of the registered memory. The first entry of the list gets a key, and size and mask are put
    /// right, unless [`RAW`](super::RAW).
    pub const UMR: u8 = 6;
    /// `opcode: u8, key: u8, variant: u8, at: u16, length: u8`: an RDMA WRITE or READ through the key of a memory
    /// window.
    pub const REMOTE: u8 = 7;
    /// Number of operations.
    pub const COUNT: u8 = 8;
}

/// In the byte of an operation: nothing is put right.
pub const RAW: u8 = 0x80;
/// In the byte of an operation: it is for the second queue pair, or the third.
pub const SECOND: u8 = 0x20;
const MAX_BLOCKS: u8 = 8;

/// The world of this target.
pub fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| World::new(Device::builder()))
}

fn operation(world: &World, queues: &mut Queues, input: &mut Input) -> Option<()> {
    let byte = input.u8()?;
    let raw = byte & RAW != 0;
    let index = usize::from(byte / SECOND % 4) % queues.qps.len();
    let qp = &mut queues.qps[index];
    match byte % SECOND % op::COUNT {
        op::SEND => {
            let count = input.u8()? % MAX_BLOCKS + 1;
            let mut blocks: Vec<[u8; 64]> = (0..count).map_while(|_| input.block()).collect();
            let first = blocks.first_mut()?;
            if !raw {
                first[1..3].copy_from_slice(&qp.sent().to_be_bytes());
                first[4..7].copy_from_slice(&qp.number().to_be_bytes()[1..]);
            }
            let control: [u8; 8] = first[..8].try_into().expect("eight bytes");
            qp.put(&blocks);
            qp.ring(u64::from_ne_bytes(control));
        }
        op::RECEIVE => {
            let wqe: [u8; 64] = input.block()?;
            match &mut queues.srq {
                Some(srq) if index > 0 => {
                    let link = raw.then_some(u16::from_be_bytes([wqe[62], wqe[63]]));
                    srq.receive(&wqe, link);
                }
                _ => qp.receive(&wqe),
            }
        }
        op::RECORD => {
            let (word, value) = (usize::from(input.u8()?), input.u32()?);
            match &mut queues.srq {
                Some(srq) if word & 2 != 0 => srq.record(value),
                _ => qp.record(word, u32::from(qp.sent()).wrapping_add(value)),
            }
        }
        op::REGISTER => qp.write_register(input.u64()?),
        op::STEP => {
            world.device.advance(Duration::from_millis(input.u8()?.into()));
            world.device.step();
        }
        op::UMR => {
            let (key, raw_segment) = (input.u8()?, input.block::<48>()?);
            let (mut context, mut list) = (input.block::<64>()?, input.block::<64>()?);
            let mut segment = UmrControl::from_bytes(&raw_segment);
            if !raw {
                segment.xlt_octowords = 4.into();
                segment.mkey_mask = (segment.mkey_mask.get() & mask::ALL & !(mask::BSF | mask::SIGNATURE)).into();
                context[4..7].copy_from_slice(&qp.number().to_be_bytes()[1..]);
                list[4..8].copy_from_slice(&world.key().to_be_bytes());
            }
            let key = queues.windows.get(usize::from(key % 4)).map_or(world.key(), |window| window.rkey());
            let mut control = ControlSegment::new(WqeOpcode::UMR.get(), qp.sent(), qp.number(), 12, CQ_UPDATE);
            control.imm = key.into();
            qp.post(&[&control.to_bytes()[..], &segment.to_bytes(), &context, &list].concat());
        }
        op::REMOTE => {
            let (opcode, key, variant) = (input.u8()?, input.u8()?, input.u8()?);
            let (at, length) = (u64::from(input.u16()?), u32::from(input.u8()?));
            let rkey = queues.windows.get(usize::from(key % 4)).map_or(world.key(), |window| window.rkey());
            let opcode = if opcode & 1 == 0 { WqeOpcode::RDMA_WRITE } else { WqeOpcode::RDMA_READ };
            let control = ControlSegment::new(opcode.get(), qp.sent(), qp.number(), 3, CQ_UPDATE);
            let remote =
                RemoteAddressSegment::new(if raw { at } else { ARENA + at }, rkey & !0xff | u32::from(variant));
            let data = DataSegment::new(ARENA, length.max(1), world.key());
            qp.post(&[control.to_bytes(), remote.to_bytes(), data.to_bytes()].concat());
        }
        _ => qp.set_state(u32::from(input.u8()?) % 8),
    }
    Some(())
}

/// Makes the queues of a `Scene`, the first byte, and executes the other bytes: operations as [`op`] lists
/// them, until the end.
pub fn run(bytes: &[u8]) {
    let world = world();
    let mut input = Input(bytes);
    let Some(scene) = input.u8() else { return };
    world.arena.clear();
    let mut queues = world.queues(Scene::from_byte(scene), None);
    while operation(world, &mut queues, &mut input).is_some() {}
    world.settle();
    drop(queues);
    world.check();
}
