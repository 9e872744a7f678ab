//! The queue pairs that complete on a receiver, by number.

use std::sync::{Arc, Weak};

use rdma_core_sys as sys;

use crate::qp::Qp;
use crate::routes::Routes;
use crate::status::WcStatus;

/// The queue that a completion belongs to, by the number of its queue pair. Also answers two rare questions about the
/// queue pair: whether its messages are datagrams, and which object it is, to mark it as failed.
#[derive(Default)]
pub(crate) struct QpTable(Routes<Box<Entry>>);

struct Entry {
    number: u32,
    /// Index of the queue that it completes.
    queue: u32,
    /// A queue pair belongs to its handle: it may be destroyed already.
    qp: Weak<Qp>,
    /// A queue pair on an SRQ is kept when its handle is dropped: what it has taken from the SRQ comes back before it
    /// is destroyed.
    kept: Option<Arc<Qp>>,
    /// The queue pair was kept and is no more: the CQ may hold completions of it.
    is_departed: bool,
    qp_type: sys::ibv_qp_type,
}

impl QpTable {
    /// Enters a queue pair that completes a queue. One of its number must have been removed.
    pub(crate) fn insert(&mut self, qp: &Arc<Qp>, queue: u32) {
        let kept = (qp.has_srq() && qp.is_ours() && !qp.is_dc_target()).then(|| Arc::clone(qp));
        let (number, qp_type, qp) = (qp.qp_num(), qp.qp_type(), Arc::downgrade(qp));
        let entry = Entry { number, queue, qp, kept, is_departed: false, qp_type };
        self.0.insert(number, Box::new(entry));
    }

    /// Forgets a queue pair of which nothing is on the CQ.
    pub(crate) fn remove(&mut self, number: u32) {
        self.0.remove(number);
    }

    /// Takes the queue pairs on SRQs whose handles were dropped.
    pub(crate) fn take_dropped(&mut self) -> Vec<Arc<Qp>> {
        // A DC target was destroyed when its handle was dropped.
        let targets = self.0.values_mut().filter(|entry| entry.qp_type == sys::IBV_QPT_DRIVER);
        targets.for_each(|entry| entry.is_departed = entry.qp.strong_count() == 0);
        let dropped = self.0.values_mut().filter_map(|entry| {
            let qp = entry.kept.take_if(|qp| !qp.has_handle())?;
            entry.is_departed = true;
            Some(qp)
        });
        dropped.collect()
    }

    /// Forgets the queue pairs that were dropped. Call it only while the CQ is empty.
    pub(crate) fn remove_departed(&mut self) {
        let departed = self.0.values_mut().filter(|entry| entry.is_departed);
        let numbers: Vec<_> = departed.map(|entry| entry.number).collect();
        numbers.into_iter().for_each(|number| self.remove(number));
    }

    #[inline(always)]
    fn find(&self, number: u32) -> Option<&Entry> {
        self.0.find(number).map(|entry| &**entry)
    }

    /// Returns the index of the queue that this queue pair completes.
    #[inline(always)]
    pub(crate) fn queue_of(&self, number: u32) -> Option<u32> {
        self.find(number).map(|entry| entry.queue)
    }

    /// Returns this queue pair, unless it was destroyed.
    pub(crate) fn qp_of(&self, number: u32) -> Option<Arc<Qp>> {
        self.find(number).and_then(|entry| entry.qp.upgrade())
    }

    /// Marks this queue pair as failed, after a completion with this status. Returns the status of its first failure,
    /// if that is known.
    pub(crate) fn fail(&self, number: u32, status: WcStatus) -> Option<WcStatus> {
        // A failure on a DC target is one of a connection of the target.
        let qp = self.qp_of(number).filter(|qp| !qp.is_dc_target())?;
        qp.note_failure(status.as_raw());
        qp.mark_failed();
        qp.first_failure()
    }

    /// Returns `true` if the messages of this queue pair are datagrams.
    #[inline]
    pub(crate) fn is_datagram(&self, number: u32) -> bool {
        self.find(number).is_some_and(|entry| entry.qp_type == sys::IBV_QPT_UD)
    }
}
