//! Receiving: a batch of completions whose messages are lent in place.

use mlx5_ring::receive::{Queue, Receiving};
use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::srq::SharedReceiveQueue;
use mlx5_ring::{cq, receive};
use mlx5_wire::cqe::CqeFormat;
use mlx5_wire::opcode::CqeOpcode;
use rdma_core_sys as sys;
use sys::ibv_wc;

use super::direct::Ring;
use super::facts::Facts;
use super::failure::{Cause, Failure};
use super::message::Message;
use super::resident::{Books, Owner, Resident};
use super::routes::Routes;
use super::verbs::{Verbs, Wc};
use super::{Engine, Receiver};

/// Completions that one batch takes at most, unless asked otherwise.
const BUDGET: u32 = 64;

impl Receiver {
    /// Takes what has arrived, at most 64 completions: see [`poll_up_to`](Self::poll_up_to).
    #[inline]
    pub fn poll(&mut self) -> Batch<'_> {
        self.poll_up_to(BUDGET)
    }

    /// Takes what has arrived, at most `budget` completions.
    ///
    /// The batch lends each message in place. When it is dropped, the CQEs are given back, and all slots
    /// that were recycled meanwhile are posted with one doorbell; so keep batches short: on a CQ of `n`
    /// entries the device can write `n` completions before a batch has ended, and no more.
    #[inline]
    pub fn poll_up_to(&mut self, budget: u32) -> Batch<'_> {
        self.recover();
        if self.upkeep.is_some() {
            self.keep_up();
        }
        let kind = match &mut self.engine {
            Engine::Direct(direct) => match &mut direct.queues[..] {
                [Ring::Srq(srq)] => {
                    // SAFETY: it is the only queue, so every receive on the CQ is its.
                    let single = unsafe { Single::new(&mut direct.cq, &mut srq.ring, budget) };
                    Kind::Srq(single)
                }
                [Ring::Rq(rq)] => {
                    // SAFETY: as above.
                    let single = unsafe { Single::new(&mut direct.cq, &mut rq.ring, budget) };
                    Kind::Rq(single)
                }
                queues => Kind::Many(Many {
                    cqe_size: direct.cq.stride(),
                    completions: direct.cq.completions(),
                    queues,
                    routes: &direct.routes,
                    budget,
                    current: None,
                    pending: None,
                }),
            },
            Engine::Verbs(verbs) => {
                Kind::Verbs(Through { verbs, budget, current: None, pending: None })
            }
        };
        Batch { kind, books: &mut self.books }
    }
}

/// Completions that have arrived. Ends when it is dropped.
pub struct Batch<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) books: &'a mut Books,
}

