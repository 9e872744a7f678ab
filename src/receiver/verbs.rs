//! The verbs path: the same queues through libibverbs.

mod extended;

use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

use rdma_core_sys as sys;

use super::resident::{Books, Resident};
use super::srq::Srq;
use super::through::Standing;
use crate::cq::Cq;
use crate::qp::{Qp, QpState};

/// Receives posted with one call.
const CHAIN: usize = 64;
/// Completions taken with one call.
const POLLED: usize = 32;

/// Everything a receiver drives through verbs.
pub(crate) struct Verbs {
    cq: Arc<Cq>,
    pub(crate) queues: Vec<VerbsQueue>,
    pub(crate) polled: Polled,
    /// What a batch leaves here between calls.
    pub(super) standing: Standing,
}

/// A completion as verbs report it.
#[derive(Clone, Copy)]
pub(crate) struct Wc {
    pub(crate) wc: sys::ibv_wc,
    /// Time of completion in ticks of the device's clock, if it was asked for.
    pub(crate) timestamp: Option<u64>,
}

/// Completions that `ibv_poll_cq` has returned and nobody has seen.
pub(crate) struct Polled {
    waiting: VecDeque<Wc>,
    fetched: Box<[sys::ibv_wc; POLLED]>,
    /// Completions that were seen, modulo 2^32.
    pub(crate) taken: u32,
}

/// What receives are posted to.
#[derive(Clone)]
pub(crate) enum Object {
    Srq(Arc<Srq>),
    Rq(Arc<Qp>),
    /// Destroyed; its index is not used again.
    Gone,
}

pub(crate) struct VerbsQueue {
    pub(crate) object: Object,
    index: u32,
    max_sge: u32,
    /// What was posted under a slot number, which is the lower half of its `wr_id`.
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots written to the chain and not posted yet.
    chain: Vec<u32>,
    wrs: Vec<sys::ibv_recv_wr>,
    sges: Vec<sys::ibv_sge>,
}

#[derive(Clone, Copy)]
struct Slot {
    resident: Option<Resident>,
    posted: bool,
}

// SAFETY: the work requests point into the vectors beside them, only during a call.
unsafe impl Send for VerbsQueue {}
// SAFETY: `ibv_wc` is plain data.
unsafe impl Send for Polled {}

impl Verbs {
    pub(crate) fn new(cq: Arc<Cq>) -> Self {
        let polled = Polled {
            waiting: VecDeque::with_capacity(POLLED),
            fetched: Box::new([sys::ibv_wc::default(); POLLED]),
            taken: 0,
        };
        Self { cq, queues: Vec::new(), polled, standing: Standing::default() }
    }

    pub(crate) fn add(&mut self, object: Object, capacity: u32, max_sge: u32) -> u32 {
        let index = self.queues.len() as u32;
        self.queues.push(VerbsQueue::new(object, index, capacity, max_sge));
        index
    }

    /// The next completion; asks the device when all that it gave have been seen.
    pub(crate) fn next(&mut self) -> Option<Wc> {
        if self.polled.waiting.is_empty() {
            self.fetch();
        }
        let next = self.polled.waiting.pop_front();
        self.polled.taken = self.polled.taken.wrapping_add(next.is_some().into());
        next
    }

    /// Whether there is a completion that nobody has seen.
    pub(crate) fn has_arrived(&mut self) -> bool {
        !self.polled.waiting.is_empty() || self.fetch() > 0
    }

    fn fetch(&mut self) -> usize {
        if let Some((cq, timestamps)) = self.cq.with_timestamps() {
            // SAFETY: a live CQ that nobody else polls, created with what is read.
            return unsafe { extended::fetch(cq, timestamps, &mut self.polled.waiting) };
        }
        let Polled { waiting, fetched, .. } = &mut self.polled;
        // SAFETY: a live CQ that nobody else polls, and room for as many completions.
        let got =
            unsafe { sys::ibv_poll_cq(self.cq.as_raw(), POLLED as i32, fetched.as_mut_ptr()) };
        // A negative number means that the CQ is broken; its asynchronous event says so.
        let got = usize::try_from(got).unwrap_or(0).min(POLLED);
        waiting.extend(fetched[..got].iter().map(|&wc| Wc { wc, timestamp: None }));
        got
    }

