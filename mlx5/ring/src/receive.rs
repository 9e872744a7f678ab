//! Receive queues and shared receive queues: slots that are posted, completed and given back.

use core::ptr::NonNull;

use mlx5_wire::be::Be32;
use mlx5_wire::data::DataSegment;
use mlx5_wire::dbrec;

use crate::barrier;
use crate::completion::{Cqe, CqeKind};
use crate::dbrec::DoorbellRecord;
use crate::inline;
use crate::sge::{self, Sge};
use crate::slots::{SlotState, Slots};

/// Why a receive was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// No slot is free.
    Full,
    /// More SGEs than a WQE has room for.
    TooManySges,
}

/// A queue of receive WQEs: [`ReceiveQueue`](crate::rq::ReceiveQueue),
/// [`SharedReceiveQueue`](crate::srq::SharedReceiveQueue) or
/// [`OrderedReceiveQueue`](crate::ordered::OrderedReceiveQueue).
///
/// Each slot goes through the same circle: posting hands it to the device, [`complete`](Self::complete) makes it the
/// caller's, and [`recycle`](Self::recycle) or [`release`](Self::release) give it back. All of that is in memory after
/// each call; the device learns of it by [`ring_doorbell`](Self::ring_doorbell). Cheaper is to [`lend`](Self::lend)
/// slots, and to [give them back](Self::give_back) together.
///
/// # Contract of posting
/// Every `unsafe` method that posts has this contract. Each SGE or segment names memory that its key covers and that no
/// code reads or writes until the WQE has completed, the QP of the receive queue was reset or destroyed, or the SRQ was
/// destroyed. When a QP of the queue has scatter-to-CQE on, each address is also where this process sees that memory.
///
/// # Order with the CQ
/// A doorbell hands receives to the device whose completions need room on the CQ. Publish the consumer index
/// ([`CompletionQueue::publish`](crate::cq::CompletionQueue::publish)) before the doorbell, else a CQ with exactly as
/// many entries as receives overruns.
pub trait ReceiveRing {
    /// The caller's value, which each completion returns.
    type Data: Copy;

    /// Returns the WQEs.
    fn wqes(&self) -> &Wqes<Self::Data>;

    /// As [`wqes`](Self::wqes), to change them.
    ///
    /// # Safety
    /// The value is not replaced by another one.
    unsafe fn wqes_mut(&mut self) -> &mut Wqes<Self::Data>;

    /// Returns what software remembers of the slots.
    #[inline(always)]
    fn slots(&self) -> &Slots<Self::Data> {
        &self.wqes().slots
    }

    /// Returns the number of SGEs that a WQE has room for.
    #[inline(always)]
    fn max_sge(&self) -> u32 {
        self.wqes().max_sge
    }

    /// Returns the number of receives that there is room for. A receive queue posts in order: where slots were given
    /// back out of order, posting says [`PostError::Full`] until the next slot is free, too.
    fn free_slots(&self) -> u32;

    /// Returns `true` if a receive can be posted.
    fn has_room(&self) -> bool;

    /// Posts a WQE that `write` writes to the data segments that it is given, of which there are
    /// [`max_sge`](Self::max_sge). The next doorbell hands it to the device. Returns its slot on an SRQ, and its
    /// running index on a receive queue: the lower 16 bits are the `wqe_counter` of its completion.
    ///
    /// # Errors
    /// [`PostError::Full`]; nothing was written then.
    ///
    /// # Safety
    /// `write` writes a whole list of segments, and the [contract of posting](ReceiveRing#contract-of-posting).
    unsafe fn post_with(
        &mut self,
        data: Self::Data,
        write: impl FnOnce(NonNull<DataSegment>, u32),
    ) -> Result<u32, PostError>;

    /// Posts a WQE of `sges`: see [`post_with`](Self::post_with).
    ///
    /// # Errors
    /// [`PostError`]; nothing was written then.
    ///
    /// # Safety
    /// The [contract of posting](ReceiveRing#contract-of-posting).
    #[inline(always)]
    unsafe fn post(&mut self, data: Self::Data, sges: &[Sge]) -> Result<u32, PostError> {
        if sges.len() > self.max_sge() as usize {
            return Err(PostError::TooManySges);
        }
        // SAFETY: the segments of a free slot; the number of SGEs was checked; the caller keeps the contract of
        // posting.
        unsafe { self.post_with(data, |segments, room| sge::scatter(segments, room, sges)) }
    }

    /// As [`post`](Self::post), of one segment as the device reads it, which names at least one byte.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    ///
    /// # Safety
    /// As [`post`](Self::post).
    #[inline(always)]
    unsafe fn post_segment(&mut self, data: Self::Data, segment: DataSegment) -> Result<u32, PostError> {
        // SAFETY: the segments of a free slot, and every WQE has room for one; the caller keeps the contract of
        // posting.
        unsafe { self.post_with(data, |segments, room| sge::write_one(segments, room, segment)) }
    }

