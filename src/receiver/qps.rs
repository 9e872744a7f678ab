//! The queue pairs that complete on a receiver, by number.

use std::sync::{Arc, Weak};

use rdma_core_sys as sys;

use super::routes::Routes;
use crate::qp::Qp;

/// For what is not asked of every message: whether it is a datagram, and who failed.
#[derive(Default)]
pub(crate) struct Qps {
    entries: Vec<Entry>,
    by_number: Routes,
}

struct Entry {
    /// A queue pair belongs to its handle: it may be gone.
    qp: Weak<Qp>,
    qp_type: sys::ibv_qp_type,
}

impl Qps {
    /// Enters a queue pair. Whether there was one of its number, which was dropped.
    pub(crate) fn insert(&mut self, qp: &Arc<Qp>) -> bool {
        let number = qp.qp_num();
        let entry = Entry { qp: Arc::downgrade(qp), qp_type: qp.qp_type() };
        if let Some(index) = self.by_number.find(number) {
            self.entries[index as usize] = entry;
            return true;
        }
        self.by_number.insert(number, self.entries.len() as u32);
        self.entries.push(entry);
        false
    }

    fn find(&self, number: u32) -> Option<&Entry> {
        self.by_number.find(number).map(|index| &self.entries[index as usize])
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
