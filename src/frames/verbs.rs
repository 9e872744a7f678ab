//! The verbs path: `ibv_post_recv` on a raw packet queue pair.

use std::ptr;
use std::sync::Arc;

use rdma_core_sys as sys;

use super::buffers::{Buffers, Posted};
use crate::qp::Qp;

/// A receive queue of one buffer a receive, that `ibv_post_recv` posts to. The `wr_id` is the slot.
pub(super) struct VerbsFrames {
    qp: Arc<Qp>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots that were posted by the caller and are not with the device yet.
    chain: Vec<u32>,
    requests: Vec<(sys::ibv_recv_wr, sys::ibv_sge)>,
}

// SAFETY: the requests point into the vector that they are in, only during a call.
unsafe impl Send for VerbsFrames {}

#[derive(Clone, Copy, Default)]
struct Slot {
    buffer: Option<Posted>,
    /// The device has it.
    posted: bool,
}

impl VerbsFrames {
    pub(super) fn new(qp: Arc<Qp>, capacity: u32) -> Self {
        Self {
            qp,
            slots: vec![Slot::default(); capacity as usize],
            free: (0..capacity).rev().collect(),
            chain: Vec::with_capacity(capacity as usize),
            requests: Vec::with_capacity(capacity as usize),
        }
    }

    pub(super) fn free_slots(&self) -> u32 {
        self.free.len() as u32
    }

    /// Posts a buffer; returns `false` when no slot is free.
    pub(super) fn post(&mut self, buffer: Posted) -> bool {
        let Some(slot) = self.free.pop() else { return false };
        self.slots[slot as usize].buffer = Some(buffer);
        self.chain.push(slot);
        true
    }

    /// Returns the slot of the receive that completes with `wr_id`, which is held from now on; `None` when the device does
    /// not have it.
    pub(super) fn complete(&mut self, wr_id: u64) -> Option<u32> {
        let slot = self.slots.get_mut(usize::try_from(wr_id).ok()?)?;
        std::mem::take(&mut slot.posted).then_some(wr_id as u32)
    }

    /// Returns the buffer of a slot that is not free.
    pub(super) fn posted(&self, slot: u32) -> Posted {
        self.slots[slot as usize].buffer.expect("a slot that is held has a buffer")
    }

    pub(super) fn recycle(&mut self, slot: u32) {
        self.chain.push(slot);
    }

    pub(super) fn rewrite(&mut self, slot: u32, buffer: Posted) {
        self.slots[slot as usize].buffer = Some(buffer);
    }

    pub(super) fn release(&mut self, slot: u32) {
        self.slots[slot as usize].buffer = None;
        self.free.push(slot);
    }

    /// Hands the chain to the device. What a queue pair that failed does not take stays in it.
    pub(super) fn post_chain(&mut self, buffers: &Buffers) {
        if self.chain.is_empty() {
            return;
        }
        self.requests.clear();
        for &slot in &self.chain {
            let segment = buffers.segment(self.posted(slot));
            let sge = sys::ibv_sge {
                addr: segment.addr.get(),
                length: segment.byte_count.get(),
                lkey: segment.lkey.get(),
            };
            let request = sys::ibv_recv_wr { wr_id: slot.into(), num_sge: 1, ..Default::default() };
            self.requests.push((request, sge));
        }
        // Nothing is added any more, so nothing moves.
        let mut next: *mut sys::ibv_recv_wr = ptr::null_mut();
        for (request, sge) in self.requests.iter_mut().rev() {
            (request.sg_list, request.next) = (&mut *sge, next);
            next = request;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair; the requests are in a vector that does not change during the call; the memory is
        // registered, and the queue's until its completion.
        let errno = unsafe { sys::ibv_post_recv(self.qp.as_raw(), next, &mut bad) };
        let posted = if errno == 0 {
            self.chain.len()
        } else {
            let first = |(request, _): &(sys::ibv_recv_wr, _)| ptr::eq(request, bad);
            self.requests.iter().position(first).unwrap_or(0)
        };
        for slot in self.chain.drain(..posted) {
            self.slots[slot as usize].posted = true;
        }
    }

    pub(super) fn take_back(&mut self, mut each: impl FnMut(Posted)) {
        for slot in &mut self.slots {
            if std::mem::take(&mut slot.posted) {
                slot.buffer.take().into_iter().for_each(&mut each);
            }
        }
    }
}
