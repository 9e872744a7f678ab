//! What changes with each message of a batch.

use core::marker::PhantomData;
use core::mem::{MaybeUninit, offset_of};
use core::ptr::NonNull;

use mlx5_wire::cqe::Cqe64;

use super::batch::{Batch, Stretch};
use super::{COMPARED, Position};
use crate::barrier;
use crate::completion::Cqe;
use crate::cq::CompletionQueue;
use crate::ring::NEXT;
use crate::slots::{self, Slots};

/// The part of a [`Receiving`](super::Receiving) that its common case works with. Plain values, so that who
/// lends messages further can keep them in registers, too: [`Receiving::into_cursor`] and
/// [`Receiving::pick_up`] lead out and back.
///
/// Its methods know of one way to give messages back each, and of nothing out of line.
///
/// [`Receiving::into_cursor`]: super::Receiving::into_cursor
/// [`Receiving::pick_up`]: super::Receiving::pick_up
#[derive(Debug)]
pub struct Cursor<T> {
    /// The next CQE; while a message is lent, its CQE.
    pub(super) cqe: NonNull<u8>,
    /// Its last word, in the common case.
    pub(super) expected: u64,
    /// CQEs of the stretch, as a negative number that counts up to 0.
    pub(super) to_go: isize,
    /// The running slot after the stretch, with its state; `to_go` leads back to the slot whose turn it is.
    pub(super) limit: u32,
    pub(super) states: NonNull<u8>,
    /// Data of the running slot after the stretch, or where that is not [`SCALED`](Self::SCALED), of the slot
    /// whose turn it is.
    pub(super) data: NonNull<MaybeUninit<T>>,
    pub(super) cq: NonNull<CompletionQueue>,
}

/// What a cursor of no batch reads of a CQ: it has no message, and its budget is used up or is not.
struct NoBatch(MaybeUninit<CompletionQueue>);

// SAFETY: it is only read, and nothing is behind its pointers.
unsafe impl Sync for NoBatch {}

impl NoBatch {
    const fn of(budget: u32) -> Self {
        let mut cq = MaybeUninit::<CompletionQueue>::uninit();
        let batch = Batch { until: budget, ..Batch::new() };
        // SAFETY: inside the value.
        unsafe { (&raw mut (*cq.as_mut_ptr()).batch).write(batch) };
        Self(cq)
    }
}

static IDLE: NoBatch = NoBatch::of(1);
static DONE: NoBatch = NoBatch::of(0);

/// How far a cursor has come.
#[derive(Clone, Copy, Debug)]
pub struct End(pub(super) isize);

impl<T: Copy> Clone for Cursor<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Copy> Copy for Cursor<T> {}

impl<T: Copy> Cursor<T> {
    /// Whether processors scale an index to the size of the data themselves. If not, adding to a pointer costs
    /// less than scaling.
    const SCALED: bool = size_of::<T>() <= 8;

    /// Where a cursor of no batch is [picked up](Self::pick_up): it has no message, and stays so when it is
    /// [reloaded](Self::reload).
    #[inline(always)]
    pub fn idle() -> NonNull<CompletionQueue> {
        NonNull::from(&IDLE.0).cast()
    }

    /// The same of a cursor that [is done](Self::is_done) from the start.
    #[inline(always)]
    pub fn done() -> NonNull<CompletionQueue> {
        NonNull::from(&DONE.0).cast()
    }

    #[inline(always)]
    pub(super) fn new(
        cq: NonNull<CompletionQueue>,
        Stretch { cqe, expected, to_go }: Stretch,
        limit: u32,
        book: &Slots<T>,
    ) -> Self {
        let (states, mut data) = book.entry(limit);
        if !Self::SCALED {
            data = book.entry(limit.wrapping_add(to_go as u32)).1;
        }
        Self { cqe, expected, to_go, limit, states, data, cq }
    }

    /// Whether the message that is next is the common case: it has arrived, is a SEND whose payload is in the
    /// posted buffer, and completes the slot whose turn it is.
    ///
    /// # Safety
    /// Of a batch that goes on, with a slot left in its stretch.
    #[inline(always)]
    pub(super) unsafe fn is_common(&self) -> bool {
        // One aligned load: the device cannot write half of it.
        // SAFETY: inside the CQ; volatile because the device writes it.
        let word: u64 = unsafe {
            self.cqe.add(offset_of!(Cqe64, wqe_counter)).cast::<u32>().read_volatile().into()
        };
        (word ^ self.expected) & COMPARED == 0 && self.state() == slots::POSTED
    }

