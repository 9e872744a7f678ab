//! The device's side of a completion queue.

use core::ptr::NonNull;
use std::vec::Vec;

use mlx5_wire::be::{Be16, Be32};
use mlx5_wire::cqe::{Cqe64, CqeFormat, FRESH_OP_OWN, op_own};
use mlx5_wire::opcode::CqeOpcode;

/// What a CQE shall say.
#[derive(Clone, Debug)]
pub struct CqeSpec {
    pub opcode: CqeOpcode,
    pub format: CqeFormat,
    pub wqe_counter: u16,
    pub byte_count: u32,
    pub qpn: u32,
    pub solicited: bool,
    /// Bytes for the inline formats.
    pub payload: Vec<u8>,
}

impl CqeSpec {
    /// A plain SEND.
    pub fn send(wqe_counter: u16, byte_count: u32) -> Self {
        Self {
            opcode: CqeOpcode::ResponderSend,
            format: CqeFormat::Plain,
            wqe_counter,
            byte_count,
            qpn: 0x77,
            solicited: false,
            payload: Vec::new(),
        }
    }
}

/// Writes CQEs as hardware would: the owner last.
#[derive(Clone, Debug)]
pub struct CqDevice {
    buf: NonNull<u8>,
    dbrec: NonNull<Be32>,
    count: u32,
    size: usize,
    pub producer_index: u32,
    /// CQEs from the producer index to the end of the buffer were never written.
    pub first_lap: bool,
}

impl CqDevice {
    /// Takes a buffer of `count` entries of `size` bytes and marks all of them as never written.
    pub fn new(buf: NonNull<u8>, dbrec: NonNull<Be32>, count: u32, size: usize) -> Self {
        for i in 0..count as usize {
            // SAFETY: inside the buffer.
            unsafe { buf.add((i + 1) * size - 1).write_volatile(FRESH_OP_OWN) }
        }
        Self { buf, dbrec, count, size, producer_index: 0, first_lap: true }
    }

    /// As if `index` CQEs had gone through the queue before.
    pub fn start_at(&mut self, index: u32) {
        self.producer_index = index;
        self.first_lap = index < self.count;
        for i in 0..self.count {
            // The last lap's CQEs are of the other owner; their opcode is a valid one.
            let before = index.wrapping_sub(self.count).wrapping_add(i);
            let owner = u8::from(before & self.count != 0);
            let at = (before & (self.count - 1)) as usize;
            let never = self.first_lap && at as u32 >= index;
            let op_own = if never { FRESH_OP_OWN } else { 0x20 | owner };
            // SAFETY: inside the buffer.
            unsafe { self.buf.add((at + 1) * self.size - 1).write_volatile(op_own) }
        }
    }

    /// CQEs that were written and are not given back, by the doorbell record.
    pub fn outstanding(&self) -> u32 {
        // SAFETY: a doorbell record of the test's.
        let consumer_index = unsafe { self.dbrec.read_volatile() }.get();
        assert_eq!(consumer_index >> 24, 0, "upper byte of the consumer index");
        self.producer_index.wrapping_sub(consumer_index) & 0xff_ffff
    }

    /// CQEs from `index` up to the end of the buffer, and whether its lap is an odd one.
    pub fn place(&self, index: u32) -> (u32, bool) {
        (self.count - (index & (self.count - 1)), index & self.count != 0)
    }

    /// An index at such a [`place`](Self::place), before all counters wrap.
    pub fn index_at(&self, to_end: u32, odd: bool) -> u32 {
        let laps = if odd { 1 } else { 2 } * self.count;
        0u32.wrapping_sub(laps).wrapping_add(self.count - to_end)
    }

    /// The same place on the first lap.
    pub fn first_index_at(&self, to_end: u32) -> u32 {
        (self.count - to_end) & (self.count - 1)
    }

    pub fn has_room(&self) -> bool {
        self.outstanding() < self.count
    }

    /// Writes the next CQE.
    pub fn write(&mut self, spec: &CqeSpec) {
        assert!(self.outstanding() < self.count, "CQ overrun");
        let index = self.producer_index;
        let owner = u8::from(index & self.count != 0);
        // SAFETY: masked to the buffer; the CQE proper is the last 64 bytes of an entry.
        let entry = unsafe { self.buf.add((index & (self.count - 1)) as usize * self.size) };
        // SAFETY: as above.
        let target = unsafe { entry.add(self.size - Cqe64::SIZE) };
        let mut cqe = Cqe64::zeroed();
        cqe.byte_cnt = Be32::new(spec.byte_count);
        cqe.sop_drop_qpn = Be32::new(spec.qpn);
        cqe.wqe_counter = Be16::new(spec.wqe_counter);
        cqe.imm_inval_pkey = Be32::new(0xcafe_f00d);
        // A signature that may be anything.
        cqe.signature = index as u8 ^ 0x5a;
        cqe.op_own = FRESH_OP_OWN | (owner ^ 1);
        let mut bytes = cqe.to_bytes();
        let lead = match spec.format {
            CqeFormat::Inline32 => {
                bytes[..spec.payload.len()].copy_from_slice(&spec.payload);
                &[][..]
            }
            CqeFormat::Inline64 => &spec.payload[..],
            CqeFormat::Plain | CqeFormat::Compressed => &[][..],
        };
        for (i, &byte) in lead.iter().enumerate() {
            // SAFETY: the first half of a 128-byte entry.
            unsafe { entry.add(i).write_volatile(byte) }
        }
        for (i, &byte) in bytes[..63].iter().enumerate() {
            // SAFETY: inside the CQE.
            unsafe { target.add(i).write_volatile(byte) }
        }
        let op_own = op_own(spec.opcode, spec.format, spec.solicited, owner);
        // SAFETY: inside the CQE.
        unsafe { target.add(63).write_volatile(op_own) }
        self.producer_index = index.wrapping_add(1);
        self.first_lap &= self.producer_index & (self.count - 1) != 0;
    }
}
