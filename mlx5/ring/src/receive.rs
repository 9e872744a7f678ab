//! One pass over a completion queue and the receive queue that completes on it: take a message, look at
//! it, give its slot back.
//!
//! The common case is a plain SEND that completes the WQE whose turn it is. The last word of its CQE is
//! known in advance but for two fields: it holds `wqe_counter`, opcode, format and owner, so **one load and
//! one compare** tell that the CQE has arrived, is a success, needs no further look, and which slot it
//! completes. Everything else leaves through `cold::uncommon`, out of line.
//!
//! What has become of a slot is written to its state at most. The queue is told of all of them together, at
//! the end of a *stretch*: slots that follow each other and are expected to complete one after the other.

mod batch;
mod cold;
mod cursor;
mod inline;

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

use mlx5_wire::cqe::{self, CqeFormat};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::CqeOpcode;

use crate::barrier;
use crate::completion::Cqe;
use crate::cq::CompletionQueue;
use crate::ring::{Ring, last_word};
use crate::rq::ReceiveQueue;
use crate::sge;
use crate::slots;
use crate::srq::SharedReceiveQueue;

use cold::Class;

pub(crate) use batch::Batch;
use batch::{Noted, Stretch};

pub use cold::{Outcome, complete, is_under_way, recover};
pub use cursor::{Cursor, End};

/// A queue that [`Receiving`] can give slots back to: [`ReceiveQueue`] or [`SharedReceiveQueue`].
pub trait Queue: Ring {}

impl<T: Copy> Queue for ReceiveQueue<T> {}
impl<T: Copy> Queue for SharedReceiveQueue<T> {}

/// Bits of the last word that the common case compares. `signature` and the solicited-event bit may be
/// anything. The upper half is that of [`Expected::NEVER`](crate::ring::Expected::NEVER); with all of its bits
/// the mask is an immediate operand.
const COMPARED: u64 = last_word(0xffff, !cqe::SOLICITED_EVENT) as u64 | (u32::MAX as u64) << 32;

/// Opcode and format of the common case: a SEND whose payload is in the posted buffer.
const COMMON: u8 = cqe::op_own(CqeOpcode::ResponderSend, CqeFormat::Plain, false, 0);

/// Takes completions from a CQ and gives slots back to its queue. Dropping it publishes the consumer
/// index, and rings the doorbell for everything posted meanwhile.
///
/// What changes with each message stays in this value, so that a loop over [`next`](Self::next) and
/// [`recycle`](Self::recycle) runs in registers. What is out of line finds it in the completion queue.
pub struct Receiving<'a, Q: Queue> {
    queue: &'a mut Q,
    at: Cursor<Q::Data>,
    /// The CQE has been taken, and its message was not given back yet.
    lent: bool,
    /// The `to_go` since which all messages were recycled, and since which all were taken. Each way of giving
    /// back moves only the other one's, to where `to_go` is: a loop that knows one way moves nothing.
    recycled_from: isize,
    taken_from: isize,
    cq: PhantomData<&'a mut CompletionQueue>,
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

/// A completed receive, to be given back with [`Receiving::recycle`] or [`Receiving::take`], in this batch
/// or a later one. One that is not costs its slot.
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

#[cfg(test)]
impl<T> Message<T> {
    /// A message as one that was held.
    pub(crate) const fn of(data: T, slot: u32) -> Self {
        Self { data, byte_count: 0, slot, position: Position(NonNull::dangling()) }
    }
}

/// Where a CQE of the current batch stands.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Position(pub(crate) NonNull<u8>);

// SAFETY: an address, which only `Receiving::cqe` reads from.
unsafe impl Send for Position {}

impl<'a, Q: Queue> Receiving<'a, Q> {
    /// A batch of at most `budget` completions.
    ///
    /// # Safety
    /// Every receive completion on `cq` belongs to `queue`. The contract under which the WQEs were posted
    /// holds for as long as their buffers are given back.
    #[inline(always)]
    pub unsafe fn new(cq: &'a mut CompletionQueue, queue: &'a mut Q, budget: u32) -> Self {
        if is_under_way(cq) {
            cold::recover_batch(cq, queue);
        }
        let start = cq.consumer_index;
        cq.batch.until = start.wrapping_add(budget);
        let stretch = cold::aim(cq, start, queue.expected());
        let limit = cq.batch.limit;
        let at = Cursor::new(NonNull::from(&mut *cq), stretch, limit, queue.book());
        let from = at.to_go;
        Self { queue, at, lent: false, recycled_from: from, taken_from: from, cq: PhantomData }
    }

