//! The safe layer of doorbell.

use doorbell::{
    BufferPool, Failure, Path, QpConfig, QueueId, QueuePair, Receiver, RecvBuffer, SrqConfig,
};
use rdma_core_sys::ibv_cq_ex_to_cq;

use super::{Subject, unexpected};
use crate::sum::Sum;
use crate::world::{BUFFER, Kind, Objects, Shape, World};

/// `wr_id` of a buffer is its address.
struct Safe {
    receiver: Receiver,
    queue: QueueId,
    pool: BufferPool,
    way: Way,
    /// Buffers that were moved out.
    buffers: Vec<RecvBuffer>,
    _qps: Vec<QueuePair>,
}

/// What becomes of a message.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// It is lent, and recycled.
    Lend,
    /// Its buffer is moved out and posted again.
    Post,
    /// Its buffer is moved out and another one put in its place.
    Replace,
}

/// A receiver on fresh objects.
pub(super) fn receiver(world: &World, objects: &Objects) -> (Receiver, QueueId, Vec<QueuePair>) {
    let shape = objects.shape;
    assert_eq!(shape.sges, 1);
    // SAFETY: fresh objects that nobody else drives, which live until the process ends.
    unsafe {
        let cq = ibv_cq_ex_to_cq(objects.cq);
        let mut receiver = Receiver::from_raw_cq(&world.pd, cq, Path::Direct).expect("a receiver");
        let mut shared = None;
        if shape.kind == Kind::Srq {
            let srq = receiver.attach_raw_srq(objects.srq, shape.receives(), 1);
            shared = Some(srq.expect("an SRQ"));
        }
        let config = shared.map_or(QpConfig::rc(), |srq| QpConfig::rc().srq(srq));
        let qps: Vec<_> = objects
            .qps
            .iter()
            .map(|&qp| receiver.attach_raw_qp(qp, &config).expect("a QP"))
            .collect();
        for _ in 1..shape.queues {
            receiver.create_srq(&SrqConfig::new(1)).expect("another SRQ");
        }
        let own = qps[0].receive_queue().map(QueueId::from);
        let queue = shared.map(QueueId::from).or(own).expect("a queue");
        (receiver, queue, qps)
    }
}

/// Buffers for all slots and one more.
pub(super) fn pool(world: &World, shape: Shape) -> BufferPool {
    BufferPool::new(&world.pd, shape.slots + 1, BUFFER).expect("a pool")
}

pub(super) fn make(world: &World, objects: &Objects, way: Way) -> Box<dyn Subject> {
    let shape = objects.shape;
    let (mut receiver, queue, qps) = self::receiver(world, objects);
    let pool = pool(world, shape);
    assert_eq!(receiver.fill(queue, &pool).unwrap(), shape.receives() as usize);
    Box::new(Safe { receiver, queue, pool, way, buffers: Vec::new(), _qps: qps })
}

impl Subject for Safe {
    fn poll(&mut self, count: u32, batch: u32) -> Sum {
        let mut sum = Sum::default();
        let mut left = count;
        while left > 0 {
            let mut lent = self.receiver.poll_up_to(batch);
            while let Some(message) = lent.next() {
                let Ok(message) = message else { unexpected() };
                sum.add(message.as_ptr() as u64, message.len() as u64);
                drop(message.take());
                left -= 1;
            }
        }
        sum
    }

    fn post(&mut self, _batch: u32) {
        self.receiver.fill(self.queue, &self.pool).unwrap();
    }

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
                let buffer = message?.take();
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
