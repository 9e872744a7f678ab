//! What [`Receiving`](super::Receiving) does out of line.
//!
//! Each function has the C ABI, so that it cannot unwind: a landing pad would keep the batch in memory.

use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::NonNull;

use mlx5_wire::cqe::{self, Cqe64, CqeFormat};
use mlx5_wire::opcode::CqeOpcode;

use super::batch::Noted;
use super::{Batch, COMMON, Queue, Stretch, inline};
use crate::barrier;
use crate::completion::Cqe;
use crate::cq::{self, CompletionQueue};
use crate::ring::{Expected, NEXT, last_word, wqe_counter};
use crate::slots;

/// What out-of-line code made of a CQE.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) enum Class {
    /// It has not arrived.
    None,
    /// A message in the slot whose turn it is: it can be lent as in the common case.
    InOrder,
    /// A message in another slot, whose turn it is now.
    Message,
    /// A failed receive; its slot is held.
    Failed,
    Other,
    Stray,
}

/// Finds the stretch that starts at consumer index `index`.
#[inline(always)]
pub(super) fn aim(cq: &mut CompletionQueue, index: u32, expected: Expected) -> Stretch {
    let left = cq.batch.until.wrapping_sub(index);
    cq.batch.reach = index.wrapping_add(left.min(cq.until_wrap(index)));
    let to_go = cq.batch.aim(index, &expected);
    Stretch {
        cqe: cq.cqe(index),
        expected: expected.word | u64::from(last_word(0, COMMON | cq.owner(index))),
        to_go,
    }
}

/// Starts the stretch at consumer index `index`; the queue knows all before it.
#[inline(always)]
fn go_to<Q: Queue>(queue: &Q, cq: &mut CompletionQueue, index: u32) {
    go_to_expected(cq, index, queue.expected());
}

#[inline(always)]
fn go_to_expected(cq: &mut CompletionQueue, index: u32, expected: Expected) {
    cq.batch.stretch = aim(cq, index, expected);
    if cq.batch.noted == Noted::Lent {
        cq.batch.noted = Noted::GivenBack;
    }
}

/// Tells the queue what has become of the slots so far.
#[inline(always)]
fn settle<Q: Queue>(queue: &mut Q, batch: &mut Batch) {
    let Stretch { to_go, .. } = batch.stretch;
    let (count, recycled, taken) = batch.unsettled(to_go);
    if !queue.settle(count, recycled, taken) && !queue.settle_apart(count, recycled, taken) {
        queue.settle_each(count);
    }
    (batch.settled, batch.taken) = (to_go, 0);
}

/// Starts the next stretch, at the end of one. Whether the next CQE is the common case in its first slot.
#[cold]
#[inline(never)]
pub(super) extern "C" fn go_on<Q: Queue>(queue: &mut Q, cq: &mut CompletionQueue) -> bool {
    let Stretch { cqe, expected, .. } = cq.batch.stretch;
    if let Some(stretch) = retarget(queue, cq, cqe, expected) {
        cq.batch.stretch = stretch;
        return true;
    }
    settle(queue, &mut cq.batch);
    go_to(queue, cq, cq.batch.stop);
    false
}

/// Gives a slot back with its buffer out of order.
///
/// # Safety
/// The slot has completed, was not given back, and is not lent.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn recycle<Q: Queue>(
    queue: &mut Q,
    cq: &mut CompletionQueue,
    slot: u32,
) {
    settle(queue, &mut cq.batch);
    // SAFETY: the caller's contract: such a slot is held.
    unsafe { queue.recycle(slot) };
}

/// Gives a slot back without its buffer out of order.
///
/// # Safety
/// The slot has completed, was not given back, and is not lent.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn release<Q: Queue>(
    queue: &mut Q,
    cq: &mut CompletionQueue,
    slot: u32,
) {
    settle(queue, &mut cq.batch);
    // SAFETY: the caller's contract: such a slot is held.
    unsafe { queue.release(slot) };
}

/// Ends a batch. Takes plain arguments and few of them: where user code may panic, the compiler keeps the
/// batch in registers only if what leads here is cheap enough to be inlined there too.
#[inline(never)]
pub(super) extern "C" fn finish<Q: Queue>(
    queue: &mut Q,
    cq: &mut CompletionQueue,
    to_go: isize,
    recycled_from: isize,
    taken_from: isize,
    lent: bool,
) {
    let settled = cq.batch.settled;
    let count = (to_go - settled) as u32;
    if lent || !queue.settle(count, recycled_from == settled, taken_from == settled) {
        return finish_each(queue, cq, to_go, lent);
    }
    publish(queue, cq, to_go);
}