    /// Whether the next completion has arrived, of a batch that has taken none.
    #[inline(always)]
    pub fn has_arrived(&self) -> bool {
        cold::has_arrived(self.at.cqe, self.at.expected)
    }

    /// Leaves the batch as it stands: it neither ends nor publishes anything. A message that is lent and was not
    /// given back is kept. How far it has come is [written down](Self::note), from now on by the cursor.
    #[inline(always)]
    pub fn into_cursor(self) -> Cursor<Q::Data> {
        let mut this = ManuallyDrop::new(self);
        if this.lent {
            this.hold();
        }
        let (to_go, recycled_from, taken_from) =
            (this.at.to_go, this.recycled_from, this.taken_from);
        let batch = &mut this.parts().1.batch;
        batch.put(to_go, recycled_from, taken_from);
        (batch.stretch.to_go, batch.noted) = (to_go, Noted::Lent);
        this.at
    }

    /// Goes on with the batch of a cursor that was [put down](Cursor::put_down), or [aimed](put_aim), on the CQ.
    ///
    /// # Safety
    /// The cursor came from [`into_cursor`](Self::into_cursor) of a batch with the same queues, which nobody has used
    /// since, except through this cursor.
    #[inline(always)]
    pub unsafe fn pick_up(mut place: NonNull<CompletionQueue>, queue: &'a mut Q) -> Self {
        // SAFETY: the batch borrows the CQ.
        let cq = unsafe { place.as_mut() };
        let (stretch, limit) = (cq.batch.stretch, cq.batch.limit);
        let (recycled_from, taken_from) = cq.batch.get(stretch.to_go);
        let at = Cursor::new(place, stretch, limit, queue.book());
        Self { queue, at, lent: false, recycled_from, taken_from, cq: PhantomData }
    }

    #[inline(always)]
    fn parts(&mut self) -> (&mut Q, &mut CompletionQueue) {
        // SAFETY: the batch borrows the CQ, and its cursor has the only other way to it.
        (self.queue, unsafe { self.at.cq.as_mut() })
    }

