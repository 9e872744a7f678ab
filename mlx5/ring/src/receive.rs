//! One pass over a completion queue and the receive queue that completes on it: take a message, look at
//! it, give its slot back.
//!
//! The common case is a plain SEND that completes the WQE whose turn it is. Its CQE is known in advance
//! but for two bits: the last word holds `wqe_counter`, opcode, format and owner, so **one load and one
//! compare** tell that the CQE has arrived, is a success, needs no further look, and which slot it
//! completes. Everything else leaves through [`classify`], out of line.
//!
//! Giving the buffer back writes no WQE either: with a buffer in each slot, the slot at the cursor already
//! describes one, so posting it is a change of state and a step of the cursor.

use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::NonNull;

use mlx5_wire::cqe::{self, Cqe64, CqeFormat};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::CqeOpcode;

use crate::barrier;
use crate::completion::Cqe;
use crate::cq::{self, CompletionQueue};
use crate::rq::ReceiveQueue;
use crate::slots::{self, Slots};
use crate::srq::SharedReceiveQueue;

use sealed::Ring;

/// A queue that [`Receiving`] can give slots back to: [`ReceiveQueue`] or [`SharedReceiveQueue`].
pub trait Queue: Ring {}

impl<T: Copy> Queue for ReceiveQueue<T> {}
impl<T: Copy> Queue for SharedReceiveQueue<T> {}

mod sealed {
    use super::{DataSegment, NonNull, Slots};

    /// What the two kinds of queue do differently. `expected` is the `wqe_counter` of the next completion
    /// in order, `cursor` the slot of the next WQE; both are kept in registers during a batch.
    pub trait Ring {
        type Data: Copy;

        fn book(&self) -> &Slots<Self::Data>;
        fn expected(&self) -> u16;
        fn cursor(&self) -> u32;
        /// Bits of `wqe_counter` that count.
        fn counter_mask(&self) -> u16;
        /// Takes the registers back; `posted` WQEs were posted at the cursor meanwhile.
        fn restore(&mut self, expected: u16, cursor: u32, posted: u32);
        fn ring(&mut self);
        fn complete(&mut self, wqe_counter: u16) -> Option<u32>;
        unsafe fn release(&mut self, slot: u32);
        unsafe fn recycle(&mut self, slot: u32);
        fn segments(&self, slot: u32) -> NonNull<DataSegment>;
        fn max_sge(&self) -> u32;
    }
}

impl<T: Copy> Ring for SharedReceiveQueue<T> {
    type Data = T;

    #[inline(always)]
    fn book(&self) -> &Slots<T> {
        &self.slots
    }

    /// A completion in order extends the run.
    #[inline(always)]
    fn expected(&self) -> u16 {
        self.end as u16
    }

    #[inline(always)]
    fn cursor(&self) -> u32 {
        self.next
    }

    #[inline(always)]
    fn counter_mask(&self) -> u16 {
        self.slots.mask() as u16
    }

    #[inline(always)]
    fn restore(&mut self, expected: u16, cursor: u32, posted: u32) {
        self.end = u32::from(expected);
        self.next = cursor;
        self.unrung += posted;
    }

    #[inline(always)]
    fn ring(&mut self) {
        SharedReceiveQueue::ring(self);
    }

    fn complete(&mut self, wqe_counter: u16) -> Option<u32> {
        SharedReceiveQueue::complete(self, wqe_counter)
    }

    unsafe fn release(&mut self, slot: u32) {
        // SAFETY: the caller's contract.
        unsafe { SharedReceiveQueue::release(self, slot) }
    }

    unsafe fn recycle(&mut self, slot: u32) {
        // SAFETY: the caller's contract.
        unsafe { SharedReceiveQueue::recycle(self, slot) }
    }

    fn segments(&self, slot: u32) -> NonNull<DataSegment> {
        SharedReceiveQueue::segments(self, slot)
    }

    fn max_sge(&self) -> u32 {
        SharedReceiveQueue::max_sge(self)
    }
}

