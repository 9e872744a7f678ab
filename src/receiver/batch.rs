//! Receiving: a batch of completions whose messages are lent in place.

use std::marker::PhantomData;
use std::ptr::NonNull;

use mlx5_ring::receive::Cursor;
use mlx5_wire::data::DataSegment;

use super::Receiver;
use super::facts::Facts;
use super::failure::Failure;
use super::found;
use super::message::Message;
use super::resident::{Books, Lent, Resident};

/// Completions that one batch takes at most, unless asked otherwise.
const BUDGET: u32 = 64;

impl Receiver {
    /// Takes what has arrived, at most 64 completions: see [`poll_up_to`](Self::poll_up_to).
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
    #[inline(always)]
    pub fn poll(&mut self) -> Batch<'_> {
        self.poll_up_to(BUDGET)
    }

    /// Takes what has arrived, at most `budget` completions. Where nothing has, the batch has ended already.
    ///
    /// The batch lends each message in place. When it is dropped, the CQEs are given back, and all slots
    /// that were recycled meanwhile are posted with one doorbell; so keep batches short: on a CQ of `n`
    /// entries the device can write `n` completions before a batch has ended, and no more.
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
    #[inline(always)]
    pub fn poll_up_to(&mut self, budget: u32) -> Batch<'_> {
        let mut receiver = NonNull::from(self);
        // SAFETY: borrowed for as long as the batch exists; the cursor of the batch was put down.
        let cursor = unsafe { Cursor::pick_up(found::start(receiver.as_mut(), budget)) };
        Batch { cursor, receiver, borrow: PhantomData }
    }
}

/// Completions that have arrived. Ends when it is dropped.
///
/// A loop over plain messages of the only queue of a receiver runs on the cursor alone, in registers. All
/// else happens out of line, in the receiver; then the cursor is idle, or is handed over and back.
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # world.send(b"hello");
/// # let receiver = &mut world.receiver;
/// let mut kept = None;
/// let mut batch = receiver.poll();
/// while let Some(next) = batch.next() {
///     match next {
///         // Recycled when the batch goes on, unless it is taken.
///         Ok(message) if message.starts_with(b"hello") => kept = Some(message.take()),
///         Ok(_) => {}
///         Err(failure) => println!("{failure}"),
///     }
/// }
/// // Here the recycled slots are posted, with one doorbell.
/// drop(batch);
/// assert_eq!(kept.as_deref(), Some(&b"hello"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Batch<'a> {
    cursor: Cursor<Resident>,
    /// The queues of the cursor are in it, so it is borrowed anew where they are not used.
    receiver: NonNull<Receiver>,
    borrow: PhantomData<&'a mut Receiver>,
}

impl<'a> Batch<'a> {
    /// The next message, or the next receive that failed; `None` when nothing more has arrived or the
    /// budget is used up. The message before it is recycled, unless it was taken.
    ///
    /// `None` may be the end of the batch: ask the receiver for another one for what arrives later.
    #[expect(clippy::should_implement_trait, reason = "the item borrows from the batch")]
    #[inline(always)]
    pub fn next(&mut self) -> Option<Result<Message<'_, 'a>, Failure>> {
        // SAFETY: the cursor is of this batch, which goes on. The message borrows the batch, so nobody uses its
        // buffer when the batch goes on out of line or ends.
        unsafe {
            if let Some((resident, byte_count)) = self.cursor.peek() {
                if let Some(lent) = resident.lend(byte_count) {
                    self.cursor.lend();
                    return Some(Ok(Message { lent, batch: self }));
                }
            }
            if self.cursor.is_done() {
                return None;
            }
        }
        self.find()
    }

    /// The next of what is not a plain message in the slot whose turn it is.
    ///
    /// There is one call, and unless it finds a message the loop of the program ends, as a rule. Else the compiler
    /// would lay out what follows on it in the middle of the loop, and each plain message would jump over that.
    #[inline(always)]
    fn find(&mut self) -> Option<Result<Message<'_, 'a>, Failure>> {
        let (cq, position, expected) = self.cursor.aim();
        // SAFETY: the cursor is of this batch, which borrows the receiver, and is reloaded.
        unsafe {
            let found = found::next(self.receiver, cq, position, expected);
            self.cursor.reload();
            let Some(start) = found.start else {
                return found::failure(self.receiver).map(Err);
            };
            let resident = if self.cursor.is_idle() {
                self.books().apart.resident
            } else {
                self.cursor.lent_data()
            };
            let lent = Lent { resident, start, first: found.first(), len: found.len() };
            Some(Ok(Message { lent, batch: self }))
        }
    }

    /// What the completion of the message that is lent says.
    pub(super) fn facts(&self) -> Option<Facts<'_>> {
        if !self.cursor.is_idle() {
            // SAFETY: a message asks, which is the one that was lent last.
            return Some(Facts::Cqe(unsafe { self.cursor.lent() }));
        }
        // SAFETY: the batch borrows the receiver, and the cursor is idle.
        found::facts(unsafe { self.receiver.as_ref() })
    }

    /// Keeps the slot of the message that is lent from being recycled.
    #[inline(always)]
    pub(super) fn take(&mut self) {
        // SAFETY: the cursor is of this batch, which borrows the receiver.
        unsafe {
            if self.cursor.is_idle() {
                found::take(self.receiver.as_mut());
            } else {
                self.cursor.take();
            }
        }
    }

    /// Describes another buffer in the slot of the message that is lent.
    #[inline(always)]
    pub(super) fn replace(&mut self, resident: Resident, segment: DataSegment) {
        // SAFETY: the cursor is of this batch, which borrows the receiver; a message asks, which is the one that was
        // lent last.
        unsafe {
            if self.cursor.is_idle() {
                found::replace(self.receiver.as_mut(), resident, segment);
            } else {
                let slot = self.cursor.lent_slot();
                found::rewrite(self.receiver, slot, resident, segment);
            }
        }
    }

    /// Puts the buffer that starts at `start` into the slot of the message that is lent, of the same pool as the one
    /// that is there.
    #[inline(always)]
    pub(super) fn readdress(&mut self, mut resident: Resident, start: NonNull<u8>) {
        let addr = start.as_ptr().expose_provenance() as u64;
        // SAFETY: as above.
        unsafe {
            if self.cursor.is_idle() {
                resident.at(addr);
                found::replace_alike(self.receiver.as_mut(), resident);
            } else {
                let slot = self.cursor.lent_slot();
                found::readdress(self.receiver, slot, addr);
            }
        }
    }

    #[inline(always)]
    pub(super) fn books(&self) -> &Books {
        // SAFETY: the batch borrows the receiver; the queues are not in the books.
        unsafe { &(*self.receiver.as_ptr()).books }
    }

    #[inline(always)]
    pub(super) fn books_mut(&mut self) -> &mut Books {
        // SAFETY: as above.
        unsafe { &mut (*self.receiver.as_ptr()).books }
    }
}

impl Drop for Batch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the cursor is of this batch, and nothing borrows the message.
        unsafe { found::finish(self.receiver.as_mut(), self.cursor.end()) }
    }
}