pub(super) enum Kind<'a> {
    /// One SRQ on the CQ: no routing.
    Srq(Single<'a, SharedReceiveQueue<Resident>>),
    /// One receive queue on the CQ: no routing.
    Rq(Single<'a, ReceiveQueue<Resident>>),
    Many(Many<'a>),
    Verbs(Through<'a>),
}

/// What the device reported next.
enum Found {
    Message(Resident, u32),
    Failed(Resident),
    /// Cannot be true.
    Stray(u32),
    /// Not of a receive.
    Other(u32),
}

impl<'a> Batch<'a> {
    /// The next message, or the next receive that failed; `None` when nothing more has arrived or the
    /// budget is used up. The message before it is recycled, unless it was taken.
    #[expect(clippy::should_implement_trait, reason = "the item borrows from the batch")]
    #[inline]
    pub fn next(&mut self) -> Option<Result<Message<'_, 'a>, Failure>> {
        let found = match &mut self.kind {
            Kind::Srq(single) => single.next()?,
            Kind::Rq(single) => single.next()?,
            Kind::Many(many) => many.next(self.books)?,
            Kind::Verbs(through) => through.next(self.books)?,
        };
        match found {
            // A receive that was posted through the ring itself has no buffer of ours.
            Found::Message(resident, byte_count) if resident.capacity() > 0 => {
                let len = byte_count.min(resident.capacity());
                Some(Ok(Message { resident, len, batch: self }))
            }
            found => Some(Err(self.failure(found))),
        }
    }

    #[cold]
    fn failure(&mut self, found: Found) -> Failure {
        let mut buffers = Vec::new();
        let (qp_num, cause, vendor_err) = match found {
            Found::Message(resident, _) => {
                let qp_num = self.facts().map_or(0, |facts| facts.qp_num());
                self.kind.take();
                (qp_num, Cause::Foreign(resident.wr_id()), 0)
            }
            Found::Failed(resident) => {
                let (qp_num, cause, vendor_err) =
                    self.facts().map_or((0, Cause::Stray, 0), |facts| facts.failure());
                let faulted = cause == Cause::PageFault;
                if !faulted {
                    self.books.qps.mark_failed(qp_num);
                }
                // An SRQ lives on when a QP fails; a QP that failed takes no more receives.
                // Memory that is not ours may be what failed it: posted again it would fail the next one
                // too, and so would memory that the device did not find.
                let foreign = resident.owner() == Owner::Foreign;
                if faulted || foreign || !self.kind.is_shared(qp_num) {
                    self.kind.take();
                    self.books.leave(resident, 0, |buffer| buffers.push(buffer));
                }
                (qp_num, cause, vendor_err)
            }
            Found::Stray(qp_num) => (qp_num, Cause::Stray, 0),
            Found::Other(qp_num) => (qp_num, Cause::NotAReceive, 0),
        };
        Failure { qp_num, cause, vendor_err, buffers }
    }

    pub(super) fn facts(&self) -> Option<Facts<'_>> {
        match &self.kind {
            Kind::Srq(single) => single.facts(),
            Kind::Rq(single) => single.facts(),
            Kind::Many(many) => many.facts(),
            Kind::Verbs(through) => through.facts(),
        }
    }
}

impl Kind<'_> {
    /// Keeps the slot of the current completion from being recycled.
    pub(super) fn take(&mut self) {
        match self {
            Self::Srq(single) => single.take(),
            Self::Rq(single) => single.take(),
            Self::Many(many) => many.take(),
            Self::Verbs(through) => through.take(),
        }
    }

    fn is_shared(&self, qp_num: u32) -> bool {
        match self {
            Self::Srq(_) => true,
            Self::Rq(_) => false,
            Self::Many(many) => many
                .routes
                .find(qp_num)
                .is_some_and(|index| matches!(many.queues[index as usize], Ring::Srq(_))),
            Self::Verbs(through) => through.is_shared(),
        }
    }
}

/// The only queue of a CQ.
pub(super) struct Single<'a, Q: Queue<Data = Resident>> {
    receiving: Receiving<'a, Q>,
    pending: Option<receive::Message<Resident>>,
}

impl<'a, Q: Queue<Data = Resident>> Single<'a, Q> {
    /// # Safety
    /// Every receive on `cq` belongs to `queue`.
    #[inline]
    unsafe fn new(cq: &'a mut cq::CompletionQueue, queue: &'a mut Q, budget: u32) -> Self {
        // SAFETY: the caller's contract; buffers are posted by `Receiver`, which owns them.
        Self { receiving: unsafe { Receiving::new(cq, queue, budget) }, pending: None }
    }

    #[inline]
    fn next(&mut self) -> Option<Found> {
        self.recycle();
        let found = self.find();
        self.receiving.note();
        found
    }

    #[inline]
    fn find(&mut self) -> Option<Found> {
        match self.receiving.next()? {
            receive::Completion::Message(message) => {
                // SAFETY: the position is of this batch.
                let cqe = unsafe { self.receiving.cqe(message.position()) };
                let written = cqe.op_own() >> 4 == CqeOpcode::ResponderWriteImm.bits();
                let len = if written { 0 } else { message.byte_count };
                let found = Found::Message(message.data, len);
                self.pending = Some(message);
                Some(found)
            }
            receive::Completion::Failed(message) => {
                let found = Found::Failed(message.data);
                self.pending = Some(message);
                Some(found)
            }
            receive::Completion::Stray(position) => {
                // SAFETY: the position is of this batch.
                let cqe = unsafe { self.receiving.cqe(position) };
                Some(Found::Stray(cqe.qpn()))
            }
            receive::Completion::Other(position) => {
                // SAFETY: the position is of this batch.
                let cqe = unsafe { self.receiving.cqe(position) };
                Some(Found::Other(cqe.qpn()))
            }
        }
    }

    #[inline]
    fn recycle(&mut self) {
        if let Some(message) = self.pending.take() {
            // SAFETY: the message is of this batch, and its borrower is gone: the buffer is the queue's.
            unsafe { self.receiving.recycle(message) }
        }
    }

    #[inline]
    fn take(&mut self) {
        if let Some(message) = self.pending.take() {
            // SAFETY: the message is of this batch.
            unsafe { self.receiving.take(message) };
            self.receiving.note();
        }
    }

    fn facts(&self) -> Option<Facts<'_>> {
        // SAFETY: the position is of this batch.
        Some(Facts::Cqe(unsafe { self.receiving.cqe(self.pending.as_ref()?.position()) }))
    }
}

