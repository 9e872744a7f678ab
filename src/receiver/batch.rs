//! Receiving: a batch of completions whose messages are lent in place.

use std::hint::unreachable_unchecked;

use mlx5_ring::completion::{Cqe, CqeKind, SEND};
use mlx5_ring::ordered::OrderedReceiveQueue;
use mlx5_ring::receive::{Completion, ReceiveRing};
use rdma_core_sys as sys;

use super::completion_info::CompletionInfo;
use super::failure::{Cause, Failure};
use super::lent::Lent;
use super::message::Message;
use super::slot_context::SlotContext;
use super::{Only, QpTable, QueueEntry, Receiver, RecvQueue};
use crate::cq::{DirectCq, Poller};
use crate::memory::{Buffer, Host, Memory};
use crate::status::WcStatus;
use crate::window_keys;

/// Completions that one batch takes at most, unless asked otherwise.
const BUDGET: u32 = 64;

/// Polls in a row that find nothing, after which no receive waits for an older one.
const IDLE_POLLS: u32 = 4096;

/// A message, with its CQE on the direct path, or a failed receive.
type Next<M> = Result<(Lent, Option<Cqe<'static>>), Failure<Buffer<M>>>;

impl<M: Memory> Receiver<M> {
    /// Returns the next message or the next failed receive, or `None` if nothing has arrived. A message that is not
    /// taken is recycled.
    ///
    /// Use it where messages are handled one at a time. The call that finds nothing frees the CQEs and posts the
    /// recycled slots, so that no message waits for that. The call after every 16 messages, or a quarter of the
    /// smallest queue, does so, too. Most other methods do it first. A program that handles bursts uses
    /// [`poll`](Self::poll).
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # world.send(b"hello");
    /// # let receiver = &mut world.receiver;
    /// while let Some(next) = receiver.next() {
    ///     println!("{} bytes", next?.len());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[expect(clippy::should_implement_trait, reason = "the item borrows from the receiver")]
    #[inline(always)]
    pub fn next(&mut self) -> Option<Result<Message<'_, M>, Failure<Buffer<M>>>> {
        let Self { cq, queues, only, qps, unrung, idle_left, .. } = self;
        if let Poller::Direct(DirectCq { cq, .. }) = &mut cq.poller {
            if !cq.is_at_stop() {
                // SAFETY: the message that shows the CQE borrows the receiver, which publishes the consumer index in a
                // later call.
                match cq.peek_likely(SEND).map(|cqe| unsafe { cqe.detach() }) {
                    Some(cqe) if cqe.kind() == CqeKind::Send => {
                        if let Some(lent) = lend_send(*only, queues, qps, unrung, cqe) {
                            // SAFETY: it was asked above.
                            unsafe { cq.advance_before_stop() }
                            return Some(Ok(Message { lent, cqe: Some(cqe), receiver: self }));
                        }
                    }
                    None => {
                        // One comparison.
                        if cq.unpublished() as usize | unrung.len() | *idle_left as usize != 0 {
                            self.idle();
                        }
                        return None;
                    }
                    _ => {}
                }
            }
        }
        match self.next_after_upkeep()? {
            Ok((lent, cqe)) => Some(Ok(Message { lent, cqe, receiver: self })),
            Err(failure) => Some(Err(failure)),
        }
    }

    /// Does the work that is due when a poll has found nothing.
    #[inline(never)]
    fn idle(&mut self) {
        if self.cq.poller.has_unpublished() || !self.unrung.is_empty() {
            self.upkeep();
            self.plan_stop();
        } else {
            self.wait_less();
        }
    }

    /// Has [`next`](Self::next) take so many CQEs before it does the work that is due. None are unpublished.
    #[inline(always)]
    fn plan_stop(&mut self) {
        if let Poller::Direct(direct) = &mut self.cq.poller {
            direct.cq.stop_after(self.upkeep_after);
        }
    }

    /// Does the work that is due, and takes the next completion, whatever it is.
    #[inline(never)]
    fn next_after_upkeep(&mut self) -> Option<Next<M>> {
        self.end_batch();
        self.plan_stop();
        if self.has_more_to_do && self.begin_batch(1) == 0 {
            return None;
        }
        match self.next_inline() {
            Some((lent, cqe)) => Some(Ok((lent, Some(cqe)))),
            None => self.next_other(),
        }
    }

    /// Polls at most 64 completions, see [`poll_up_to`](Self::poll_up_to).
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # world.send(b"hello");
    /// # let receiver = &mut world.receiver;
    /// let mut batch = receiver.poll();
    /// while let Some(message) = batch.next() {
    ///     let message = message?;
    ///     println!("{} bytes: {:?}", message.len(), &message[..]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn poll(&mut self) -> Batch<'_, M> {
        self.poll_up_to(BUDGET)
    }

    /// Polls at most `budget` completions.
    ///
    /// The batch lends each message in place. Dropping the batch frees the CQEs and posts the recycled slots with one
    /// doorbell per queue. Keep batches short: until the batch ends, the device can write only as many completions as
    /// the CQ has other entries.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # world.send(b"one");
    /// # world.send(b"two");
    /// # let receiver = &mut world.receiver;
    /// let mut batch = receiver.poll_up_to(1);
    /// assert!(batch.next().is_some());
    /// assert!(batch.next().is_none(), "the budget is used up");
    /// drop(batch);
    /// assert!(receiver.poll().next().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn poll_up_to(&mut self, mut budget: u32) -> Batch<'_, M> {
        if self.has_more_to_do {
            budget = self.begin_batch(budget);
        }
        Batch { receiver: self, left: budget }
    }
}

