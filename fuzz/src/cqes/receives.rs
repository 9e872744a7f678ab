//! CQEs in the CQ of a receiver: with any content safe code reads nothing outside the CQ and the buffers,
//! does not panic, and no buffer has two owners.

use std::collections::HashSet;

use doorbell::{
    Buffer, BufferPool, Compression, Context, CqConfig, DataPath, PoolConfig, QpConfig, QueueId, QueuePair,
    ReceiveFrom, Receiver, RqConfig, SrqConfig,
};
use rdma_core_sys as sys;
use soft_mlx5::LinkLayer;
use sys::Mlx5dv;

use super::cq::CqWriter;
use super::{RAW, SECOND, Target, target};
use crate::input::Input;

/// Begins an operation, see [`run`].
pub mod op {
    /// `delta: i8`, then 64 bytes: a CQE at the producer index. Unless [`RAW`](super::RAW), its owner and queue
    /// pair are put right, and `delta` is added to the index of the WQE that is next.
    pub const CQE: u8 = 0;
    /// The last CQE again.
    pub const AGAIN: u8 = 1;
    /// `budget: u8, taken: u8`: a batch; the bits of `taken` say which messages are taken out.
    pub const POLL: u8 = 2;
    /// Posts the messages that were taken.
    pub const POST: u8 = 3;
    /// The bytes before a CQE in entries of 128 bytes, from now on.
    pub const FRONT: u8 = 4;
    /// A queue pair is reset, or, with [`RAW`](super::RAW), goes to error; the device works.
    pub const STOP: u8 = 5;
    /// A queue pair is destroyed.
    pub const DESTROY: u8 = 6;
    /// Number of operations.
    pub const COUNT: u8 = 7;
}

const RECEIVES: u32 = 16;
const BUFFERS: u32 = 64;
const BUFFER: u32 = 128;

/// A receiver, its queues, and the side of the device of its CQ.
struct Subject {
    // In the order in which they go: queue pairs, receiver, then the CQ that was made for it.
    qps: Vec<Option<QueuePair>>,
    receiver: Receiver,
    _made: Option<MadeCq>,
    pool: BufferPool,
    queues: Vec<QueueId>,
    numbers: Vec<u32>,
    cq: CqWriter,
    next: [u16; 2],
    last: [u8; 64],
    taken: Vec<Buffer>,
}

/// A CQ of entries of 128 bytes.
struct MadeCq(*mut sys::ibv_cq);

impl Drop for MadeCq {
    fn drop(&mut self) {
        // SAFETY: made by `cq_128`, destroyed once, after the receiver.
        unsafe { sys::ibv_destroy_cq(self.0) };
    }
}

fn cq_128(context: &Context) -> MadeCq {
    let mut init = sys::ibv_cq_init_attr_ex { cqe: 2 * RECEIVES - 1, ..Default::default() };
    let mut mlx5 = sys::mlx5dv_cq_init_attr {
        comp_mask: sys::MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE.into(),
        cqe_comp_res_format: 0,
        flags: 0,
        cqe_size: 128,
    };
    let mlx5dv = Mlx5dv::get().expect("libmlx5");
    // SAFETY: an open context and initialised structures.
    let cq = unsafe { (mlx5dv.create_cq)(context.as_raw(), &mut init, &mut mlx5) };
    assert!(!cq.is_null());
    MadeCq(sys::ibv_cq_ex_to_cq(cq))
}

impl Subject {
    fn new(target: &Target, kind: u8) -> Self {
        let config = CqConfig::new(4 * RECEIVES - 1).path(DataPath::Direct);
        let made = (kind & 3 == 3).then(|| cq_128(&target.context));
        let mut receiver = match kind & 3 {
            0 => Receiver::new(&target.pd, &config),
            1 => Receiver::new(&target.pd, &config.compression(Compression::Hash)),
            2 => Receiver::new(&target.pd, &config.compression(Compression::Checksum)),
            _ => {
                let cq = made.as_ref().expect("made above").0;
                // SAFETY: a new CQ that no other code uses, destroyed after the receiver.
                unsafe { Receiver::from_raw_cq(&target.pd, cq, &CqConfig::new(4096).path(DataPath::Direct)) }
            }
        }
        .expect("a receiver");
        let cq = CqWriter::of_last(&target.device);
        let receives = RECEIVES / 2;
        let mut qps = Vec::new();
        let mut queues = Vec::new();
        // One receive queue; a shared one of two queue pairs; one of either kind.
        let srq = (kind >> 2 & 3 != 0).then(|| {
            let srq = receiver.create_srq(&SrqConfig::new(receives)).expect("an SRQ");
            queues.push(srq.into());
            srq
        });
        let (rc, own) = (QpConfig::rc(), ReceiveFrom::Own(RqConfig::new(receives)));
        let shapes = match (kind >> 2 & 3, srq.map(ReceiveFrom::Srq)) {
            (1, Some(srq)) => vec![(rc.clone(), srq), (rc, srq)],
            (2, Some(srq)) => vec![(rc.clone(), srq), (rc, own)],
            (3, Some(srq)) => vec![(QpConfig::ud(7), srq)],
            _ => vec![(rc, own)],
        };
        for (config, from) in shapes {
            let qp = QueuePair::builder(&config).receive(&mut receiver, from).build().expect("a queue pair");
            queues.extend(qp.receive_queue().map(QueueId::from));
            qps.push(qp);
        }
        let pool = BufferPool::new(&target.pd, &PoolConfig::new(BUFFERS, BUFFER)).expect("a pool");
        for &queue in &queues {
            receiver.fill(queue, &pool).unwrap();
        }
        let numbers = qps.iter().map(QueuePair::qp_num).collect();
        Self {
            qps: qps.into_iter().map(Some).collect(),
            receiver,
            _made: made,
            pool,
            queues,
            numbers,
            cq,
            next: [0; 2],
            last: [0; 64],
            taken: Vec::new(),
        }
    }