impl<Q: Queue<Data = Resident>> Drop for Single<'_, Q> {
    #[inline]
    fn drop(&mut self) {
        self.recycle();
    }
}

/// Several queues on one CQ.
pub(super) struct Many<'a> {
    completions: cq::Completions<'a>,
    queues: &'a mut [Ring],
    routes: &'a Routes,
    cqe_size: usize,
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

impl Many<'_> {
    fn next(&mut self, _books: &Books) -> Option<Found> {
        self.recycle();
        while self.budget > 0 {
            let cqe = self.completions.next()?;
            let (position, qp_num) = (cqe.position(), cqe.qpn());
            self.budget -= 1;
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
            self.pending = Some(Completed { queue, slot, position });
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
        self.budget += 1;
        false
    }

    fn facts(&self) -> Option<Facts<'_>> {
        let position = self.pending.as_ref()?.position;
        // SAFETY: of this batch.
        Some(Facts::Cqe(unsafe { self.completions.cqe(position) }))
    }

    fn recycle(&mut self) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        if self.current != Some(pending.queue) {
            self.ring();
            self.current = Some(pending.queue);
        }
        // SAFETY: completed by this batch, given back once, and its borrower is gone.
        unsafe {
            match &mut self.queues[pending.queue as usize] {
                Ring::Srq(srq) => srq.ring.recycle(pending.slot),
                Ring::Rq(rq) => rq.ring.recycle(pending.slot),
                Ring::Gone => {}
            }
        }
    }

    fn take(&mut self) {
        let Some(pending) = self.pending.take() else {
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

    fn ring(&mut self) {
        match self.current.take().map(|queue| &mut self.queues[queue as usize]) {
            Some(Ring::Srq(srq)) => srq.ring.ring(),
            Some(Ring::Rq(rq)) => rq.ring.ring(),
            Some(Ring::Gone) | None => {}
        }
    }
}

impl Drop for Many<'_> {
    fn drop(&mut self) {
        self.recycle();
        self.ring();
    }
}

/// The verbs path.
pub(super) struct Through<'a> {
    verbs: &'a mut Verbs,
    budget: u32,
    /// The queue whose chain is not posted yet.
    current: Option<u32>,
    pending: Option<Reported>,
}

/// A completed slot, and what verbs reported of it.
struct Reported {
    queue: u32,
    slot: u32,
    wc: Wc,
}

impl Through<'_> {
    fn next(&mut self, books: &mut Books) -> Option<Found> {
        self.recycle(books);
        self.budget = self.budget.checked_sub(1)?;
        let wc = self.verbs.next()?;
        let Wc { wc: ibv_wc { wr_id, status, opcode, byte_len, qp_num, .. }, .. } = wc;
        let queue = (wr_id >> 32) as u32;
        let completed = self.verbs.queues.get_mut(queue as usize).and_then(|q| q.complete(wr_id));
        let Some((slot, resident)) = completed else {
            return Some(Found::Stray(qp_num));
        };
        self.pending = Some(Reported { queue, slot, wc });
        Some(if status == sys::IBV_WC_SUCCESS {
            let written = opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM;
            Found::Message(resident, if written { 0 } else { byte_len })
        } else {
            self.verbs.queues[queue as usize].fail();
            Found::Failed(resident)
        })
    }

    fn facts(&self) -> Option<Facts<'_>> {
        Some(Facts::Wc(&self.pending.as_ref()?.wc))
    }

    fn is_shared(&self) -> bool {
        self.pending
            .as_ref()
            .is_some_and(|pending| self.verbs.queues[pending.queue as usize].is_shared())
    }

    fn recycle(&mut self, books: &mut Books) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        if self.current != Some(pending.queue) {
            self.flush(books);
            self.current = Some(pending.queue);
        }
        let queue = &mut self.verbs.queues[pending.queue as usize];
        queue.recycle(pending.slot);
        if queue.chain_is_full() {
            self.flush(books);
        }
    }

    fn take(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.verbs.queues[pending.queue as usize].release(pending.slot);
        }
    }

    /// Posts what was recycled. A QP that failed meanwhile takes nothing: then the buffers go back to
    /// their pools, as they do when it is destroyed.
    fn flush(&mut self, books: &mut Books) {
        if let Some(queue) = self.current.take() {
            let mut rejected = Vec::new();
            let _ = self.verbs.queues[queue as usize].flush(books, &mut rejected);
            for resident in rejected {
                books.leave(resident, 0, drop);
            }
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if let Kind::Verbs(through) = &mut self.kind {
            through.recycle(self.books);
            through.flush(self.books);
        }
    }
}
