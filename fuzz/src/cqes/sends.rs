//! CQEs in the CQ of a sender: with any content safe code reads nothing outside the CQ, does not panic, and no buffer
//! has two owners or is lost.
//!
//! The device executes nothing: the fuzzer completes the requests.

use std::collections::HashSet;

use doorbell::{
    Buffer, BufferPool, CqConfig, PoolConfig, QpConfig, QueuePair, Receiver, RemoteRegion, RqConfig, Sender,
};
use soft_mlx5::LinkLayer;

use super::cq::CqWriter;
use super::{RAW, SECOND, Target, target};
use crate::input::Input;

/// Begins an operation, see [`run`].
pub mod op {
    /// `kind: u8, count: u8`: requests with one doorbell; the upper bits of `kind` are flags of them.
    pub const POST: u8 = 0;
    /// `delta: i8`, then 64 bytes: a CQE at the producer index. Unless [`RAW`](super::RAW), owner, opcode and queue
    /// pair are put right, and the CQE names the block `delta` after the last that was posted.
    pub const CQE: u8 = 1;
    /// The last CQE again.
    pub const AGAIN: u8 = 2;
    /// `budget: u8, kept: u8`: a batch; the bits of `kept` say which buffers do not go back to the pool at once.
    pub const POLL: u8 = 3;
    /// A queue pair is reset, or, with [`RAW`](super::RAW), goes to error; the device works.
    pub const STOP: u8 = 4;
    /// A queue pair is destroyed.
    pub const DESTROY: u8 = 5;
    /// Number of operations.
    pub const COUNT: u8 = 6;
}

const SENDS: u32 = 8;
const BUFFERS: u32 = 48;
const BUFFER: u32 = 64;
/// Opcodes and formats of CQEs of a requester: success, and error.
const OPCODES: [u8; 2] = [0, 13 << 4];

/// A sender, its queues, and the side of the device of its CQ.
struct Subject {
    qps: [Option<QueuePair>; 2],
    receiver: Receiver,
    sender: Sender,
    pool: BufferPool,
    numbers: [u32; 2],
    cq: CqWriter,
    last: [u8; 64],
    kept: Vec<Buffer>,
}

impl Subject {
    fn new(target: &Target, kind: u8) -> Self {
        let mut sender = Sender::new(&target.pd, &CqConfig::new(64)).expect("a sender");
        let cq = CqWriter::of_last(&target.device);
        let mut receiver = Receiver::new(&target.pd, &CqConfig::new(8)).expect("a receiver");
        // They are connected to each other, and each is ready to send.
        let config = QpConfig::rc().max_send_wr(SENDS).max_send_sge(2).max_inline(100);
        let config = config.max_unsignaled(1 << (kind & 3));
        let mut qps = [(); 2].map(|()| {
            QueuePair::builder(&config)
                .receive(&mut receiver, RqConfig::new(1))
                .send(&mut sender)
                .build()
                .expect("a queue pair")
        });
        let addresses = qps.each_ref().map(|qp| qp.address().expect("an address"));
        qps[0].connect(&addresses[1]).expect("RTS");
        qps[1].connect(&addresses[0]).expect("RTS");
        let pool = BufferPool::new(&target.pd, &PoolConfig::new(BUFFERS, BUFFER)).expect("a pool");
        let numbers = qps.each_ref().map(QueuePair::qp_num);
        let (qps, kept) = (qps.map(Some), Vec::new());
        Self { qps, receiver, sender, pool, numbers, cq, last: [0; 64], kept }
    }