impl<T: Copy> Ring for ReceiveQueue<T> {
    type Data = T;

    #[inline(always)]
    fn book(&self) -> &Slots<T> {
        &self.slots
    }

    #[inline(always)]
    fn expected(&self) -> u16 {
        self.tail
    }

    #[inline(always)]
    fn cursor(&self) -> u32 {
        self.head & self.slots.mask()
    }

    #[inline(always)]
    fn counter_mask(&self) -> u16 {
        u16::MAX
    }

    #[inline(always)]
    fn restore(&mut self, expected: u16, _cursor: u32, posted: u32) {
        self.tail = expected;
        self.head = self.head.wrapping_add(posted);
    }

    #[inline(always)]
    fn ring(&mut self) {
        ReceiveQueue::ring(self);
    }

    fn complete(&mut self, wqe_counter: u16) -> Option<u32> {
        ReceiveQueue::complete(self, wqe_counter)
    }

    unsafe fn release(&mut self, slot: u32) {
        // SAFETY: the caller's contract.
        unsafe { ReceiveQueue::release(self, slot) }
    }

    unsafe fn recycle(&mut self, slot: u32) {
        // SAFETY: the caller's contract.
        unsafe { ReceiveQueue::recycle(self, slot) }
    }

    fn segments(&self, slot: u32) -> NonNull<DataSegment> {
        ReceiveQueue::segments(self, slot)
    }

    fn max_sge(&self) -> u32 {
        ReceiveQueue::max_sge(self)
    }
}

/// Bits of a CQE's last word that the common case compares: `wqe_counter`, opcode, format, owner. The
/// checksum and the solicited-event bit may be anything.
const COMPARED: u32 = 0xffff_0000 | (!cqe::SOLICITED_EVENT) as u32;

/// Opcode and format of the common case: a SEND whose payload is in the posted buffer.
const COMMON: u8 = cqe::op_own(CqeOpcode::ResponderSend, CqeFormat::Plain, false, 0);

/// Takes completions from a CQ and gives slots back to its queue. Dropping it publishes the consumer
/// index, and rings the doorbell for everything posted meanwhile.
///
/// All that changes with a message stays in this value, and what is out of line takes and returns it by
/// value: a loop over [`next`](Self::next) and [`recycle`](Self::recycle) runs in registers.
pub struct Receiving<'a, Q: Queue> {
    queue: &'a mut Q,
    cq: &'a mut CompletionQueue,
    slots: Slots<Q::Data>,
    stride: usize,
    /// Bits of `expected` that count.
    wrap: u32,
    cqe: NonNull<u8>,
    /// CQEs that may be taken before the buffer or the budget ends.
    left: u32,
    /// Consumer index when `left` is 0.
    stop: u32,
    /// CQEs that may be taken after that.
    budget: u32,
    turn: Turn,
}

/// What of the queue changes with each message.
#[derive(Clone, Copy)]
struct Turn {
    /// `wqe_counter`, opcode, format and owner of the common case.
    expected: u32,
    /// Slot of the next WQE.
    cursor: u32,
    /// WQEs posted since the queue was told.
    posted: u32,
}

impl Turn {
    #[inline(always)]
    fn load<Q: Queue>(queue: &Q, op_own: u32) -> Self {
        let expected = u32::from(queue.expected()) << 16 | op_own & 0xffff;
        Self { expected, cursor: queue.cursor(), posted: 0 }
    }

    #[inline(always)]
    fn store<Q: Queue>(self, queue: &mut Q) {
        queue.restore((self.expected >> 16) as u16, self.cursor, self.posted);
    }
}

/// What came out of the CQ.
#[derive(Debug)]
pub enum Completion<T> {
    /// A message was received.
    Message(Message<T>),
    /// A receive WQE failed; the error CQE has the cause.
    Failed(Message<T>),
    /// A completion of something else: a send WQE, a tag-list operation.
    Other(Position),
    /// A CQE that cannot be true: it names a WQE that is not posted, or has a form that the CQ was not
    /// created with. Nothing was changed.
    Stray(Position),
}

