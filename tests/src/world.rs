//! A receiver with everything around it, for tests that need nothing special.

use doorbell::{
    Buffer, BufferPool, PoolConfig, ProtectionDomain, QpConfig, QueueId, QueuePair, Receiver, RqConfig, RqId,
    SrqConfig, SrqId,
};

use crate::peers::{self, Peers};
use crate::{device, receiving};

/// Connections whose receives come from one SRQ.
pub type Shared = World<SrqId>;
/// One connection with a receive queue of its own.
pub type Single = World<RqId>;

/// Connections of a receiver that has one queue.
pub struct World<Q> {
    /// The receiver under test.
    pub receiver: Receiver,
    /// Its only queue.
    pub queue: Q,
    /// Twice as many buffers as the queue holds. None is posted yet.
    pub pool: BufferPool,
    /// Queue pairs of the receiver.
    pub near: Vec<QueuePair>,
    /// Their far ends.
    pub peers: Peers,
    /// The domain of all.
    pub pd: ProtectionDomain,
}

impl World<SrqId> {
    /// `qps` connections on an SRQ for `max_wr` receives of `buffer_size` bytes.
    pub fn new(max_wr: u32, qps: u32, buffer_size: u32) -> Self {
        Self::with(max_wr, 1, qps, buffer_size, QpConfig::rc())
    }

    /// `qps` connections on an SRQ, with `max_sge` buffers of `buffer_size` bytes in each receive, and queue pairs like
    /// `config`.
    pub fn with(max_wr: u32, max_sge: u32, qps: u32, buffer_size: u32, config: QpConfig) -> Self {
        Self::on(max_wr, &SrqConfig::new(max_wr).max_sge(max_sge), qps, buffer_size, config)
    }

    /// `qps` connections on an SRQ whose receives do not wait: its ring is at hand, and peers can count on every
    /// receive.
    pub fn without_patience(max_wr: u32, max_sge: u32, qps: u32, buffer_size: u32) -> Self {
        let srq = SrqConfig::new(max_wr).max_sge(max_sge).patience(0);
        Self::on(max_wr, &srq, qps, buffer_size, QpConfig::rc())
    }

    fn on(max_wr: u32, srq: &SrqConfig, qps: u32, buffer_size: u32, config: QpConfig) -> Self {
        let pd = device::pd();
        // As many as the SRQ has receives, and not one more.
        let mut receiver = device::receiver(&pd, (max_wr + 1).next_power_of_two() - 1);
        let queue = receiver.create_srq(srq).unwrap();
        let pool = BufferPool::new(&pd, &PoolConfig::new(2 * receiver.capacity(queue), buffer_size)).unwrap();
        let config = config.min_rnr_timer(QUICK);
        let (near, peers) = Peers::connect(&pd, &mut receiver, &config, queue, qps, buffer_size);
        Self { receiver, queue, pool, near, peers, pd }
    }
}

impl World<RqId> {
    /// A connection with a queue for `max_wr` receives of `buffer_size` bytes.
    pub fn new(max_wr: u32, buffer_size: u32) -> Self {
        Self::beside(max_wr, buffer_size, 0)
    }

    /// A connection on a CQ that has room for `others` receives of other queues.
    pub fn beside(max_wr: u32, buffer_size: u32, others: u32) -> Self {
        let pd = device::pd();
        let mut receiver = device::receiver(&pd, max_wr.max(4) + others);
        let config = QpConfig::rc().min_rnr_timer(QUICK);
        let (near, peers) = Peers::connect(&pd, &mut receiver, &config, RqConfig::new(max_wr), 1, buffer_size);
        let queue = near[0].receive_queue().expect("a queue pair without SRQ has a queue");
        let pool = BufferPool::new(&pd, &PoolConfig::new(2 * receiver.capacity(queue), buffer_size)).unwrap();
        Self { receiver, queue, pool, near, peers, pd }
    }
}

impl<Q: Copy + Into<QueueId>> World<Q> {
    /// This world with a buffer in every slot.
    pub fn filled(mut self) -> Self {
        self.fill();
        self
    }

    /// Fills the queue, and returns how many buffers that took.
    pub fn fill(&mut self) -> usize {
        self.receiver.fill(self.queue, &self.pool).unwrap()
    }

