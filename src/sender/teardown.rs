//! Resets and ends of queue pairs, and the end of a sender.

use super::Sender;
use super::batch::Run;
use super::queue::Entry;
use crate::qp_state::QpState;

impl Sender {
    /// Goes on with the requests that a reset ended, or the removal of the device; returns `false` when there are none.
    /// Call it when the last run is over and the CQ is empty.
    pub(super) fn next_ended(&mut self) -> bool {
        let has_ended = self.cq.object.ended() != self.ended || self.has_departing;
        if !has_ended || self.cq.poller.has_arrived() {
            return false;
        }
        for entry in self.queues.iter_mut().flatten().filter(|entry| entry.is_over()) {
            if !entry.ring.is_empty() {
                let requests = entry.ring.run_of_all();
                self.run = Run::flushed(entry.id, requests);
                return true;
            }
        }
        self.finish_ended();
        false
    }

    /// Starts the queues again that a reset ended and whose requests were all returned.
    #[cold]
    pub(super) fn finish_ended(&mut self) {
        let ended = self.cq.object.ended();
        // Completions from before the reset are polled first. The device of a queue pair in RESET writes no more CQEs.
        if !self.run.is_over() || self.cq.poller.has_arrived() {
            return;
        }
        let mut are_taken_back = true;
        for entry in self.queues.iter_mut().flatten().filter(|entry| entry.qp.flushes_sends()) {
            are_taken_back &= entry.ring.drain(entry.qp.known_state() == QpState::Error);
        }
        for entry in self.queues.iter_mut().flatten().filter(|entry| entry.qp.sends_ended()) {
            if !entry.ring.is_empty() {
                are_taken_back = false;
                continue;
            }
            // SAFETY: the queue pair cannot become ready to send before the next line, and the CQ is empty.
            unsafe { entry.ring.reset() }
            entry.full = None;
            entry.qp.take_back_sends();
        }
        if are_taken_back {
            self.ended = ended;
            self.close_departed();
        }
    }
}

impl Drop for Sender {
    /// Leaves outstanding requests with their queue pairs, which return the buffers when they are destroyed.
    fn drop(&mut self) {
        self.free_returned();
        for entry in self.queues.iter_mut().flatten() {
            let Entry { ring, qp, gathered, windows, .. } = &mut **entry;
            let mut keep = |buffer| qp.deferred().keep(buffer);
            let mut requests = ring.run_of_all();
            // SAFETY: the queue exists, and frees nothing any more.
            while let Some(request) = unsafe { requests.next() } {
                // SAFETY: no other code takes it, and its buffer is kept until the device has let go of it.
                let buffer = unsafe { request.into_buffer() };
                buffer.into_iter().for_each(&mut keep);
            }
            gathered.take_all().for_each(&mut keep);
            windows.take_all().for_each(|window| qp.deferred().keep_window(window));
            // Nothing is posted any more.
            qp.drop_sender();
        }
    }
}
