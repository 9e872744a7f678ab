//! Receiving: a batch of completions whose messages are lent in place.

use std::fmt;
use std::ops::Deref;
use std::slice;

use mlx5_ring::receive::{Queue, Receiving};
use mlx5_ring::rq::ReceiveQueue;
use mlx5_ring::srq::SharedReceiveQueue;
use mlx5_ring::{completion, cq, receive};
use mlx5_wire::opcode::CqeOpcode;
use rdma_core_sys as sys;

use super::direct::Ring;
use super::resident::{Books, Owner, Resident};
use super::routes::Routes;
use super::status::wc_status;
use super::verbs::Verbs;
use super::{Engine, Receiver};
use crate::memory::RecvBuffer;
use crate::status::WcStatus;

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
    kind: Kind<'a>,
    books: &'a mut Books,
}

enum Kind<'a> {
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
    Failed(Resident, Facts, WcStatus, u32),
    Stray(Facts),
}

/// What a completion says beside the message.
#[derive(Clone, Copy)]
struct Facts {
    qp_num: u32,
    imm: Option<u32>,
    /// Bytes that the peer wrote elsewhere, for the notice of an RDMA WRITE.
    written: Option<u32>,
}

impl Facts {
    const NONE: Self = Self { qp_num: 0, imm: None, written: None };

    fn of_cqe(cqe: &completion::Cqe<'_>) -> Self {
        let opcode = cqe.opcode();
        let write = opcode == CqeOpcode::ResponderWriteImm;
        let imm = (write || opcode == CqeOpcode::ResponderSendImm).then(|| cqe.imm_inval_pkey());
        Self { qp_num: cqe.qpn(), imm, written: write.then(|| cqe.byte_count()) }
    }

    fn of_wc(wc: &sys::ibv_wc) -> Self {
        let imm = (wc.wc_flags & sys::IBV_WC_WITH_IMM != 0)
            // SAFETY: the flag says which member of the union was written.
            .then(|| u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }));
        let write = wc.opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM;
        Self { qp_num: wc.qp_num, imm, written: write.then_some(wc.byte_len) }
    }
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
                let facts = self.facts();
                self.kind.take();
                (facts.qp_num, Cause::Foreign(resident.wr_id()), 0)
            }
            Found::Failed(resident, facts, status, vendor_err) => {
                // An SRQ lives on when a QP fails; a QP that failed takes no more receives.
                // Memory that is not ours may be what failed it: posted again it would fail the next one too.
                let foreign = resident.owner() == Owner::Foreign;
                if foreign || !self.kind.is_shared(facts.qp_num) {
                    self.kind.take();
                    self.books.leave(resident, 0, |buffer| buffers.push(buffer));
                }
                (facts.qp_num, Cause::Status(status), vendor_err)
            }
            Found::Stray(facts) => (facts.qp_num, Cause::Stray, 0),
        };
        Failure { qp_num, cause, vendor_err, buffers }
    }

    fn facts(&self) -> Facts {
        match &self.kind {
            Kind::Srq(single) => single.facts(),
            Kind::Rq(single) => single.facts(),
            Kind::Many(many) => many.pending.as_ref().map(|pending| pending.facts),
            Kind::Verbs(through) => through.pending.as_ref().map(|pending| pending.facts),
        }
        .unwrap_or(Facts::NONE)
    }
}

