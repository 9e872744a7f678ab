//! What a batch does out of line: everything that is not a plain message in the slot whose turn it is.
//!
//! Each function takes the receiver and the cursor, and none the batch: a batch whose address is known
//! elsewhere would not be kept in registers.

use std::hint::unreachable_unchecked;
use std::ptr::NonNull;

use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::receive::{self, Completion, Cursor, End, Position, Queue, Receiving, Turn};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::CqeOpcode;

use super::direct::{Direct, Ring};
use super::facts::Facts;
use super::failure::{Cause, Failure};
use super::resident::{Books, Lent, Owner, Resident};
use super::{Engine, Receiver};

/// What the device reported next.
pub(super) enum Found {
    Message(Resident, u32),
    Failed(Resident),
    /// Cannot be true.
    Stray(u32),
    /// Not of a receive.
    Other(u32),
}

type Next = Option<Result<Lent, Failure>>;

/// Starts a batch.
#[inline(never)]
pub(super) fn start(receiver: &mut Receiver, budget: u32) -> Cursor<Resident> {
    if receiver.upkeep.is_some() {
        receiver.recover();
        receiver.keep_up(budget);
    }
    match &mut receiver.engine {
        // SAFETY: it is the only queue, so every receive on the CQ is its; buffers are posted by
        // `Receiver`, which owns them.
        Engine::Direct(Direct { cq, queues, .. }) if queues.len() == 1 => unsafe {
            match &mut queues[0] {
                Ring::Srq(srq) => Receiving::new(cq, &mut srq.ring, budget).into_cursor(),
                Ring::Rq(rq) => Receiving::new(cq, &mut rq.ring, budget).into_cursor(),
                Ring::Gone => Cursor::idle(),
            }
        },
        _ => start_other(receiver, budget),
    }
}

#[inline(never)]
fn start_other(receiver: &mut Receiver, budget: u32) -> Cursor<Resident> {
    receiver.recover();
    match &mut receiver.engine {
        Engine::Direct(direct) => direct.start(budget),
        Engine::Verbs(verbs) => verbs.start(budget),
    }
    Cursor::idle()
}

/// What became of a message in another slot than expected: two registers.
#[repr(C)]
pub(super) struct Turned {
    /// Where the message is, if it is lent.
    pub(super) start: Option<NonNull<u8>>,
    /// Its length; else whether its slot has its turn.
    pub(super) len: usize,
}

/// The next message of an SRQ, if all that is uncommon about it is its slot. Those of several queue pairs come in no
/// order, so this is what each of them takes.
///
/// # Safety
/// The cursor is that of the receiver's batch, not idle, and says what is given; it is reloaded when the slot has its
/// turn.
#[cold]
#[inline(never)]
pub(super) unsafe fn turned(
    receiver: NonNull<Receiver>,
    cq: NonNull<CompletionQueue>,
    position: Position,
    expected: u64,
) -> Turned {
    // SAFETY: the caller's contract.
    let Ring::Srq(srq) = (unsafe { only_queue(receiver) }) else { return not(false) };
    let lend = |resident: Resident, byte_count| resident.lend(byte_count);
    // SAFETY: the caller's contract. The message is lent as by the batch itself: nobody uses its buffer when the batch
    // goes on or ends.
    match unsafe { receive::turn(&mut srq.ring, (cq, position, expected), lend) } {
        Turn::Not => not(false),
        Turn::Turned => not(true),
        Turn::Lent(lent) => Turned { start: Some(lent.start), len: lent.len },
    }
}

/// The only queue of a receiver whose batch goes on with a cursor. The CQ, which the cursor uses, is not borrowed anew.
///
/// # Safety
/// The cursor is not idle: so the receiver has one queue, and drives it directly. Nobody else uses the queue during
/// `'a`.
#[inline(always)]
unsafe fn only_queue<'a>(receiver: NonNull<Receiver>) -> &'a mut Ring {
    // SAFETY: the caller's contract; the batch borrows the receiver.
    unsafe {
        match (*receiver.as_ptr()).engine {
            Engine::Direct(Direct { ref mut queues, .. }) => queues.get_unchecked_mut(0),
            Engine::Verbs(_) => unreachable_unchecked(),
        }
    }
}

/// Out of line, because the compiler would have this at hand at all times.
#[cold]
#[inline(never)]
const fn not(turned: bool) -> Turned {
    Turned { start: None, len: turned as usize }
}