/// Completions that have arrived, from [`Receiver::poll`]. Dropping it ends the batch.
///
/// `Batch` is not an `Iterator`: items of an iterator may outlive the next call of `next`, but a message may not,
/// because its buffer is posted again. Loop with `while let`.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # world.send(b"hello");
/// # let receiver = &mut world.receiver;
/// let mut kept = None;
/// let mut batch = receiver.poll();
/// while let Some(next) = batch.next() {
///     match next {
///         // Posted again when the batch ends, unless it is taken.
///         Ok(message) if message.starts_with(b"hello") => kept = Some(message.take()?),
///         Ok(_) => {}
///         Err(failure) => println!("{failure}"),
///     }
/// }
/// // Here the recycled slots are posted, with one doorbell.
/// drop(batch);
/// assert_eq!(kept.as_deref(), Some(&b"hello"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Batch<'a, M: Memory = Host> {
    receiver: &'a mut Receiver<M>,
    /// Completions that it may still take.
    left: u32,
}

impl<M: Memory> Batch<'_, M> {
    /// Returns the next message or the next failed receive, or `None` if no completion is left or the budget is used.
    #[expect(clippy::should_implement_trait, reason = "the item borrows from the batch")]
    #[inline(always)]
    pub fn next(&mut self) -> Option<Result<Message<'_, M>, Failure<Buffer<M>>>> {
        self.left = self.left.checked_sub(1)?;
        self.receiver.lend_next()
    }
}

impl<M: Memory> Drop for Batch<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        self.receiver.end_batch();
    }
}

impl<M: Memory> Receiver<M> {
    /// Publishes the consumer index, then posts what was given back and rings for everything that was posted meanwhile,
    /// in this order: the receives that the doorbells hand over need the room on the CQ. A forgotten batch leaves all
    /// of it to the next call, and [`next`](Self::next) to a later one.
    ///
    /// However late it comes, a CQ with exactly as many entries as receives cannot overrun. Each receive is with the
    /// device, or its CQE is on the CQ, or no doorbell has handed it over again since its CQE was taken. The entry of a
    /// CQE that was taken stays unpublished only in the last case, for no doorbell of any queue rings before the index
    /// is published. So entries that the device may not write and CQEs that it may still write are together no more
    /// than there are receives.
    #[inline(always)]
    pub(crate) fn end_batch(&mut self) {
        if self.cq.poller.has_unpublished() || !self.unrung.is_empty() {
            self.upkeep();
        }
    }

    /// Does the work of [`end_batch`](Self::end_batch). The only queue is not noted where all messages are its.
    #[inline(never)]
    fn upkeep(&mut self) {
        self.cq.poller.publish();
        if self.only == Only::Other {
            return self.upkeep_of_all();
        }
        self.unrung.clear();
        // SAFETY: [only].
        let entry = unsafe { self.queues.get_unchecked_mut(0) };
        entry.unrung = false;
        let waiting = match (self.only, &mut entry.queue) {
            (Only::Ordered, RecvQueue::Ordered(srq)) => {
                srq.ring.give_back();
                srq.ring.ring_doorbell();
                srq.ring.is_waiting()
            }
            (Only::Rq, RecvQueue::Rq(rq)) => {
                rq.ring.give_back();
                rq.ring.ring_doorbell();
                false
            }
            // SAFETY: [only].
            _ => unsafe { unreachable_unchecked() },
        };
        if waiting {
            self.start_waiting();
        }
    }

    #[inline(never)]
    fn upkeep_of_all(&mut self) {
        let mut waiting = false;
        if let [only] = &mut self.queues[..] {
            waiting |= only.end_batch();
        }
        while let Some(index) = self.unrung.pop() {
            waiting |= self.queues[index as usize].end_batch();
        }
        if waiting {
            self.start_waiting();
        }
    }

