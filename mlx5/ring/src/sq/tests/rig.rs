//! The memory around a send queue, and a device that reads it.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::boxed::Box;
use std::collections::VecDeque;
use std::vec::Vec;

use mlx5_wire::be::Be32;
use mlx5_wire::ctrl::{CQ_UPDATE, ControlSegment};

use super::super::{BlueFlame, Config, Flags, Immediate, Layout, Payload, PostError, Record, SendQueue};
use crate::testing::Arena;

pub const QPN: u32 = 0x12_3456;
/// Bytes of a half of the register.
pub const HALF: usize = 256;

/// A WQE that the device has seen and has not reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wqe {
    pub index: u16,
    pub blocks: u32,
    /// Straight, also where the ring wrapped.
    pub bytes: Vec<u8>,
}

impl Wqe {
    pub fn asks(&self) -> bool {
        self.bytes[11] & CQ_UPDATE != 0
    }
}

/// The device: it knows the ring, the record and the register.
pub struct Device {
    ring: NonNull<u8>,
    count: u32,
    record: NonNull<Be32>,
    register: NonNull<u8>,
    next: u16,
    pub queue: VecDeque<Wqe>,
}

impl Device {
    pub fn record(&self) -> u32 {
        // SAFETY: inside the arena; software writes the send word alone.
        let [receive, send] = unsafe { self.record.cast::<[Be32; 2]>().read_volatile() };
        assert_eq!(receive.get(), 0, "receive word");
        send.get()
    }

    /// The two halves of the register.
    pub fn register(&self) -> [[u8; HALF]; 2] {
        // SAFETY: inside the arena.
        [0, HALF].map(|at| unsafe { self.register.add(at).cast().read_volatile() })
    }

    pub const fn half(&self, half: usize) -> NonNull<u8> {
        // SAFETY: inside the arena.
        unsafe { self.register.add(half * HALF) }
    }

    pub fn block(&self, index: u32) -> [u8; 64] {
        // SAFETY: inside the arena; no code writes during the copy.
        unsafe { self.ring.add((index & (self.count - 1)) as usize * 64).cast().read_volatile() }
    }

    fn wqe(&self, index: u16) -> Wqe {
        let first = self.block(index.into());
        let ctrl = ControlSegment::from_bytes(first.first_chunk().unwrap());
        let blocks = u32::from(ctrl.ds()).div_ceil(4);
        let mut bytes: Vec<u8> = (0..blocks).flat_map(|block| self.block(u32::from(index) + block)).collect();
        bytes.truncate(usize::from(ctrl.ds()) * 16);
        Wqe { index, blocks, bytes }
    }

    /// Starts at this index, with the record as `ibv_modify_qp` leaves it at index 0.
    pub fn start_at(&mut self, index: u32) {
        // SAFETY: inside the arena.
        unsafe { self.record.add(1).write_volatile(Be32::new(index & 0xffff)) }
        self.next = index as u16;
        self.queue.clear();
    }

    /// Takes the WQEs that the record covers, and returns how many are new.
    pub fn look(&mut self) -> usize {
        let mut new = 0;
        while u32::from(self.next) != self.record() {
            let wqe = self.wqe(self.next);
            let ctrl = ControlSegment::from_bytes(wqe.bytes.first_chunk().unwrap());
            assert_eq!((ctrl.index(), ctrl.qpn()), (self.next, QPN), "control segment");
            assert_ne!(wqe.blocks, 0, "an empty WQE");
            let ahead = (self.record() as u16).wrapping_sub(self.next);
            assert!(wqe.blocks <= ahead.into(), "a WQE reaches over the producer index");
            self.next = self.next.wrapping_add(wqe.blocks as u16);
            self.queue.push_back(wqe);
            new += 1;
        }
        let blocks: u32 = self.queue.iter().map(|wqe| wqe.blocks).sum();
        assert!(blocks <= self.count, "{blocks} blocks posted of {}", self.count);
        for wqe in &self.queue {
            assert_eq!(self.wqe(wqe.index), *wqe, "a WQE of the device was written to");
        }
        new
    }
}

pub struct Rig {
    pub queue: SendQueue<u32>,
    pub device: Device,
    /// Whether a request is posted with a doorbell of its own, or in a posting that rings.
    pub is_single: bool,
    _records: Box<[MaybeUninit<Record<u32>>]>,
    _arena: Arena,
}

impl Rig {
    pub fn new(count: u32, max_wqe_blocks: u32) -> Self {
        Self::with(count, Config { max_wqe_blocks, blue_flame: BlueFlame::Never }, HALF as u32)
    }

    pub fn with(count: u32, config: Config, register_size: u32) -> Self {
        let mut arena = Arena::default();
        let ring: NonNull<u8> = arena.cut(count as usize * 64);
        // SAFETY: inside the arena.
        unsafe { ring.write_bytes(0xee, count as usize * 64) }
        let (record, register) = (arena.cut(8), arena.cut(2 * HALF));
        let layout = Layout { buf: ring, dbrec: record, wqe_cnt: count, stride: 64, register, register_size, qpn: QPN };
        let mut records: Box<[_]> = (0..count).map(|_| MaybeUninit::uninit()).collect();
        let storage = NonNull::new(records.as_mut_ptr()).unwrap();
        // SAFETY: [exclusive] [register] memory of the arena, which lives as long as the queue, as the box does.
        let queue = unsafe { SendQueue::new(layout, config, storage) }.unwrap();
        let device = Device { ring, count, record, register, next: 0, queue: VecDeque::new() };
        Self { queue, device, is_single: false, _records: records, _arena: arena }
    }

    /// Starts again, as if `index` blocks had gone through the queue, the last `silent` of them without a CQE.
    pub fn start_at(&mut self, index: u32, silent: u32) {
        // SAFETY: the device is the rig's.
        unsafe { self.queue.reset(drop) }
        self.queue.start_at(index, silent);
        self.device.start_at(index);
    }

    /// Posts a SEND of so many blocks, and rings.
    pub fn send(&mut self, blocks: u32, flags: Flags, data: u32) -> Result<(), PostError> {
        static BYTES: [u8; 1024] = [0x5a; 1024];
        let pieces = [&BYTES[..inline_of(blocks)]];
        let payload = Payload::inline(&pieces);
        // SAFETY: inline bytes alone.
        unsafe {
            let mut posting = if self.is_single { self.queue.posting_singly() } else { self.queue.posting() };
            posting.send(payload, Immediate::None, flags, data)
        }
    }

    /// Completes the WQE that `wqe_counter` names; returns what is retired, of which the last is that one.
    pub fn complete(&mut self, wqe_counter: u16) -> Option<Vec<u32>> {
        Some(self.queue.complete(wqe_counter)?.collect())
    }
}

/// Inline bytes of a SEND that fill so many blocks.
pub const fn inline_of(blocks: u32) -> usize {
    if blocks == 16 { 63 * 16 - 20 } else { blocks as usize * 64 - 20 }
}

impl<T: Copy> SendQueue<T> {
    pub(super) fn start_at(&mut self, index: u32, silent: u32) {
        self.blocks.start_at(index);
        self.note_asked(index.wrapping_sub(silent));
    }

    pub(super) const fn max_silent(&self) -> u32 {
        self.ask_after - 1
    }
}

impl super::super::BasicBlocks {
    const fn start_at(&mut self, index: u32) {
        (self.posted, self.last) = (index, index.wrapping_sub(1));
        self.jump_to(index);
    }
}
