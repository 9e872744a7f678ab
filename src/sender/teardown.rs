//! Resets of queue pairs, and the end of a sender.

use rdma_core_sys as sys;

use super::Sender;
use super::batch::{Run, SendCompletion};
use super::queue::Entry;

impl Sender {
    /// Returns the next request that a reset ended. Call it only when nothing of the CQ is left.
    #[inline(always)]
    pub(super) fn next_flushed(&mut self) -> Option<SendCompletion<'_>> {
        if self.cq.resets() == self.resets && self.flushed.is_empty() {
            return None;
        }
        self.take_flushed()
    }

    #[cold]
    fn take_flushed(&mut self) -> Option<SendCompletion<'_>> {
        self.notice_resets();
        let (queue, request) = self.flushed.pop_front()?;
        self.complete(queue, request, sys::IBV_WC_WR_FLUSH_ERR, 0)
    }

    /// Takes back the requests of queue pairs that were reset.
    fn notice_resets(&mut self) {
        let resets = self.cq.resets();
        // What has completed before the reset is polled first. The device of a queue pair in RESET writes no more CQEs.
        if resets == self.resets || self.poller.has_arrived() {
            return;
        }
        self.resets = resets;
        self.run = Run::NONE;
        for entry in self.queues.iter_mut().flatten().filter(|entry| entry.qp.sends_ended()) {
            let index = entry.id.index;
            entry.ring.take_back(|request| self.flushed.push_back((index, request)));
            // SAFETY: the queue pair cannot become ready to send before the next line, and the CQ is empty.
            unsafe { entry.ring.reset() }
            entry.qp.take_back_sends();
        }
        self.close_departed();
    }
}

impl Drop for Sender {
    /// What is outstanding stays with the queue pairs until they are destroyed.
    fn drop(&mut self) {
        for entry in self.queues.iter_mut().flatten() {
            let Entry { ring, qp, gathered, .. } = entry;
            let mut keep = |buffer: crate::memory::Buffer| {
                let (pool, start) = buffer.into_parts();
                qp.deferred().keep(pool, start);
            };
            ring.take_back(|request| {
                // SAFETY: the queue forgets the request, and its buffer is kept until the device has let go of it.
                let buffer = unsafe { request.into_buffer() };
                buffer.into_iter().for_each(&mut keep);
            });
            gathered.take_all().for_each(&mut keep);
            // Nothing is posted any more.
            qp.take_back_sends();
        }
        for (_, request) in self.flushed.drain(..) {
            // SAFETY: it is over, and nobody has its buffer.
            drop(unsafe { request.into_buffer() });
        }
    }
}
