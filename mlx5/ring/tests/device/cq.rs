//! The device's side of a completion queue.

use std::collections::VecDeque;

use mlx5_ring::cq::{CompletionQueue, Layout};
use mlx5_wire::cqe::FRESH_OP_OWN;

use super::memory::Memory;

/// `op_own` without owner: opcode and format.
pub mod op {
    pub const REQUESTER: u8 = 0x00;
    pub const WRITE_IMM: u8 = 0x10;
    pub const SEND: u8 = 0x20;
    pub const SEND_IMM: u8 = 0x30;
    pub const SEND_INV: u8 = 0x40;
    pub const NO_PACKET: u8 = 0x60;
    pub const REQUESTER_ERROR: u8 = 0xd0;
    pub const RESPONDER_ERROR: u8 = 0xe0;
    pub const INLINE32: u8 = 0x04;
    pub const INLINE64: u8 = 0x08;
    pub const COMPRESSED: u8 = 0x0c;
    pub const SOLICITED: u8 = 0x02;
}

/// What polling must make of a CQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Message { slot: u32, bytes: u32, payload: Option<Vec<u8>> },
    Failed { slot: u32, syndrome: u8 },
    Other,
    Stray,
}

/// What a CQE says.
#[derive(Clone, Debug)]
pub struct Entry {
    pub op: u8,
    pub counter: u16,
    pub bytes: u32,
    pub payload: Vec<u8>,
    pub syndrome: u8,
    pub qpn: u32,
}

impl Entry {
    pub fn new(op: u8, counter: u16, bytes: u32) -> Self {
        Self { op, counter, bytes, payload: Vec::new(), syndrome: 0, qpn: 0x120 }
    }
}

#[derive(Clone, Debug, Default)]
pub struct State {
    pub producer: u32,
    /// Of the CQEs that software has not taken, the oldest first.
    pub told: VecDeque<Told>,
}

#[derive(Debug)]
pub struct Producer {
    pub cqes: Memory,
    pub record: Memory,
    pub count: u32,
    pub size: usize,
    pub state: State,
}

impl Producer {
    pub fn new(count: u32, size: usize) -> Self {
        let cqes = Memory::new(count as usize * size);
        for i in 0..count as usize {
            cqes.write(i * size + size - 1, &[FRESH_OP_OWN]);
        }
        Self { cqes, record: Memory::new(8), count, size, state: State::default() }
    }

    /// Software's side.
    pub fn queue(&self) -> CompletionQueue {
        let layout = Layout {
            buf: self.cqes.ptr(),
            dbrec: self.record.ptr(),
            cqe_cnt: self.count,
            cqe_size: self.size as u32,
        };
        // SAFETY: nothing was polled; the memory outlives the queue, because the two are dropped together.
        unsafe { CompletionQueue::new(layout) }.unwrap()
    }

    /// CQEs that software has not given back, by the doorbell record.
    pub fn pending(&self) -> u32 {
        let word = self.record.be32(0);
        assert_eq!(word >> 24, 0, "the consumer index has 24 bits");
        let pending = self.state.producer.wrapping_sub(word) & 0xff_ffff;
        assert!(pending <= self.count, "the consumer index overtook the producer");
        pending
    }

    pub fn room(&self) -> u32 {
        self.count - self.pending()
    }

    /// Writes a CQE, the owner last.
    pub fn push(&mut self, entry: &Entry, told: Told) {
        assert!(self.room() > 0, "the test overruns the CQ");
        let index = self.state.producer;
        let at = (index % self.count) as usize * self.size + self.size - 64;
        let mut cqe = [0u8; 64];
        let inline64 = entry.op & op::COMPRESSED == op::INLINE64;
        let payload = &entry.payload;
        if inline64 && self.size == 128 {
            self.cqes.write(at - 64, payload);
        } else if entry.op & op::COMPRESSED == op::INLINE32 {
            cqe[..payload.len()].copy_from_slice(payload);
        }
        cqe[36..40].copy_from_slice(&index.to_be_bytes());
        cqe[44..48].copy_from_slice(&entry.bytes.to_be_bytes());
        if entry.op >> 4 == 0xe {
            cqe[54..56].copy_from_slice(&[0x99, entry.syndrome]);
        }
        cqe[56..60].copy_from_slice(&entry.qpn.to_be_bytes());
        cqe[60..62].copy_from_slice(&entry.counter.to_be_bytes());
        cqe[62] = index as u8 ^ 0x5a;
        self.cqes.write(at, &cqe[..63]);
        let owner = (index / self.count % 2) as u8;
        self.cqes.write(at + 63, &[entry.op & !1 | owner]);
        self.state.producer = index.wrapping_add(1);
        self.state.told.push_back(told);
    }
}
