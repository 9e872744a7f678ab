//! The rings of doorbell.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use mlx5_ring::arm::CqDoorbell;
use mlx5_ring::bitmap;
use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::receive::{self, Completion, Message, Receiving};
use mlx5_ring::rq::{self, ReceiveQueue};
use mlx5_ring::sge::Sge;
use mlx5_ring::srq::{self, SharedReceiveQueue};
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
    /// Whether receives fail.
    failures: bool,
}

/// A queue that can be posted to.
trait Post: receive::Queue<Data = u64> {
    /// Posts with one doorbell.
    ///
    /// # Safety
    /// The memory stays, and there is room for all.
    unsafe fn post<const N: usize>(&mut self, receives: &[[u64; N]], lkey: u32);
}

macro_rules! post {
    ($queue:ty) => {
        impl Post for $queue {
            #[inline(always)]
            unsafe fn post<const N: usize>(&mut self, receives: &[[u64; N]], lkey: u32) {
                let describe = |addrs: &[u64; N]| {
                    (addrs[0], addrs.map(|addr| DataSegment::new(addr, BUFFER, lkey)))
                };
                // SAFETY: the caller's contract.
                if unsafe { self.posting().post_each(receives, describe) }.is_err() {
                    unexpected();
                }
            }
        }
    };
}

post!(SharedReceiveQueue<u64>);
post!(ReceiveQueue<u64>);

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
    let count = shape.receives();
    let slots = shape.slots as usize;
    let receive = |i: u32| {
        std::array::from_fn(|j| {
            memory.start + u64::from(BUFFER) * (u64::from(i) * N as u64 + j as u64)
        })
    };
    let receives: Box<[[u64; N]]> = (0..count).map(receive).collect();
    let lkey = memory.lkey;
    // SAFETY: fresh objects that nobody else drives, and storage that stays.
    unsafe {
        let mut cq = CompletionQueue::new(objects.cq_layout).expect("a CQ");
        if form == Form::Compressed {
            cq = cq.with_compression(MiniCqeFormat::Checksum).expect("CQEs of 64 bytes");
        }
        let doorbell = CqDoorbell::new(objects.arm);
        let failures = form == Form::Failures;
        match objects.queue {
            Queue::Srq(layout) => {
                let storage = srq::Storage {
                    states: storage::<u8>(slots).cast(),
                    data: storage(slots),
                    bitmap: storage::<u64>(bitmap::words(shape.slots)).cast(),
                };
                let mut queue = SharedReceiveQueue::new(layout, storage).expect("an SRQ");
                Post::post(&mut queue, &receives, lkey);
                if spare {
                    let sges: [Sge; N] =
                        receive(count).map(|addr| Sge { addr, length: BUFFER, lkey });
                    queue.load(sges[0].addr, &sges).expect("room for the spare");
                }
                Box::new(Ring { cq, doorbell, queue, receives, lkey, failures })
            }
            Queue::Rq(layout) => {
                let storage =
                    rq::Storage { states: storage::<u8>(slots).cast(), data: storage(slots) };
                let mut queue = ReceiveQueue::new(layout, storage).expect("a receive queue");
                Post::post(&mut queue, &receives, lkey);
                Box::new(Ring { cq, doorbell, queue, receives, lkey, failures })
            }
        }
    }
}

/// A message, or where there are any, a receive that failed.
#[inline(always)]
fn message<const FAILURES: bool>(completion: Completion<u64>) -> Option<Message<u64>> {
    match completion {
        Completion::Message(message) => Some(message),
        Completion::Failed(message) if FAILURES => Some(message),
        _ => None,
    }
}

impl<Q: Post, const N: usize> Ring<Q, N> {
    fn poll_all<const FAILURES: bool>(&mut self, count: u32, batch: u32) -> Sum {
        let mut sum = Sum::default();
        for _ in 0..count.div_ceil(batch) {
            // SAFETY: all completions of the CQ are the queue's.
            let mut receiving = unsafe { Receiving::new(&mut self.cq, &mut self.queue, batch) };
            while let Some(completion) = receiving.next() {
                let Some(message) = message::<FAILURES>(completion) else { unexpected() };
                let len = message.byte_count;
                // SAFETY: a message of this batch.
                sum.add(unsafe { receiving.take(message) }, len.into());
            }
        }
        sum
    }

    fn cycle_all<const FAILURES: bool>(&mut self, count: u32, batch: u32) -> Sum {
        let mut sum = Sum::default();
        for _ in 0..count.div_ceil(batch) {
            // SAFETY: all completions of the CQ are the queue's.
            let mut receiving = unsafe { Receiving::new(&mut self.cq, &mut self.queue, batch) };
            while let Some(completion) = receiving.next() {
                let Some(message) = message::<FAILURES>(completion) else { unexpected() };
                sum.add(message.data, message.byte_count.into());
                // SAFETY: a message of this batch, whose buffer nobody uses.
                unsafe { receiving.recycle(message) }
            }
        }
        sum
    }
}

impl<Q: Post, const N: usize> Subject for Ring<Q, N> {
    fn poll(&mut self, count: u32, batch: u32) -> Sum {
        let poll = if self.failures { Self::poll_all::<true> } else { Self::poll_all::<false> };
        poll(self, count, batch)
    }

    fn cycle(&mut self, count: u32, batch: u32) -> Sum {
        let cycle = if self.failures { Self::cycle_all::<true> } else { Self::cycle_all::<false> };
        cycle(self, count, batch)
    }

    fn post(&mut self, batch: u32) {
        for receives in self.receives.chunks(batch as usize) {
            // SAFETY: memory that stays, which is not posted.
            unsafe { self.queue.post(receives, self.lkey) }
        }
    }

    fn hold(&mut self) {
        // SAFETY: all completions of the CQ are the queue's.
        let mut receiving = unsafe { Receiving::new(&mut self.cq, &mut self.queue, 1) };
        if receiving.next().is_none() {
            unexpected();
        }
    }

    fn find_nothing(&mut self, count: u32, _batch: u32) {
        for _ in 0..count {
            if !self.cq.is_empty() {
                unexpected();
            }
        }
    }

    fn arm(&mut self, count: u32) {
        for _ in 0..count {
            self.doorbell.arm(self.cq.consumer_index(), false);
        }
    }
}
