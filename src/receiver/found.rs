//! What a batch does out of line: everything that is not a plain message in the slot whose turn it is.
//!
//! Each function takes the receiver and the cursor, and none the batch: a batch whose address is known
//! elsewhere would not be kept in registers.

use std::hint::unreachable_unchecked;
use std::mem;
use std::ptr::NonNull;

use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::receive::{self, Completion, Cursor, End, Position, Queue, Receiving};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::CqeOpcode;

use super::direct::{Direct, Ring};
use super::facts::Facts;
use super::failure::{Cause, Failure};
use super::resident::{Books, Lent, Owner, Resident};
use super::verbs::Verbs;
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

/// Starts a batch, and returns where its cursor is [picked up](Cursor::pick_up).
///
/// What is rare goes on in other functions, and nothing is left to do here behind them: so this one saves no register.
#[inline(never)]
pub(super) fn start(receiver: &mut Receiver, budget: u32) -> NonNull<CompletionQueue> {
    if receiver.upkeep.is_some() {
        return start_kept(receiver, budget);
    }
    start_at_once(receiver, budget)
}

#[inline(always)]
fn start_at_once(receiver: &mut Receiver, budget: u32) -> NonNull<CompletionQueue> {
    match &mut receiver.engine {
        Engine::Direct(Direct { cq, queues, .. })
            if queues.len() == 1 && !receive::is_under_way(cq) =>
        {
            // SAFETY: it is the only queue, so every receive on the CQ is its; buffers are posted by `Receiver`, which
            // owns them.
            unsafe {
                match &mut queues[0] {
                    Ring::Srq(srq) => start_single(cq, &mut srq.ring, budget),
                    Ring::Rq(rq) => start_single(cq, &mut rq.ring, budget),
                    Ring::Gone => Cursor::<Resident>::idle(),
                }
            }
        }
        _ => start_other(receiver, budget),
    }
}

/// # Safety
/// As [`Receiving::new`].
#[inline(always)]
unsafe fn start_single<Q: Queue<Data = Resident>>(
    cq: &mut CompletionQueue,
    queue: &mut Q,
    budget: u32,
) -> NonNull<CompletionQueue> {
    // SAFETY: the caller's contract; the batch goes on.
    unsafe {
        let receiving = Receiving::new(cq, queue, budget);
        if !receiving.has_arrived() {
            // It ends without a trace.
            mem::forget(receiving);
            return Cursor::<Resident>::done();
        }
        receiving.into_cursor().put_down()
    }
}

#[cold]
#[inline(never)]
fn start_kept(receiver: &mut Receiver, budget: u32) -> NonNull<CompletionQueue> {
    receiver.recover();
    receiver.keep_up(budget);
    start_at_once(receiver, budget)
}

#[inline(never)]
fn start_other(receiver: &mut Receiver, budget: u32) -> NonNull<CompletionQueue> {
    let of_single = receiver.has_forgotten();
    receiver.recover();
    if of_single && !receiver.has_forgotten() {
        return start_at_once(receiver, budget);
    }
    match &mut receiver.engine {
        Engine::Direct(direct) => direct.start(budget),
        Engine::Verbs(verbs) => verbs.start(budget),
    }
    Cursor::<Resident>::idle()
}

/// A message that was found out of line, in two registers.
#[repr(C)]
pub(super) struct Next {
    /// The first buffer; `None` when it is no message.
    pub(super) start: Option<NonNull<u8>>,
    /// Bytes of the message, and above them how many of them are in other buffers.
    lens: u64,
}

impl Next {
    const NONE: Self = Self { start: None, lens: 0 };

    #[inline(always)]
    const fn of(lent: &Lent) -> Self {
        let others = (lent.len - lent.first) as u64;
        Self { start: Some(lent.start), lens: lent.len as u64 | others << 32 }
    }

    /// Bytes of the message in the first buffer.
    #[inline(always)]
    pub(super) const fn first(&self) -> usize {
        self.len() - (self.lens >> 32) as usize
    }

    /// Bytes of the message.
    #[inline(always)]
    pub(super) const fn len(&self) -> usize {
        self.lens as u32 as usize
    }
}

