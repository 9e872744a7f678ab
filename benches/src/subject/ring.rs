//! The rings of doorbell.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use mlx5_ring::completion::CqeKind;
use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::receive::{self, Completion, ReceiveRing};
use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::sge::Sge;
use mlx5_ring::slots::Slot;
use mlx5_ring::srq::SharedReceiveQueue;
use mlx5_wire::mini_cqe::MiniCqeFormat;

use super::{Subject, unexpected};
use crate::adapter::Form;
use crate::sum::Sum;
use crate::world::{BUFFER, Objects, Queue};

/// `wr_id` of a buffer is its address.
struct Ring<Q> {
    cq: CompletionQueue,
    queue: Q,
}

/// Memory that stays until the process ends.
pub(super) fn storage<T>(len: usize) -> NonNull<MaybeUninit<T>> {
    NonNull::from(Box::leak(Box::<[T]>::new_uninit_slice(len))).cast()
}

pub(super) fn make(objects: &Objects, spare: bool, form: Form) -> Box<dyn Subject> {
    let (shape, memory) = (objects.shape, objects.memory);
    assert_eq!(shape.queues, 1, "a program finds the queue of a CQE itself");
    let count = shape.receives();
    let sge = |i| Sge { addr: memory.start + u64::from(BUFFER) * u64::from(i), length: BUFFER, lkey: memory.lkey };
    let receives = (0..count).map(sge);
    let slots = storage::<Slot<u64>>(shape.slots as usize).cast();
    // SAFETY: fresh objects that no other code drives, and storage that stays.
    unsafe {
        let mut cq = CompletionQueue::new(objects.cq_layout).expect("a CQ");
        if form == Form::Compressed {
            cq = cq.with_compression(MiniCqeFormat::Checksum).expect("CQEs of 64 bytes");
        }
        match objects.queues[0] {
            Queue::Srq(layout) => {
                let mut queue = SharedReceiveQueue::new(layout, slots).expect("an SRQ");
                post(&mut queue, receives);
                if spare {
                    queue.load(sge(count).addr, &[sge(count)]).expect("room for the spare");
                }
                Box::new(Ring { cq, queue })
            }
            Queue::Rq(layout) => {
                let mut queue: ReceiveQueue<u64> = ReceiveQueue::new(layout, slots).expect("a receive queue");
                post(&mut queue, receives);
                Box::new(Ring { cq, queue })
            }
        }
    }
}

/// Posts with one doorbell.
///
/// # Safety
/// The memory stays, and is not posted.
unsafe fn post<Q: ReceiveRing<Data = u64>>(queue: &mut Q, receives: impl Iterator<Item = Sge>) {
    for sge in receives {
        // SAFETY: the memory stays, and is not posted.
        unsafe { queue.post(sge.addr, &[sge]) }.expect("room");
    }
    queue.ring_doorbell();
}

impl<Q: ReceiveRing<Data = u64>> Ring<Q> {
    /// Takes a batch, and passes the slot of each receive that has completed on.
    #[inline(always)]
    fn batch(&mut self, batch: u32, sum: &mut Sum, mut give_back: impl FnMut(&mut Q, u32)) {
        let queue = &mut self.queue;
        for _ in 0..batch {
            if let Some(cqe) = self.cq.peek().filter(|cqe| cqe.kind() == CqeKind::Send) {
                if let Some(slot) = queue.complete(cqe.wqe_counter()) {
                    let len = cqe.byte_count();
                    self.cq.advance();
                    // SAFETY: the slot is held.
                    sum.add(unsafe { queue.data(slot) }, len.into());
                    give_back(queue, slot);
                    continue;
                }
            }
            let Some(cqe) = self.cq.next() else { break };
            // SAFETY: all completions of the CQ belong to the queue, its buffers stay, and the slot is held.
            let (slot, len) = match unsafe { receive::complete(queue, cqe) } {
                Completion::Message(slot) => (slot, cqe.byte_count()),
                Completion::Failed(slot) => (slot, 0),
                Completion::NotAReceive | Completion::Stray => unexpected(),
            };
            // SAFETY: the slot is held.
            sum.add(unsafe { queue.data(slot) }, len.into());
            give_back(queue, slot);
        }
        self.cq.publish();
        self.queue.ring_doorbell();
    }
}

impl<Q: ReceiveRing<Data = u64>> Subject for Ring<Q> {
    fn cycle(&mut self, count: u32, batch: u32) -> Sum {
        let mut sum = Sum::default();
        for _ in 0..count.div_ceil(batch) {
            // SAFETY: the slot is held, and no code uses its buffer, which stays.
            self.batch(batch, &mut sum, |queue, slot| unsafe { queue.recycle(slot) });
        }
        sum
    }

    fn find_nothing(&mut self, count: u32, batch: u32) {
        let mut sum = Sum::default();
        for _ in 0..count {
            self.batch(batch, &mut sum, |_, _| unexpected());
        }
    }
}