    fn post(&mut self, index: usize, input: &mut Input) -> Option<()> {
        let (kind, count) = (input.u8()?, input.u8()? % 16);
        let Some(queue) = self.qps[index].as_ref().and_then(QueuePair::send_queue) else {
            return Some(());
        };
        let Ok(mut posting) = self.sender.post_many(queue) else { return Some(()) };
        let remote = RemoteRegion::from_bytes(&[0x40; RemoteRegion::BYTES]);
        for token in 0..u64::from(count) {
            posting.token(token);
            if kind & 0x80 != 0 {
                posting.own_cqe();
            }
            let buffer = || {
                let mut buffer = self.pool.take()?;
                buffer.set_len(BUFFER as usize);
                Some(buffer)
            };
            // Refused buffers go back to the pool with the error.
            let _ = match kind & 7 {
                0 => posting.send(&[7; 20]).map_err(drop),
                1 => posting.send(&[7; 100]).map_err(drop),
                2 => posting.send([buffer()?, buffer()?]).map_err(drop),
                3 => posting.write(buffer()?, &remote).map_err(drop),
                4 => posting.read(buffer()?, &remote).map_err(drop),
                5 => posting.fetch_add(buffer()?, &remote, 1).map_err(drop),
                _ => posting.send(buffer()?).map_err(drop),
            };
        }
        Some(())
    }

    fn put(&mut self, target: &Target, byte: u8, index: usize, input: &mut Input) -> Option<()> {
        let delta = input.u8()? as i8;
        let mut cqe: [u8; 64] = input.block()?;
        if byte & RAW == 0 {
            let number = self.numbers[index];
            let queues = target.device.queues();
            let qp = queues.qps.iter().find(|qp| qp.number == number);
            // SAFETY: the record of a live queue pair.
            let posted =
                qp.map_or(0, |qp| unsafe { u32::from_be((qp.attr.dbrec as *const u32).add(1).read_volatile()) as u16 });
            let block = posted.wrapping_sub(1).wrapping_add_signed(delta.into());
            cqe[57..60].copy_from_slice(&number.to_be_bytes()[1..]);
            cqe[60..62].copy_from_slice(&block.to_be_bytes());
            cqe[63] = OPCODES[usize::from(cqe[63] & 1)];
        }
        self.cq.write(cqe, byte & RAW == 0);
        self.last = cqe;
        Some(())
    }

    fn poll(&mut self, input: &mut Input) -> Option<()> {
        let (budget, kept) = (u32::from(input.u8()?), input.u8()?);
        let mut owners: HashSet<_> = self.kept.iter().map(|buffer| buffer.as_ptr()).collect();
        let mut batch = self.sender.poll_up_to(budget);
        let mut back = Vec::new();
        while let Some(done) = batch.next() {
            match done {
                Ok(mut done) => {
                    back.extend(done.buffer.take());
                    back.extend(std::iter::from_fn(|| done.next_buffer()));
                }
                Err(failure) => back.extend(failure.buffers),
            }
        }
        drop(batch);
        for (number, buffer) in back.into_iter().enumerate() {
            assert!(owners.insert(buffer.as_ptr()), "a buffer with two owners");
            if kept >> (number % 8) & 1 != 0 {
                self.kept.push(buffer);
            }
        }
        Some(())
    }

    fn operation(&mut self, target: &Target, input: &mut Input) -> Option<()> {
        let byte = input.u8()?;
        let index = usize::from(byte & SECOND != 0);
        match byte % SECOND % op::COUNT {
            op::POST => self.post(index, input)?,
            op::CQE => self.put(target, byte, index, input)?,
            op::AGAIN => self.cq.write(self.last, byte & RAW == 0),
            op::POLL => self.poll(input)?,
            op::STOP => {
                if let Some(qp) = &mut self.qps[index] {
                    let _ = match byte & RAW {
                        0 => self.receiver.reset_qp(qp).map(drop),
                        _ => qp.to_error(),
                    };
                }
                target.device.step();
            }
            _ => drop(self.qps[index].take()),
        }
        Some(())
    }
}

/// Makes a sender and two queue pairs, and executes the bytes: operations as [`op`] lists them, until the end.
pub fn run(bytes: &[u8]) {
    let target = target(LinkLayer::InfiniBand);
    let mut input = Input(bytes);
    let Some(kind) = input.u8() else { return };
    let mut subject = Subject::new(target, kind);
    while subject.operation(target, &mut input).is_some() {}
    let Subject { qps, receiver, sender, pool, kept, .. } = subject;
    drop((qps, sender, receiver, kept));
    let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    let owners: HashSet<_> = all.iter().map(|buffer| buffer.as_ptr()).collect();
    assert_eq!((owners.len(), all.len()), (BUFFERS as usize, BUFFERS as usize), "buffers");
}
