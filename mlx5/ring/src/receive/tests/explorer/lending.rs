//! A batch as a loop over lent messages has it: a cursor, and what is out of line where that has no message.

use core::marker::PhantomData;

use crate::cq::CompletionQueue;
use crate::receive::{self, Completion, Cursor, Receiving};
use crate::testing::{Beside, Place, TestQueue, pool};

use super::state::describe;
use super::steps::Found;

pub struct Lending<'a, Q: TestQueue> {
    queue: &'a mut Q,
    pub cursor: Cursor<u32>,
    /// The message before the cursor is lent, and was not taken.
    pub lent: bool,
    cq: PhantomData<&'a mut CompletionQueue>,
}

/// How the next message is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Whether [`retarget`](receive::retarget) is asked before all else out of line.
    pub retarget: bool,
    /// A message that is not lent gives its slot back without its buffer, and so does a receive that failed.
    pub refuse: bool,
}

impl Way {
    pub const STRAIGHT: Self = Self { retarget: false, refuse: false };

    /// What becomes of a message matters only if there is one.
    pub fn all(retargets: &'static [bool], found: bool) -> impl Iterator<Item = Self> {
        let refuse = if found { &[false, true][..] } else { &[false] };
        let with = |&refuse| retargets.iter().map(move |&retarget| Self { retarget, refuse });
        refuse.iter().flat_map(with)
    }
}

impl<'a, Q: TestQueue> Lending<'a, Q> {
    /// The batch of `cursor`, whose last message may be lent.
    pub fn new(queue: &'a mut Q, cursor: Cursor<u32>, lent: bool) -> Self {
        Self { queue, cursor, lent, cq: PhantomData }
    }

    pub fn parts(&mut self) -> (&mut Q, &mut CompletionQueue) {
        // SAFETY: the batch borrows the CQ, and its cursor has the only way to it.
        (self.queue, unsafe { self.cursor.cq.as_mut() })
    }

    /// The slot of the message before the cursor, of those that the queue was not told of.
    fn last(&mut self) -> Option<u32> {
        let to_go = self.cursor.to_go;
        let batch = &self.parts().1.batch;
        (to_go != batch.settled).then(|| batch.slot(to_go - 1))
    }

    /// Nobody uses the message any more that was lent.
    fn end_loan(&mut self, beside: &mut Beside<'_>, place: Place) {
        if core::mem::take(&mut self.lent) {
            // SAFETY: it was lent, and the batch goes on.
            beside.let_go(unsafe { self.cursor.lent_slot() }, place);
        }
    }

    /// A message was lent just now.
    fn lend(&mut self, beside: &mut Beside<'_>, found: (u32, u32)) -> Found {
        // SAFETY: it is the last one.
        unsafe { beside.lent(found, self.cursor.lent_slot(), self.cursor.lent()) }
        self.lent = true;
        Found::Arrived
    }

    /// Goes on to the next completion.
    pub fn next(&mut self, beside: &mut Beside<'_>, way: Way) -> Found {
        self.end_loan(beside, Place::Queue);
        // SAFETY: the cursor is of this batch, and nobody reads a buffer that was given back.
        unsafe {
            match self.cursor.peek() {
                Some(found) if !way.refuse => {
                    self.cursor.lend();
                    return self.lend(beside, found);
                }
                _ if self.cursor.is_done() => return Found::Nothing,
                _ => {}
            }
            let (cq, position, expected) = self.cursor.aim();
            receive::put_aim(cq, position, expected);
            let lend = |data, byte_count| (!way.refuse).then_some((data, byte_count));
            if let Some(found) =
                way.retarget.then(|| receive::retarget(self.queue, cq, lend)).flatten()
            {
                self.cursor.reload();
                assert_eq!(self.cursor.lent_data(), found.0);
                return self.lend(beside, found);
            }
            if way.retarget && receive::has_nothing(self.queue, cq) {
                self.cursor.reload();
                return Found::Nothing;
            }
            let mut receiving = Receiving::pick_up(cq, &mut *self.queue);
            let (mut found, mut lent) = (Found::Arrived, None);
            match receiving.next() {
                None => found = Found::Nothing,
                Some(Completion::Stray(_)) => found = Found::Stray,
                Some(Completion::Message(message)) if !way.refuse => {
                    lent = Some((message.data, message.byte_count));
                    receiving.recycle(message);
                }
                Some(completion) => {
                    if let Some(message) = beside.received(&receiving, completion) {
                        let last = beside.held.len() - 1;
                        beside.give_back(&mut receiving, last, Some(message), !way.refuse);
                    }
                }
            }
            receiving.into_cursor().put_down();
            self.cursor.reload();
            match lent {
                Some(message) => self.lend(beside, message),
                None => found,
            }
        }
    }

    /// Takes the buffer of the message that is lent.
    pub fn take(&mut self, beside: &mut Beside<'_>) {
        // SAFETY: it is lent, and was not taken.
        unsafe { self.cursor.take() }
        self.end_loan(beside, Place::Pool);
    }

    /// Takes the buffer of the message that is lent, and leaves another one in its slot.
    pub fn replace(&mut self, beside: &mut Beside<'_>) {
        let buffer = pool(beside.buffers).next().expect("there is another one");
        // SAFETY: it is lent, and was not taken; the memory is not a Rust object, and nobody touches it.
        unsafe {
            let slot = self.cursor.lent_slot();
            receive::rewrite(self.queue, slot, buffer, describe(buffer));
        }
        self.end_loan(beside, Place::Pool);
        beside.buffers[buffer as usize] = Place::Queue;
    }

    pub fn end(mut self, beside: &mut Beside<'_>) {
        self.end_loan(beside, Place::Queue);
        let end = self.cursor.end();
        let (queue, cq) = self.parts();
        // SAFETY: the cursor is of this batch, and nobody uses the buffers that were given back.
        unsafe { receive::finish(cq, queue, end) }
    }

    /// Forgets the batch. A message that is lent stays held. One that was lent before may, too: its slot.
    pub fn forget(mut self) -> Option<u32> {
        if self.lent { None } else { self.last() }
    }
}