    /// Does the work that is due before a batch of at most `budget` completions; returns how many it may take.
    #[inline(never)]
    fn begin_batch(&mut self, budget: u32) -> u32 {
        if self.idle_left > 0 {
            self.wait_less();
        }
        if self.maintenance.is_some() { self.maintain(budget) } else { budget }
    }

    /// Takes note that receives wait for older ones.
    pub(super) fn start_waiting(&mut self) {
        self.idle_left = IDLE_POLLS;
        self.has_more_to_do = true;
    }

    /// Takes note of a poll while receives wait for older ones.
    pub(super) fn wait_less(&mut self) {
        self.idle_left -= 1;
        if self.idle_left == 0 {
            self.stop_waiting();
        }
    }

    /// Hands every receive to the device that waits for an older one.
    pub(super) fn stop_waiting(&mut self) {
        self.end_batch();
        self.idle_left = 0;
        self.has_more_to_do = self.maintenance.is_some();
        for entry in &mut self.queues {
            if let RecvQueue::Ordered(srq) = &mut entry.queue {
                srq.ring.stop_waiting();
                srq.ring.ring_doorbell();
            }
        }
    }

    /// Takes the next completion, and lends its message.
    #[inline(always)]
    fn lend_next(&mut self) -> Option<Result<Message<'_, M>, Failure<Buffer<M>>>> {
        let Self { cq, queues, only, qps, unrung, .. } = self;
        if let Poller::Direct(direct) = &mut cq.poller {
            // SAFETY: the message that shows the CQE borrows the receiver, which publishes the consumer index when the
            // batch ends.
            let cqe = unsafe { direct.cq.peek_likely(SEND)?.detach() };
            if cqe.kind() == CqeKind::Send {
                if let Some(lent) = lend_send(*only, queues, qps, unrung, cqe) {
                    direct.cq.advance();
                    return Some(Ok(Message { lent, cqe: Some(cqe), receiver: self }));
                }
            }
        }
        if let Some((lent, cqe)) = self.next_inline() {
            return Some(Ok(Message { lent, cqe: Some(cqe), receiver: self }));
        }
        match self.next_other()? {
            Ok((lent, cqe)) => Some(Ok(Message { lent, cqe, receiver: self })),
            Err(failure) => Some(Err(failure)),
        }
    }

    /// Takes the next completion if it is a message in one buffer that the device put into the CQE, and copies the
    /// message to the buffer.
    #[inline(never)]
    fn next_inline(&mut self) -> Option<(Lent, Cqe<'static>)> {
        let Self { cq, queues, only, qps, unrung, .. } = self;
        let Poller::Direct(direct) = &mut cq.poller else { return None };
        // SAFETY: as in `lend_next`.
        let cqe = unsafe { direct.cq.peek()?.detach() };
        if cqe.kind() != CqeKind::Inline {
            return None;
        }
        let payload = cqe.inline_payload()?;
        let lent = lend_send(*only, queues, qps, unrung, cqe)?;
        direct.cq.advance();
        let len = lent.len.min(payload.len());
        // SAFETY: the buffer has room for the message, and no other code uses it until it is lent.
        unsafe { lent.start.as_ptr().copy_from_nonoverlapping(payload.as_ptr(), len) }
        Some((lent, cqe))
    }

    /// Takes the next completion, whatever it is. Those of queue pairs that were dropped are passed over.
    #[inline(never)]
    fn next_other(&mut self) -> Option<Next<M>> {
        loop {
            let Poller::Direct(direct) = &mut self.cq.poller else {
                return self.next_verbs().map(|next| next.map(|lent| (lent, None)));
            };
            // SAFETY: as in `lend_next`.
            let cqe = unsafe { direct.cq.next()?.detach() };
            let index = queue_of(&self.queues, &self.qps, cqe);
            if let Some(next) = index.and_then(|index| self.complete(index, cqe)) {
                return Some(next.map(|lent| (lent, Some(cqe))));
            }
        }
    }

    /// Completes the receive that a CQE names. `None` when its queue is closed.
    #[inline(always)]
    fn complete(&mut self, index: u32, cqe: Cqe<'_>) -> Option<Result<Lent, Failure<Buffer<M>>>> {
        let entry = self.queues.get_mut(index as usize)?;
        if entry.queue.is_closed() {
            return None;
        }
        let qp_num = cqe.qpn();
        entry.ring_later(index, &mut self.unrung);
        // SAFETY: it is the only queue, or that of the queue pair; buffers are posted by the receiver, which owns them.
        match unsafe { entry.queue.complete(cqe) } {
            Completion::Message(slot) => {
                let len = match cqe.kind() {
                    CqeKind::Written => 0,
                    CqeKind::Invalidated => {
                        window_keys::invalidated(self.pd.context().as_raw(), cqe.imm_inval_pkey());
                        cqe.byte_count()
                    }
                    _ => cqe.byte_count(),
                };
                Some(entry.lend(index, slot, qp_num, len))
            }
            Completion::Failed(slot) => Some(Err(self.fail(index, slot, CompletionInfo::Cqe(cqe).failure()))),
            Completion::NotAReceive => Some(Err(Failure::of(qp_num, Cause::NotAReceive))),
            Completion::Stray => Some(Err(Failure::of(qp_num, Cause::Stray))),
        }
    }

    /// Takes the next completion through verbs.
    fn next_verbs(&mut self) -> Option<Result<Lent, Failure<Buffer<M>>>> {
        let Poller::Verbs(cq) = &mut self.cq.poller else { return None };
        let wc = cq.next()?;
        let sys::ibv_wc { wr_id, status, opcode, byte_len, qp_num, .. } = wc.wc;
        let (failure, invalidated) = (CompletionInfo::Wc(wc).failure(), CompletionInfo::Wc(wc).invalidated_rkey());
        let index = wc.queue();
        let mut completed = None;
        if let Some(entry) = self.queues.get_mut(index as usize) {
            entry.ring_later(index, &mut self.unrung);
            if let RecvQueue::Verbs(verbs) = &mut entry.queue {
                if status != sys::IBV_WC_SUCCESS {
                    verbs.fail();
                }
                completed = verbs.complete(wr_id);
            }
        }
        let Some((slot, _)) = completed else {
            return Some(Err(Failure::of(qp_num, Cause::Stray)));
        };
        if status != sys::IBV_WC_SUCCESS {
            return Some(Err(self.fail(index, slot, failure)));
        }
        if let Some(rkey) = invalidated {
            window_keys::invalidated(self.pd.context().as_raw(), rkey);
        }
        let written = opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM;
        let len = if written { 0 } else { byte_len };
        Some(self.queues[index as usize].lend(index, slot, qp_num, len))
    }

    /// Takes note that the receive in a slot, which is held, failed; its buffer stays in the queue or goes to the
    /// failure.
    fn fail(&mut self, index: u32, slot: u32, mut failure: Failure<Buffer<M>>) -> Failure<Buffer<M>> {
        let queue = &mut self.queues[index as usize].queue;
        // SAFETY: the slot is held.
        let context = unsafe { queue.context(slot) };
        let faulted = failure.cause == Cause::PageFault;
        if let Cause::Status(status) = failure.cause {
            let first = self.qps.fail(failure.qp_num, status);
            failure.first = first.filter(|_| status == WcStatus::WR_FLUSH_ERR);
        }
        // An SRQ lives on when a QP fails; a QP that failed takes no more receives. Memory that is not ours may have
        // failed the QP, and would fail the next one, too. So would memory that the device did not find.
        if queue.srq().is_some() && !faulted && !context.is_raw() {
            // SAFETY: the slot is held, and its buffer was not lent.
            unsafe { queue.lend(slot) };
        } else {
            // SAFETY: the slot is held.
            unsafe { queue.release(slot) };
            // SAFETY: [slot-owns], given back just now.
            unsafe { context.into_buffers(0, |buffer| failure.buffers.push(buffer.cast())) };
        }
        failure
    }

    /// Gives the slot of a message that is lent back without its buffer, which is the caller's.
    #[inline(always)]
    pub(super) fn release(&mut self, queue: u32, slot: u32) {
        // SAFETY: [lent]: the message that shows it has borrowed the receiver since it was lent. [only].
        unsafe {
            match self.only {
                Only::Ordered => only_ordered(&mut self.queues).release_lent(slot),
                _ => self.queues[queue as usize].queue.release_lent(slot),
            }
        }
    }
}

