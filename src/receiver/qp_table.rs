//! The queue pairs that complete on a receiver, by number.

use std::sync::{Arc, Weak};

use rdma_core_sys as sys;

use super::routes::Routes;
use crate::qp::Qp;

/// Which queue a completion belongs to, by the number of its queue pair; and for what is not asked of every message:
/// whether it is a datagram, and who failed.
#[derive(Default)]
pub(crate) struct QpTable {
    routes: Routes,
    /// By the index that `routes` has; `None` is free.
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Numbers of queue pairs that were destroyed while the CQ may have held completions of theirs.
    departed: Vec<u32>,
}

struct Entry {
    /// Index of the queue that it completes.
    queue: u32,
    /// A queue pair belongs to its handle: it may be gone.
    qp: Weak<Qp>,
    /// One on an SRQ is kept when its handle is dropped: what it has taken from the SRQ comes back before it is
    /// destroyed.
    kept: Option<Arc<Qp>>,
    qp_type: sys::ibv_qp_type,
}

impl QpTable {
    /// Enters a queue pair that completes a queue. One of its number must have been removed.
    pub(crate) fn insert(&mut self, qp: &Arc<Qp>, queue: u32) {
        let number = qp.qp_num();
        let kept = (qp.has_srq() && qp.is_ours()).then(|| Arc::clone(qp));
        let qp_type = qp.qp_type();
        let entry = Entry { queue, qp: Arc::downgrade(qp), kept, qp_type };
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[index as usize] = Some(entry);
        self.routes.insert(number, index);
    }

    /// Forgets a queue pair of which nothing is on the CQ.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(index) = self.routes.remove(number) {
            self.entries[index as usize] = None;
            self.free.push(index);
            self.departed.retain(|&departed| departed != number);
        }
    }

    /// Takes the queue pairs on SRQs whose handles were dropped.
    pub(crate) fn take_dropped(&mut self) -> Vec<Arc<Qp>> {
        let entries = self.entries.iter_mut().flatten();
        let dropped: Vec<_> =
            entries.filter_map(|entry| entry.kept.take_if(|qp| !qp.has_handle())).collect();
        self.departed.extend(dropped.iter().map(|qp| qp.qp_num()));
        dropped
    }

    /// Forgets the queue pairs that were dropped. Call it only while the CQ is empty.
    pub(crate) fn remove_departed(&mut self) {
        for number in std::mem::take(&mut self.departed) {
            self.remove(number);
        }
    }

    #[inline(always)]
    fn find(&self, number: u32) -> Option<&Entry> {
        self.entries[self.routes.find(number)? as usize].as_ref()
    }

    /// Returns the index of the queue that this queue pair completes.
    #[inline(always)]
    pub(crate) fn queue_of(&self, number: u32) -> Option<u32> {
        self.find(number).map(|entry| entry.queue)
    }

    /// Returns this queue pair, unless it is gone.
    pub(crate) fn qp_of(&self, number: u32) -> Option<Arc<Qp>> {
        self.find(number).and_then(|entry| entry.qp.upgrade())
    }

    /// Marks this queue pair as failed, after a completion reported it.
    pub(crate) fn mark_failed(&self, number: u32) {
        if let Some(qp) = self.qp_of(number) {
            qp.mark_failed();
        }
    }

    /// Returns `true` if the messages of this queue pair are datagrams.
    #[inline]
    pub(crate) fn is_datagram(&self, number: u32) -> bool {
        self.find(number).is_some_and(|entry| entry.qp_type == sys::IBV_QPT_UD)
    }
}