    /// What was posted for the message that is next, and its length, in the common case; of all else, `None`.
    /// It is not taken yet.
    ///
    /// # Safety
    /// Idle, or of a batch that goes on; nothing is lent.
    #[inline(always)]
    pub unsafe fn peek(&self) -> Option<(T, u32)> {
        // SAFETY: a slot is left in the stretch.
        if self.to_go == 0 || !unsafe { self.is_common() } {
            return None;
        }
        barrier::owner_before_cqe();
        // SAFETY: the CQE is software's, and the slot of the stretch was posted.
        Some(unsafe { (self.posted(), self.cqe().byte_count()) })
    }

    /// So much of it as says where it stands, in registers, for [`put_aim`](super::put_aim) out of line.
    #[inline(always)]
    pub const fn aim(&self) -> (NonNull<CompletionQueue>, Position, u64) {
        (self.cq, Position(self.cqe), self.expected)
    }

    /// Puts it where [`pick_up`](Self::pick_up) finds it: in its completion queue, whose address is returned.
    ///
    /// # Safety
    /// Of a batch that goes on.
    #[inline(always)]
    pub unsafe fn put_down(self) -> NonNull<CompletionQueue> {
        // SAFETY: the batch borrows the CQ.
        self.put(unsafe { &mut (*self.cq.as_ptr()).batch });
        self.cq
    }

    /// The cursor that was put down.
    ///
    /// # Safety
    /// The CQ is that of a batch that goes on, whose cursor was [put down](Self::put_down), and not gone on with since.
    #[inline(always)]
    pub unsafe fn pick_up(cq: NonNull<CompletionQueue>) -> Self {
        // SAFETY: the batch borrows the CQ.
        let batch = unsafe { &(*cq.as_ptr()).batch };
        let Stretch { cqe, expected, to_go } = batch.stretch;
        let (limit, states, data) = (batch.limit, batch.states, batch.data.cast());
        Self { cqe, expected, to_go, limit, states, data, cq }
    }

    /// Goes on behind code out of line with what that has put down.
    ///
    /// # Safety
    /// As [`pick_up`](Self::pick_up), on the CQ of this cursor.
    #[inline(always)]
    pub unsafe fn reload(&mut self) {
        // SAFETY: the caller's contract.
        *self = unsafe { Self::pick_up(self.cq) };
    }

    /// Puts all but the CQ where [`reload`](Self::reload) finds it.
    #[inline(always)]
    pub(super) fn put(&self, batch: &mut Batch) {
        let Self { cqe, expected, to_go, states, data, .. } = *self;
        batch.stretch = Stretch { cqe, expected, to_go };
        (batch.states, batch.data) = (states, data.cast());
    }

    /// What was posted for the message that was lent last.
    ///
    /// # Safety
    /// As [`take`](Self::take).
    #[inline(always)]
    pub unsafe fn lent_data(&self) -> T {
        // SAFETY: of the slot before the one whose turn it is.
        unsafe {
            let data = if Self::SCALED { self.data.offset(self.to_go) } else { self.data };
            data.sub(1).read().assume_init()
        }
    }

    /// Takes the message that was peeked at, and gives its slot back with its buffer already: nothing comes
    /// of that before the batch goes on out of line or ends. Writes down how far the batch has come, see
    /// [`Receiving::note`](super::Receiving::note).
    ///
    /// # Safety
    /// [`peek`](Self::peek) has just returned it. Nobody uses the buffer when the batch goes on out of line
    /// or ends: then the contract of posting holds again, unless it was [taken](Self::take) before.
    #[inline(always)]
    pub unsafe fn lend(&mut self) {
        // SAFETY: of a batch that goes on.
        unsafe {
            self.step();
            self.note();
        }
    }

    /// Keeps the buffer of the message that was lent last: its slot is given back without.
    ///
    /// # Safety
    /// A message was lent, by [`lend`](Self::lend) or before [`Receiving::into_cursor`], and not taken; the
    /// batch goes on, and has not gone on out of line since.
    ///
    /// [`Receiving::into_cursor`]: super::Receiving::into_cursor
    #[inline(always)]
    pub unsafe fn take(&mut self) {
        // SAFETY: the slot before the one whose turn it is, in the stretch; the batch borrows the CQ.
        unsafe {
            self.states.offset(self.to_go - 1).write(slots::EMPTY);
            (*self.cq.as_ptr()).batch.taken += 1;
        }
    }