impl QueueEntry {
    /// Posts what was given back, and rings the doorbell. Returns `true` if receives may wait for an older one.
    #[inline(always)]
    fn end_batch(&mut self) -> bool {
        self.unrung = false;
        self.queue.end_batch()
    }

    /// Notes that the queue, whose index this is, needs a doorbell when the batch ends.
    #[inline(always)]
    pub(super) fn ring_later(&mut self, index: u32, unrung: &mut Vec<u32>) {
        if !self.unrung {
            self.unrung = true;
            unrung.push(index);
        }
    }

    /// Lends the message of `len` bytes in a slot, which is held: its buffer is posted again, unless it is taken
    /// before.
    #[inline(always)]
    fn lend<B>(&mut self, index: u32, slot: u32, qp_num: u32, len: u32) -> Result<Lent, Failure<B>> {
        // SAFETY: the slot is held.
        let context = unsafe { self.queue.context(slot) };
        // SAFETY: as above.
        let Some(lent) = (unsafe { Lent::of(index, slot, context, len) }) else {
            // SAFETY: as above.
            unsafe { self.queue.release(slot) };
            return Err(Failure::of(qp_num, Cause::Raw(context.wr_id())));
        };
        // SAFETY: the slot is held, and the message borrows the receiver, so that no code uses its buffer when the
        // receiver lends, posts or rings.
        unsafe { self.queue.lend(slot) };
        Ok(lent)
    }
}

