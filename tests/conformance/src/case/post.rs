//! Posting, also of buffers that doorbell posts by itself when slots are given back.

use std::collections::VecDeque;

use rdma_core_sys as sys;

use super::Case;
use crate::difference::{Difference, Result, same};
use crate::pair::Pair;
use crate::plan::{Entry, Key, Layer};
use crate::queue::Wqe;
use crate::reference::{self, Refusal};
use crate::subject::Receive;
use crate::{fault, tally};

impl Case<'_> {
    pub(super) fn post(&mut self, queue: usize, receives: &[Receive]) -> Result<()> {
        if receives.is_empty() {
            return Ok(());
        }
        let record = self.queues[queue].doorbell.record_memory();
        let subject = &mut *self.subject;
        let (taken, refusal) = fault::post(self.run.fault, subject, queue, receives, record);
        for receive in receives {
            self.receives.insert(receive.0, receive.clone());
        }
        let ids = receives[..taken].iter().map(|receive| receive.0).collect();
        let new = self.handed_over(queue, ids, true)?;
        let libmlx5: Vec<_> = receives.iter().map(|receive| self.for_libmlx5(queue, receive)).collect();
        if self.subject.held() > 0 || new.len() != taken {
            // The slots of held messages are free for libmlx5, and one of doorbell's buffers may wait: the
            // refusals cannot be the same.
            self.post_to_libmlx5(queue, &new)?;
        } else {
            let (theirs, their_refusal) = reference::post(&self.twins.libmlx5.objects(), queue, &libmlx5);
            same(|| "receives posted".into(), theirs as u64, taken as u64)?;
            if their_refusal != refusal {
                self.compare_refusals(queue, &receives[taken..], new.len(), their_refusal, refusal)?;
            }
        }
        match refusal {
            Some(Refusal::Full) => self.run.tally.add(tally::FULL, 1),
            Some(_) => self.run.tally.add(tally::TOO_LONG, 1),
            None => {}
        }
        self.compare_new(queue, new)
    }

    fn compare_refusals(
        &mut self,
        queue: usize,
        refused: &[Receive],
        posted: usize,
        theirs: Option<Refusal>,
        ours: Option<Refusal>,
    ) -> Result<()> {
        // Two reasons to refuse a receive: libmlx5 checks them in another order on a receive queue. The
        // drop-in has the order of libmlx5.
        let either = [Some(Refusal::Full), Some(Refusal::TooManyEntries)];
        let Pair { doorbell, .. } = &self.queues[queue];
        let full = doorbell.outstanding.len() + posted >= doorbell.capacity() as usize;
        let too_long = refused.first().is_some_and(|receive| receive.1.len() > doorbell.max_sge());
        let is_same = self.shape.layer == Layer::DropIn;
        if !is_same && full && too_long && either.contains(&theirs) && either.contains(&ours) {
            self.run.tally.add(tally::EITHER_ERROR, 1);
            return Ok(());
        }
        let text = |refusal: Option<Refusal>| format!("{refusal:?}");
        Err(Difference::new("why a receive is refused", text(theirs), text(ours)))
    }

    /// Receives of one entry until the queue is full, and one more.
    pub(super) fn fill(&mut self, queue: usize, length: u32) -> Result<()> {
        let pair = &self.queues[queue];
        let room = pair.doorbell.capacity() as usize - pair.doorbell.outstanding.len();
        let entry =
            |index: usize| Entry { offset: (index as u32 * 64) % (8 * 1024), length: length.max(1), key: Key::Good };
        let lists: Vec<_> = (0..=room).map(|index| vec![entry(index)]).collect();
        let receives = self.subject.prepare(&lists);
        self.post(queue, &receives)?;
        if self.shape.spare {
            if let Some(receive) = self.subject.load_spare(queue) {
                let id = receive.0;
                self.receives.insert(id, receive);
                return self.post_again(queue, vec![id], true);
            }
        }
        Ok(())
    }

    /// Checks that doorbell posts each of the buffers that it was given once, and lets libmlx5 post the
    /// same.
    pub(super) fn post_again(&mut self, queue: usize, candidates: Vec<u64>, in_order: bool) -> Result<()> {
        let new = self.handed_over(queue, candidates, in_order)?;
        self.post_to_libmlx5(queue, &new)?;
        self.compare_new(queue, new)
    }

    fn post_to_libmlx5(&mut self, queue: usize, wqes: &[Wqe]) -> Result<()> {
        let receives: Vec<_> = wqes.iter().map(|wqe| self.for_libmlx5(queue, &self.receives[&wqe.id])).collect();
        let (taken, refusal) = reference::post(&self.twins.libmlx5.objects(), queue, &receives);
        if taken == receives.len() {
            return Ok(());
        }
        let theirs = format!("{taken}, then {refusal:?}");
        Err(Difference::new("receives posted", theirs, receives.len()))
    }

    /// The receive that libmlx5 is given. On an SRQ libmlx5 writes entries of length 0. Doorbell leaves
    /// them out, as libmlx5 itself does on a receive queue.
    fn for_libmlx5(&self, queue: usize, receive: &Receive) -> Receive {
        let (id, entries) = receive;
        let mut entries: Vec<sys::ibv_sge> = entries.clone();
        if self.shape.shared && entries.len() <= self.queues[queue].doorbell.max_sge() {
            entries.retain(|entry| entry.length > 0);
        }
        (*id, entries)
    }

    /// Returns the WQEs that doorbell has handed over now. They must be of waiting receives or `candidates`.
    fn handed_over(&mut self, queue: usize, candidates: Vec<u64>, in_order: bool) -> Result<Vec<Wqe>> {
        let pair = &mut self.queues[queue];
        let mut new = pair.doorbell.handed_over();
        let mut pending: VecDeque<u64> = pair.waiting.drain(..).chain(candidates).collect();
        for wqe in &mut new {
            wqe.id = self.subject.id(queue, wqe);
            let position = pending.iter().position(|id| *id == wqe.id);
            let legal = position.is_some_and(|position| position == 0 || !in_order);
            if !legal {
                let expected = pending.front().map_or("none".into(), |id| format!("wr_id {id:#x}"));
                let slot = wqe.slot;
                let field = format!("WQE handed over in slot {slot}");
                return Err(Difference::new(field, expected, format!("wr_id {:#x}", wqe.id)));
            }
            pending.retain(|id| *id != wqe.id);
        }
        // An SRQ has one slot for a buffer that waits; buffers of a receive queue wait for a held slot.
        let may_wait = if self.shape.shared {
            usize::from(self.shape.spare)
        } else {
            self.subject.held() * pair.doorbell.slots as usize
        };
        if pending.len() > may_wait {
            let field = "buffers given to doorbell and not posted";
            return Err(Difference::new(field, may_wait, pending.len()));
        }
        self.run.tally.add(tally::WAITED, pending.len() as u64);
        pair.waiting = pending.into();
        Ok(new)
    }

    fn compare_new(&mut self, queue: usize, ours: Vec<Wqe>) -> Result<()> {
        self.queues[queue].compare_new(queue, ours, self.run.tally)
    }
}
