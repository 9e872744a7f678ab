//! The verbs path: the same queues through libibverbs.

use std::ptr;
use std::sync::Arc;

use mlx5_ring::receive::PostError as RingError;
use mlx5_ring::sge::Sge;
use rdma_core_sys as sys;

use super::slot_context::SlotContext;
use crate::qp::Qp;
use crate::qp_state::QpState;
use crate::srq::Srq;

/// The object that receives are posted to.
pub(crate) enum QueueObject {
    Srq(Arc<Srq>),
    Rq(Arc<Qp>),
}

/// A queue that `ibv_post_recv` or `ibv_post_srq_recv` posts to.
pub(crate) struct VerbsQueue {
    object: QueueObject,
    /// Index in the receiver, which is the upper half of each `wr_id`.
    index: u32,
    max_sge: u32,
    /// Receives by slot number, which is the lower half of the `wr_id`.
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots that were posted by the caller and are not with the device yet.
    chain: Vec<u32>,
    wrs: Vec<sys::ibv_recv_wr>,
    sges: Vec<sys::ibv_sge>,
}

#[derive(Clone, Copy)]
struct Slot {
    context: Option<SlotContext>,
    /// The device has the receive.
    posted: bool,
}

// SAFETY: the work requests point into the vectors beside them, only during a call.
unsafe impl Send for VerbsQueue {}

impl VerbsQueue {
    pub(crate) fn new(object: QueueObject, index: u32, capacity: u32, max_sge: u32) -> Self {
        let count = capacity as usize;
        Self {
            object,
            index,
            max_sge,
            slots: vec![Slot { context: None, posted: false }; count],
            free: (0..capacity).rev().collect(),
            chain: Vec::with_capacity(count),
            wrs: Vec::with_capacity(count),
            sges: Vec::with_capacity(count * max_sge as usize),
        }
    }

    pub(crate) const fn object(&self) -> &QueueObject {
        &self.object
    }

    pub(crate) const fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the number of receives that can be posted now.
    pub(crate) fn free_slots(&self) -> u32 {
        self.free.len() as u32
    }

    /// Posts a receive, which [`post_chain`](Self::post_chain) hands to the device.
    pub(crate) fn post(&mut self, context: SlotContext) -> Result<(), RingError> {
        let slot = self.free.pop().ok_or(RingError::Full)?;
        self.slots[slot as usize].context = Some(context);
        self.chain.push(slot);
        Ok(())
    }

    /// Holds the slot that `wr_id` of a completion names; returns its index and its receive. Returns `None` if no
    /// posted slot has this `wr_id`.
    pub(crate) fn complete(&mut self, wr_id: u64) -> Option<(u32, SlotContext)> {
        let slot = self.slots.get_mut(wr_id as u32 as usize)?;
        let context = slot.context?;
        std::mem::take(&mut slot.posted).then_some((wr_id as u32, context))
    }

    /// Returns the receive of a held slot.
    pub(crate) fn context(&self, slot: u32) -> SlotContext {
        self.slots[slot as usize].context.unwrap_or(SlotContext::from_wr_id(0))
    }

    /// Calls `each` with the receive of each slot that is not free.
    pub(super) fn each(&self, each: impl FnMut(SlotContext)) {
        self.slots.iter().filter_map(|slot| slot.context).for_each(each);
    }

    /// Takes note that a receive failed. Unless the queue is shared, all that is posted to it fails too.
    pub(crate) fn fail(&self) {
        if let QueueObject::Rq(qp) = &self.object {
            if qp.known_state() != QpState::Error {
                qp.mark_failed();
                qp.flush_late_receives();
            }
        }
    }

    /// Gives a held slot back without its buffer.
    #[cold]
    pub(crate) fn release(&mut self, slot: u32) {
        self.slots[slot as usize].context = None;
        self.free.push(slot);
    }

