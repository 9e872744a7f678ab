//! The device's side of a completion queue.

use core::ptr::NonNull;

use mlx5_wire::be::{Be16, Be32};
use mlx5_wire::cqe::{Cqe64, CqeFormat, FRESH_OP_OWN, op_own};
use mlx5_wire::mini_cqe::{MINI_CQES_PER_ARRAY, array_of};
use mlx5_wire::opcode::CqeOpcode;

use super::Arena;
use crate::cq::{CompletionQueue, Layout};

/// Contents of a CQE to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqeSpec {
    pub opcode: CqeOpcode,
    pub format: CqeFormat,
    pub wqe_counter: u16,
    /// Belongs to a striding receive queue.
    pub wqe_id: u16,
    pub byte_count: u32,
    pub qpn: u32,
    /// First byte of an inline payload, from which the others count up.
    pub payload: u8,
}

impl CqeSpec {
    pub const fn new(opcode: CqeOpcode, wqe_counter: u16) -> Self {
        let format = CqeFormat::Plain;
        Self { opcode, format, wqe_counter, wqe_id: 0, byte_count: 0, qpn: 0x77, payload: 0 }
    }
}

/// Writes CQEs as hardware would: the owner last.
#[derive(Clone, Debug)]
pub struct CqDevice {
    buf: NonNull<u8>,
    dbrec: NonNull<Be32>,
    pub count: u32,
    pub size: usize,
    pub producer_index: u32,
}

impl CqDevice {
    /// Makes a CQ of `count` entries of `size` bytes, of which none was ever written.
    pub fn new(arena: &mut Arena, count: u32, size: usize) -> Self {
        let cq = Self { buf: arena.cut(count as usize * size), dbrec: arena.cut(8), count, size, producer_index: 0 };
        for index in 0..count {
            // SAFETY: inside the entry.
            unsafe { cq.entry(index).add(size - 1).write_volatile(FRESH_OP_OWN) }
        }
        cq
    }

    /// Returns where the CQ is.
    pub const fn layout(&self) -> Layout {
        let Self { buf, dbrec, count: cqe_cnt, .. } = *self;
        Layout { buf, dbrec, cqe_cnt, cqe_size: self.size as u32 }
    }

    /// Returns software's side.
    pub fn queue(&self) -> CompletionQueue {
        // SAFETY: memory of the arena, which the caller keeps; its opcodes are 15.
        unsafe { CompletionQueue::new(self.layout()) }.unwrap()
    }

    /// Returns the consumer index in the doorbell record.
    pub fn record(&self) -> u32 {
        // SAFETY: a doorbell record of the test's.
        unsafe { self.dbrec.read_volatile() }.get()
    }

    /// Returns the number of CQEs that were written and are not given back, by the doorbell record.
    pub fn outstanding(&self) -> u32 {
        assert_eq!(self.record() >> 24, 0, "upper byte of the consumer index");
        let outstanding = self.producer_index.wrapping_sub(self.record()) & 0xff_ffff;
        assert!(outstanding <= self.count, "more is given back than was written");
        outstanding
    }

    pub fn room(&self) -> u32 {
        self.count - self.outstanding()
    }

    /// As if `by` more CQEs, which is a multiple of two laps, had gone through the queue.
    pub fn shift(&mut self, by: u32) {
        self.producer_index = self.producer_index.wrapping_add(by);
        let record = Be32::new(self.record().wrapping_add(by) & 0xff_ffff);
        // SAFETY: a doorbell record of the test's.
        unsafe { self.dbrec.write_volatile(record) }
    }

    /// Returns where the entry of `index` starts.
    pub fn entry(&self, index: u32) -> NonNull<u8> {
        // SAFETY: masked to the buffer.
        unsafe { self.buf.add((index & (self.count - 1)) as usize * self.size) }
    }

    fn owner(&self, index: u32) -> u8 {
        u8::from(index & self.count != 0)
    }

    /// Changes the counter of a CQE.
    pub fn set_counter(&self, index: u32, wqe_counter: u16) {
        let to = self.entry(index);
        // SAFETY: the field of the CQE proper, which is the last 64 bytes.
        unsafe { to.add(self.size - 4).cast::<Be16>().write(Be16::new(wqe_counter)) }
    }

    /// Writes the next CQE.
    pub fn write(&mut self, spec: &CqeSpec) {
        assert!(self.room() > 0, "CQ overrun");
        let index = self.producer_index;
        let mut cqe = Cqe64::zeroed();
        cqe.imm_inval_pkey = Be32::new(!index);
        cqe.wqe_id = Be16::new(spec.wqe_id);
        cqe.byte_cnt = Be32::new(spec.byte_count);
        cqe.sop_drop_qpn = Be32::new(spec.qpn);
        cqe.wqe_counter = Be16::new(spec.wqe_counter);
        // A signature that may be anything.
        cqe.signature = index as u8 ^ 0x5a;
        cqe.op_own = FRESH_OP_OWN | (self.owner(index) ^ 1);
        let mut bytes = [0; 128];
        bytes[64..].copy_from_slice(&cqe.to_bytes());
        let payload = match spec.format {
            CqeFormat::Inline32 => 64..96,
            CqeFormat::Inline64 if self.size == 128 => 0..64,
            _ => 0..0,
        };
        for (i, byte) in bytes[payload].iter_mut().enumerate() {
            *byte = spec.payload.wrapping_add(i as u8);
        }
        let entry = self.entry(index);
        for (i, &byte) in bytes[128 - self.size..].iter().enumerate() {
            // SAFETY: inside the entry.
            unsafe { entry.add(i).write_volatile(byte) }
        }
        let op_own = op_own(spec.opcode, spec.format, false, self.owner(index));
        // SAFETY: inside the CQE.
        unsafe { entry.add(self.size - 1).write_volatile(op_own) }
        self.producer_index = index.wrapping_add(1);
    }

    /// Writes a compressed block: `title` says what the CQEs share, `mini` the other eight bytes of each, of which the
    /// last four are the length of the message.
    pub fn write_block(&mut self, title: &CqeSpec, minis: &[[u8; 8]]) {
        let count = minis.len() as u32;
        assert!((2..=self.room()).contains(&count), "CQ overrun");
        let start = self.producer_index;
        for (i, mini) in minis.iter().enumerate() {
            let array = self.entry(start.wrapping_add(array_of(i as u32)));
            let place = i % MINI_CQES_PER_ARRAY * 8;
            // SAFETY: an array fills an entry. No other byte of the CQEs that it replaces is written.
            unsafe { array.add(place).cast::<[u8; 8]>().write_volatile(*mini) }
        }
        self.write(&CqeSpec { format: CqeFormat::Compressed, byte_count: count, ..*title });
        self.producer_index = start.wrapping_add(count);
    }
}