/// [`finish`] of a cursor, where the caller is out of line already.
#[inline(always)]
pub(super) fn finish_cursor<Q: Queue>(queue: &mut Q, cq: &mut CompletionQueue, to_go: isize) {
    let (count, recycled, taken) = cq.batch.unsettled(to_go);
    if !queue.settle(count, recycled, taken) {
        return finish_each(queue, cq, to_go, false);
    }
    publish(queue, cq, to_go);
}

#[cold]
#[inline(never)]
extern "C" fn finish_each<Q: Queue>(
    queue: &mut Q,
    cq: &mut CompletionQueue,
    mut to_go: isize,
    lent: bool,
) {
    if lent {
        queue.hold(cq.batch.slot(to_go));
        to_go += 1;
    }
    queue.settle_each((to_go - cq.batch.settled) as u32);
    publish(queue, cq, to_go);
}

#[inline(always)]
fn publish<Q: Queue>(queue: &mut Q, cq: &mut CompletionQueue, to_go: isize) {
    cq.batch.noted = Noted::Nothing;
    queue.ring();
    let index = cq.batch.index(to_go);
    if index != cq.published {
        cq.publish(index);
    }
}

/// Ends a batch that was forgotten, where it last noted how far it had come: see
/// [`Receiving::note`](super::Receiving::note). A message that it had lent stays held; returns its slot.
///
/// # Safety
/// `queue` is the one that the batch on `cq` was made with.
#[inline]
pub unsafe fn recover<Q: Queue>(cq: &mut CompletionQueue, queue: &mut Q) -> Option<u32> {
    if !is_under_way(cq) {
        return None;
    }
    let lent = lent_by_forgotten(cq, queue);
    recover_batch(cq, queue);
    lent
}

/// Whether a batch on the queue has begun and not ended. Where none goes on, it was forgotten and not
/// [recovered](recover): the next one does that first.
#[inline(always)]
pub fn is_under_way(cq: &CompletionQueue) -> bool {
    cq.batch.noted != Noted::Nothing
}

#[cold]
#[inline(never)]
pub(super) extern "C" fn recover_batch<Q: Queue>(cq: &mut CompletionQueue, queue: &mut Q) {
    let lent = lent_by_forgotten(cq, queue).is_some();
    finish_each(queue, cq, cq.batch.stretch.to_go - isize::from(lent), lent);
}

/// The slot of the message that a batch which was forgotten had lent last, unless it was given back.
fn lent_by_forgotten<Q: Queue>(cq: &CompletionQueue, queue: &Q) -> Option<u32> {
    let Batch { settled, noted, stretch: Stretch { to_go, .. }, .. } = cq.batch;
    let last = cq.batch.slot(to_go - 1);
    let count = (to_go - settled) as u32;
    // The state of a slot that was posted again tells nothing of the message that was in it.
    let lent = noted == Noted::Lent
        && queue.reused(count) < count
        && slots::is_posted(queue.book().state(last));
    lent.then_some(last)
}

/// Looks at a CQE that is not the common case. Nothing is lent.
#[cold]
#[inline(never)]
pub(super) extern "C" fn uncommon<Q: Queue>(queue: &mut Q, cq: &mut CompletionQueue) -> Class {
    let Stretch { cqe, expected, .. } = cq.batch.stretch;
    if !has_arrived(cqe, expected) {
        return Class::None;
    }
    barrier::owner_before_cqe();
    match retarget(queue, cq, cqe, expected) {
        Some(stretch) => {
            cq.batch.stretch = stretch;
            Class::Message
        }
        None => rare(queue, cq),
    }
}

/// Whether a CQE of the CQ has arrived, whatever it says; `expected` is the common case of it.
#[inline(always)]
pub(super) fn has_arrived(cqe: NonNull<u8>, expected: u64) -> bool {
    // SAFETY: inside the CQ; volatile because the device writes it.
    let op_own = unsafe { cqe.add(offset_of!(Cqe64, op_own)).read_volatile() };
    let [.., expected] = (expected as u32).to_ne_bytes();
    cq::is_software_owned(op_own, expected & cqe::OWNER)
}

/// If the next CQE, which is `cqe`, is the common case in all but the slot, gives that one its turn, and returns the
/// stretch that starts there; `expected` is the common case. When completions come in no order, this is what each
/// takes, so it calls nothing.
///
/// When it is not, or when the queue cannot be told by counting what has become of the slots so far, `None`; then all
/// is as before, but for what the queue was told.
#[inline(always)]
pub(super) fn retarget<Q: Queue>(
    queue: &mut Q,
    cq: &mut CompletionQueue,
    cqe: NonNull<u8>,
    expected: u64,
) -> Option<Stretch> {
    let to_go = cq.batch.stretch.to_go;
    let index = cq.batch.index(to_go);
    if index == cq.batch.reach {
        return None;
    }
    const OP_OWN: u32 = last_word(0, !cqe::SOLICITED_EVENT);
    // SAFETY: inside the CQ; volatile because the device writes it, which cannot write half of an aligned word.
    let word = unsafe { cqe.add(offset_of!(Cqe64, wqe_counter)).cast::<u32>().read_volatile() };
    if (word ^ expected as u32) & OP_OWN != 0 {
        return None;
    }
    barrier::owner_before_cqe();
    let (count, recycled, taken) = cq.batch.unsettled(to_go);
    if !queue.settle(count, recycled, taken) && !queue.settle_apart(count, recycled, taken) {
        return None;
    }
    cq.batch.taken = 0;
    if !queue.expect(wqe_counter(word)) {
        cq.batch.settled = to_go;
        return None;
    }
    let to_go = if queue.completes_alone() {
        cq.batch.aim_at(index, queue.expected().slot, 1)
    } else {
        cq.batch.aim(index, &queue.expected())
    };
    let expected = u64::from(word & last_word(0xffff, !cqe::SOLICITED_EVENT));
    Some(Stretch { cqe, expected, to_go })
}

