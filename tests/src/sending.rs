//! Connections over which a sender under test sends.

use std::collections::VecDeque;

use doorbell::{
    Buffer, BufferPool, CqConfig, MemoryRegion, PoolConfig, ProtectionDomain, QpConfig, QueuePair, Receiver,
    RemoteAccess, RemoteRegion, RqConfig, Sender, SqId, WcStatus,
};

use crate::peers::join;
use crate::receiving::wait;
use crate::sent::Sent;
use crate::{device, receiving};

/// Receives of each far end.
pub const RECEIVES: u32 = 64;

/// A sender with connections to far ends that only receive.
pub struct Sending {
    /// The sender under test.
    pub sender: Sender,
    /// Its queue pairs.
    pub near: Vec<QueuePair>,
    /// Their far ends, each with a receive queue of its own.
    pub far: Vec<QueuePair>,
    /// The receiver of the sender's queue pairs.
    pub near_receiver: Receiver,
    /// The receiver of the far ends.
    pub far_receiver: Receiver,
    /// Buffers to send.
    pub pool: BufferPool,
    /// Memory that the far ends let be read, written and changed.
    pub memory: MemoryRegion,
    /// The domain of all.
    pub pd: ProtectionDomain,
}

/// A request that is over.
#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    /// Index of the queue pair.
    pub qp: usize,
    /// Its token.
    pub token: u64,
    /// How it ended.
    pub status: WcStatus,
    /// The bytes of its buffers.
    pub buffers: Vec<Vec<u8>>,
}

impl Sending {
    /// `qps` connections for `sends` requests each, with buffers of `len` bytes.
    pub fn new(qps: u32, sends: u32, len: u32) -> Self {
        Self::with(qps, len, &QpConfig::rc().max_send_wr(sends), &CqConfig::new(4096))
    }

    /// `qps` connections with buffers of `len` bytes, with queue pairs like `config` and a sender like `sender`.
    pub fn with(qps: u32, len: u32, config: &QpConfig, sender: &CqConfig) -> Self {
        let pd = device::pd();
        let config = config.clone().min_rnr_timer(1);
        let config = config.remote_read(true).remote_write(true).remote_atomic(true);
        let mut sender = device::sender_with(&pd, sender);
        let mut near_receiver = device::receiver(&pd, RECEIVES * qps + 16);
        let mut far_receiver = device::receiver(&pd, RECEIVES * qps);
        let pool = BufferPool::new(&pd, &PoolConfig::new(256, len)).unwrap();
        let receives = BufferPool::new(&pd, &PoolConfig::new(RECEIVES * qps, len)).unwrap();
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for _ in 0..qps {
            let own = RqConfig::new(RECEIVES);
            let mut one =
                QueuePair::builder(&config).receive(&mut near_receiver, own).send(&mut sender).build().unwrap();
            let mut other = QueuePair::builder(&config).receive(&mut far_receiver, own).build().unwrap();
            far_receiver.fill(other.receive_queue().unwrap(), &receives).unwrap();
            join(&mut one, &mut other);
            near.push(one);
            far.push(other);
        }
        let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
        let memory = MemoryRegion::with_access(&pd, 1 << 16, access).unwrap();
        Self { sender, near, far, near_receiver, far_receiver, pool, memory, pd }
    }

    /// The send queue of a connection.
    pub fn queue(&self, qp: usize) -> SqId {
        self.near[qp].send_queue().unwrap()
    }

    /// The memory of the far ends.
    pub fn remote(&self) -> RemoteRegion {
        self.memory.region()
    }

    /// A buffer with these bytes.
    pub fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.take().expect("a free buffer");
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// The next `count` requests that are over.
    pub fn done(&mut self, count: usize) -> Vec<Done> {
        let Self { sender, near, .. } = self;
        let queues: Vec<_> = near.iter().map(|qp| qp.send_queue().unwrap()).collect();
        completions(sender, count, |done| describe(done, &queues))
    }

    /// Takes the next `count` requests, and checks that all succeeded.
    pub fn succeed(&mut self, count: usize) {
        for done in self.done(count) {
            assert_eq!(done.status, WcStatus::SUCCESS, "{done:?}");
        }
    }

    /// The next `count` messages of the far ends, each with the index of the far end and its immediate data.
    pub fn messages(&mut self, count: usize) -> VecDeque<(usize, Vec<u8>, Option<u32>)> {
        let mut messages = VecDeque::new();
        let numbers: Vec<_> = self.far.iter().map(QueuePair::qp_num).collect();
        receiving::messages(&mut self.far_receiver, count, |message| {
            let far = numbers.iter().position(|&number| number == message.qp_num()).unwrap();
            messages.push_back((far, message.to_vec(), message.imm()));
        });
        messages
    }
}

/// Bytes of memory that peers write.
pub fn bytes_of(memory: &MemoryRegion, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(offset, &mut bytes);
    bytes
}

/// Waits for `count` requests that are over.
pub fn completions<T>(sender: &mut Sender, count: usize, mut each: impl FnMut(Sent) -> T) -> Vec<T> {
    let mut all = Vec::new();
    while all.len() < count {
        wait("a send", || {
            let before = all.len();
            let mut batch = sender.poll_up_to((count - before) as u32);
            while let Some(done) = batch.next() {
                all.push(each(done.into()));
            }
            all.len() > before
        });
    }
    all
}

fn describe(sent: Sent, queues: &[SqId]) -> Done {
    let buffers = sent.buffers.iter().map(|buffer| buffer.to_vec()).collect();
    let qp = queues.iter().position(|&queue| queue == sent.queue).unwrap();
    Done { qp, token: sent.token, status: sent.status, buffers }
}