    /// The next completion that has arrived, or `None` when there is none or the budget is used up.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would have to be dropped to recycle"
    )]
    #[inline(always)]
    pub fn next(&mut self) -> Option<Completion<Q::Data>> {
        if self.lent {
            self.hold();
        }
        let found = self.at.to_go == 0 && self.go_on()?;
        // SAFETY: the batch goes on.
        if !found && !unsafe { self.at.is_common() } {
            self.save();
            let (queue, cq) = self.parts();
            match cold::uncommon(queue, cq) {
                Class::None => return None,
                Class::InOrder => {}
                Class::Message => self.load(),
                class => {
                    let position = Position(self.at.cqe);
                    self.load();
                    return Some(match class {
                        Class::Failed => Completion::Failed(self.failed(position)),
                        Class::Other => Completion::Other(position),
                        _ => Completion::Stray(position),
                    });
                }
            }
        }
        barrier::owner_before_cqe();
        self.lent = true;
        // SAFETY: the CQE is software's, and the slot of the stretch was posted.
        let (data, byte_count) = unsafe { (self.at.posted(), self.at.cqe().byte_count()) };
        Some(Completion::Message(Message {
            data,
            byte_count,
            slot: self.at.slot(),
            position: Position(self.at.cqe),
        }))
    }

    #[cold]
    fn failed(&mut self, position: Position) -> Message<Q::Data> {
        let slot = self.parts().1.batch.failed;
        // SAFETY: the slot was posted.
        let data = unsafe { self.queue.book().data(slot) };
        Message { data, byte_count: 0, slot, position }
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
    /// `message` came from this batch or from an earlier one on the same queues that was dropped, the QP
    /// was not reset since, and nobody uses its buffer any more: the contract of posting holds again.
    #[inline(always)]
    pub unsafe fn recycle(&mut self, message: Message<Q::Data>) {
        if self.is_lent(message.slot) {
            self.step();
            self.taken_from = self.at.to_go;
            return;
        }
        self.settle();
        let (queue, cq) = self.parts();
        // SAFETY: the slot has completed and is given back once.
        unsafe { cold::recycle(queue, cq, message.slot) };
    }

    /// Gives a slot back without its buffer, which is the caller's from now on.
    ///
    /// # Safety
    /// `message` came from this batch or from an earlier one on the same queues that was dropped, and the
    /// QP was not reset since.
    #[inline(always)]
    pub unsafe fn take(&mut self, message: Message<Q::Data>) -> Q::Data {
        if self.is_lent(message.slot) {
            self.at.set_state(slots::EMPTY);
            self.step();
            self.recycled_from = self.at.to_go;
        } else {
            self.settle();
            let (queue, cq) = self.parts();
            // SAFETY: the slot has completed and is given back once.
            unsafe { cold::release(queue, cq, message.slot) };
        }
        message.data
    }

    /// Writes down how far the batch has come, for the case that it is forgotten and not dropped: then
    /// [`recover`], or the next batch, goes on from there. Without a note the next batch sees the same CQEs
    /// again, and the messages that were not taken.
    #[inline(always)]
    pub fn note(&mut self) {
        let (lent, to_go) = (self.lent, self.at.to_go);
        let batch = &mut self.parts().1.batch;
        batch.noted = if lent { Noted::Lent } else { Noted::GivenBack };
        batch.stretch.to_go = to_go + isize::from(lent);
    }

    /// The next message was asked for before this one was given back.
    #[inline(always)]
    fn hold(&mut self) {
        self.queue.hold(self.at.slot());
        self.step();
        self.told();
    }

    /// The message that was lent is accounted for: the next slot has its turn.
    #[inline(always)]
    fn step(&mut self) {
        self.lent = false;
        // SAFETY: the batch goes on.
        unsafe { self.at.step() }
    }

    /// All that is known of the slots so far is, or will be, in their states.
    #[inline(always)]
    const fn told(&mut self) {
        (self.recycled_from, self.taken_from) = (self.at.to_go, self.at.to_go);
    }

    /// Whether it is the message of `slot` that is lent.
    #[inline(always)]
    const fn is_lent(&self, slot: u32) -> bool {
        self.lent && slot == self.at.slot()
    }

    /// Prepares to tell the queue what has become of the slots so far, and of another one.
    #[inline(always)]
    fn settle(&mut self) {
        if self.lent {
            self.hold();
        }
        self.save();
        self.told();
    }

    /// Goes on with the next stretch, of which the first slot may have a message; `None` when the budget is used up.
    #[inline(always)]
    fn go_on(&mut self) -> Option<bool> {
        if self.parts().1.batch.is_last() {
            return None;
        }
        self.save();
        let (queue, cq) = self.parts();
        let found = cold::go_on(queue, cq);
        self.load();
        Some(found)
    }

    /// Puts the registers where out-of-line code finds them.
    #[inline(always)]
    fn save(&mut self) {
        let (recycled_from, taken_from) = (self.recycled_from, self.taken_from);
        let Cursor { cqe, expected, to_go, .. } = self.at;
        let batch = &mut self.parts().1.batch;
        batch.stretch = Stretch { cqe, expected, to_go };
        batch.put(to_go, recycled_from, taken_from);
    }

    /// Takes the registers of a new stretch.
    #[inline(always)]
    fn load(&mut self) {
        let (queue, cq) = self.parts();
        let (stretch, limit) = (cq.batch.stretch, cq.batch.limit);
        self.at = Cursor::new(NonNull::from(cq), stretch, limit, queue.book());
        self.lent = false;
        self.told();
    }
}

/// Puts down where a cursor stands, of what it [says](Cursor::aim): then [`retarget`] and [`Receiving::pick_up`] go on with
/// it. Behind them it [is reloaded](Cursor::reload).
///
/// # Safety
/// The cursor is of a batch that goes on, on this CQ.
#[inline(always)]
pub unsafe fn put_aim(cq: NonNull<CompletionQueue>, Position(cqe): Position, expected: u64) {
    // SAFETY: the batch borrows the CQ. How far the cursor has come is there already, see `Cursor::lend`.
    unsafe {
        let stretch = &raw mut (*cq.as_ptr()).batch.stretch;
        (&raw mut (*stretch).cqe).write(cqe);
        (&raw mut (*stretch).expected).write(expected);
    }
}