/// The next message or failure. Nothing is lent through the cursor.
///
/// # Safety
/// The cursor is that of the receiver's batch.
#[cold]
#[inline(never)]
pub(super) unsafe fn next(
    receiver: &mut Receiver,
    cursor: Cursor<Resident>,
) -> (Cursor<Resident>, Next) {
    let Receiver { engine, books, .. } = receiver;
    match engine {
        // SAFETY: the caller's contract.
        Engine::Direct(Direct { cq, queues, .. }) if queues.len() == 1 => unsafe {
            match &mut queues[0] {
                Ring::Srq(srq) => {
                    single(Receiving::from_cursor(cq, &mut srq.ring, cursor), true, books)
                }
                Ring::Rq(rq) => {
                    single(Receiving::from_cursor(cq, &mut rq.ring, cursor), false, books)
                }
                Ring::Gone => (cursor, None),
            }
        },
        Engine::Direct(direct) => {
            let next = direct.many().next().map(|found| match found {
                Found::Message(resident, len) => books.lend(resident, len).ok_or_else(|| {
                    let qp_num = direct.lent().map_or(0, |facts| facts.qp_num());
                    direct.many().take();
                    Failure::of(qp_num, Cause::Foreign(resident.wr_id()))
                }),
                Found::Failed(resident) => {
                    let mut failure = Failure::new(direct.lent());
                    if !books.keeps(&failure, &resident, direct.many().is_shared(failure.qp_num)) {
                        direct.many().take();
                        books.leave(resident, 0, |buffer| failure.buffers.push(buffer));
                    }
                    Err(failure)
                }
                Found::Stray(qp_num) => Err(Failure::of(qp_num, Cause::Stray)),
                Found::Other(qp_num) => Err(Failure::of(qp_num, Cause::NotAReceive)),
            });
            (cursor, next)
        }
        Engine::Verbs(verbs) => {
            let next = verbs.find(books).map(|found| match found {
                Found::Message(resident, len) => books.lend(resident, len).ok_or_else(|| {
                    let qp_num = verbs.lent().map_or(0, |facts| facts.qp_num());
                    verbs.take();
                    Failure::of(qp_num, Cause::Foreign(resident.wr_id()))
                }),
                Found::Failed(resident) => {
                    let mut failure = Failure::new(verbs.lent());
                    if !books.keeps(&failure, &resident, verbs.is_shared()) {
                        verbs.take();
                        books.leave(resident, 0, |buffer| failure.buffers.push(buffer));
                    }
                    Err(failure)
                }
                Found::Stray(qp_num) => Err(Failure::of(qp_num, Cause::Stray)),
                Found::Other(qp_num) => Err(Failure::of(qp_num, Cause::NotAReceive)),
            });
            (cursor, next)
        }
    }
}

/// The next of the only queue of a CQ.
fn single<Q: Queue<Data = Resident>>(
    mut receiving: Receiving<'_, Q>,
    shared: bool,
    books: &mut Books,
) -> (Cursor<Resident>, Next) {
    let whole = Whole;
    let next = next_of(&mut receiving, shared, books);
    std::mem::forget(whole);
    (receiving.into_cursor(), next)
}

/// While the cursor is handed over, the one that the batch has is stale, and a panic would end the batch with
/// it. Nothing of the user's runs meanwhile, so a panic is a fault of this library.
struct Whole;

impl Drop for Whole {
    fn drop(&mut self) {
        std::process::abort();
    }
}

fn next_of<Q: Queue<Data = Resident>>(
    receiving: &mut Receiving<'_, Q>,
    shared: bool,
    books: &mut Books,
) -> Next {
    Some(match receiving.next()? {
        Completion::Message(message) => {
            // SAFETY: the position is of this batch.
            let cqe = unsafe { receiving.cqe(message.position()) };
            let written = cqe.opcode() == CqeOpcode::ResponderWriteImm;
            let qp_num = cqe.qpn();
            let len = if written { 0 } else { message.byte_count };
            let resident = message.data;
            match books.lend(resident, len) {
                Some(lent) => {
                    // SAFETY: the message is of this batch. It is lent as through the cursor: nobody uses its
                    // buffer when the batch goes on or ends.
                    unsafe { receiving.recycle(message) };
                    Ok(lent)
                }
                None => {
                    // SAFETY: the message is of this batch.
                    unsafe { receiving.take(message) };
                    Err(Failure::of(qp_num, Cause::Foreign(resident.wr_id())))
                }
            }
        }
        Completion::Failed(message) => {
            let resident = message.data;
            // SAFETY: the position is of this batch.
            let cqe = unsafe { receiving.cqe(message.position()) };
            let mut failure = Failure::new(Some(Facts::Cqe(cqe)));
            // SAFETY: the message is of this batch. When its buffer is recycled, nobody uses it.
            unsafe {
                if books.keeps(&failure, &resident, shared) {
                    receiving.recycle(message);
                } else {
                    receiving.take(message);
                    books.leave(resident, 0, |buffer| failure.buffers.push(buffer));
                }
            }
            Err(failure)
        }
        Completion::Stray(position) => {
            // SAFETY: the position is of this batch.
            Err(Failure::of(unsafe { receiving.cqe(position) }.qpn(), Cause::Stray))
        }
        Completion::Other(position) => {
            // SAFETY: the position is of this batch.
            Err(Failure::of(unsafe { receiving.cqe(position) }.qpn(), Cause::NotAReceive))
        }
    })
}

