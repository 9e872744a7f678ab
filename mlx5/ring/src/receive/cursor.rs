//! What changes with each message of a batch.

use core::marker::PhantomData;
use core::mem::{MaybeUninit, offset_of};
use core::ptr::NonNull;

use mlx5_wire::cqe::Cqe64;

use super::COMPARED;
use super::batch::{Noted, Stretch};
use crate::barrier;
use crate::completion::Cqe;
use crate::cq::CompletionQueue;
use crate::ring::NEXT;
use crate::slots;

/// The part of a [`Receiving`](super::Receiving) that its common case works with. Plain values, so that who
/// lends messages further can keep them in registers, too: [`Receiving::into_cursor`] and
/// [`Receiving::from_cursor`] lead out and back.
///
/// Its methods know of one way to give messages back each, and of nothing out of line.
///
/// [`Receiving::into_cursor`]: super::Receiving::into_cursor
/// [`Receiving::from_cursor`]: super::Receiving::from_cursor
#[derive(Debug)]
pub struct Cursor<T> {
    /// The next CQE; while a message is lent, its CQE.
    pub(super) cqe: NonNull<u8>,
    /// Its last word, in the common case.
    pub(super) expected: u32,
    /// CQEs of the stretch, as a negative number that counts up to 0.
    pub(super) to_go: isize,
    /// The running slot after the stretch, with its state and data; `to_go` leads back to the slot whose turn
    /// it is.
    pub(super) limit: u32,
    pub(super) states: NonNull<u8>,
    pub(super) data: NonNull<MaybeUninit<T>>,
    /// The CQE has been taken, and its message was not given back yet.
    pub(super) lent: bool,
    /// The `to_go` since which all messages were recycled, and since which all were taken. Each way of giving
    /// back moves only the other one's, to where `to_go` is: a loop that knows one way moves nothing.
    pub(super) recycled_from: isize,
    pub(super) taken_from: isize,
    pub(super) cq: NonNull<CompletionQueue>,
}

impl<T: Copy> Clone for Cursor<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Copy> Copy for Cursor<T> {}

impl<T: Copy> Cursor<T> {
    /// Of no batch: it has no message.
    pub const fn idle() -> Self {
        Self {
            cqe: NonNull::dangling(),
            expected: 0,
            to_go: 0,
            limit: 0,
            states: NonNull::dangling(),
            data: NonNull::dangling(),
            lent: false,
            recycled_from: 0,
            taken_from: 0,
            cq: NonNull::dangling(),
        }
    }

    #[inline(always)]
    pub(super) const fn new(
        cq: NonNull<CompletionQueue>,
        Stretch { cqe, expected, to_go }: Stretch,
        limit: u32,
        (states, data): (NonNull<u8>, NonNull<MaybeUninit<T>>),
    ) -> Self {
        Self {
            cqe,
            expected,
            to_go,
            limit,
            states,
            data,
            lent: false,
            recycled_from: to_go,
            taken_from: to_go,
            cq,
        }
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
        let word =
            unsafe { self.cqe.add(offset_of!(Cqe64, wqe_counter)).cast::<u32>().read_volatile() };
        word & COMPARED == self.expected && self.state() == slots::POSTED
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

    /// Takes the message that was peeked at, and writes down how far the batch has come, see
    /// [`Receiving::note`](super::Receiving::note).
    ///
    /// # Safety
    /// [`peek`](Self::peek) has just returned it.
    #[inline(always)]
    pub unsafe fn lend(&mut self) {
        self.lent = true;
        // SAFETY: of a batch that goes on.
        unsafe { self.note(Noted::Lent) }
    }

    /// Whether a message is lent.
    #[inline(always)]
    pub const fn is_lent(&self) -> bool {
        self.lent
    }

    /// The CQE of the message that is lent.
    ///
    /// # Safety
    /// One is, and the batch goes on.
    #[inline(always)]
    pub unsafe fn cqe(&self) -> Cqe<'_> {
        // SAFETY: the CQE is software's until the batch publishes the consumer index.
        unsafe { Cqe::new(self.cqe, PhantomData) }
    }

    /// Gives the slot of the message that is lent back with its buffer.
    ///
    /// # Safety
    /// One is, the batch goes on, and nobody uses the buffer any more: the contract of posting holds again.
    #[inline(always)]
    pub unsafe fn recycle(&mut self) {
        // SAFETY: of a batch that goes on.
        unsafe { self.step() };
        self.taken_from = self.to_go;
    }

    /// Gives the slot of the message that is lent back without its buffer, and writes that down.
    ///
    /// # Safety
    /// One is, and the batch goes on.
    #[inline(always)]
    pub unsafe fn take(&mut self) {
        // SAFETY: of a batch that goes on.
        unsafe {
            self.release();
            self.note(Noted::GivenBack);
        }
    }

    /// [`take`](Self::take) without a note.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn release(&mut self) {
        // SAFETY: of a batch that goes on.
        unsafe {
            self.set_state(slots::EMPTY);
            self.step();
        }
        self.recycled_from = self.to_go;
    }

    /// The message that was lent is kept.
    ///
    /// # Safety
    /// As [`take`](Self::take).
    #[inline(always)]
    pub(super) unsafe fn hold(&mut self) {
        // SAFETY: of a batch that goes on.
        unsafe {
            self.set_state(slots::HELD);
            self.step();
        }
        self.told();
    }

    /// All that is known of the slots so far is, or will be, in their states.
    #[inline(always)]
    pub(super) const fn told(&mut self) {
        (self.recycled_from, self.taken_from) = (self.to_go, self.to_go);
    }

    /// The message that was lent is accounted for: the next slot has its turn.
    ///
    /// # Safety
    /// Of a batch that goes on.
    #[inline(always)]
    unsafe fn step(&mut self) {
        self.lent = false;
        self.expected = self.expected.wrapping_add(NEXT);
        // SAFETY: `to_go` counts the CQEs up to the end of the buffer, so this is at most its end.
        self.cqe = unsafe {
            let stride = (&raw const (*self.cq.as_ptr()).stride).read();
            self.cqe.add(stride)
        };
        self.to_go += 1;
    }

    /// # Safety
    /// Of a batch that goes on.
    #[inline(always)]
    pub(super) unsafe fn note(&mut self, noted: Noted) {
        // SAFETY: the batch borrows the CQ.
        unsafe {
            let batch = &raw mut (*self.cq.as_ptr()).batch;
            (*batch).stretch.to_go = self.to_go;
            (*batch).noted = noted;
        }
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
        unsafe { self.data.offset(self.to_go).read().assume_init() }
    }

    #[inline(always)]
    fn state(&self) -> u8 {
        // SAFETY: a slot of the stretch, or the first one of none: below the number of slots.
        unsafe { self.states.offset(self.to_go).read() }
    }

    #[inline(always)]
    fn set_state(&mut self, state: u8) {
        // SAFETY: as above.
        unsafe { self.states.offset(self.to_go).write(state) }
    }
}

// SAFETY: what it points to is the batch's, which moves with it.
unsafe impl<T: Send> Send for Cursor<T> {}