    fn write(&mut self, cqe: [u8; 64], owned: bool) {
        self.cq.write(cqe, owned);
        self.last = cqe;
    }

    fn put(&mut self, byte: u8, input: &mut Input) -> Option<()> {
        let delta = input.u8()? as i8;
        let mut cqe: [u8; 64] = input.block()?;
        if byte & RAW != 0 {
            self.write(cqe, false);
            return Some(());
        }
        let index = usize::from(byte & SECOND != 0) % self.numbers.len();
        // Shared queues and queue pairs count each for themselves.
        let next = &mut self.next[index % self.queues.len()];
        let counter = next.wrapping_add_signed(delta.into());
        *next = next.wrapping_add(1);
        cqe[57..60].copy_from_slice(&self.numbers[index].to_be_bytes()[1..]);
        cqe[60..62].copy_from_slice(&counter.to_be_bytes());
        self.write(cqe, true);
        Some(())
    }

    fn poll(&mut self, input: &mut Input) -> Option<()> {
        let (budget, taken) = (u32::from(input.u8()?), input.u8()?);
        let mut owners: HashSet<_> = self.taken.iter().map(|buffer| buffer.as_ptr()).collect();
        let mut sum = 0u64;
        let mut batch = self.receiver.poll_up_to(budget);
        let mut seen = 0;
        while let Some(found) = batch.next() {
            let buffers = match found {
                Ok(message) => {
                    assert!(message.len() <= BUFFER as usize);
                    sum += message.iter().map(|&byte| u64::from(byte)).sum::<u64>();
                    sum += u64::from(message.imm().unwrap_or(0)) + u64::from(message.qp_num());
                    sum += message.source().map_or(0, |source| source.lid.into());
                    sum += message.datagram().map_or(0, |datagram| {
                        let grh = datagram.grh().map_or(0, |grh| grh[39]);
                        datagram.payload().len() as u64 + u64::from(grh)
                    });
                    if taken >> (seen % 8) & 1 == 0 { Vec::new() } else { message.into_buffers() }
                }
                Err(failure) => failure.buffers,
            };
            for buffer in buffers {
                assert!(owners.insert(buffer.as_ptr()), "a buffer with two owners");
                self.taken.push(buffer);
            }
            seen += 1;
        }
        drop(batch);
        std::hint::black_box(sum);
        Some(())
    }

    fn stop(&mut self, target: &Target, byte: u8) {
        let index = usize::from(byte & SECOND != 0) % self.qps.len();
        if let Some(qp) = &mut self.qps[index] {
            let _ = if byte & RAW == 0 { self.receiver.reset_qp(qp).map(drop) } else { qp.to_error() };
        }
        target.device.step();
    }

    fn operation(&mut self, target: &Target, input: &mut Input) -> Option<()> {
        let byte = input.u8()?;
        match byte % SECOND % op::COUNT {
            op::CQE => self.put(byte, input)?,
            op::AGAIN => self.write(self.last, byte & RAW == 0),
            op::POLL => self.poll(input)?,
            op::POST => {
                let queue = self.queues[usize::from(byte & SECOND != 0) % self.queues.len()];
                let taken = std::mem::take(&mut self.taken);
                if let Err(error) = self.receiver.post(queue, taken) {
                    self.taken.extend(error.buffers);
                }
            }
            op::FRONT => self.cq.front = input.block()?,
            op::STOP => self.stop(target, byte),
            _ => {
                let index = usize::from(byte & SECOND != 0) % self.qps.len();
                if let Some(qp) = self.qps[index].take() {
                    let _ = self.receiver.destroy_qp(qp);
                }
            }
        }
        Some(())
    }
}

/// Makes a receiver and its queues, of kinds that the first byte selects, and executes the other bytes:
/// operations as [`op`] lists them, until the end.
pub fn run(bytes: &[u8]) {
    let target = target(LinkLayer::InfiniBand);
    let mut input = Input(bytes);
    let Some(kind) = input.u8() else { return };
    let mut subject = Subject::new(target, kind);
    while subject.operation(target, &mut input).is_some() {}
    let Subject { qps, receiver, _made, pool, mut taken, .. } = subject;
    drop(qps);
    drop(receiver);
    taken.extend(std::iter::from_fn(|| pool.take()));
    let owners: HashSet<_> = taken.iter().map(|buffer| buffer.as_ptr()).collect();
    assert_eq!(owners.len(), taken.len(), "a buffer with two owners");
}
