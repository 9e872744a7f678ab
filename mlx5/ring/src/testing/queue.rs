//! Receive queues of all kinds, each beside the device's side of it.

use core::ptr::NonNull;

use super::{Arena, device::Device};
use crate::cq::CompletionQueue;
use crate::ordered::OrderedReceiveQueue;
use crate::rq::{self, ReceiveQueue};
use crate::slots::Slot;
use crate::srq::{self, SharedReceiveQueue};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Srq,
    Ordered,
    Rq,
}

/// Software's side of a queue. The value of a slot is the number of its buffer.
#[derive(Debug)]
pub enum Ring {
    Srq(SharedReceiveQueue<u32>),
    Ordered(OrderedReceiveQueue<u32>),
    Rq(ReceiveQueue<u32>),
}

/// Does the same with a queue of any kind.
macro_rules! on {
    ($queue:expr, $ring:ident => $result:expr) => {
        match $queue {
            $crate::testing::queue::Ring::Srq($ring) => $result,
            $crate::testing::queue::Ring::Ordered($ring) => $result,
            $crate::testing::queue::Ring::Rq($ring) => $result,
        }
    };
}
pub(crate) use on;

#[derive(Clone, Debug)]
pub struct Queue {
    pub ring: Ring,
    pub device: Device,
}

impl Queue {
    pub fn new(arena: &mut Arena, kind: Kind, slots: u32, stride: usize) -> Self {
        let device = Device::new(arena, slots, stride, kind != Kind::Rq);
        let memory: NonNull<Slot<u32>> = arena.cut(slots as usize * size_of::<Slot<u32>>());
        let (buf, dbrec, stride) = (device.wqes, device.dbrec, stride as u32);
        // SAFETY: memory of the arena, which the caller keeps as long as the queue.
        let ring = unsafe {
            match kind {
                Kind::Srq | Kind::Ordered => {
                    let layout = srq::Layout { buf, dbrec, stride, head: 0, tail: slots - 1 };
                    match kind {
                        Kind::Srq => Ring::Srq(SharedReceiveQueue::new(layout, memory).unwrap()),
                        _ => Ring::Ordered(OrderedReceiveQueue::new(layout, memory).unwrap()),
                    }
                }
                Kind::Rq => {
                    let layout = rq::Layout { buf, dbrec, stride, wqe_cnt: slots };
                    Ring::Rq(ReceiveQueue::new(layout, memory).unwrap())
                }
            }
        };
        Self { ring, device }
    }

    /// Puts the counters shortly before `end`. Returns how far that is from where they were.
    pub fn shift(&mut self, end: u32) -> u32 {
        let by = match &mut self.ring {
            Ring::Srq(srq) => srq.count_to(end),
            Ring::Ordered(srq) => srq.count_to(end),
            Ring::Rq(rq) => rq.count_to(end),
        };
        let Device { seen, .. } = self.device;
        self.device.set_record(self.device.record().wrapping_add(by as u16));
        self.device.seen = seen.wrapping_add(by as u16);
        by
    }
}

/// Copies a value bit by bit.
macro_rules! bitwise {
    ($value:expr) => {
        // SAFETY: pointers and numbers, nothing that a destructor gives back. The memory belongs to the copy from the
        // moment on at which a test puts that back, too.
        unsafe { core::ptr::read($value) }
    };
}

impl Clone for Ring {
    fn clone(&self) -> Self {
        bitwise!(self)
    }
}

impl Clone for CompletionQueue {
    fn clone(&self) -> Self {
        bitwise!(self)
    }
}