/// Returns the index of the queue that a CQE is of. The only queue needs no look-up.
#[inline(always)]
pub(super) fn queue_of(queues: &[QueueEntry], qps: &QpTable, cqe: Cqe<'_>) -> Option<u32> {
    if queues.len() == 1 { Some(0) } else { qps.queue_of(cqe.qpn()) }
}

/// Returns the ring of the only queue, which is an SRQ whose receives wait for older ones.
///
/// # Safety
/// [only], and it is [`Only::Ordered`].
#[inline(always)]
pub(super) unsafe fn only_ordered(queues: &mut [QueueEntry]) -> &mut OrderedReceiveQueue<SlotContext> {
    // SAFETY: the caller's.
    unsafe {
        match &mut queues.get_unchecked_mut(0).queue {
            RecvQueue::Ordered(srq) => &mut srq.ring,
            _ => unreachable_unchecked(),
        }
    }
}

/// Completes the receive of a SEND that is in one buffer, and lends it. Returns `None`, and changes nothing, when it is
/// not what it seems to be.
///
/// [`next_other`](Receiver::next_other) does the same for completions of every kind, and costs more.
#[inline(always)]
fn lend_send(
    only: Only,
    queues: &mut [QueueEntry],
    qps: &QpTable,
    unrung: &mut Vec<u32>,
    cqe: Cqe<'_>,
) -> Option<Lent> {
    if only != Only::Other {
        // SAFETY: [only]. The receive has one buffer.
        unsafe {
            let (slot, context, len) = match (only, &mut queues.get_unchecked_mut(0).queue) {
                (Only::Ordered, RecvQueue::Ordered(srq)) => lend_slot(&mut srq.ring, cqe)?,
                (Only::Rq, RecvQueue::Rq(rq)) => lend_slot(&mut rq.ring, cqe)?,
                _ => unreachable_unchecked(),
            };
            return Some(Lent::in_one_buffer(0, slot, context, len));
        }
    }
    let (index, entry, is_only) = match queues {
        [only] => (0, only, true),
        queues => {
            let index = qps.queue_of(cqe.qpn())?;
            (index, queues.get_mut(index as usize)?, false)
        }
    };
    let (slot, context, len) = match &mut entry.queue {
        RecvQueue::Ordered(srq) => lend_slot(&mut srq.ring, cqe)?,
        RecvQueue::Srq(srq) => lend_slot(&mut srq.ring, cqe)?,
        RecvQueue::Rq(rq) => lend_slot(&mut rq.ring, cqe)?,
        RecvQueue::Verbs(_) | RecvQueue::Closed => return None,
    };
    if !is_only {
        entry.ring_later(index, unrung);
    }
    // SAFETY: the receive has one buffer.
    Some(unsafe { Lent::in_one_buffer(index, slot, context, len) })
}

/// Completes the WQE of a SEND, and lends its slot. Returns the slot, what was posted there, and the length of the
/// message. Returns `None`, and changes nothing, if the device does not have such a WQE, or if its receive has not
/// exactly one buffer with room for the message.
#[inline(always)]
fn lend_slot<Q: ReceiveRing<Data = SlotContext>>(ring: &mut Q, cqe: Cqe<'_>) -> Option<(u32, SlotContext, u32)> {
    let slot = ring.posted_slot(cqe.wqe_counter())?;
    // SAFETY: it is posted.
    let context = unsafe { ring.data(slot) };
    let len = cqe.byte_count();
    // SAFETY: [slot-owns], of a slot that is posted.
    if !unsafe { context.holds(len) } {
        return None;
    }
    // SAFETY: the slot that was returned above. The message borrows the receiver, so that no code uses the buffer when
    // the receiver posts, lends or rings.
    unsafe { ring.lend(slot) };
    Some((slot, context, len))
}