/// Whether the next completion of a cursor that was [aimed](put_aim) there has not arrived. At the end of a stretch that
/// is not known, and `false`.
///
/// # Safety
/// Of a batch that goes on.
#[inline(always)]
pub unsafe fn has_nothing<Q: Queue>(queue: &Q, mut place: NonNull<CompletionQueue>) -> bool {
    // SAFETY: the batch borrows the CQ.
    let cq = unsafe { place.as_mut() };
    let stretch = cq.batch.stretch;
    // Behind the last CQE of a stretch the buffer may end.
    let nothing = stretch.to_go != 0 && !cold::has_arrived(stretch.cqe, stretch.expected);
    if nothing {
        // All of the cursor, which goes on when it is reloaded.
        Cursor::new(place, stretch, cq.batch.limit, queue.book()).put(&mut cq.batch);
    }
    nothing
}

/// If the next completion of a cursor that was [aimed](put_aim) there is the common case in all but the slot, gives that
/// slot its turn, and lends the message if `lend` wants it. Behind it the cursor is put down, or is
/// aimed as it was.
///
/// # Safety
/// Of a batch that goes on with this queue; the contract of [`Cursor::lend`].
#[inline(always)]
pub unsafe fn retarget<Q: Queue, R>(
    queue: &mut Q,
    mut place: NonNull<CompletionQueue>,
    lend: impl FnOnce(Q::Data, u32) -> Option<R>,
) -> Option<R> {
    // SAFETY: the batch borrows the CQ.
    let cq = unsafe { place.as_mut() };
    let Stretch { cqe, expected, .. } = cq.batch.stretch;
    let stretch = cold::retarget(queue, cq, cqe, expected)?;
    let mut at = Cursor::new(place, stretch, cq.batch.limit, queue.book());
    // SAFETY: its CQE is software's, and the slot was posted; now it is the common case.
    unsafe {
        let lent = lend(at.posted(), at.cqe().byte_count());
        if lent.is_some() {
            at.step();
        }
        at.put(&mut cq.batch);
        lent
    }
}

/// Describes other memory in a slot, in place of what was posted there.
///
/// # Safety
/// The slot has completed and was not given back, or a [`Cursor`] has lent its message last, which was not taken.
/// The contract of posting; and the segment names at least one byte.
#[inline(always)]
pub unsafe fn rewrite<Q: Queue>(queue: &mut Q, slot: u32, data: Q::Data, segment: DataSegment) {
    // SAFETY: software's by the contract; a WQE has room for one segment.
    unsafe {
        sge::scatter_exactly(queue.segments(slot), queue.max_sge().get(), [segment]);
        queue.book_mut().set_data_at(slot as usize, data);
    }
}

/// Moves the one piece of memory that a slot describes to another address: all else stays what was posted.
/// `update` tells what is given back with the completion.
///
/// # Safety
/// As [`rewrite`]; and one piece was posted.
#[inline(always)]
pub unsafe fn readdress<Q: Queue>(
    queue: &mut Q,
    slot: u32,
    addr: u64,
    update: impl FnOnce(&mut Q::Data),
) {
    // SAFETY: software's by the contract; a WQE has room for one segment, and a slot that completed has data.
    unsafe {
        sge::readdress(queue.segments(slot), addr);
        update(queue.book_mut().data_at_mut(slot as usize));
    }
}

/// Ends the batch of a cursor, as dropping it would have.
///
/// # Safety
/// `end` is of a cursor that came from [`Receiving::into_cursor`] of a batch with the same queues, which nobody
/// has used since, except through this cursor.
#[inline(always)]
pub unsafe fn finish<Q: Queue>(cq: &mut CompletionQueue, queue: &mut Q, end: End) {
    let End(to_go) = end;
    cold::finish_cursor(queue, cq, to_go);
}

impl<Q: Queue> Drop for Receiving<'_, Q> {
    #[inline(always)]
    fn drop(&mut self) {
        let Self { recycled_from, taken_from, lent, at: Cursor { to_go, .. }, .. } = *self;
        let (queue, cq) = self.parts();
        cold::finish(queue, cq, to_go, recycled_from, taken_from, lent);
    }
}

#[cfg(test)]
mod tests;