    /// Puts a receive into the slot of an SRQ that stays unposted. It is posted when another slot follows. With a
    /// buffer in every slot, giving slots back writes no WQE but a link, where it changes.
    ///
    /// # Errors
    /// [`PostError::Full`] if there is a receive, if another slot is free, too (post instead), and on a receive queue.
    /// [`PostError::TooManySges`].
    ///
    /// # Safety
    /// The [contract of posting](ReceiveRing#contract-of-posting).
    unsafe fn load(&mut self, data: Self::Data, sges: &[Sge]) -> Result<(), PostError>;

    /// Returns the slot of the WQE that completes with `wqe_counter`; `None` when the device does not have such a WQE.
    fn posted_slot(&self, wqe_counter: u16) -> Option<u32>;

    /// Marks a slot as completed: it is held from now on.
    ///
    /// # Safety
    /// [`posted_slot`](Self::posted_slot) returned it, and nothing was done since.
    #[inline(always)]
    unsafe fn hold(&mut self, slot: u32) {
        // SAFETY: a slot that is posted exists.
        unsafe { self.wqes_mut().slots.get_mut(slot).state = SlotState::Held };
    }

    /// Completes the WQE that completes with `wqe_counter`: returns its slot, which is held from now on; `None` when
    /// the device does not have such a WQE.
    #[inline(always)]
    fn complete(&mut self, wqe_counter: u16) -> Option<u32> {
        let slot = self.posted_slot(wqe_counter)?;
        // SAFETY: the slot that was returned just now.
        unsafe { self.hold(slot) };
        Some(slot)
    }

    /// Marks a slot as completed, to be given back with its buffer by [`give_back`](Self::give_back). Until then the
    /// buffer is the caller's, who does nothing else with the queue but to complete and to lend more slots.
    ///
    /// # Safety
    /// [`posted_slot`](Self::posted_slot) returned `slot`, and nothing was done since. The
    /// [contract of posting](ReceiveRing#contract-of-posting) holds for its buffer from the next call on that lends a
    /// slot or gives slots back.
    unsafe fn lend(&mut self, slot: u32);

    /// As [`lend`](Self::lend), of a slot that is held.
    ///
    /// # Safety
    /// `slot` is held, and the contract of [`lend`](Self::lend) holds.
    unsafe fn lend_held(&mut self, slot: u32);

    /// Takes the buffer out of the slot that was lent last, which is free then.
    ///
    /// # Safety
    /// `slot` was lent last, and nothing but [`rewrite`](Self::rewrite) was done since.
    unsafe fn release_lent(&mut self, slot: u32);

    /// Posts the slots that were lent and whose turn has come. The next doorbell hands them to the device.
    fn give_back(&mut self);

    /// Gives a held slot back with its buffer, which is posted again.
    ///
    /// # Safety
    /// `slot` is held, and the [contract of posting](ReceiveRing#contract-of-posting) holds again for its buffer.
    unsafe fn recycle(&mut self, slot: u32);

    /// Gives a held slot back without its buffer.
    ///
    /// # Safety
    /// `slot` is held.
    unsafe fn release(&mut self, slot: u32);

    /// Returns the running count of posted WQEs; a doorbell stores its lower 16 bits.
    #[inline(always)]
    fn posted(&self) -> u32 {
        self.wqes().posted
    }

    /// Hands everything posted to the device: stores the doorbell record if that changes it.
    #[inline(always)]
    fn ring_doorbell(&mut self) {
        if self.needs_doorbell() {
            // SAFETY: nothing is replaced.
            unsafe { self.wqes_mut() }.ring_doorbell();
        }
    }

    /// Returns `true` if something was posted that no doorbell has handed over.
    #[inline(always)]
    fn needs_doorbell(&self) -> bool {
        // At most 65,535 receives wait for a doorbell, and the record counts modulo 65,536.
        self.wqes().dbrec.read() != dbrec::work_queue(self.posted())
    }

    /// Returns the caller's value of a slot.
    ///
    /// # Safety
    /// `slot` is not free.
    #[inline(always)]
    unsafe fn data(&self, slot: u32) -> Self::Data {
        // SAFETY: such a slot exists and has data.
        unsafe { self.slots().data(slot) }
    }

    /// Describes another buffer of one segment in a slot that is held or lent.
    ///
    /// # Safety
    /// `slot` is held, and [`recycle`](Self::recycle) will ask for the contract of posting. Or `slot` was lent last,
    /// and the contract of [`lend`](Self::lend) holds for the other buffer.
    #[inline(always)]
    unsafe fn rewrite(&mut self, slot: u32, data: Self::Data, segment: DataSegment) {
        // SAFETY: a slot that is held or lent exists and is not the device's.
        unsafe {
            let wqes = self.wqes_mut();
            sge::write_one(wqes.segments(slot), wqes.max_sge, segment);
            wqes.slots.get_mut(slot).set_data(data);
        }
    }
}

