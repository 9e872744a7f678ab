//! The least that receiving can be: each CQE is read once, and nothing is checked.

use std::mem::offset_of;
use std::ptr::NonNull;

use mlx5_ring::{barrier, cq};
use mlx5_wire::be::Be32;
use mlx5_wire::cqe::Cqe64;
use mlx5_wire::dbrec;

use super::Subject;
use crate::adapter::Form;
use crate::sum::Sum;
use crate::world::{BUFFER, Objects, Queue};

/// Relies on everything: that all completions have arrived, are messages, and come in the order of posting,
/// so that the buffer of the `n`th message is that of slot `n`.
struct Floor {
    cq: cq::Layout,
    record: NonNull<Be32>,
    consumer_index: u32,
    /// WQEs posted.
    posted: u32,
    /// `wr_id` of each slot.
    ids: Box<[u64]>,
    /// Posts all buffers before the first message.
    _ring: Box<dyn Subject>,
}

pub(super) fn make(objects: &Objects) -> Box<dyn Subject> {
    let record = match objects.queue {
        Queue::Srq(srq) => srq.dbrec,
        Queue::Rq(rq) => rq.dbrec,
    };
    let (shape, memory) = (objects.shape, objects.memory);
    let ids = (0..u64::from(shape.slots)).map(|i| memory.start + i * u64::from(BUFFER));
    Box::new(Floor {
        cq: objects.cq_layout,
        record,
        consumer_index: 0,
        posted: shape.receives(),
        ids: ids.collect(),
        _ring: super::ring::make(objects, true, Form::Plain),
    })
}

impl Subject for Floor {
    fn poll(&mut self, _count: u32, _batch: u32) -> Sum {
        unreachable!("the floor is measured for cycles only")
    }

    fn post(&mut self, _batch: u32) {
        unreachable!("the floor is measured for cycles only")
    }

    fn cycle(&mut self, count: u32, batch: u32) -> Sum {
        let mut sum = Sum::default();
        let mask = self.ids.len() - 1;
        let mut left = count;
        while left > 0 {
            let batch = batch.min(left);
            for index in self.consumer_index..self.consumer_index + batch {
                let cqe = (index & (self.cq.cqe_cnt - 1)) as usize * Cqe64::SIZE;
                // SAFETY: inside the CQ, and below the number of slots, a power of two.
                let (id, len) = unsafe {
                    let len = self.cq.buf.add(cqe + offset_of!(Cqe64, byte_cnt)).cast::<Be32>();
                    (*self.ids.get_unchecked(index as usize & mask), len.read_volatile().get())
                };
                sum.add(id, len.into());
            }
            self.consumer_index += batch;
            self.posted += batch;
            barrier::wqe_before_doorbell_record();
            // SAFETY: both records are mapped, and the floor's.
            unsafe {
                self.record.write_volatile(dbrec::work_queue(self.posted));
                self.cq.dbrec.write_volatile(dbrec::completion_queue(self.consumer_index));
            }
            left -= batch;
        }
        sum
    }
}
