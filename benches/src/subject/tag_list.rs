//! The tag list of doorbell.

use std::hint::black_box;
use std::mem::MaybeUninit;

use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::sge::Sge;
use mlx5_ring::sq::BasicBlocks;
use mlx5_ring::tag_list::{Append, Completion, Storage, TagList};

use super::ring::storage;
use super::{Subject, unexpected};
use crate::sum::Sum;
use crate::tags::Objects;
use crate::world::BUFFER;

/// Messages of a batch, at most.
const MOST: usize = 64;

/// The value of a buffer is its address, and so is its tag.
struct Tags {
    cq: CompletionQueue,
    list: TagList<u64>,
    addrs: Box<[u64]>,
    lkey: u32,
}

pub(super) fn make(objects: &Objects, batch: u32) -> Box<dyn Subject> {
    let tags = objects.shape.receives();
    let layout = objects.command;
    let storage = Storage { entries: storage(tags as usize + 1), operations: storage(layout.wqe_cnt as usize) };
    // SAFETY: fresh objects that no other code drives, and storage that stays.
    let (cq, list) = unsafe {
        let queue = BasicBlocks::new(layout).expect("a send queue");
        let cq = CompletionQueue::new(objects.cq_layout).expect("a CQ");
        (cq, TagList::new(queue, storage, tags as u16))
    };
    let addrs = (0..tags).map(|i| objects.buffer(i)).collect();
    let mut tags = Tags { cq, list, addrs, lkey: objects.memory.lkey };
    tags.post(batch);
    Box::new(tags)
}

/// Adds receives with one doorbell, and asks for one CQE. The handle of each is kept, because a receive cannot be
/// removed without it; libmlx5 leaves the handle in the work request.
#[inline(always)]
fn add(list: &mut TagList<u64>, addrs: &[u64], lkey: u32) {
    let mut handles = [const { MaybeUninit::uninit() }; MOST];
    let mut posting = list.posting();
    for (i, (&addr, handle)) in addrs.iter().zip(&mut handles).enumerate() {
        let append = Append {
            data: addr,
            tag: addr,
            mask: u64::MAX,
            buffer: Some(Sge { addr, length: BUFFER, lkey }),
            signaled: i + 1 == addrs.len(),
        };
        // SAFETY: memory that stays, which is not posted.
        match unsafe { posting.append(append, None) } {
            Ok(added) => _ = handle.write(added),
            Err(_) => unexpected(),
        }
    }
    black_box(&handles);
}

impl Tags {
    /// Takes at most `batch` messages, and puts their buffers into `addrs`. Returns the number of messages.
    #[inline(always)]
    fn poll_batch(&mut self, batch: u32, addrs: &mut [u64; MOST], sum: &mut Sum) -> usize {
        let size = self.cq.stride();
        let mut polled = 0;
        while polled < batch as usize {
            let Some(cqe) = self.cq.next() else { break };
            // SAFETY: from the CQ of the list, once and in order.
            match unsafe { self.list.complete(cqe, size) } {
                Completion::Received { data, byte_count, .. } => {
                    sum.add(data, byte_count.into());
                    addrs[polled] = data;
                    polled += 1;
                }
                Completion::Appended { .. } | Completion::Matched { .. } => {}
                _ => unexpected(),
            }
        }
        self.cq.publish();
        polled
    }
}

impl Subject for Tags {
    fn poll(&mut self, count: u32, batch: u32) -> Sum {
        let mut sum = Sum::default();
        let mut left = count as usize;
        while left > 0 {
            left -= self.poll_batch(batch, &mut [0; MOST], &mut sum);
        }
        sum
    }

    fn post(&mut self, batch: u32) {
        for addrs in self.addrs.chunks(batch as usize) {
            add(&mut self.list, addrs, self.lkey);
        }
    }

    fn cycle(&mut self, count: u32, batch: u32) -> Sum {
        let mut sum = Sum::default();
        let mut left = count as usize;
        let mut addrs = [0; MOST];
        while left > 0 {
            let polled = self.poll_batch(batch, &mut addrs, &mut sum);
            add(&mut self.list, &addrs[..polled], self.lkey);
            left -= polled;
        }
        sum
    }
}