/// The next message of a batch. When there is none, [`failure`] has the next failure.
///
/// It has the C ABI, so that it cannot unwind: a panic, which would be a fault of this library, for nothing of the user's
/// runs here, would end the batch with a cursor that is stale. And of what can unwind the compiler does not believe that
/// it is cold, and lays it out in the middle of the loop.
///
/// Of an SRQ all that is uncommon may be the slot. Those of several queue pairs come in no order, so this is what each
/// of them takes.
///
/// # Safety
/// The cursor is that of the receiver's batch, and says what is given. It is reloaded.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn next(
    receiver: NonNull<Receiver>,
    cq: NonNull<CompletionQueue>,
    position: Position,
    expected: u64,
) -> Next {
    if cq == Cursor::<Resident>::idle() {
        // SAFETY: the batch borrows the receiver.
        return unsafe { next_other(&mut *receiver.as_ptr()) };
    }
    // SAFETY: the caller's contract; the cursor is not idle.
    unsafe {
        receive::put_aim(cq, position, expected);
        match only_queue(receiver) {
            Ring::Srq(srq) => {
                retarget(&mut srq.ring, cq).unwrap_or_else(|| next_if_any(receiver, cq))
            }
            _ => next_in_order(receiver, cq),
        }
    }
}

/// The next message of a receive queue, if all that is uncommon about it is that it starts a lap.
///
/// # Safety
/// As [`next_single`].
#[inline(never)]
unsafe fn next_in_order(receiver: NonNull<Receiver>, cq: NonNull<CompletionQueue>) -> Next {
    // SAFETY: the caller's contract.
    unsafe {
        let next = match only_queue(receiver) {
            Ring::Rq(rq) => retarget(&mut rq.ring, cq),
            _ => None,
        };
        next.unwrap_or_else(|| next_if_any(receiver, cq))
    }
}

/// The next, if it has arrived: most batches end because it has not.
///
/// # Safety
/// As [`next_single`].
#[inline(never)]
unsafe fn next_if_any(receiver: NonNull<Receiver>, cq: NonNull<CompletionQueue>) -> Next {
    // SAFETY: the caller's contract.
    unsafe {
        let nothing = match only_queue(receiver) {
            Ring::Srq(srq) => receive::has_nothing(&srq.ring, cq),
            Ring::Rq(rq) => receive::has_nothing(&rq.ring, cq),
            Ring::Gone => true,
        };
        if nothing { Next::NONE } else { next_single(receiver, cq) }
    }
}

/// The next message, if all that is uncommon about it is its slot.
///
/// # Safety
/// As [`next_single`].
#[inline(always)]
unsafe fn retarget<Q: Queue<Data = Resident>>(
    queue: &mut Q,
    cq: NonNull<CompletionQueue>,
) -> Option<Next> {
    let lend = |resident: Resident, byte_count| resident.lend(byte_count);
    // SAFETY: the caller's contract. The message is lent as by the batch itself: nobody uses its buffer when the batch
    // goes on or ends.
    unsafe { receive::retarget(queue, cq, lend) }.map(|lent| Next::of(&lent))
}

/// The only queue of a receiver.
///
/// # Safety
/// The receiver has one queue, and drives it directly. The batch borrows the receiver, of which the CQ is not borrowed
/// anew here, but through the cursor.
#[inline(always)]
unsafe fn only_queue<'a>(receiver: NonNull<Receiver>) -> &'a mut Ring {
    // SAFETY: the caller's contract.
    unsafe {
        match (*receiver.as_ptr()).engine {
            Engine::Direct(Direct { ref mut queues, .. }) => queues.get_unchecked_mut(0),
            Engine::Verbs(_) => unreachable_unchecked(),
        }
    }
}

/// The next of the only queue of a CQ.
///
/// # Safety
/// As [`next`]; the cursor is not idle, and is put down in the CQ.
#[cold]
#[inline(never)]
unsafe fn next_single(receiver: NonNull<Receiver>, cq: NonNull<CompletionQueue>) -> Next {
    // SAFETY: the caller's contract; queues and books are not the CQ, which is borrowed through the cursor.
    unsafe {
        let books = &mut (*receiver.as_ptr()).books;
        match only_queue(receiver) {
            Ring::Srq(srq) => single(Receiving::pick_up(cq, &mut srq.ring), true, books),
            Ring::Rq(rq) => single(Receiving::pick_up(cq, &mut rq.ring), false, books),
            Ring::Gone => books.found(None),
        }
    }
}

/// The next, where the cursor is idle.
#[cold]
#[inline(never)]
fn next_other(receiver: &mut Receiver) -> Next {
    let Receiver { engine, books, .. } = receiver;
    match engine {
        // It is gone.
        Engine::Direct(Direct { queues, .. }) if queues.len() == 1 => Next::NONE,
        Engine::Direct(direct) => {
            let found = direct.many().next();
            tell(direct, books, found)
        }
        Engine::Verbs(verbs) => {
            let found = verbs.find(books);
            tell(verbs, books, found)
        }
    }
}

/// A batch that has found something other than through a cursor.
trait Finder {
    /// What the completion says.
    fn lent(&self) -> Option<Facts<'_>>;
    /// Gives the slot back without its buffer.
    fn take(&mut self);
    /// Whether the receive was one of an SRQ, on which a queue pair of this number is.
    fn is_shared(&mut self, qp_num: u32) -> bool;
}

