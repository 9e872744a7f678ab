//! The verbs path: the same queues through libibverbs.

mod extended;
mod poll;

use std::ptr;

use mlx5_ring::receive::PostError as RingError;
use rdma_core_sys as sys;

use super::buffer_owners::BufferOwners;
use super::queue::QueueObject;
use super::slot_context::SlotContext;
use crate::qp::QpState;

pub(crate) use poll::{VerbsCq, Wc};

/// Receives posted with one call.
const CHAIN: usize = 64;

/// A queue that `ibv_post_recv` or `ibv_post_srq_recv` posts to.
pub(crate) struct VerbsQueue {
    object: QueueObject,
    /// Index in the receiver, which is the upper half of each `wr_id`.
    index: u32,
    max_sge: u32,
    /// What was posted under a slot number, which is the lower half of its `wr_id`.
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
    /// The device has it.
    posted: bool,
}

// SAFETY: the work requests point into the vectors beside them, only during a call.
unsafe impl Send for VerbsQueue {}

impl VerbsQueue {
    pub(crate) fn new(object: QueueObject, index: u32, capacity: u32, max_sge: u32) -> Self {
        let chain = CHAIN.min(capacity as usize);
        Self {
            object,
            index,
            max_sge,
            slots: vec![Slot { context: None, posted: false }; capacity as usize],
            free: (0..capacity).rev().collect(),
            chain: Vec::with_capacity(capacity as usize),
            wrs: Vec::with_capacity(chain),
            sges: Vec::with_capacity(chain * max_sge as usize),
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

    /// Returns the slot and what was posted for the completion of `wr_id`, which is held from now on; `None` when it
    /// cannot be true.
    pub(crate) fn complete(&mut self, wr_id: u64) -> Option<(u32, SlotContext)> {
        let slot = self.slots.get_mut(wr_id as u32 as usize)?;
        let context = slot.context?;
        std::mem::take(&mut slot.posted).then_some((wr_id as u32, context))
    }

    /// Returns what was posted for the completion of `wr_id`, if the device has it.
    pub(crate) fn posted(&self, wr_id: u64) -> Option<SlotContext> {
        let slot = self.slots.get(wr_id as u32 as usize)?;
        slot.context.filter(|_| slot.posted)
    }

    /// Returns what was posted into a held slot.
    pub(crate) fn context(&self, slot: u32) -> SlotContext {
        self.slots[slot as usize].context.unwrap_or(SlotContext::from_wr_id(0))
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

    /// Posts the chain; returns how many receives the device took. What a queue pair that failed does not take goes back to
    /// its pools, as it does when it is destroyed.
    #[cold]
    pub(crate) fn post_chain_or_drop(&mut self, owners: &mut BufferOwners) -> usize {
        let mut rejected = Vec::new();
        let (posted, _) = self.post_chain(owners, &mut rejected);
        rejected.into_iter().for_each(|context| owners.leave(context, 0, drop));
        posted
    }

    /// Posts the chain; returns how many receives the device took. The others come back in `rejected`, and the error is
    /// the number that the call returned.
    pub(crate) fn post_chain(
        &mut self,
        owners: &BufferOwners,
        rejected: &mut Vec<SlotContext>,
    ) -> (usize, Result<(), i32>) {
        let mut posted = 0;
        let mut result = Ok(());
        while posted < self.chain.len() && result.is_ok() {
            let count = CHAIN.min(self.chain.len() - posted);
            let (taken, answer) = self.post_part(owners, posted, count);
            (posted, result) = (posted + taken, answer);
        }
        for at in posted..self.chain.len() {
            let slot = self.chain[at];
            rejected.extend(self.slots[slot as usize].context.take());
            self.free.push(slot);
        }
        self.chain.clear();
        if let QueueObject::Rq(qp) = &self.object {
            if posted > 0 && qp.known_state() == QpState::Error {
                qp.flush_late_receives();
            }
        }
        (posted, result)
    }

    /// Posts `count` receives of the chain; returns how many the device took.
    fn post_part(
        &mut self,
        owners: &BufferOwners,
        first: usize,
        count: usize,
    ) -> (usize, Result<(), i32>) {
        self.wrs.clear();
        self.sges.clear();
        for &slot in &self.chain[first..][..count] {
            let context = self.slots[slot as usize].context.as_ref();
            let before = self.sges.len();
            for part in context.map_or(&[][..], |context| owners.parts(context)) {
                self.sges.push(sys::ibv_sge {
                    addr: part.addr(),
                    length: part.capacity(),
                    lkey: owners.lkey(part),
                });
            }
            self.wrs.push(sys::ibv_recv_wr {
                wr_id: u64::from(self.index) << 32 | u64::from(slot),
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: (self.sges.len() - before) as i32,
            });
        }
        // Nothing is added any more, so nothing moves.
        let (start, mut sges) = (self.wrs.as_mut_ptr(), self.sges.as_mut_ptr());
        for (i, wr) in self.wrs.iter_mut().enumerate() {
            wr.sg_list = sges;
            sges = sges.wrapping_add(wr.num_sge as usize);
            wr.next = start.wrapping_add(i + 1);
        }
        if let Some(last) = self.wrs.last_mut() {
            last.next = ptr::null_mut();
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
        let posted = match errno {
            0 => count,
            _ if bad.is_null() => 0,
            _ => {
                let offset = (bad as usize).wrapping_sub(start as usize);
                count.min(offset / size_of::<sys::ibv_recv_wr>())
            }
        };
        for &slot in &self.chain[first..][..posted] {
            self.slots[slot as usize].posted = true;
        }
        (posted, if errno == 0 { Ok(()) } else { Err(errno) })
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
