//! Batches on the verbs path.

use rdma_core_sys::{self as sys, ibv_wc};

use super::facts::Facts;
use super::found::Found;
use super::resident::{Books, Resident};
use super::verbs::{Verbs, Wc};

/// A batch, as it stands between two calls.
#[derive(Default)]
pub(crate) struct Standing {
    budget: u32,
    /// The queue whose chain is not posted yet.
    current: Option<u32>,
    pending: Option<Reported>,
}

/// A completed slot, and what verbs reported of it.
struct Reported {
    queue: u32,
    slot: u32,
    wc: Wc,
}

impl Verbs {
    /// Starts a batch.
    pub(super) fn start(&mut self, budget: u32) {
        self.standing.budget = budget;
    }

    pub(super) fn find(&mut self, books: &mut Books) -> Option<Found> {
        self.give_back(books);
        self.standing.budget = self.standing.budget.checked_sub(1)?;
        let wc = self.next()?;
        let Wc { wc: ibv_wc { wr_id, status, opcode, byte_len, qp_num, .. }, .. } = wc;
        let queue = (wr_id >> 32) as u32;
        let completed = self.queues.get_mut(queue as usize).and_then(|q| q.complete(wr_id));
        let Some((slot, resident)) = completed else {
            return Some(Found::Stray(qp_num));
        };
        self.standing.pending = Some(Reported { queue, slot, wc });
        Some(if status == sys::IBV_WC_SUCCESS {
            let written = opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM;
            Found::Message(resident, if written { 0 } else { byte_len })
        } else {
            self.queues[queue as usize].fail();
            Found::Failed(resident)
        })
    }

    pub(super) fn lent(&self) -> Option<Facts<'_>> {
        Some(Facts::Wc(&self.standing.pending.as_ref()?.wc))
    }

    pub(super) fn is_shared(&self) -> bool {
        self.standing
            .pending
            .as_ref()
            .is_some_and(|pending| self.queues[pending.queue as usize].is_shared())
    }

    fn give_back(&mut self, books: &mut Books) {
        let Some(pending) = self.standing.pending.take() else {
            return;
        };
        if self.standing.current != Some(pending.queue) {
            self.post_given_back(books);
            self.standing.current = Some(pending.queue);
        }
        let queue = &mut self.queues[pending.queue as usize];
        queue.recycle(pending.slot);
        if queue.chain_is_full() {
            self.post_given_back(books);
        }
    }

    pub(super) fn take(&mut self) {
        if let Some(pending) = self.standing.pending.take() {
            self.queues[pending.queue as usize].release(pending.slot);
        }
    }

    /// Puts another buffer into the slot of the message that is lent.
    pub(super) fn replace(&mut self, resident: Resident) {
        if let Some(pending) = &self.standing.pending {
            self.queues[pending.queue as usize].replace(pending.slot, resident);
        }
    }

    /// Posts what was recycled. A QP that failed meanwhile takes nothing: then the buffers go back to
    /// their pools, as they do when it is destroyed.
    fn post_given_back(&mut self, books: &mut Books) {
        if let Some(queue) = self.standing.current.take() {
            let mut rejected = Vec::new();
            let _ = self.queues[queue as usize].flush(books, &mut rejected);
            for resident in rejected {
                books.leave(resident, 0, drop);
            }
        }
    }

    pub(super) fn finish(&mut self, books: &mut Books) {
        self.give_back(books);
        self.post_given_back(books);
    }
}
