//! Several queues on one CQ.

use std::mem::ManuallyDrop;

use mlx5_ring::cq::Completions;
use mlx5_ring::receive;
use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::CqeOpcode;

use super::direct::{Direct, Ring};
use super::facts::Facts;
use super::found::Found;
use super::resident::Resident;
use super::routes::Routes;

/// A batch, as it stands between two calls.
#[derive(Default)]
pub(crate) struct Standing {
    budget: u32,
    /// The queue whose doorbell is not rung yet.
    current: Option<u32>,
    pending: Option<Completed>,
}

/// A completed slot of one of several queues, and its CQE.
struct Completed {
    queue: u32,
    slot: u32,
    position: receive::Position,
}

/// A batch, in a call.
pub(super) struct Many<'a> {
    /// Publishes at the end of the batch, and not at the end of a call.
    completions: ManuallyDrop<Completions<'a>>,
    queues: &'a mut [Ring],
    routes: &'a Routes,
    cqe_size: usize,
    standing: &'a mut Standing,
}

impl Direct {
    /// Starts a batch.
    pub(super) fn start(&mut self, budget: u32) {
        self.many.budget = budget;
    }

    /// The CQE of the message that is lent.
    pub(super) fn lent(&self) -> Option<Facts<'_>> {
        let position = self.many.pending.as_ref()?.position;
        // SAFETY: of a batch that goes on.
        Some(Facts::Cqe(unsafe { self.cq.at(position) }))
    }

    pub(super) fn many(&mut self) -> Many<'_> {
        Many {
            cqe_size: self.cq.stride(),
            completions: ManuallyDrop::new(self.cq.completions()),
            queues: &mut self.queues,
            routes: &self.routes,
            standing: &mut self.many,
        }
    }
}

impl Many<'_> {
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<Found> {
        self.recycle();
        while self.standing.budget > 0 {
            let cqe = self.completions.next()?;
            let (position, qp_num) = (cqe.position(), cqe.qpn());
            self.standing.budget -= 1;
            let Some(queue) = self.routes.find(qp_num) else {
                // Left over from a QP that is gone; what it held came back with its queue.
                self.skip(position);
                continue;
            };
            // SAFETY: the QP number says whose the CQE is; buffers are posted by `Receiver`.
            let outcome = unsafe {
                match &mut self.queues[queue as usize] {
                    Ring::Srq(srq) => receive::complete(&mut srq.ring, cqe, self.cqe_size),
                    Ring::Rq(rq) => receive::complete(&mut rq.ring, cqe, self.cqe_size),
                    Ring::Gone => {
                        self.skip(position);
                        continue;
                    }
                }
            };
            let (receive::Outcome::Message(slot) | receive::Outcome::Failed(slot)) = outcome else {
                if self.skip(position) {
                    return Some(match outcome {
                        receive::Outcome::Stray => Found::Stray(qp_num),
                        _ => Found::Other(qp_num),
                    });
                }
                continue;
            };
            // SAFETY: the slot was posted.
            let resident = unsafe {
                match &self.queues[queue as usize] {
                    Ring::Srq(srq) => srq.ring.book().data(slot),
                    Ring::Rq(rq) => rq.ring.book().data(slot),
                    Ring::Gone => continue,
                }
            };
            // SAFETY: of this batch.
            let cqe = unsafe { self.completions.cqe(position) };
            let found = match outcome {
                receive::Outcome::Failed(_) => Found::Failed(resident),
                _ if cqe.opcode() == CqeOpcode::ResponderWriteImm => Found::Message(resident, 0),
                _ => Found::Message(resident, cqe.byte_count()),
            };
            self.standing.pending = Some(Completed { queue, slot, position });
            return Some(found);
        }
        None
    }

    /// Goes on after a CQE that no queue takes, unless it is the title of a compressed block: then the
    /// CQEs of the block come next, and it is `false`.
    #[cold]
    fn skip(&mut self, position: receive::Position) -> bool {
        // SAFETY: of this batch, and returned last.
        let cqe = unsafe { self.completions.cqe(position) };
        if cqe.format() != CqeFormat::Compressed || !self.completions.expand() {
            return true;
        }
        self.standing.budget += 1;
        false
    }

    /// The slot to give back. That may post a WQE, for which the doorbell of its queue is rung later.
    fn give_back(&mut self) -> Option<Completed> {
        let pending = self.standing.pending.take()?;
        if self.standing.current != Some(pending.queue) {
            self.ring();
            self.standing.current = Some(pending.queue);
        }
        Some(pending)
    }

    #[inline(always)]
    fn recycle(&mut self) {
        let Some(pending) = self.give_back() else {
            return;
        };
        // SAFETY: completed by this batch, given back once, and its borrower is gone.
        unsafe {
            match &mut self.queues[pending.queue as usize] {
                Ring::Srq(srq) => srq.ring.recycle(pending.slot),
                Ring::Rq(rq) => rq.ring.recycle(pending.slot),
                Ring::Gone => {}
            }
        }
    }

    pub(super) fn take(&mut self) {
        let Some(pending) = self.give_back() else {
            return;
        };
        // SAFETY: completed by this batch and given back once.
        unsafe {
            match &mut self.queues[pending.queue as usize] {
                Ring::Srq(srq) => srq.ring.release(pending.slot),
                Ring::Rq(rq) => rq.ring.release(pending.slot),
                Ring::Gone => {}
            }
        }
    }

    /// Describes another buffer in the slot of the message that is lent.
    ///
    /// # Safety
    /// The buffer is the queue's from now on.
    pub(super) unsafe fn replace(&mut self, resident: Resident, segment: DataSegment) {
        let Some(pending) = &self.standing.pending else {
            return;
        };
        // SAFETY: completed by this batch and not given back.
        unsafe {
            match &mut self.queues[pending.queue as usize] {
                Ring::Srq(srq) => receive::rewrite(&mut srq.ring, pending.slot, resident, segment),
                Ring::Rq(rq) => receive::rewrite(&mut rq.ring, pending.slot, resident, segment),
                Ring::Gone => {}
            }
        }
    }

    fn ring(&mut self) {
        match self.standing.current.take().map(|queue| &mut self.queues[queue as usize]) {
            Some(Ring::Srq(srq)) => srq.ring.ring(),
            Some(Ring::Rq(rq)) => rq.ring.ring(),
            Some(Ring::Gone) | None => {}
        }
    }

    pub(super) fn is_shared(&self, qp_num: u32) -> bool {
        let index = self.routes.find(qp_num);
        index.is_some_and(|index| matches!(self.queues[index as usize], Ring::Srq(_)))
    }

    pub(super) fn finish(mut self) {
        self.recycle();
        self.ring();
        drop(ManuallyDrop::into_inner(self.completions));
    }
}
