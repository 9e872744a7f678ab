//! The safe layer of doorbell.

use doorbell::{
    Buffer, BufferPool, Compression, CqConfig, DataPath, Failure, PoolConfig, QpConfig, QueueId, QueuePair,
    ReceiveFrom, Receiver, RqConfig, SrqConfig,
};
use rdma_core_sys::ibv_cq_ex_to_cq;

use super::{Subject, unexpected};
use crate::operation::SLOTS;
use crate::sum::Sum;
use crate::world::{BUFFER, Kind, Objects, Shape, World};

/// `wr_id` of a buffer is its address.
struct Safe {
    receiver: Receiver,
    /// The first queue: with several of them messages are only lent.
    queue: QueueId,
    pool: BufferPool,
    way: Way,
    /// Buffers that were moved out.
    buffers: Vec<Buffer>,
    _qps: Vec<QueuePair>,
}

/// How a message ends.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// The message is lent, and recycled.
    Lend,
    /// The buffer is moved out and posted again.
    Post,
    /// The buffer is moved out and another one put in its place.
    Replace,
}

/// A receiver on fresh objects, and its queues.
pub(super) fn receiver(world: &World, objects: &Objects) -> (Receiver, Vec<QueueId>, Vec<QueuePair>) {
    let shape = objects.shape;
    // SAFETY: fresh objects that no other code drives, which live until the process ends.
    unsafe {
        let cq = ibv_cq_ex_to_cq(objects.cq);
        let mut receiver =
            Receiver::from_raw_cq(&world.pd, cq, &CqConfig::new(4096).path(DataPath::Direct)).expect("a receiver");
        let size = SrqConfig::new(shape.receives());
        let attach = |&srq| receiver.attach_srq(srq, &size).expect("an SRQ");
        let srqs: Vec<_> = objects.srqs.iter().map(attach).collect();
        let attach = |(index, &qp): (usize, &_)| {
            let own = ReceiveFrom::Own(RqConfig::new(shape.receives()));
            let from = srqs.get(index % shape.queues as usize).map_or(own, |&srq| srq.into());
            QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, from).attach(qp).expect("a QP")
        };
        let qps: Vec<_> = objects.qps.iter().enumerate().map(attach).collect();
        let own = qps.iter().filter_map(|qp| qp.receive_queue().map(QueueId::from));
        let queues = srqs.iter().map(|&srq| srq.into()).chain(own).collect();
        (receiver, queues, qps)
    }
}

/// As [`make`], of objects that the receiver makes itself: an SRQ and a CQ with compressed CQEs.
pub(super) fn make_compressed(world: &World, shape: Shape, way: Way) -> (Objects, Box<dyn Subject>) {
    assert_eq!(Shape { slots: SLOTS, ..shape }, Shape::new(Kind::Srq, SLOTS));
    let receives = shape.receives();
    let config = CqConfig::new(receives).path(DataPath::Direct);
    let config = config.compression(Compression::Checksum);
    let mut receiver = Receiver::new(&world.pd, &config).expect("a receiver");
    let srq = receiver.create_srq(&SrqConfig::new(receives)).expect("an SRQ");
    let config = QpConfig::rc().max_send_wr(1);
    let mut qp = QueuePair::builder(&config).receive(&mut receiver, srq).build().expect("a QP");
    let itself = qp.address().expect("an address");
    qp.connect(&itself).expect("connected");
    // SAFETY: the objects are alive, and an extended CQ begins with the fields of a CQ.
    let objects = unsafe {
        let raw = qp.as_raw();
        world.describe((*raw).recv_cq.cast(), vec![(*raw).srq], vec![raw], shape)
    };
    (objects, with_buffers(world, shape, (receiver, vec![srq.into()], vec![qp]), way))
}

/// Buffers for all slots and one more.
pub(super) fn pool(world: &World, shape: Shape) -> BufferPool {
    BufferPool::new(&world.pd, &PoolConfig::new(shape.queues * shape.slots + 1, BUFFER)).expect("a pool")
}

pub(super) fn make(world: &World, objects: &Objects, way: Way) -> Box<dyn Subject> {
    with_buffers(world, objects.shape, receiver(world, objects), way)
}

fn with_buffers(
    world: &World,
    shape: Shape,
    (mut receiver, queues, qps): (Receiver, Vec<QueueId>, Vec<QueuePair>),
    way: Way,
) -> Box<dyn Subject> {
    let pool = pool(world, shape);
    for &queue in &queues {
        assert_eq!(receiver.fill(queue, &pool).unwrap(), shape.receives() as usize);
    }
    let queue = queues[0];
    Box::new(Safe { receiver, queue, pool, way, buffers: Vec::new(), _qps: qps })
}

impl Subject for Safe {
    fn cycle(&mut self, count: u32, batch: u32) -> Sum {
        let cycle = match self.way {
            Way::Lend => Self::lend,
            Way::Post => Self::move_and_post,
            Way::Replace => Self::replace,
        };
        cycle(self, count, batch).unwrap_or_else(|_| unexpected())
    }

    fn find_nothing(&mut self, count: u32, batch: u32) {
        self.cycle(count * batch, batch);
    }
}

impl Safe {
    fn lend(&mut self, count: u32, batch: u32) -> Result<Sum, Failure> {
        let mut sum = Sum::default();
        for _ in 0..count / batch {
            let mut lent = self.receiver.poll_up_to(batch);
            while let Some(message) = lent.next() {
                let message = message?;
                sum.add(message.as_ptr() as u64, message.len() as u64);
            }
        }
        Ok(sum)
    }

    fn replace(&mut self, count: u32, batch: u32) -> Result<Sum, Failure> {
        let mut sum = Sum::default();
        let Some(mut spare) = self.pool.take() else { unexpected() };
        for _ in 0..count / batch {
            let mut lent = self.receiver.poll_up_to(batch);
            while let Some(message) = lent.next() {
                let Ok(buffer) = message?.replace(spare) else { unexpected() };
                sum.add(buffer.as_ptr() as u64, buffer.len() as u64);
                spare = buffer;
            }
        }
        Ok(sum)
    }

    fn move_and_post(&mut self, count: u32, batch: u32) -> Result<Sum, Failure> {
        let mut sum = Sum::default();
        for _ in 0..count / batch {
            let mut lent = self.receiver.poll_up_to(batch);
            while let Some(message) = lent.next() {
                let Ok(buffer) = message?.take() else { unexpected() };
                sum.add(buffer.as_ptr() as u64, buffer.len() as u64);
                self.buffers.push(buffer);
            }
            drop(lent);
            if self.receiver.post(self.queue, self.buffers.drain(..)).is_err() {
                unexpected();
            }
        }
        Ok(sum)
    }
}