/// What the completion says of the message that is lent, other than through the cursor.
pub(super) fn facts(receiver: &Receiver) -> Option<Facts<'_>> {
    match &receiver.engine {
        Engine::Direct(direct) => direct.lent(),
        Engine::Verbs(verbs) => verbs.lent(),
    }
}

/// Keeps the slot of the message that is lent other than through the cursor from being recycled.
#[inline(never)]
pub(super) fn take(receiver: &mut Receiver) {
    match &mut receiver.engine {
        Engine::Direct(direct) => direct.many().take(),
        Engine::Verbs(verbs) => verbs.take(),
    }
}

/// Describes another buffer in the slot of the message that is lent through the cursor.
///
/// # Safety
/// The cursor is not idle; the slot is that of the message, which was not taken; the buffer is the queue's from now on.
#[cold]
#[inline(never)]
pub(super) unsafe fn rewrite(
    receiver: NonNull<Receiver>,
    slot: u32,
    resident: Resident,
    segment: DataSegment,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match only_queue(receiver) {
            Ring::Srq(srq) => receive::rewrite(&mut srq.ring, slot, resident, segment),
            Ring::Rq(rq) => receive::rewrite(&mut rq.ring, slot, resident, segment),
            Ring::Gone => {}
        }
    }
}

/// Moves the buffer of the slot of the message that is lent through the cursor to `addr`.
///
/// # Safety
/// As [`rewrite`]; the buffer at `addr` is of the same pool.
#[inline]
pub(super) unsafe fn readdress(receiver: NonNull<Receiver>, slot: u32, addr: u64) {
    let update = |resident: &mut Resident| resident.at(addr);
    // SAFETY: the caller's contract.
    unsafe {
        match only_queue(receiver) {
            Ring::Srq(srq) => receive::readdress(&mut srq.ring, slot, addr, update),
            Ring::Rq(rq) => receive::readdress(&mut rq.ring, slot, addr, update),
            Ring::Gone => {}
        }
    }
}

/// [`replace`] by a buffer of the same pool.
///
/// # Safety
/// The buffer is the queue's from now on.
#[inline(never)]
pub(super) unsafe fn replace_alike(receiver: &mut Receiver, resident: Resident) {
    let segment = receiver.books.segment(&resident);
    // SAFETY: the caller's contract.
    unsafe { replace(receiver, resident, segment) }
}

/// Describes another buffer in the slot of the message that is lent other than through the cursor.
///
/// # Safety
/// The buffer is the queue's from now on.
#[inline(never)]
pub(super) unsafe fn replace(receiver: &mut Receiver, resident: Resident, segment: DataSegment) {
    match &mut receiver.engine {
        // SAFETY: the caller's contract.
        Engine::Direct(direct) => unsafe { direct.many().replace(resident, segment) },
        Engine::Verbs(verbs) => verbs.replace(resident),
    }
}

/// Ends a batch. The message that is lent is recycled.
///
/// # Safety
/// `end` is that of the receiver's batch, and nobody uses the message.
#[inline(never)]
pub(super) unsafe fn finish(receiver: &mut Receiver, end: End) {
    let Receiver { engine, books, .. } = receiver;
    match engine {
        // SAFETY: the caller's contract.
        Engine::Direct(Direct { cq, queues, .. }) if queues.len() == 1 => unsafe {
            match &mut queues[0] {
                Ring::Srq(srq) => receive::finish(cq, &mut srq.ring, end),
                Ring::Rq(rq) => receive::finish(cq, &mut rq.ring, end),
                Ring::Gone => {}
            }
        },
        Engine::Direct(direct) => direct.many().finish(),
        Engine::Verbs(verbs) => verbs.finish(books),
    }
}

impl Failure {
    pub(super) const fn of(qp_num: u32, cause: Cause) -> Self {
        Self { qp_num, cause, vendor_err: 0, buffers: Vec::new() }
    }

    /// Of a receive that failed.
    fn new(facts: Option<Facts<'_>>) -> Self {
        let (qp_num, cause, vendor_err) =
            facts.map_or((0, Cause::Stray, 0), |facts| facts.failure());
        Self { qp_num, cause, vendor_err, buffers: Vec::new() }
    }
}

impl Books {
    /// Takes note of a receive that failed. Whether its queue keeps the buffer.
    fn keeps(&self, failure: &Failure, resident: &Resident, shared: bool) -> bool {
        let faulted = failure.cause == Cause::PageFault;
        if !faulted {
            self.qps.mark_failed(failure.qp_num);
        }
        // An SRQ lives on when a QP fails; a QP that failed takes no more receives.
        // Memory that is not ours may be what failed it: posted again it would fail the next one
        // too, and so would memory that the device did not find.
        shared && !faulted && resident.owner() != Owner::Foreign
    }
}
