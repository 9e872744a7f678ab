//! Connections that send, on a stepped device.

use std::rc::Rc;
use std::time::Duration;

use doorbell::{
    Buffer, BufferPool, CqConfig, DataPath, PoolConfig, ProtectionDomain, QpConfig, QueuePair, Receiver, RqConfig,
    Sender, SqId,
};
use soft_mlx5::Device;

use crate::join;
use crate::sent::Sent;

/// A stepped device, and connections from one sender to queue pairs of the same program.
pub struct Sending {
    /// The sender under test.
    pub sender: Sender,
    /// The receiver of the queue pairs that send. They receive nothing.
    pub near_receiver: Receiver,
    /// The receiver of the far ends.
    pub far_receiver: Receiver,
    /// The queue pairs that send.
    pub near: Vec<QueuePair>,
    /// The far end of each.
    pub far: Vec<QueuePair>,
    /// Buffers of 64 bytes for requests.
    pub pool: BufferPool,
    /// Buffers of 64 bytes for the receives of the far ends.
    pub receives: BufferPool,
    /// The domain of all.
    pub pd: ProtectionDomain,
    /// The device. Dropped last.
    pub device: Rc<Device>,
}

impl Sending {
    /// Buffers for requests.
    pub const BUFFERS: u32 = 64;

    /// Connections of queue pairs like `config`, and a sender whose CQ has no more entries than they need. Each far end
    /// has an empty queue of `receives` receives.
    pub fn new(
        (device, pd): (impl Into<Rc<Device>>, ProtectionDomain),
        path: DataPath,
        config: &QpConfig,
        connections: u32,
        receives: u32,
    ) -> Self {
        let pool = |count| BufferPool::new(&pd, &PoolConfig::new(count, 64)).unwrap();
        let mut sender = Sender::new(&pd, &CqConfig::for_sends(config, connections).path(path)).unwrap();
        let cq = CqConfig::new(connections * receives).path(path);
        let [mut near_receiver, mut far_receiver] = [(); 2].map(|()| Receiver::new(&pd, &cq).unwrap());
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for _ in 0..connections {
            let here = QueuePair::builder(config).receive(&mut near_receiver, RqConfig::new(1)).send(&mut sender);
            near.push(here.build().unwrap());
            let there = QueuePair::builder(config).receive(&mut far_receiver, RqConfig::new(receives));
            far.push(there.build().unwrap());
            join(near.last_mut().unwrap(), far.last_mut().unwrap());
        }
        let (pool, receives) = (pool(Self::BUFFERS), pool(connections * receives));
        Self { sender, near_receiver, far_receiver, near, far, pool, receives, pd, device: device.into() }
    }

    /// The send queue of a connection.
    pub fn queue(&self, at: usize) -> SqId {
        self.near[at].send_queue().unwrap()
    }

    /// Polls until nothing happens any more. Returns the requests that are over.
    pub fn over(&mut self) -> Vec<Sent> {
        let mut over = Vec::new();
        for _ in 0..20 {
            self.device.settle();
            // One by itself, and the rest as a batch.
            over.extend(self.sender.next().map(Sent::from));
            let mut batch = self.sender.poll();
            while let Some(done) = batch.next() {
                over.push(done.into());
            }
            drop(batch);
            // Time-outs of a peer that died.
            self.device.advance(Duration::from_secs(1));
        }
        over
    }
}

/// Takes two buffers, and writes these bytes to each.
pub fn two_buffers(pool: &BufferPool, bytes: &[u8]) -> [Buffer; 2] {
    [(); 2].map(|()| {
        let mut buffer = pool.take().unwrap();
        buffer.extend_from_slice(bytes);
        buffer
    })
}
