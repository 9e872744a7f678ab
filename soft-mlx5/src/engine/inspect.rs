//! Places of the queues of a program, and the progress of the device in them, for a test that looks at
//! the same memory.

use super::Nic;
use crate::objects::uar::BLUE_FLAME_WRITE;
use crate::objects::{CqAttr, QpAttr, RwqAttr, SrqAttr, WqState};

/// A queue pair.
#[derive(Debug, Clone, Copy)]
pub struct QueuePair {
    /// Its number.
    pub number: u32,
    /// Attributes of the creation.
    pub attr: QpAttr,
    /// Running index of the next receive WQE to take.
    pub receive_index: u16,
    /// Running index of the next basic block of the send queue to execute.
    pub send_index: u16,
}

/// A shared receive queue.
#[derive(Debug, Clone, Copy)]
pub struct SharedReceiveQueue {
    /// Its number.
    pub number: u32,
    /// Attributes of the creation.
    pub attr: SrqAttr,
    /// Slot of the next WQE to take, to which the link of the WQE before it leads.
    pub next: u16,
    /// WQEs taken.
    pub taken: u16,
}

/// A receive queue of frames: a WQ, or the receive side of a raw packet queue pair.
#[derive(Debug, Clone, Copy)]
pub struct FrameQueue {
    /// Its number.
    pub number: u32,
    /// Attributes of the creation.
    pub attr: RwqAttr,
    /// State.
    pub state: WqState,
    /// Running index of the next WQE to take.
    pub receive_index: u16,
    /// Frames dropped for want of a WQE.
    pub dropped: u64,
}

/// A completion queue.
#[derive(Debug, Clone, Copy)]
pub struct CompletionQueue {
    /// Its number.
    pub number: u32,
    /// Attributes of the creation.
    pub attr: CqAttr,
    /// CQEs written.
    pub produced: u32,
    /// Index of the next CQE at the last event, which announced the CQEs before it.
    pub last_notified: u32,
}

/// All queues of a device, in the order of their numbers.
#[derive(Debug, Clone, Default)]
pub struct Queues {
    /// Queue pairs, also those that a driver makes for itself.
    pub qps: Vec<QueuePair>,
    /// Shared receive queues.
    pub srqs: Vec<SharedReceiveQueue>,
    /// Receive queues of frames.
    pub wqs: Vec<FrameQueue>,
    /// Completion queues.
    pub cqs: Vec<CompletionQueue>,
}

impl Nic {
    /// Returns all queues.
    pub fn queues(&self) -> Queues {
        let qps = self.qps.iter().map(|(number, qp)| QueuePair {
            number,
            attr: qp.attr,
            receive_index: self.receive_index(number).unwrap_or_else(|| qp.rq.next()),
            send_index: qp.sq.next(),
        });
        let srqs = self.core.srqs.iter().map(|(number, srq)| SharedReceiveQueue {
            number,
            attr: *srq.attr(),
            next: srq.next(),
            taken: srq.taken(),
        });
        let cqs = self.core.cqs.iter().map(|(number, cq)| CompletionQueue {
            number,
            attr: *cq.attr(),
            produced: cq.producer(),
            last_notified: cq.last_notified(),
        });
        let wqs = self.frames.wqs.iter().map(|(number, wq)| FrameQueue {
            number,
            attr: wq.attr,
            state: wq.state,
            receive_index: wq.next(),
            dropped: wq.dropped,
        });
        Queues { qps: qps.collect(), srqs: srqs.collect(), wqs: wqs.collect(), cqs: cqs.collect() }
    }

    /// Returns the register of a queue pair as a program has written it: its two halves, each as far as a BlueFlame
    /// write goes. The device clears the first eight bytes when it takes a doorbell. `None` for a queue pair that
    /// may ring at any register of its page.
    pub fn register(&self, number: u32) -> Option<[[u8; BLUE_FLAME_WRITE]; 2]> {
        self.uar.peek_register(self.qps.get(number)?.attr.register)
    }

    /// Returns the doorbell that arms a CQ, as a program has written it; zero when the device has taken it.
    pub fn cq_doorbell(&self, number: u32) -> Option<[u8; 8]> {
        self.uar.peek_arm(self.core.cqs.get(number)?.attr().uar)
    }
}
