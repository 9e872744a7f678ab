//! Batches that were forgotten instead of dropped.

use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::receive::{self, Queue};

use super::direct::{Direct, Ring};
use super::{Engine, Receiver, found};

impl Receiver {
    /// Ends a batch that was forgotten. Nobody can reach the message that it had lent: it is recycled, as when a batch
    /// is dropped.
    #[inline]
    pub(crate) fn recover(&mut self) {
        match &mut self.engine {
            Engine::Direct(direct) if receive::is_under_way(&direct.cq) => direct.end_forgotten(),
            Engine::Direct(direct) if direct.queues.len() == 1 => {}
            Engine::Direct(_) | Engine::Verbs(_) => found::finish_other(self),
        }
    }

    /// Whether a batch of a single queue was forgotten, and there is something to end.
    #[inline]
    pub(super) fn has_forgotten(&self) -> bool {
        matches!(&self.engine, Engine::Direct(direct) if receive::is_under_way(&direct.cq))
    }
}

impl Direct {
    #[cold]
    fn end_forgotten(&mut self) {
        // SAFETY: such a batch was made while the first queue was the only one, and a queue goes only after the batches
        // on it have ended.
        unsafe {
            match self.queues.first_mut() {
                Some(Ring::Srq(srq)) => end(&mut self.cq, &mut srq.ring),
                Some(Ring::Rq(rq)) => end(&mut self.cq, &mut rq.ring),
                Some(Ring::Gone) | None => {}
            }
        }
    }
}

/// # Safety
/// The batch that was forgotten on `cq` was made with `queue`, by safe code.
unsafe fn end<Q: Queue>(cq: &mut CompletionQueue, queue: &mut Q) {
    // SAFETY: the caller's contract. What borrowed the message borrowed the batch, so nobody uses its buffer.
    unsafe {
        if let Some(slot) = receive::recover(cq, queue) {
            queue.recycle(slot);
            queue.ring();
        }
    }
}
