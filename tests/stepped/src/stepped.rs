//! A connection that receives, on a stepped device.

use std::rc::Rc;

use doorbell::{
    BufferPool, CqConfig, DataPath, PoolConfig, ProtectionDomain, QpConfig, QueueId, QueuePair, ReceiveFrom, Receiver,
    RqConfig, SrqConfig, SrqId, WcStatus,
};
use soft_mlx5::{Builder, Device};

use crate::sending_qp::SendingQp;
use crate::{join, open};

/// A stepped device, and a connection from a queue pair to a receiver of the same program.
pub struct Stepped {
    /// The receiver under test.
    pub receiver: Receiver,
    /// The queue that the queue pair receives from.
    pub queue: QueueId,
    /// The queue that the queue pair receives from, if it is an SRQ.
    pub srq: Option<SrqId>,
    /// Buffers for the queue, and two more.
    pub pool: BufferPool,
    /// The queue pair of the receiver.
    pub near: QueuePair,
    /// The queue pair that sends to it.
    pub far: SendingQp,
    /// The receiver of `far`.
    pub far_receiver: Receiver,
    /// The domain of all.
    pub pd: ProtectionDomain,
    /// The device. Dropped last.
    pub device: Rc<Device>,
}

impl Stepped {
    /// A connection with a full queue of `receives` receives, polled as `path` says.
    pub fn new(path: DataPath, receives: u32) -> Self {
        Self::with(CqConfig::new(2 * receives).path(path), receives)
    }

    /// A connection with a full queue of `receives` receives, and a receiver like `config`.
    pub fn with(config: CqConfig, receives: u32) -> Self {
        Self::on(Device::builder(), config, receives)
    }

    /// A connection with a full queue on a device that `builder` makes.
    pub fn on(builder: Builder, config: CqConfig, receives: u32) -> Self {
        let mut stepped = Self::empty(open(builder.stepped()), &config, receives, false);
        stepped.fill();
        stepped
    }

    /// A connection with an empty queue of `receives` receives, or with an empty SRQ.
    pub fn empty(
        (device, pd): (impl Into<Rc<Device>>, ProtectionDomain),
        config: &CqConfig,
        receives: u32,
        is_shared: bool,
    ) -> Self {
        let mut receiver = Receiver::new(&pd, config).unwrap();
        let mut far_receiver = Receiver::new(&pd, &CqConfig::new(16).path(receiver.path())).unwrap();
        let srq = is_shared.then(|| receiver.create_srq(&SrqConfig::new(receives)).unwrap());
        let from = srq.map_or(RqConfig::new(receives).into(), ReceiveFrom::from);
        let (near, far) = connect(&mut receiver, from, &mut far_receiver);
        let queue = srq.map_or_else(|| near.receive_queue().unwrap().into(), QueueId::from);
        let pool = BufferPool::new(&pd, &PoolConfig::new(receiver.capacity(queue) + 2, 64)).unwrap();
        Self { receiver, queue, srq, pool, near, far, far_receiver, pd, device: device.into() }
    }

    /// Fills the queue.
    pub fn fill(&mut self) {
        self.receiver.fill(self.queue, &self.pool).unwrap();
    }

    /// Makes another connection. Its queue pair receives as `from` says.
    pub fn connect(&mut self, from: impl Into<ReceiveFrom>) -> (QueuePair, SendingQp) {
        connect(&mut self.receiver, from, &mut self.far_receiver)
    }

    /// Posts a send of nothing; the device has not seen it yet.
    pub fn send(&mut self) {
        self.send_bytes(&[]);
    }

    /// Posts a send of up to 64 bytes; the device has not seen it yet.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        while let Some(done) = self.far.poll_send() {
            assert_eq!(done.status, WcStatus::SUCCESS);
        }
        self.far.send_inline(bytes, None).unwrap();
    }

    /// Takes all messages that have arrived; returns how many.
    pub fn take(&mut self) -> u64 {
        let mut batch = self.receiver.poll();
        let mut taken = 0;
        while let Some(message) = batch.next() {
            message.unwrap();
            taken += 1;
        }
        taken
    }
}

/// Connects a queue pair of a receiver with a queue pair that sends to it and has a single receive.
fn connect(
    receiver: &mut Receiver,
    from: impl Into<ReceiveFrom>,
    far_receiver: &mut Receiver,
) -> (QueuePair, SendingQp) {
    let mut near = QueuePair::builder(&QpConfig::rc()).receive(receiver, from).build().unwrap();
    let mut far = SendingQp::create(far_receiver, &QpConfig::rc().max_inline(64), RqConfig::new(1)).unwrap();
    join(&mut near, &mut far);
    (near, far)
}
