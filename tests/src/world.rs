//! A receiver with everything around it, for tests that need nothing special.

use doorbell::{
    BufferPool, ProtectionDomain, QpConfig, QueuePair, Receiver, RqId, SrqConfig, SrqId,
};

use crate::{Peers, device};

/// Connections whose receives come from one SRQ.
pub struct Shared {
    /// The receiver under test.
    pub receiver: Receiver,
    /// Its only queue.
    pub srq: SrqId,
    /// Twice as many buffers as the queue holds. None is posted yet.
    pub pool: BufferPool,
    /// Queue pairs of the receiver.
    pub near: Vec<QueuePair>,
    /// Their far ends.
    pub peers: Peers,
    /// The domain of all.
    pub pd: ProtectionDomain,
}

impl Shared {
    /// `qps` connections on an SRQ for `max_wr` receives of `buffer_size` bytes.
    pub fn new(max_wr: u32, qps: u32, buffer_size: u32) -> Self {
        Self::with(max_wr, 1, qps, buffer_size, QpConfig::rc())
    }

    /// The same, with room for `max_sge` buffers in each receive, and queue pairs like `config`.
    pub fn with(max_wr: u32, max_sge: u32, qps: u32, buffer_size: u32, config: QpConfig) -> Self {
        let pd = device::pd();
        // As many as the SRQ has receives, and not one more.
        let mut receiver = device::receiver(&pd, (max_wr + 1).next_power_of_two() - 1);
        let srq = receiver.create_srq(&SrqConfig::new(max_wr).max_sge(max_sge)).unwrap();
        let pool = BufferPool::new(&pd, 2 * receiver.capacity(srq), buffer_size).unwrap();
        let config = config.srq(srq).min_rnr_timer(QUICK);
        let (near, peers) = Peers::connect(&pd, &mut receiver, &config, qps, buffer_size);
        Self { receiver, srq, pool, near, peers, pd }
    }
}

/// One connection with a receive queue of its own.
pub struct Single {
    /// The receiver under test.
    pub receiver: Receiver,
    /// Its only queue.
    pub rq: RqId,
    /// Twice as many buffers as the queue holds. None is posted yet.
    pub pool: BufferPool,
    /// The queue pair.
    pub near: QueuePair,
    /// Its far end.
    pub peers: Peers,
    /// The domain of all.
    pub pd: ProtectionDomain,
}

impl Single {
    /// A connection with a queue for `max_wr` receives of `buffer_size` bytes.
    pub fn new(max_wr: u32, buffer_size: u32) -> Self {
        Self::beside(max_wr, buffer_size, 0)
    }

    /// The same, on a CQ that has room for `others` receives of other queues.
    pub fn beside(max_wr: u32, buffer_size: u32, others: u32) -> Self {
        let pd = device::pd();
        let mut receiver = device::receiver(&pd, max_wr.max(4) + others);
        let config = QpConfig::rc().receives(max_wr, 1).min_rnr_timer(QUICK);
        let (mut near, peers) = Peers::connect(&pd, &mut receiver, &config, 1, buffer_size);
        let near = near.remove(0);
        let rq = near.receive_queue().expect("a queue pair without SRQ has a queue");
        let pool = BufferPool::new(&pd, 2 * receiver.capacity(rq), buffer_size).unwrap();
        Self { receiver, rq, pool, near, peers, pd }
    }
}

/// Code of the shortest wait for a receive, 0.01 ms.
const QUICK: u8 = 1;