    /// Posts `count` buffers of the pool.
    pub fn post(&mut self, count: usize) {
        let buffers = std::iter::from_fn(|| self.pool.take()).take(count);
        assert_eq!(self.receiver.post(self.queue, buffers).unwrap(), count);
    }

    /// The first far end sends `count` messages. Each arrives whole before the next.
    pub fn exchange(&mut self, count: usize) {
        self.peers.exchange(&mut self.receiver, 0, count);
    }

    /// This world as one whose queue may be of either kind.
    pub fn any(self) -> World<QueueId> {
        let Self { receiver, queue, pool, near, peers, pd } = self;
        World { receiver, queue: queue.into(), pool, near, peers, pd }
    }

    /// Free slots of the queue.
    pub fn free_slots(&self) -> usize {
        self.receiver.free_slots(self.queue) as usize
    }

    /// Slots of the queue.
    pub fn capacity(&self) -> usize {
        self.receiver.capacity(self.queue) as usize
    }

    /// The next `count` messages, each taken.
    pub fn take(&mut self, count: usize) -> Vec<Buffer> {
        receiving::take(&mut self.receiver, count)
    }

    /// Connects a queue pair that was reset, after a reset of its far end.
    pub fn reconnect(&mut self, at: usize) {
        self.peers.reset(at);
        peers::join(&mut self.near[at], &mut self.peers.qps[at]);
    }
}

/// A receiver with two SRQs that have all their receives, on a CQ without room for more, and a client of each.
pub struct TwoSrqs {
    /// The receiver under test.
    pub receiver: Receiver,
    /// Its queues.
    pub srqs: [SrqId; 2],
    /// A queue pair on each, and its far end.
    pub clients: [(Vec<QueuePair>, Peers); 2],
    /// The domain of all.
    pub pd: ProtectionDomain,
}

impl TwoSrqs {
    /// SRQs for `max_wr` receives each, a size that the device does not round.
    pub fn new(max_wr: u32) -> Self {
        let (pd, mut receiver) = device::start(2 * max_wr);
        let srqs = [(); 2].map(|()| receiver.create_srq(&SrqConfig::new(max_wr)).unwrap());
        let pool = BufferPool::new(&pd, &PoolConfig::new(2 * max_wr, 64)).unwrap();
        let clients = srqs.map(|srq| {
            let buffers = std::iter::from_fn(|| pool.take()).take(max_wr as usize);
            assert_eq!(receiver.post(srq, buffers).unwrap(), max_wr as usize);
            let config = QpConfig::rc().min_rnr_timer(QUICK);
            Peers::connect(&pd, &mut receiver, &config, srq, 1, 64)
        });
        Self { receiver, srqs, clients, pd }
    }

    /// Sends `count` messages to each SRQ by turns.
    pub fn send(&mut self, count: u32) {
        for _ in 0..count {
            self.clients.iter_mut().for_each(|(_, peers)| _ = peers.send(0, 40));
        }
    }

    /// Waits until all messages have arrived.
    pub fn settle(&mut self) {
        self.clients.iter_mut().for_each(|(_, peers)| peers.settle());
    }
}

/// One connection on an SRQ and then one on a receive queue, with `max_wr` receives of `buffer_size` bytes each; an SRQ
/// has one less.
pub fn both(max_wr: u32, buffer_size: u32) -> impl Iterator<Item = World<QueueId>> {
    ["SRQ", "receive queue"].into_iter().map(move |name| {
        println!("{name}");
        match name {
            "SRQ" => Shared::new(max_wr - 1, 1, buffer_size).any(),
            _ => Single::new(max_wr, buffer_size).any(),
        }
    })
}

/// Code of the shortest wait for a receive, 0.01 ms.
const QUICK: u8 = 1;

/// Messages between queue pairs of a bystander. Each of them is a chance for the device to do other work.
const TURNS: usize = 300;

/// Has the device carry messages of other queue pairs, one after another. Meanwhile it does everything that it can do
/// for the queues of a test, even on a slow machine.
pub fn let_the_device_work() {
    let mut bystander = Single::new(8, 64);
    bystander.receiver.fill(bystander.queue, &bystander.pool).unwrap();
    for _ in 0..TURNS {
        bystander.peers.send(0, 16);
        receiving::messages(&mut bystander.receiver, 1, |_| ());
    }
}
