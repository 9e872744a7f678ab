//! The device's side of a completion queue.

use std::collections::VecDeque;

use mlx5_ring::cq::{CompletionQueue, Layout};
use mlx5_wire::cqe::FRESH_OP_OWN;
use mlx5_wire::mini_cqe::MiniCqeFormat;

use super::memory::Memory;

/// `op_own` without owner: opcode and format.
pub mod op {
    pub const REQUESTER: u8 = 0x00;
    pub const WRITE_IMM: u8 = 0x10;
    pub const SEND: u8 = 0x20;
    pub const SEND_IMM: u8 = 0x30;
    pub const SEND_INV: u8 = 0x40;
    pub const RESIZE: u8 = 0x50;
    pub const NO_PACKET: u8 = 0x60;
    pub const SIGNATURE_ERROR: u8 = 0xc0;
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
    /// The immediate data of each.
    pub immediates: VecDeque<u32>,
}

#[derive(Debug)]
pub struct Producer {
    pub cqes: Memory,
    pub record: Memory,
    pub count: u32,
    pub size: usize,
    pub state: State,
    /// Of CQEs of 64 bytes: how they may be compressed.
    pub compression: Option<MiniCqeFormat>,
}

impl Producer {
    pub fn new(count: u32, size: usize) -> Self {
        let cqes = Memory::new(count as usize * size);
        for i in 0..count as usize {
            cqes.write(i * size + size - 1, &[FRESH_OP_OWN]);
        }
        let formats = [MiniCqeFormat::Hash, MiniCqeFormat::Checksum];
        let compression = (size == 64).then(|| formats[count.trailing_zeros() as usize % 2]);
        Self { cqes, record: Memory::new(8), count, size, state: State::default(), compression }
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
        let queue = unsafe { CompletionQueue::new(layout) }.unwrap();
        match self.compression {
            Some(format) => queue.with_compression(format).unwrap(),
            None => queue,
        }
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
        self.state.immediates.push_back(index);
    }

    /// Writes the completions of SENDs from `counter` on as one block: of each the length, and what a mini CQE
    /// has beside it. What the device leaves out stays as it was a lap ago.
    pub fn push_block(&mut self, counter: u16, block: Vec<(u32, u32, Told)>) {
        let len = block.len() as u32;
        assert!(len >= 2 && self.room() >= len && self.size == 64, "the test overruns the CQ");
        let format = self.compression.expect("a CQ with compression");
        let title = self.state.producer;
        let at = |index: u32| (title.wrapping_add(index) % self.count) as usize * 64;
        for (i, (bytes, extra, _)) in block.iter().enumerate() {
            let array = if i < 8 { 1 } else { i as u32 / 8 * 8 };
            let mut mini = [0; 8];
            match format {
                MiniCqeFormat::Hash => mini[..4].copy_from_slice(&extra.to_be_bytes()),
                MiniCqeFormat::Checksum => {
                    mini[..2].copy_from_slice(&(*extra as u16).to_be_bytes());
                }
            }
            mini[4..].copy_from_slice(&bytes.to_be_bytes());
            self.cqes.write(at(array) + i % 8 * 8, &mini);
        }
        let mut cqe = [0u8; 64];
        cqe[36..40].copy_from_slice(&title.to_be_bytes());
        cqe[44..48].copy_from_slice(&len.to_be_bytes());
        cqe[56..60].copy_from_slice(&0x120u32.to_be_bytes());
        cqe[60..62].copy_from_slice(&counter.to_be_bytes());
        self.cqes.write(at(0), &cqe[..63]);
        let owner = (title / self.count % 2) as u8;
        self.cqes.write(at(0) + 63, &[op::SEND | op::COMPRESSED | owner]);
        self.state.producer = title.wrapping_add(len);
        for (_, _, told) in block {
            self.state.told.push_back(told);
            self.state.immediates.push_back(title);
        }
    }
}
