//! The verbs path: `ibv_post_recv` on a raw packet queue pair.

use std::ptr;
use std::sync::Arc;

use mlx5_ring::frames::{Frame, FrameBuffer};
use rdma_core_sys as sys;

use super::buffers::Buffers;
use crate::qp::Qp;

/// A receive queue with one frame in each receive, and running counts as in
/// [`FrameQueue`](mlx5_ring::frames::FrameQueue). The `wr_id` of a receive is its running index.
pub(super) struct VerbsFrames {
    qp: Arc<Qp>,
    /// The buffer of each slot. The number of slots is a power of two.
    buffers: Vec<FrameBuffer>,
    completed: u32,
    /// Receives that the device has been given.
    posted: u32,
    /// Receives that the device has after the next [`post`](Self::post).
    ready: u32,
    requests: Vec<(sys::ibv_recv_wr, sys::ibv_sge)>,
}

// SAFETY: the requests point into the vector that they are in, only during a call.
unsafe impl Send for VerbsFrames {}

impl VerbsFrames {
    pub(super) fn new(qp: Arc<Qp>, buffers: Vec<FrameBuffer>) -> Self {
        let ready = buffers.len() as u32;
        let requests = Vec::with_capacity(buffers.len());
        Self { qp, buffers, completed: 0, posted: 0, ready, requests }
    }

    fn slot(&self, wqe: u32) -> usize {
        wqe as usize & (self.buffers.len() - 1)
    }

    pub(super) fn buffer(&self, wqe: u32) -> FrameBuffer {
        self.buffers[self.slot(wqe)]
    }

    pub(super) const fn completed(&self) -> u32 {
        self.completed
    }

    pub(super) fn held(&self) -> u32 {
        self.buffers.len() as u32 - self.ready.wrapping_sub(self.completed)
    }

    pub(super) fn has_unposted(&self) -> bool {
        self.posted.wrapping_sub(self.completed) as usize != self.buffers.len()
    }

    pub(super) fn held_buffer(&self, at: u32) -> FrameBuffer {
        self.buffer(self.ready.wrapping_add(at))
    }

    pub(super) fn replace(&mut self, at: u32, buffer: FrameBuffer) {
        let slot = self.slot(self.ready.wrapping_add(at));
        self.buffers[slot] = buffer;
    }

    /// # Safety
    /// At least `count` receives are held, and no code reads their buffers.
    pub(super) const unsafe fn recycle(&mut self, count: u32) {
        self.ready = self.ready.wrapping_add(count);
    }

    /// Completes the receive of `wr_id`, which is held from now on; `None` when the device does not fill that one.
    pub(super) fn complete(&mut self, wr_id: u64, len: usize) -> Option<Frame> {
        let wqe = self.completed;
        if !is_next(wr_id, wqe, self.posted) {
            return None;
        }
        self.completed = wqe.wrapping_add(1);
        Some(Frame { wqe, start: self.buffer(wqe).start, len })
    }

    /// Posts what was given back. Receives that a failed queue pair does not take wait for the next call.
    pub(super) fn post(&mut self, buffers: &Buffers) {
        if self.posted == self.ready {
            return;
        }
        self.requests.clear();
        for i in 0..self.ready.wrapping_sub(self.posted) {
            let wqe = self.posted.wrapping_add(i);
            let sge = buffers.sge(self.buffer(wqe));
            let request = sys::ibv_recv_wr { wr_id: wqe.into(), num_sge: 1, ..Default::default() };
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
        let first_bad = |(request, _): &(sys::ibv_recv_wr, _)| ptr::eq(request, bad);
        let posted = match errno {
            0 => self.requests.len(),
            _ => self.requests.iter().position(first_bad).unwrap_or(0),
        };
        self.posted = self.posted.wrapping_add(posted as u32);
    }

    pub(super) fn posted(&self, each: impl FnMut(FrameBuffer)) {
        let count = self.posted.wrapping_sub(self.completed);
        (0..count).map(|i| self.buffer(self.completed.wrapping_add(i))).for_each(each);
    }
}

/// Returns `true` if `wr_id` is that of the oldest receive that the device has, of those from running index `completed`
/// to `posted`.
const fn is_next(wr_id: u64, completed: u32, posted: u32) -> bool {
    wr_id == completed as u64 && completed != posted
}

#[cfg(test)]
mod tests {
    use super::is_next;

    #[test]
    fn only_the_oldest_receive_of_the_device_completes() {
        assert!(is_next(7, 7, 9) && is_next(u32::MAX.into(), u32::MAX, 0));
        for (wr_id, completed, posted) in [(8, 7, 9), (6, 7, 9), (7 | 1 << 32, 7, 9), (9, 9, 9)] {
            assert!(!is_next(wr_id, completed, posted), "{wr_id:#x}, {completed} to {posted}");
        }
    }
}