impl Finder for Direct {
    fn lent(&self) -> Option<Facts<'_>> {
        self.lent()
    }

    fn take(&mut self) {
        self.many().take();
    }

    fn is_shared(&mut self, qp_num: u32) -> bool {
        self.many().is_shared(qp_num)
    }
}

impl Finder for Verbs {
    fn lent(&self) -> Option<Facts<'_>> {
        self.lent()
    }

    fn take(&mut self) {
        self.take();
    }

    fn is_shared(&mut self, _qp_num: u32) -> bool {
        Self::is_shared(self)
    }
}

/// Puts what was found where the batch looks for it.
#[inline(always)]
fn tell(finder: &mut impl Finder, books: &mut Books, found: Option<Found>) -> Next {
    match found {
        None => Next::NONE,
        Some(Found::Message(resident, len)) => match resident.lend(len) {
            Some(lent) => {
                books.apart.resident = resident;
                Next::of(&lent)
            }
            None => tell_uncommon(finder, books, Found::Message(resident, len)),
        },
        Some(found) => tell_uncommon(finder, books, found),
    }
}

/// [`tell`] of what is not a message in one buffer of a pool.
#[inline(never)]
fn tell_uncommon(finder: &mut impl Finder, books: &mut Books, found: Found) -> Next {
    let next = match found {
        Found::Message(resident, len) => books.lend(resident, len).ok_or_else(|| {
            let qp_num = finder.lent().map_or(0, |facts| facts.qp_num());
            finder.take();
            Failure::of(qp_num, Cause::Foreign(resident.wr_id()))
        }),
        Found::Failed(resident) => {
            let mut failure = Failure::new(finder.lent());
            if !books.keeps(&failure, &resident, finder.is_shared(failure.qp_num)) {
                finder.take();
                books.leave(resident, 0, |buffer| failure.buffers.push(buffer));
            }
            Err(failure)
        }
        Found::Stray(qp_num) => Err(Failure::of(qp_num, Cause::Stray)),
        Found::Other(qp_num) => Err(Failure::of(qp_num, Cause::NotAReceive)),
    };
    books.found(Some(next))
}

/// What [`next`] has found when it is no message.
///
/// # Safety
/// The batch borrows the receiver. Of the receiver only the books are borrowed here: the cursor goes on.
#[cold]
#[inline(never)]
pub(super) unsafe fn failure(receiver: NonNull<Receiver>) -> Option<Failure> {
    // SAFETY: the caller's contract.
    unsafe { (*receiver.as_ptr()).books.apart.failure.take() }
}

/// The next of a batch, whose cursor is put down.
fn single<Q: Queue<Data = Resident>>(
    mut receiving: Receiving<'_, Q>,
    shared: bool,
    books: &mut Books,
) -> Next {
    let next = next_of(&mut receiving, shared, books);
    // SAFETY: the batch goes on.
    unsafe { receiving.into_cursor().put_down() };
    books.found(next)
}

fn next_of<Q: Queue<Data = Resident>>(
    receiving: &mut Receiving<'_, Q>,
    shared: bool,
    books: &mut Books,
) -> Option<Result<Lent, Failure>> {
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

/// Keeps the slot of the message that is lent other than through the cursor from being recycled. It has the C ABI as
/// [`next`] has.
#[cold]
#[inline(never)]
pub(super) extern "C" fn take(receiver: &mut Receiver) {
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
    match &mut receiver.engine {
        // SAFETY: the caller's contract.
        Engine::Direct(Direct { cq, queues, .. }) if queues.len() == 1 => unsafe {
            match &mut queues[0] {
                // It has not begun where nothing had arrived.
                _ if !receive::is_under_way(cq) => {}
                Ring::Srq(srq) => receive::finish(cq, &mut srq.ring, end),
                Ring::Rq(rq) => receive::finish(cq, &mut rq.ring, end),
                Ring::Gone => {}
            }
        },
        _ => finish_other(receiver),
    }
}

#[inline(never)]
pub(super) fn finish_other(receiver: &mut Receiver) {
    let Receiver { engine, books, .. } = receiver;
    match engine {
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
    /// Puts what was found where the batch looks for it.
    fn found(&mut self, next: Option<Result<Lent, Failure>>) -> Next {
        match next {
            Some(Ok(lent)) => {
                self.apart.resident = lent.resident;
                Next::of(&lent)
            }
            Some(Err(failure)) => {
                self.apart.failure = Some(failure);
                Next::NONE
            }
            None => Next::NONE,
        }
    }

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