/// The WQEs of a ring: where they are, what software remembers of them, and how many were posted.
#[derive(Debug)]
pub struct Wqes<T: Copy> {
    /// The data segments of the first WQE.
    segments: NonNull<u8>,
    stride: usize,
    pub(crate) max_sge: u32,
    dbrec: DoorbellRecord,
    /// Running count of posted WQEs.
    pub(crate) posted: u32,
    pub(crate) slots: Slots<T>,
}

// SAFETY: a ring has its WQEs and its record to itself by the contract of its `new`.
unsafe impl<T: Copy + Send> Send for Wqes<T> {}

impl<T: Copy> Wqes<T> {
    /// Takes `slots.count()` WQEs, of which nothing was posted.
    ///
    /// # Safety
    /// `segments` are the data segments of the first WQE, of which each has `max_sge`, and `dbrec` is the doorbell
    /// record; both stay mapped for as long as the value exists, and no other code writes them.
    pub(crate) unsafe fn new(
        segments: NonNull<u8>,
        stride: u32,
        max_sge: u32,
        dbrec: NonNull<Be32>,
        slots: Slots<T>,
    ) -> Self {
        // SAFETY: the caller keeps `dbrec` mapped, and no other code writes it.
        let dbrec = unsafe { DoorbellRecord::new(dbrec) };
        Self { segments, stride: stride as usize, max_sge, dbrec, posted: 0, slots }
    }

    /// Hands everything posted to the device: stores the doorbell record.
    #[inline(always)]
    pub fn ring_doorbell(&mut self) {
        let count = dbrec::work_queue(self.posted);
        barrier::wqe_before_doorbell_record();
        self.dbrec.write(count);
    }

    /// Tells the device of no WQE.
    pub(crate) fn clear_record(&mut self) {
        self.dbrec.write(dbrec::work_queue(0));
    }

    /// Returns the data segments of `slot`.
    ///
    /// # Safety
    /// `slot` is below the number of slots.
    #[inline(always)]
    pub(crate) unsafe fn segments(&self, slot: u32) -> NonNull<DataSegment> {
        // SAFETY: the WQE of a slot, inside the buffer.
        unsafe { self.segments.add(slot as usize * self.stride).cast() }
    }

    /// Copies the buffers of the receive in slot `from`, which is free from now on, to slot `to`, which gets this
    /// state.
    ///
    /// # Safety
    /// Both slots exist and the device has neither; `from` has a receive.
    #[cold]
    pub(crate) unsafe fn copy(&mut self, from: u32, to: u32, state: SlotState) {
        // SAFETY: the caller's slots exist and are not the device's, and `from` has a receive.
        unsafe {
            sge::copy(self.segments(from), self.segments(to), self.max_sge);
            let data = self.slots.data(from);
            self.slots.get_mut(from).state = SlotState::Free;
            self.slots.get_mut(to).set(data, state);
        }
    }
}

/// Meaning of a CQE for the queue that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A message is in the buffers of this slot, which is held.
    Message(u32),
    /// The receive in this slot, which is held, failed; the CQE says why.
    Failed(u32),
    /// The CQE is not of a receive.
    NotAReceive,
    /// The CQE cannot be true: the device does not have such a WQE, or the CQ has no such form. Nothing was changed.
    Stray,
}

/// Completes the WQE that `cqe` names, and copies payload that came inside the CQE to its buffers.
///
/// # Safety
/// `cqe` is of this queue, whose WQEs were posted under the [contract of posting](ReceiveRing#contract-of-posting).
#[inline]
pub unsafe fn complete<Q: ReceiveRing>(queue: &mut Q, cqe: Cqe<'_>) -> Completion {
    let payload = match cqe.kind() {
        CqeKind::Send | CqeKind::Invalidated | CqeKind::Written | CqeKind::Failed => None,
        CqeKind::Inline => match cqe.inline_payload() {
            // Only a CQE of 128 bytes has room for 64 bytes of payload.
            None => return Completion::Stray,
            payload => payload,
        },
        CqeKind::NotAReceive => return Completion::NotAReceive,
        // A block was expanded when it was found: a title here is none.
        CqeKind::Pending | CqeKind::Impossible | CqeKind::Compressed => return Completion::Stray,
    };
    let Some(slot) = queue.complete(cqe.wqe_counter()) else {
        return Completion::Stray;
    };
    if cqe.kind() == CqeKind::Failed {
        return Completion::Failed(slot);
    }
    if let Some(payload) = payload {
        let len = payload.len().min(cqe.byte_count() as usize);
        // SAFETY: the slot was posted under the contract that its addresses are this process's, and has completed.
        unsafe { inline::scatter(&payload[..len], queue.wqes().segments(slot), queue.max_sge()) };
    }
    Completion::Message(slot)
}

#[cfg(test)]
mod tests;