/// A completed receive, to be given back with [`Receiving::recycle`] or [`Receiving::take`]. One that is
/// not costs its slot.
#[derive(Debug)]
#[must_use = "a slot that is not given back is lost"]
pub struct Message<T> {
    /// What was posted with the WQE.
    pub data: T,
    /// Bytes of the message, as the device reports them: check them against the buffer. Meaningless for
    /// a failed receive.
    pub byte_count: u32,
    slot: u32,
    position: Position,
}

impl<T> Message<T> {
    /// The slot of the WQE.
    #[inline(always)]
    pub const fn slot(&self) -> u32 {
        self.slot
    }

    /// Where its CQE stands, for [`Receiving::cqe`].
    #[inline(always)]
    pub const fn position(&self) -> Position {
        self.position
    }
}

/// Where a CQE of the current batch stands.
#[derive(Clone, Copy, Debug)]
pub struct Position(NonNull<u8>);

enum Class {
    Message,
    Failed,
    Other,
    Stray,
}

impl<'a, Q: Queue> Receiving<'a, Q> {
    /// A batch of at most `budget` completions.
    ///
    /// # Safety
    /// Every receive completion on `cq` belongs to `queue`. The contract under which the WQEs were posted
    /// holds for as long as their buffers are given back.
    #[inline(always)]
    pub unsafe fn new(cq: &'a mut CompletionQueue, queue: &'a mut Q, budget: u32) -> Self {
        Self {
            slots: queue.book().view(),
            stride: cq.stride(),
            wrap: u32::from(queue.counter_mask()) << 16 | 0xffff,
            cqe: cq.cqe(cq.consumer_index),
            left: 0,
            stop: cq.consumer_index,
            budget,
            turn: Turn::load(queue, 0),
            queue,
            cq,
        }
    }