/// [`uncommon`] of a CQE that has arrived, but for what [`retarget`] does.
#[cold]
#[inline(never)]
extern "C" fn rare<Q: Queue>(queue: &mut Q, cq: &mut CompletionQueue) -> Class {
    let to_go = cq.batch.stretch.to_go;
    let index = cq.batch.index(to_go);
    // SAFETY: inside the CQ, and software's.
    let cqe = unsafe { Cqe::new(cq.cqe(index), PhantomData) };
    if cqe.format() == CqeFormat::Compressed {
        // What is expanded is plain now; what is not is stray.
        cq.expand(index);
    }
    // SAFETY: as above, and it is software's.
    let cqe = unsafe { Cqe::new(cq.cqe(index), PhantomData) };
    let class = classify(cqe, cq.stride());
    let wqe_counter = cqe.wqe_counter();
    let slot = cq.batch.slot(to_go);
    let ahead = (to_go - cq.batch.settled) as u32;
    if class == Class::Message
        && queue.expected().word + u64::from(ahead) * NEXT == last_word(wqe_counter, 0).into()
        && queue.book().state(slot) == slots::POSTED
    {
        // SAFETY: the WQE was posted under the contract that its addresses are this process's, and has
        // completed.
        unsafe { inline::deliver(queue, cqe, slot) }
        return Class::InOrder;
    }
    settle(queue, &mut cq.batch);
    let class = match class {
        Class::Message if queue.expect(wqe_counter) => {
            let mut expected = queue.expected();
            if queue.completes_alone() {
                expected.count = 1;
            }
            go_to_expected(cq, index, expected);
            // SAFETY: as above.
            unsafe { inline::deliver(queue, cqe, queue.expected().slot) }
            return Class::Message;
        }
        Class::Message => Class::Stray,
        Class::Failed => match queue.complete(wqe_counter) {
            Some(slot) => {
                cq.batch.failed = slot;
                Class::Failed
            }
            None => Class::Stray,
        },
        class => class,
    };
    go_to(queue, cq, index.wrapping_add(1));
    class
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
    /// It cannot be true, see [`Completion::Stray`](super::Completion::Stray).
    Stray,
}

/// Completes the WQE that `cqe` names, and brings inline data to its buffers. The slot is the caller's
/// until it is given back with `release` or `recycle`.
///
/// # Safety
/// `cqe` came from a CQ of entries of `cqe_size` bytes, for this queue; the queue's WQEs were posted under
/// the contract of posting.
#[inline]
pub unsafe fn complete<Q: Queue>(queue: &mut Q, cqe: Cqe<'_>, cqe_size: usize) -> Outcome {
    let class = classify(cqe, cqe_size);
    match class {
        Class::Other => return Outcome::Other,
        Class::Stray => return Outcome::Stray,
        Class::None | Class::InOrder | Class::Message | Class::Failed => {}
    }
    let Some(slot) = queue.complete(cqe.wqe_counter()) else {
        return Outcome::Stray;
    };
    if class == Class::Failed {
        return Outcome::Failed(slot);
    }
    // SAFETY: the slot was posted under the contract that its addresses are this process's, and has
    // completed.
    unsafe { inline::deliver(queue, cqe, slot) }
    Outcome::Message(slot)
}

/// What a CQE tells, by its opcode and format.
fn classify(cqe: Cqe<'_>, cqe_size: usize) -> Class {
    let class = match cqe.opcode() {
        CqeOpcode::ResponderError => Class::Failed,
        opcode if opcode.is_responder() => Class::Message,
        // Of a queue that nobody else resizes.
        CqeOpcode::ResizeCq | CqeOpcode::Invalid | CqeOpcode::Unknown(_) => return Class::Stray,
        _ => return Class::Other,
    };
    match cqe.format() {
        CqeFormat::Compressed => Class::Stray,
        CqeFormat::Inline64 if cqe_size == Cqe64::SIZE => Class::Stray,
        _ => class,
    }
}