    /// The slot of the message that was lent last.
    ///
    /// # Safety
    /// As [`take`](Self::take).
    #[inline(always)]
    pub unsafe fn lent_slot(&self) -> u32 {
        // SAFETY: the batch borrows the CQ.
        unsafe { (*self.cq.as_ptr()).batch.slot(self.to_go - 1) }
    }

    /// The CQE of the message that was lent last.
    ///
    /// # Safety
    /// As [`take`](Self::take).
    #[inline(always)]
    pub unsafe fn lent(&self) -> Cqe<'_> {
        // SAFETY: the CQE before the next one of the stretch; software's until the batch publishes the
        // consumer index.
        unsafe { Cqe::new(self.cqe.sub(self.stride()), PhantomData) }
    }

    /// Whether there is nothing left that the batch may take.
    ///
    /// # Safety
    /// Idle, or of a batch that goes on.
    #[inline(always)]
    pub unsafe fn is_done(&self) -> bool {
        // SAFETY: the batch borrows the CQ.
        self.to_go == 0 && unsafe { (*self.cq.as_ptr()).batch.is_last() }
    }

    /// Whether it is [of no batch](Self::idle), or [was done](Self::done) from the start.
    ///
    /// That is seen by what changes: on the CQ, which is the same all the time, the compiler would make two loops of one.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.states == NonNull::dangling()
    }

    /// How far it has come, for [`finish`](super::finish).
    #[inline(always)]
    pub const fn end(self) -> End {
        End(self.to_go)
    }

    /// The CQE whose turn it is.
    ///
    /// # Safety
    /// It has arrived, and the batch goes on.
    #[inline(always)]
    pub(super) unsafe fn cqe(&self) -> Cqe<'_> {
        // SAFETY: the CQE is software's until the batch publishes the consumer index.
        unsafe { Cqe::new(self.cqe, PhantomData) }
    }

    /// The message that was lent is accounted for: the next slot has its turn.
    ///
    /// # Safety
    /// Of a batch that goes on.
    #[inline(always)]
    pub(super) unsafe fn step(&mut self) {
        self.expected = self.expected.wrapping_add(NEXT);
        // SAFETY: `to_go` counts the CQEs up to the end of the buffer, so this is at most its end.
        self.cqe = unsafe { self.cqe.add(self.stride()) };
        self.to_go += 1;
        if !Self::SCALED {
            // SAFETY: a slot of the stretch, or the running slot after it.
            self.data = unsafe { self.data.add(1) };
        }
    }

    /// # Safety
    /// Of a batch that goes on.
    #[inline(always)]
    unsafe fn stride(&self) -> usize {
        // SAFETY: the batch borrows the CQ.
        unsafe { (&raw const (*self.cq.as_ptr()).stride).read() }
    }

    /// Writes down how far the batch has come.
    ///
    /// # Safety
    /// Of a batch that goes on.
    #[inline(always)]
    pub(super) unsafe fn note(&mut self) {
        // SAFETY: the batch borrows the CQ.
        unsafe { (&raw mut (*self.cq.as_ptr()).batch.stretch.to_go).write(self.to_go) }
    }

    /// The slot whose turn it is.
    #[inline(always)]
    pub(super) const fn slot(&self) -> u32 {
        self.limit.wrapping_add(self.to_go as u32)
    }

    /// What was posted into it.
    ///
    /// # Safety
    /// It was posted.
    #[inline(always)]
    pub(super) unsafe fn posted(&self) -> T {
        // SAFETY: a slot of the stretch, and initialised by the contract.
        unsafe {
            let data = if Self::SCALED { self.data.offset(self.to_go) } else { self.data };
            data.read().assume_init()
        }
    }

    #[inline(always)]
    fn state(&self) -> u8 {
        // SAFETY: a slot of the stretch, or the first one of none: below the number of slots.
        unsafe { self.states.offset(self.to_go).read() }
    }

    #[inline(always)]
    pub(super) fn set_state(&mut self, state: u8) {
        // SAFETY: as above.
        unsafe { self.states.offset(self.to_go).write(state) }
    }
}

// SAFETY: what it points to is the batch's, which moves with it.
unsafe impl<T: Send> Send for Cursor<T> {}