    /// What the completions that are waiting say was received into, of at most `count`.
    pub(crate) fn look_ahead(&self, count: u32, each: impl FnMut(Resident)) {
        let waiting = self.polled.waiting.iter().take(count as usize);
        let slots = waiting.filter_map(|Wc { wc, .. }| {
            let queue = self.queues.get((wc.wr_id >> 32) as usize)?;
            let slot = queue.slots.get(wc.wr_id as u32 as usize)?;
            slot.resident.filter(|_| slot.posted)
        });
        slots.for_each(each);
    }

    /// The queues of the next completions, at most `count`, in their order.
    pub(crate) fn waiting(&mut self, count: usize, each: impl FnMut(u32)) {
        while self.polled.waiting.len() < count && self.fetch() > 0 {}
        let waiting = self.polled.waiting.iter().take(count);
        waiting.map(|Wc { wc, .. }| (wc.wr_id >> 32) as u32).for_each(each);
    }

    /// Takes out everything that has arrived.
    pub(crate) fn fetch_all(&mut self) {
        while self.fetch() > 0 {}
    }

    /// Forgets completions of a QP that was reset or is gone, and posts the receives of SRQs that they name again; what
    /// an SRQ does not take goes back to its pool. Receives of its own queue are taken back with the rest of it.
    pub(crate) fn purge(&mut self, qp_num: u32, books: &mut Books) {
        // What completed before the reset took effect: not every driver drops it.
        self.fetch_all();
        let queues = &mut self.queues;
        self.polled.waiting.retain(|Wc { wc, .. }| {
            if wc.qp_num != qp_num {
                return true;
            }
            let queue = queues.get_mut((wc.wr_id >> 32) as usize).filter(|queue| queue.is_shared());
            if let Some(queue) = queue {
                if let Some((slot, _)) = queue.complete(wc.wr_id) {
                    queue.recycle(slot);
                }
            }
            false
        });
        let mut rejected = Vec::new();
        for queue in &mut self.queues {
            let _ = queue.flush(books, &mut rejected);
        }
        rejected.into_iter().for_each(|resident| books.leave(resident, 0, drop));
    }
}

impl Polled {
    /// Forgets all completions.
    pub(crate) fn forget_all(&mut self) {
        self.waiting.clear();
    }

    /// Forgets the completions of a queue.
    pub(crate) fn forget(&mut self, index: u32) {
        self.waiting.retain(|Wc { wc, .. }| (wc.wr_id >> 32) as u32 != index);
    }
}

impl VerbsQueue {
    fn new(object: Object, index: u32, capacity: u32, max_sge: u32) -> Self {
        let chain = CHAIN.min(capacity as usize);
        Self {
            object,
            index,
            max_sge,
            slots: vec![Slot { resident: None, posted: false }; capacity as usize],
            free: (0..capacity).rev().collect(),
            chain: Vec::with_capacity(chain),
            wrs: Vec::with_capacity(chain),
            sges: Vec::with_capacity(chain * max_sge as usize),
        }
    }

    pub(crate) const fn is_shared(&self) -> bool {
        matches!(self.object, Object::Srq(_))
    }

    pub(crate) const fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Receives that can be posted now.
    pub(crate) fn vacant(&self) -> u32 {
        self.free.len() as u32
    }

    /// Receives in the chain.
    pub(crate) fn chained(&self) -> usize {
        self.chain.len()
    }

    /// Whether the chain should be posted before more is added.
    pub(crate) fn chain_is_full(&self) -> bool {
        self.chain.len() == CHAIN
    }

