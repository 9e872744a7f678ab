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
}

struct Entry {
    number: u32,
    /// Index of the queue that it completes.
    queue: u32,
    /// A queue pair belongs to its handle: it may be gone.
    qp: Weak<Qp>,
    qp_type: sys::ibv_qp_type,
}

impl QpTable {
    /// Enters a queue pair that completes a queue. One of its number must have been removed.
    pub(crate) fn insert(&mut self, qp: &Arc<Qp>, queue: u32) {
        let number = qp.qp_num();
        let entry = Entry { number, queue, qp: Arc::downgrade(qp), qp_type: qp.qp_type() };
        let index = self.entries.iter().position(Option::is_none).unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[index] = Some(entry);
        self.routes.insert(number, index as u32);
    }

    /// Removes the queue pair with this number.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(index) = self.routes.remove(number) {
            self.entries[index as usize] = None;
        }
    }

    /// Removes the queue pairs whose handle was dropped. Call it only while no completion of theirs is on the CQ.
    pub(crate) fn remove_dropped(&mut self) {
        for entry in &mut self.entries {
            if let Some(dropped) = entry.take_if(|entry| entry.qp.strong_count() == 0) {
                self.routes.remove(dropped.number);
            }
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

    /// Takes note that a completion said that this queue pair failed.
    pub(crate) fn mark_failed(&self, number: u32) {
        if let Some(qp) = self.find(number).and_then(|entry| entry.qp.upgrade()) {
            qp.mark_failed();
        }
    }

    /// Returns `true` if the messages of this queue pair are datagrams.
    #[inline]
    pub(crate) fn is_datagram(&self, number: u32) -> bool {
        self.find(number).is_some_and(|entry| entry.qp_type == sys::IBV_QPT_UD)
    }
}