impl Kind<'_> {
    /// Keeps the slot of the current completion from being recycled.
    fn take(&mut self) {
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
struct Single<'a, Q: Queue<Data = Resident>> {
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
        loop {
            match self.receiving.next()? {
                receive::Completion::Message(message) => {
                    // SAFETY: the position is of this batch.
                    let cqe = unsafe { self.receiving.cqe(message.position()) };
                    let written = cqe.op_own() >> 4 == CqeOpcode::ResponderWriteImm.bits();
                    let len = if written { 0 } else { message.byte_count };
                    let found = Found::Message(message.data, len);
                    self.pending = Some(message);
                    return Some(found);
                }
                receive::Completion::Failed(message) => {
                    // SAFETY: the position is of this batch.
                    let cqe = unsafe { self.receiving.cqe(message.position()) };
                    let found = failed(&cqe, message.data);
                    self.pending = Some(message);
                    return Some(found);
                }
                receive::Completion::Stray(position) => {
                    // SAFETY: the position is of this batch.
                    let cqe = unsafe { self.receiving.cqe(position) };
                    return Some(Found::Stray(Facts::of_cqe(&cqe)));
                }
                receive::Completion::Other(_) => {}
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

    fn facts(&self) -> Option<Facts> {
        // SAFETY: the position is of this batch.
        let cqe = unsafe { self.receiving.cqe(self.pending.as_ref()?.position()) };
        Some(Facts::of_cqe(&cqe))
    }
}

impl<Q: Queue<Data = Resident>> Drop for Single<'_, Q> {
    #[inline]
    fn drop(&mut self) {
        self.recycle();
    }
}

fn failed(cqe: &completion::Cqe<'_>, resident: Resident) -> Found {
    let status = WcStatus::from_raw(wc_status(cqe.syndrome()));
    Found::Failed(resident, Facts::of_cqe(cqe), status, cqe.vendor_err_synd().into())
}

/// A completed slot of one of several queues.
struct Pending {
    queue: u32,
    slot: u32,
    facts: Facts,
}

/// Several queues on one CQ.
struct Many<'a> {
    completions: cq::Completions<'a>,
    queues: &'a mut [Ring],
    routes: &'a Routes,
    cqe_size: usize,
    budget: u32,
    /// The queue whose doorbell is not rung yet.
    current: Option<u32>,
    pending: Option<Pending>,
}

impl Many<'_> {
    fn next(&mut self, _books: &Books) -> Option<Found> {
        self.recycle();
        loop {
            self.budget = self.budget.checked_sub(1)?;
            let cqe = self.completions.next()?;
            let facts = Facts::of_cqe(&cqe);
            let Some(queue) = self.routes.find(facts.qp_num) else {
                // Left over from a QP that is gone; what it held came back with its queue.
                continue;
            };
            // SAFETY: the QP number says whose the CQE is; buffers are posted by `Receiver`.
            let outcome = unsafe {
                match &mut self.queues[queue as usize] {
                    Ring::Srq(srq) => receive::complete(&mut srq.ring, cqe, self.cqe_size),
                    Ring::Rq(rq) => receive::complete(&mut rq.ring, cqe, self.cqe_size),
                    Ring::Gone => continue,
                }
            };
            let (receive::Outcome::Message(slot) | receive::Outcome::Failed(slot)) = outcome else {
                match outcome {
                    receive::Outcome::Stray => return Some(Found::Stray(facts)),
                    _ => continue,
                }
            };
            // SAFETY: the slot was posted.
            let resident = unsafe {
                match &self.queues[queue as usize] {
                    Ring::Srq(srq) => srq.ring.book().data(slot),
                    Ring::Rq(rq) => rq.ring.book().data(slot),
                    Ring::Gone => continue,
                }
            };
            let found = match outcome {
                receive::Outcome::Failed(_) => failed(&cqe, resident),
                _ if facts.written.is_some() => Found::Message(resident, 0),
                _ => Found::Message(resident, cqe.byte_count()),
            };
            self.pending = Some(Pending { queue, slot, facts });
            return Some(found);
        }
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
struct Through<'a> {
    verbs: &'a mut Verbs,
    budget: u32,
    /// The queue whose chain is not posted yet.
    current: Option<u32>,
    pending: Option<Pending>,
}

