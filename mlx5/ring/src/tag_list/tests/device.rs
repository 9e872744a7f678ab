//! The memory around a list, and CQEs for it.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::boxed::Box;
use std::vec::Vec;

use mlx5_wire::be::{Be32, Be64};
use mlx5_wire::cqe::{APP_TAG_MATCHING, Cqe64, CqeFormat, op_own};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::tm::{AppOp, REMOVE_SUCCESS, TagMatchingResult};
use mlx5_wire::tmh::Tmh;

use super::super::{Completion, Entry, Operation, Storage, TagList};
use crate::completion::Cqe;
use crate::sq::{BasicBlocks, Layout};
use crate::testing::Arena;

pub struct Rig {
    pub list: TagList<u32>,
    ring: NonNull<u8>,
    pub doorbells: Doorbells,
    /// A CQE of 128 bytes.
    cqe: NonNull<u8>,
    _entries: Box<[MaybeUninit<Entry<u32>>]>,
    _operations: Box<[MaybeUninit<Operation>]>,
    _arena: Arena,
}

/// Where the list rings.
#[derive(Clone, Copy)]
pub struct Doorbells {
    record: NonNull<Be32>,
    register: NonNull<Be64>,
}

impl Doorbells {
    /// The word of the send queue; that of the receive queue is never written.
    pub fn record(&self) -> u32 {
        // SAFETY: inside the arena.
        let [receive, send] = unsafe { self.record.cast::<[Be32; 2]>().read() };
        assert_eq!(receive.get(), 0);
        send.get()
    }

    /// Both halves of the register.
    pub fn registers(&self) -> [u64; 2] {
        // SAFETY: inside the arena.
        [0, 32].map(|at| unsafe { self.register.add(at).read() }.get())
    }
}

impl Rig {
    pub fn new(tags: u16, blocks: u32) -> Self {
        Self::with_register(tags, blocks, 256)
    }

    pub fn with_register(tags: u16, blocks: u32, register_size: u32) -> Self {
        let mut arena = Arena::default();
        let ring = arena.cut(blocks as usize * 64);
        let (record, register, cqe) = (arena.cut(8), arena.cut::<Be64>(512), arena.cut(128));
        let layout = Layout {
            buf: ring,
            dbrec: record,
            wqe_cnt: blocks,
            stride: 64,
            register: register.cast(),
            register_size,
            qpn: 0x1234,
        };
        // SAFETY: memory of the arena, which lives as long as the list.
        let queue = unsafe { BasicBlocks::new(layout) }.unwrap();
        let mut entries: Box<[_]> = (0..=tags).map(|_| MaybeUninit::uninit()).collect();
        let mut operations: Box<[_]> = (0..blocks).map(|_| MaybeUninit::uninit()).collect();
        let storage = Storage {
            entries: NonNull::new(entries.as_mut_ptr()).unwrap(),
            operations: NonNull::new(operations.as_mut_ptr()).unwrap(),
        };
        // SAFETY: as above; the boxes live as long as the list.
        let list = unsafe { TagList::new(queue, storage, tags) };
        let (_entries, _operations, _arena) = (entries, operations, arena);
        let doorbells = Doorbells { record, register };
        Self { list, ring, doorbells, cqe, _entries, _operations, _arena }
    }

    pub fn block(&self, index: usize) -> [u8; 64] {
        // SAFETY: inside the arena; no code writes during the copy.
        unsafe { self.ring.add(index * 64).cast().read() }
    }

    /// The CQE of a list operation.
    pub fn answer(&mut self, op: AppOp, hw_phase: u16, success: bool) -> Completion<u32> {
        let mut bytes = reported(op, 0).to_bytes();
        let result = TagMatchingResult {
            success: if success { REMOVE_SUCCESS } else { 0 }.into(),
            hw_phase_cnt: hw_phase.into(),
            ..TagMatchingResult::zeroed()
        };
        bytes[..16].copy_from_slice(&result.to_bytes());
        self.complete(&Cqe64::from_bytes(&bytes), &[0; 64])
    }

    /// The CQE of a message.
    pub fn message(&mut self, op: AppOp, entry: u16, tmh: Tmh, bytes: u32) -> Completion<u32> {
        let mut cqe = reported(op, entry).to_bytes();
        cqe[..16].copy_from_slice(&tmh.to_bytes());
        cqe[44..48].copy_from_slice(&bytes.to_be_bytes());
        self.complete(&Cqe64::from_bytes(&cqe), &[0; 64])
    }

    /// The CQE of a message whose data it holds.
    pub fn inline(&mut self, entry: u16, bytes: u32, payload: &[u8; 64]) -> Completion<u32> {
        let mut cqe = reported(AppOp::CONSUMED_MSG, entry);
        cqe.byte_cnt = bytes.into();
        cqe.op_own = op_own(CqeOpcode::ResponderSend, CqeFormat::Inline64, false, 0);
        self.complete(&cqe, payload)
    }

    pub fn complete(&mut self, cqe: &Cqe64, lead: &[u8; 64]) -> Completion<u32> {
        // SAFETY: inside the arena, and read only through the CQE while it lives.
        unsafe {
            self.cqe.cast::<[u8; 64]>().write(*lead);
            let half = self.cqe.add(64);
            half.cast::<[u8; 64]>().write(cqe.to_bytes());
            self.list.complete(Cqe::read(half, cqe.op_own & 1, 128), 128)
        }
    }

    /// The blocks that the record covers, from running index `from` on.
    pub fn posted(&self, from: u32, blocks: u32) -> Vec<[u8; 64]> {
        let count = self.doorbells.record().wrapping_sub(from) & 0xffff;
        (0..count).map(|i| self.block((from.wrapping_add(i) & (blocks - 1)) as usize)).collect()
    }
}

/// A CQE of tag matching.
pub fn reported(op: AppOp, entry: u16) -> Cqe64 {
    let list = [AppOp::APPEND, AppOp::REMOVE, AppOp::NOOP].contains(&op);
    let opcode = if list || op == AppOp::CONSUMED { CqeOpcode::NoPacket } else { CqeOpcode::ResponderSend };
    Cqe64 {
        app: APP_TAG_MATCHING,
        app_op: op.get(),
        app_info: entry.into(),
        op_own: op_own(opcode, CqeFormat::Plain, false, 0),
        ..Cqe64::zeroed()
    }
}