    /// Adds a receive to the chain; the caller has checked that a slot is free and the chain not full.
    pub(crate) fn add(&mut self, resident: Resident) {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize].resident = Some(resident);
            self.chain.push(slot);
        }
    }

    /// The completion of `wr_id`: its slot and what was posted, or `None` when it cannot be true.
    pub(crate) fn complete(&mut self, wr_id: u64) -> Option<(u32, Resident)> {
        let slot = self.slots.get_mut(wr_id as u32 as usize)?;
        let resident = slot.resident?;
        if !std::mem::take(&mut slot.posted) {
            return None;
        }
        Some((wr_id as u32, resident))
    }

    /// A receive failed. Unless the queue is shared, all that is posted to it fails too.
    pub(crate) fn fail(&self) {
        if let Object::Rq(qp) = &self.object {
            if qp.known_state() != QpState::Error {
                qp.mark_failed();
                qp.flush_late_receives();
            }
        }
    }

    /// Gives a completed slot back without its buffer.
    pub(crate) fn release(&mut self, slot: u32) {
        self.slots[slot as usize].resident = None;
        self.free.push(slot);
    }

    /// Puts another buffer into a completed slot.
    pub(crate) fn replace(&mut self, slot: u32, resident: Resident) {
        self.slots[slot as usize].resident = Some(resident);
    }

    /// Gives a completed slot back with its buffer, to be posted with the chain.
    pub(crate) fn recycle(&mut self, slot: u32) {
        self.chain.push(slot);
    }

    /// Posts the chain. What the device did not take comes back in `rejected`, and the error is the number
    /// that the call returned.
    pub(crate) fn flush(
        &mut self,
        books: &Books,
        rejected: &mut Vec<Resident>,
    ) -> Result<usize, i32> {
        if self.chain.is_empty() {
            return Ok(0);
        }
        self.wrs.clear();
        self.sges.clear();
        for &slot in &self.chain {
            let resident = self.slots[slot as usize].resident.as_ref();
            let before = self.sges.len();
            for piece in resident.into_iter().flat_map(|resident| books.pieces(resident)) {
                self.sges.push(sys::ibv_sge {
                    addr: piece.addr.as_ptr().expose_provenance() as u64,
                    length: piece.capacity,
                    lkey: books.lkey(&piece),
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
        // SAFETY: live objects; the chain and its SGEs are in vectors that do not change during the
        // call; the memory is registered, and owned by the queue until its completion.
        let errno = unsafe {
            match &self.object {
                Object::Srq(srq) => sys::ibv_post_srq_recv(srq.as_raw(), start, &mut bad),
                Object::Rq(qp) => sys::ibv_post_recv(qp.as_raw(), start, &mut bad),
                Object::Gone => libc::EINVAL,
            }
        };
        let posted = if errno == 0 {
            self.chain.len()
        } else {
            let offset =
                (bad as usize).wrapping_sub(start as usize) / size_of::<sys::ibv_recv_wr>();
            if bad.is_null() { 0 } else { offset.min(self.chain.len()) }
        };
        for &slot in &self.chain[..posted] {
            self.slots[slot as usize].posted = true;
        }
        if let Object::Rq(qp) = &self.object {
            if posted > 0 && qp.known_state() == QpState::Error {
                qp.flush_late_receives();
            }
        }
        for &slot in &self.chain[posted..] {
            if let Some(resident) = self.slots[slot as usize].resident.take() {
                rejected.push(resident);
            }
            self.free.push(slot);
        }
        self.chain.clear();
        if errno == 0 { Ok(posted) } else { Err(errno) }
    }

    /// The queue was destroyed, and all receives are taken back. Its index is not used again.
    pub(crate) fn end(&mut self) {
        *self = Self::new(Object::Gone, self.index, 0, self.max_sge);
    }

    /// Takes every receive back: the queue was reset or destroyed.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(Resident)) {
        self.chain.clear();
        self.free.clear();
        for (i, slot) in self.slots.iter_mut().enumerate().rev() {
            if let Some(resident) = slot.resident.take() {
                each(resident);
            }
            slot.posted = false;
            self.free.push(i as u32);
        }
    }
}