impl Through<'_> {
    fn next(&mut self, books: &mut Books) -> Option<Found> {
        self.recycle(books);
        self.budget = self.budget.checked_sub(1)?;
        let wc = self.verbs.next()?;
        let facts = Facts::of_wc(&wc);
        let queue = (wc.wr_id >> 32) as u32;
        let completed =
            self.verbs.queues.get_mut(queue as usize).and_then(|q| q.complete(wc.wr_id));
        let Some((slot, resident)) = completed else {
            return Some(Found::Stray(facts));
        };
        self.pending = Some(Pending { queue, slot, facts });
        Some(if wc.status == sys::IBV_WC_SUCCESS {
            Found::Message(resident, if facts.written.is_some() { 0 } else { wc.byte_len })
        } else {
            self.verbs.queues[queue as usize].fail();
            Found::Failed(resident, facts, WcStatus::from_raw(wc.status), wc.vendor_err)
        })
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

/// A received message, lent by its batch. Dropping it recycles its slot when the batch goes on;
/// [`take`](Self::take) moves the buffer out.
///
/// Dereferences to exactly the bytes received; of a message that was scattered over several buffers, to
/// those in the first, see [`segments`](Self::segments).
pub struct Message<'b, 'a> {
    resident: Resident,
    len: u32,
    batch: &'b mut Batch<'a>,
}

impl Message<'_, '_> {
    /// Bytes received, in all buffers together.
    #[expect(clippy::len_without_is_empty, reason = "is_empty comes from the slice")]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Number of the QP on which the message arrived.
    pub fn qp_num(&self) -> u32 {
        self.batch.facts().qp_num
    }

    /// Immediate data, if the sender sent any.
    pub fn imm(&self) -> Option<u32> {
        self.batch.facts().imm
    }

    /// For the notice of an RDMA WRITE with immediate: how many bytes the peer wrote, to where it wanted
    /// them. The message itself is empty then.
    pub fn written(&self) -> Option<u32> {
        self.batch.facts().written
    }

    /// The pieces of the message, in order.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = self.len;
        self.batch.books.pieces(&self.resident).map_while(move |piece| {
            if left == 0 {
                return None;
            }
            let len = left.min(piece.capacity);
            left -= len;
            // SAFETY: a buffer of a pool that the books keep alive; completed and not recycled before
            // this message is gone, so nobody writes it.
            Some(unsafe { slice::from_raw_parts(piece.addr.as_ptr(), len as usize) })
        })
    }

    /// Whether the receive had several buffers.
    pub fn is_scattered(&self) -> bool {
        matches!(self.resident.owner(), Owner::List(_))
    }

    /// Moves the buffer out of the queue, holding exactly the bytes received. Post it, or another one,
    /// when the queue shall not run dry.
    ///
    /// # Panics
    /// When the message was scattered: use [`into_buffers`](Self::into_buffers).
    #[inline]
    pub fn take(self) -> RecvBuffer {
        assert!(!self.is_scattered(), "take on a scattered message: use into_buffers");
        let mut taken = None;
        self.batch.kind.take();
        self.batch.books.leave(self.resident, self.len, |buffer| taken = Some(buffer));
        taken.expect("a receive of one buffer has one buffer")
    }

    /// Moves all buffers of the receive out of the queue, each holding its part of the message.
    pub fn into_buffers(self) -> Vec<RecvBuffer> {
        let mut buffers = Vec::new();
        self.batch.kind.take();
        self.batch.books.leave(self.resident, self.len, |buffer| buffers.push(buffer));
        buffers
    }
}

impl Deref for Message<'_, '_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        if self.resident.addr() == 0 {
            return self.segments().next().unwrap_or_default();
        }
        let start = std::ptr::with_exposed_provenance(self.resident.addr() as usize);
        // SAFETY: a buffer of a pool that the books keep alive, and `len` was clamped to it; completed and
        // not recycled before this message is gone, so nobody writes it.
        unsafe { slice::from_raw_parts(start, self.len as usize) }
    }
}

impl fmt::Debug for Message<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("len", &self.len)
            .field("qp_num", &self.qp_num())
            .field("imm", &self.imm())
            .finish_non_exhaustive()
    }
}

/// A receive that failed, or a completion that makes no sense.
///
/// The buffer of a failed receive goes back to an SRQ, which lives on when one of its QPs fails. From the
/// receive queue of a QP it comes back here: the QP takes no more receives before it is reset.
#[derive(Debug, thiserror::Error)]
#[error("receive on QP {qp_num:#x}: {cause}")]
pub struct Failure {
    /// Number of the QP.
    pub qp_num: u32,
    /// What went wrong.
    pub cause: Cause,
    /// Cause in the device's own terms, 0 if it gave none.
    pub vendor_err: u32,
    /// The buffers of the receive, unless its queue keeps them.
    pub buffers: Vec<RecvBuffer>,
}

/// What went wrong with a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The device reported this status.
    #[error("{0}")]
    Status(WcStatus),
    /// The completion names a receive that is not posted, or has an impossible form. It was skipped; the
    /// device, its driver or the memory is at fault.
    #[error("completion of a receive that is not posted")]
    Stray,
    /// The receive was posted through [`Receiver::as_direct`] with this `wr_id` and must be completed
    /// there. It was successful; its slot is free.
    #[error("completion of a receive posted through the ring itself (wr_id {0:#x})")]
    Foreign(u64),
}
