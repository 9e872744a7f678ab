//! The rings of doorbell.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use mlx5_ring::arm::CqDoorbell;
use mlx5_ring::completion::CqeKind;
use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::receive::{self, Completion, ReceiveRing};
use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::sge::Sge;
use mlx5_ring::slots::Slot;
use mlx5_ring::srq::SharedReceiveQueue;
use mlx5_wire::data::DataSegment;
use mlx5_wire::mini_cqe::MiniCqeFormat;

use super::{Subject, unexpected};
use crate::adapter::Form;
use crate::sum::Sum;
use crate::world::{BUFFER, Objects, Queue};

/// `wr_id` of a buffer is its address.
struct Ring<Q, const N: usize> {
    cq: CompletionQueue,
    doorbell: CqDoorbell,
    queue: Q,
    /// The addresses of the buffers of each receive, which are of one size and one region.
    receives: Box<[[u64; N]]>,
    lkey: u32,
}

/// Memory that stays until the process ends.
pub(super) fn storage<T>(len: usize) -> NonNull<MaybeUninit<T>> {
    NonNull::from(Box::leak(Box::<[T]>::new_uninit_slice(len))).cast()
}

pub(super) fn make(objects: &Objects, spare: bool, form: Form) -> Box<dyn Subject> {
    match objects.shape.sges {
        1 => make_of::<1>(objects, spare, form),
        2 => make_of::<2>(objects, spare, form),
        4 => make_of::<4>(objects, spare, form),
        sges => panic!("{sges} SGEs"),
    }
}

fn make_of<const N: usize>(objects: &Objects, spare: bool, form: Form) -> Box<dyn Subject> {
    let (shape, memory) = (objects.shape, objects.memory);
    assert_eq!(shape.queues, 1, "a program finds the queue of a CQE itself");
    let count = shape.receives();
    let receive =
        |i: u32| std::array::from_fn(|j| memory.start + u64::from(BUFFER) * (u64::from(i) * N as u64 + j as u64));
    let receives: Box<[[u64; N]]> = (0..count).map(receive).collect();
    let lkey = memory.lkey;
    let slots = storage::<Slot<u64>>(shape.slots as usize).cast();
    // SAFETY: fresh objects that no other code drives, and storage that stays.
    unsafe {
        let mut cq = CompletionQueue::new(objects.cq_layout).expect("a CQ");
        if form == Form::Compressed {
            cq = cq.with_compression(MiniCqeFormat::Checksum).expect("CQEs of 64 bytes");
        }
        let doorbell = CqDoorbell::new(objects.arm);
        match objects.queues[0] {
            Queue::Srq(layout) => {
                let mut queue = SharedReceiveQueue::new(layout, slots).expect("an SRQ");
                post(&mut queue, &receives, lkey);
                if spare {
                    let sges = sges(&receive(count), lkey);
                    queue.load(sges[0].addr, &sges).expect("room for the spare");
                }
                Box::new(Ring { cq, doorbell, queue, receives, lkey })
            }
            Queue::Rq(layout) => {
                let mut queue: ReceiveQueue<u64> = ReceiveQueue::new(layout, slots).expect("a receive queue");
                post(&mut queue, &receives, lkey);
                Box::new(Ring { cq, doorbell, queue, receives, lkey })
            }
        }
    }
}

#[inline(always)]
fn sges<const N: usize>(addrs: &[u64; N], lkey: u32) -> [Sge; N] {
    addrs.map(|addr| Sge { addr, length: BUFFER, lkey })
}

/// Posts with one doorbell.
///
/// # Safety
/// The memory stays, and is not posted.
#[inline(always)]
unsafe fn post<Q: ReceiveRing<Data = u64>, const N: usize>(queue: &mut Q, receives: &[[u64; N]], lkey: u32) {
    for addrs in receives {
        // SAFETY: the memory stays, and is not posted.
        let posted = unsafe {
            if N == 1 {
                queue.post_segment(addrs[0], DataSegment::new(addrs[0], BUFFER, lkey))
            } else {
                queue.post(addrs[0], &sges(addrs, lkey))
            }
        };
        if posted.is_err() {
            unexpected();
        }
    }
    queue.ring_doorbell();
}

impl<Q: ReceiveRing<Data = u64>, const N: usize> Ring<Q, N> {
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

impl<Q: ReceiveRing<Data = u64>, const N: usize> Subject for Ring<Q, N> {
    fn poll(&mut self, count: u32, batch: u32) -> Sum {
        let mut sum = Sum::default();
        for _ in 0..count.div_ceil(batch) {
            // SAFETY: the slot is held.
            self.batch(batch, &mut sum, |queue, slot| unsafe { queue.release(slot) });
        }
        sum
    }

    fn cycle(&mut self, count: u32, batch: u32) -> Sum {
        let mut sum = Sum::default();
        for _ in 0..count.div_ceil(batch) {
            // SAFETY: the slot is held, and no code uses its buffer, which stays.
            self.batch(batch, &mut sum, |queue, slot| unsafe { queue.recycle(slot) });
        }
        sum
    }

    fn post(&mut self, batch: u32) {
        for receives in self.receives.chunks(batch as usize) {
            // SAFETY: memory that stays, which is not posted.
            unsafe { post(&mut self.queue, receives, self.lkey) }
        }
    }

    fn hold(&mut self) {
        let mut sum = Sum::default();
        self.batch(1, &mut sum, |_, _| {});
        if sum == Sum::default() {
            unexpected();
        }
    }

    fn find_nothing(&mut self, count: u32, batch: u32) {
        let mut sum = Sum::default();
        for _ in 0..count {
            self.batch(batch, &mut sum, |_, _| unexpected());
        }
    }

    fn arm(&mut self, count: u32) {
        for _ in 0..count {
            self.doorbell.arm(self.cq.consumer_index(), false);
        }
    }
}