    /// The next completion that has arrived, or `None` when there is none or the budget is used up.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would have to be dropped to recycle"
    )]
    #[inline(always)]
    pub fn next(&mut self) -> Option<Completion<Q::Data>> {
        if self.left == 0 {
            if self.budget == 0 {
                return None;
            }
            let lap = self.stop;
            self.left = self.budget.min(self.cq.until_wrap(lap));
            self.budget -= self.left;
            self.stop = lap.wrapping_add(self.left);
            self.cqe = self.cq.cqe(lap);
            let op_own = COMMON | self.cq.owner(lap);
            self.turn.expected = self.turn.expected & 0xffff_0000 | u32::from(op_own);
        }
        let cqe = self.cqe;
        // One aligned load: the device cannot write half of it.
        // SAFETY: inside the CQ; volatile because the device writes it.
        let word = u32::from_be(unsafe {
            cqe.add(offset_of!(Cqe64, wqe_counter)).cast::<u32>().read_volatile()
        });
        let slot = (self.turn.expected >> 16) & self.slots.mask();
        if word & COMPARED == self.turn.expected && self.slots.state(slot) == slots::POSTED {
            barrier::owner_before_cqe();
            self.step();
            return Some(Completion::Message(self.message(cqe, slot)));
        }
        if !cq::is_software_owned(word as u8, self.turn.expected as u8 & cqe::OWNER) {
            return None;
        }
        barrier::owner_before_cqe();
        self.turn.store(self.queue);
        let (class, slot) = classify(self.queue, cqe, self.stride);
        self.turn = Turn::load(self.queue, self.turn.expected);
        self.step();
        Some(match class {
            Class::Message => Completion::Message(self.message(cqe, slot)),
            Class::Failed => Completion::Failed(self.message(cqe, slot)),
            Class::Other => Completion::Other(Position(cqe)),
            Class::Stray => Completion::Stray(Position(cqe)),
        })
    }

    #[inline(always)]
    fn step(&mut self) {
        self.left -= 1;
        // SAFETY: `left` counts the CQEs up to the end of the buffer, so this is at most its end.
        self.cqe = unsafe { self.cqe.add(self.stride) };
    }

    #[inline(always)]
    fn message(&self, cqe: NonNull<u8>, slot: u32) -> Message<Q::Data> {
        // SAFETY: the CQE is software's; the slot was posted.
        let (byte_count, data) =
            unsafe { (Cqe::new(cqe, PhantomData).byte_count(), self.slots.data(slot)) };
        Message { data, byte_count, slot, position: Position(cqe) }
    }

    /// The CQE at `position`.
    ///
    /// # Safety
    /// `position` came from this batch.
    #[inline(always)]
    pub unsafe fn cqe(&self, position: Position) -> Cqe<'_> {
        // SAFETY: the CQE is software's until this batch publishes the consumer index.
        unsafe { Cqe::new(position.0, PhantomData) }
    }

    /// Gives a slot back with its buffer, to be posted again.
    ///
    /// # Safety
    /// `message` came from this batch, and nobody uses its buffer any more: the contract of posting holds
    /// again.
    #[inline(always)]
    pub unsafe fn recycle(&mut self, message: Message<Q::Data>) {
        let slot = message.slot;
        if slot == (self.turn.expected >> 16) & self.slots.mask() {
            self.slots.set_state(slot, slots::LOADED);
            let cursor = self.turn.cursor;
            if self.slots.state(cursor) == slots::LOADED {
                self.slots.set_state(cursor, slots::POSTED);
                self.turn.cursor = (cursor + 1) & self.slots.mask();
                self.turn.posted += 1;
                self.expect_next();
                return;
            }
        }
        // SAFETY: the slot is completed and given back once.
        let (expected, cursor) = unsafe { recycle(self.queue, self.turn, slot) };
        self.turn = Turn { expected, cursor, posted: 0 };
    }

    /// Gives a slot back without its buffer, which is the caller's from now on.
    ///
    /// # Safety
    /// `message` came from this batch.
    #[inline(always)]
    pub unsafe fn take(&mut self, message: Message<Q::Data>) -> Q::Data {
        let slot = message.slot;
        if slot == (self.turn.expected >> 16) & self.slots.mask() {
            self.slots.set_state(slot, slots::EMPTY);
            self.expect_next();
        } else {
            // SAFETY: the slot is completed and given back once.
            let (expected, cursor) = unsafe { release(self.queue, self.turn, slot) };
            self.turn = Turn { expected, cursor, posted: 0 };
        }
        message.data
    }

    #[inline(always)]
    fn expect_next(&mut self) {
        self.turn.expected = self.turn.expected.wrapping_add(1 << 16) & self.wrap;
    }
}

impl<Q: Queue> Drop for Receiving<'_, Q> {
    #[inline(always)]
    fn drop(&mut self) {
        self.turn.store(self.queue);
        self.queue.ring();
        let consumer_index = self.stop.wrapping_sub(self.left);
        if consumer_index != self.cq.consumer_index {
            self.cq.publish(consumer_index);
        }
    }
}

/// Gives a slot back where the common case does not apply; returns `expected` and the cursor.
///
/// # Safety
/// The contract of `Ring::recycle`.
#[cold]
#[inline(never)]
unsafe fn recycle<Q: Queue>(queue: &mut Q, turn: Turn, slot: u32) -> (u32, u32) {
    hold(queue, turn, slot);
    // SAFETY: the caller's contract.
    unsafe { queue.recycle(slot) }
    let turn = Turn::load(queue, turn.expected);
    (turn.expected, turn.cursor)
}

/// Gives a slot back without its buffer where the common case does not apply; returns `expected` and the
/// cursor.
///
/// # Safety
/// The contract of `Ring::release`.
#[cold]
#[inline(never)]
unsafe fn release<Q: Queue>(queue: &mut Q, turn: Turn, slot: u32) -> (u32, u32) {
    hold(queue, turn, slot);
    // SAFETY: the caller's contract.
    unsafe { queue.release(slot) }
    let turn = Turn::load(queue, turn.expected);
    (turn.expected, turn.cursor)
}