    /// Puts another buffer into a held slot.
    pub(crate) fn rewrite(&mut self, slot: u32, context: SlotContext) {
        self.slots[slot as usize].context = Some(context);
    }

    /// Gives a held slot back with its buffer, to be posted with the chain.
    #[cold]
    pub(crate) fn recycle(&mut self, slot: u32) {
        self.chain.push(slot);
    }

    /// Takes the buffer out of the slot that was given back last.
    #[cold]
    pub(crate) fn release_lent(&mut self, slot: u32) {
        let last = self.chain.pop();
        debug_assert_eq!(last, Some(slot));
        self.release(slot);
    }

    /// Posts the chain.
    #[cold]
    pub(super) fn end_batch(&mut self) {
        // SAFETY: [slot-owns], of a receive that was not posted.
        let _ = self.post_chain(|context| unsafe { context.into_buffers(0, drop) });
    }

    /// Posts the chain; returns how many receives the device took. The others are passed to `rejected`, and the error
    /// is the number that the call returned.
    #[cold]
    pub(crate) fn post_chain(&mut self, rejected: impl FnMut(SlotContext)) -> (usize, Result<(), i32>) {
        if self.chain.is_empty() {
            return (0, Ok(()));
        }
        self.wrs.clear();
        self.sges.clear();
        // The vectors have room for a receive in each slot, so nothing moves.
        let start = self.wrs.as_mut_ptr();
        for (i, &slot) in self.chain.iter().enumerate() {
            let before = self.sges.len();
            if let Some(context) = &self.slots[slot as usize].context {
                // SAFETY: [slot-owns], for the slot is not free.
                let sges = unsafe { context.sges() };
                let sge = |Sge { addr, length, lkey }| sys::ibv_sge { addr, length, lkey };
                self.sges.extend(sges.map(sge));
            }
            let is_last = i + 1 == self.chain.len();
            self.wrs.push(sys::ibv_recv_wr {
                wr_id: u64::from(self.index) << 32 | u64::from(slot),
                next: if is_last { ptr::null_mut() } else { start.wrapping_add(i + 1) },
                sg_list: self.sges.as_mut_ptr().wrapping_add(before),
                num_sge: (self.sges.len() - before) as i32,
            });
        }
        let mut bad = ptr::null_mut();
        // SAFETY: live objects; the requests and their SGEs are in vectors that do not change during the call; the
        // memory is registered, and owned by the queue until its completion.
        let errno = unsafe {
            match &self.object {
                QueueObject::Srq(srq) => sys::ibv_post_srq_recv(srq.as_raw(), start, &mut bad),
                QueueObject::Rq(qp) => sys::ibv_post_recv(qp.as_raw(), start, &mut bad),
            }
        };
        let refused = (bad as usize).wrapping_sub(start as usize) / size_of::<sys::ibv_recv_wr>();
        let (posted, result) = match errno {
            0 => (self.chain.len(), Ok(())),
            _ if bad.is_null() => (0, Err(errno)),
            _ => (self.chain.len().min(refused), Err(errno)),
        };
        for slot in self.chain.drain(..posted) {
            self.slots[slot as usize].posted = true;
        }
        let refused = self.chain.iter().filter_map(|&slot| self.slots[slot as usize].context.take());
        refused.for_each(rejected);
        self.free.append(&mut self.chain);
        if let QueueObject::Rq(qp) = &self.object {
            if posted > 0 && qp.known_state() == QpState::Error {
                qp.flush_late_receives();
            }
        }
        (posted, result)
    }

    /// Takes every receive back: the queue was reset or destroyed.
    pub(crate) fn take_back(&mut self, mut each: impl FnMut(SlotContext)) {
        self.chain.clear();
        self.free.clear();
        for (i, slot) in self.slots.iter_mut().enumerate().rev() {
            slot.context.take().into_iter().for_each(&mut each);
            slot.posted = false;
            self.free.push(i as u32);
        }
    }
}
