//! The queue pairs that complete on a receiver, by number.

use std::sync::{Arc, Weak};

use rdma_core_sys as sys;

use super::routes::Routes;
use crate::qp::Qp;

/// For what is not asked of every message: whether it is a datagram, and who failed.
#[derive(Default)]
pub(crate) struct Qps {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    by_number: Routes,
    /// Numbers of queue pairs that were destroyed while the CQ may have held completions of theirs.
    departed: Vec<u32>,
}

struct Entry {
    /// A queue pair belongs to its handle: it may be gone.
    qp: Weak<Qp>,
    /// One on an SRQ is kept when its handle is dropped: what it has taken from the SRQ comes back before it is
    /// destroyed.
    kept: Option<Arc<Qp>>,
    qp_type: sys::ibv_qp_type,
}

impl Qps {
    /// Enters a queue pair. Whether there was one of its number, which was dropped.
    pub(crate) fn insert(&mut self, qp: &Arc<Qp>) -> bool {
        let number = qp.qp_num();
        let kept = (qp.has_srq() && qp.is_ours()).then(|| Arc::clone(qp));
        let entry = Some(Entry { qp: Arc::downgrade(qp), kept, qp_type: qp.qp_type() });
        if let Some(index) = self.by_number.find(number) {
            self.entries[index as usize] = entry;
            self.departed.retain(|&departed| departed != number);
            return true;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[index as usize] = entry;
        self.by_number.insert(number, index);
        false
    }

    /// Forgets a queue pair of which nothing is on the CQ.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(index) = self.by_number.find(number) {
            self.entries[index as usize] = None;
            self.free.push(index);
            self.by_number.remove(number);
        }
    }

    /// Takes the queue pairs on SRQs whose handles were dropped.
    pub(crate) fn take_dropped(&mut self) -> Vec<Arc<Qp>> {
        let entries = self.entries.iter_mut().flatten();
        let dropped =
            entries.filter_map(|entry| entry.kept.take_if(|qp| Arc::strong_count(qp) == 1));
        let dropped: Vec<_> = dropped.collect();
        self.departed.extend(dropped.iter().map(|qp| qp.qp_num()));
        dropped
    }

    /// Forgets the queue pairs that were dropped before the CQ was found empty; returns their numbers.
    pub(crate) fn take_departed(&mut self) -> Vec<u32> {
        let departed = std::mem::take(&mut self.departed);
        departed.iter().for_each(|&number| self.remove(number));
        departed
    }

    fn find(&self, number: u32) -> Option<&Entry> {
        let index = self.by_number.find(number)?;
        self.entries[index as usize].as_ref()
    }

    /// A completion said that this queue pair failed.
    pub(crate) fn mark_failed(&self, number: u32) {
        if let Some(qp) = self.find(number).and_then(|entry| entry.qp.upgrade()) {
            qp.mark_failed();
        }
    }

    /// Whether the messages of this queue pair are datagrams.
    #[inline]
    pub(crate) fn is_datagram(&self, number: u32) -> bool {
        self.find(number).is_some_and(|entry| entry.qp_type == sys::IBV_QPT_UD)
    }
}