/// Hands the registers to the queue. In the common case `slot` still counts as posted, or as loaded when
/// the cursor turned out to have no buffer: its WQE has completed.
fn hold<Q: Queue>(queue: &mut Q, turn: Turn, slot: u32) {
    turn.store(queue);
    queue.book().view().set_state(slot, slots::HELD);
}

/// Sorts a CQE that is not the common case, completes its WQE, and brings inline data to the buffer.
#[cold]
#[inline(never)]
fn classify<Q: Queue>(queue: &mut Q, cqe: NonNull<u8>, stride: usize) -> (Class, u32) {
    // SAFETY: `Receiving` passes a CQE that software owns.
    let cqe = unsafe { Cqe::new(cqe, PhantomData) };
    let opcode = cqe.opcode();
    let failed = match opcode {
        CqeOpcode::ResponderError => true,
        opcode if opcode.is_responder() => false,
        CqeOpcode::Unknown(_) => return (Class::Stray, 0),
        _ => return (Class::Other, 0),
    };
    let format = cqe.format();
    if format == CqeFormat::Compressed || (format == CqeFormat::Inline64 && stride == Cqe64::SIZE) {
        return (Class::Stray, 0);
    }
    let Some(slot) = queue.complete(cqe.wqe_counter()) else {
        return (Class::Stray, 0);
    };
    if failed {
        return (Class::Failed, slot);
    }
    if let Some((payload, capacity)) = cqe.inline_payload(format) {
        let len = cqe.byte_count().min(capacity);
        // SAFETY: `payload` is valid for `capacity` bytes; the WQE was posted under the contract that its
        // addresses are this process's, and it has completed.
        unsafe { scatter_inline(payload, len, queue.segments(slot), queue.max_sge()) }
    }
    (Class::Message, slot)
}

/// Copies `len` bytes to the buffers of a WQE, as far as they fit.
///
/// # Safety
/// `payload` is valid for `len` bytes, and each segment up to the terminator names writable memory.
unsafe fn scatter_inline(
    payload: NonNull<u8>,
    mut len: u32,
    segments: NonNull<DataSegment>,
    max_sge: u32,
) {
    let mut from = payload.as_ptr().cast_const();
    for i in 0..max_sge as usize {
        // SAFETY: the WQE has `max_sge` segments.
        let segment = unsafe { segments.add(i).read() };
        if len == 0 || segment.is_terminator() {
            return;
        }
        let chunk = len.min(segment.byte_count.get());
        let to = core::ptr::with_exposed_provenance_mut::<u8>(segment.addr.get() as usize);
        // SAFETY: the caller's contract; a CQE and a posted buffer do not overlap.
        unsafe { to.copy_from_nonoverlapping(from, chunk as usize) }
        from = from.wrapping_add(chunk as usize);
        len -= chunk;
    }
}

/// What the CQE of a CQ with many queues means for the queue that its QP number names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A message is in the buffers of this slot.
    Message(u32),
    /// The WQE in this slot failed.
    Failed(u32),
    /// Not about a receive.
    Other,
    /// It cannot be true, see [`Completion::Stray`].
    Stray,
}

/// Completes the WQE that `cqe` names, and brings inline data to its buffers. The slot is the caller's
/// until it is given back with `release` or `recycle`.
///
/// # Safety
/// `cqe` came from a CQ of entries of `cqe_size` bytes, for this queue; the queue's WQEs were posted under
/// the contract of posting.
pub unsafe fn complete<Q: Queue>(queue: &mut Q, cqe: Cqe<'_>, cqe_size: usize) -> Outcome {
    match classify(queue, cqe.position(), cqe_size) {
        (Class::Message, slot) => Outcome::Message(slot),
        (Class::Failed, slot) => Outcome::Failed(slot),
        (Class::Other, _) => Outcome::Other,
        (Class::Stray, _) => Outcome::Stray,
    }
}

#[cfg(test)]
mod tests;
