//! The end of queue pairs and queues.

use std::sync::Arc;

use mlx5_ring::receive::{self, Completion, ReceiveRing};

use super::queue::RecvQueue;
use super::{Poller, QueueId, Receiver, SrqId};
use crate::error::{Error, Result};
use crate::events::Patience;
use crate::qp::{QpEnd, QueuePair};

impl Receiver {
    /// Resets a QP to state INIT, so that it can be connected again.
    ///
    /// Completions that were not polled are dropped. Receives of its own receive queue return to their pools.
    /// Receives of an SRQ stay posted; the call waits until the device has returned those that the QP took for an
    /// incomplete message, and posts them again.
    ///
    /// ```
    /// # let doorbell_doc::World { mut receiver, mut qp, mut peer, mut peer_receiver, device: _device, .. } =
    /// #     doorbell_doc::World::new();
    /// // The connection has ended; the next one takes the same queue pair.
    /// receiver.reset_qp(&mut qp)?;
    /// peer_receiver.reset_qp(&mut peer)?;
    /// qp.connect(&peer.address()?)?;
    /// peer.connect(&qp.address()?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Foreign`] for a QP of another receiver; [`Error::Verbs`].
    pub fn reset_qp(&mut self, qp: &mut QueuePair) -> Result<QpEnd> {
        let (_, end) = self.let_go(qp)?;
        qp.modify_to_init()?;
        Ok(end)
    }

    /// Destroys a QP.
    ///
    /// Completions that were not polled are dropped. Receives of its own receive queue return to their pools.
    /// Receives of an SRQ stay posted; the call waits until the device has returned those that the QP took for an
    /// incomplete message, and posts them again.
    ///
    /// Dropping the [`QueuePair`] instead does not wait. [`poll`](Self::poll) then returns the messages that have
    /// arrived and, flushed, the receives that the QP still had. The next [`create_qp`](Self::create_qp) or
    /// [`destroy_srq`](Self::destroy_srq) destroys the QP. Its own receive queue occupies its entries of the CQ until
    /// then.
    ///
    /// ```
    /// # let doorbell_doc::World { mut receiver, qp, srq, pool, device: _device, .. } =
    /// #     doorbell_doc::World::new();
    /// receiver.destroy_qp(qp)?;
    /// // No queue pair is left on the SRQ, whose receives come back now.
    /// receiver.destroy_srq(srq)?;
    /// assert_eq!(pool.available(), pool.count() as usize);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Foreign`] for a QP of another receiver. [`Error::Verbs`] if the QP cannot be reset: all memory that
    /// the device may use stays allocated. If the driver refuses to destroy the QP, this memory is leaked with a
    /// warning.
    pub fn destroy_qp(&mut self, mut qp: QueuePair) -> Result<QpEnd> {
        let (id, end) = self.let_go(&mut qp)?;
        self.qps.remove(qp.qp_num());
        if qp.receive_queue().is_some() {
            self.close(id.index);
        }
        Ok(end)
    }

    /// Destroys an SRQ. Its buffers return to their pools, and its entries of the CQ are free again. Completions that
    /// were not polled are dropped.
    ///
    /// # Errors
    /// [`Error::InUse`] while a QP uses it; [`Error::Gone`] and [`Error::Foreign`] if it is not an SRQ of this
    /// receiver. If the driver refuses, the memory that the device may use is leaked with a warning.
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<()> {
        self.end_dropped();
        let object = self.srq_object(id)?;
        // The receiver has one, and this is the other.
        if Arc::strong_count(&object) > 2 {
            return Err(Error::InUse {
                what: "SRQ",
                users: "queue pairs",
                action: "destroy the queue pairs",
            });
        }
        self.end_batch();
        let Self { poller, queues, qps, owners, .. } = self;
        match poller {
            Poller::Direct(direct) => {
                let only = queues.len() == 1;
                direct.cq.purge(|cqe| only || qps.queue_of(cqe.qpn()) == Some(id.0.index));
            }
            Poller::Verbs(cq) => cq.retain(|wc| (wc.wc.wr_id >> 32) as u32 != id.0.index),
        }
        let queue = &mut queues[id.0.index as usize].queue;
        queue.take_back(|context| owners.defer(&context, object.deferred()));
        drop(object);
        self.close(id.0.index);
        Ok(())
    }

    /// Takes a QP to RESET, in which the device has let go of all its receives, and forgets what the CQ holds of it.
    /// Returns the queue that it completes, and how it ended.
    fn let_go(&mut self, qp: &mut QueuePair) -> Result<(QueueId, QpEnd)> {
        let id = self.queue_of(qp)?;
        // A doorbell that is rung behind the reset would hand over what is taken back.
        self.end_batch();
        let mut end = QpEnd::Complete;
        // RESET alone takes back what is posted to a queue of the QP's own. What it has taken from an SRQ completes in
        // ERROR only; and through verbs, the driver drops the completions of a QP in RESET without telling whose slots
        // they name: they are taken out before.
        if self.mlx5dv().is_none() || qp.receive_queue().is_none() {
            end = qp.stop_receiving(Patience::Progress)?;
            self.note_end(end);
        }
        if let Poller::Verbs(cq) = &mut self.poller {
            cq.retain(|_| true);
        }
        qp.modify_to_reset()?;
        self.forget(qp.qp_num(), id.index);
        Ok((id, end))
    }

    /// Counts a QP whose receives may be lost to their SRQ.
    fn note_end(&mut self, end: QpEnd) {
        if end == QpEnd::LastWqeMissing {
            self.count_missing_last_wqe();
        }
    }

    /// Returns the queue that a QP of this receiver completes.
    pub(super) fn queue_of(&self, qp: &QueuePair) -> Result<QueueId> {
        let id = qp.receive_queue().map(|id| id.0).or(qp.shared().map(|id| id.0));
        id.filter(|&id| self.find(id).is_some())
            .ok_or(Error::Foreign { what: "the QP", domain: "receiver" })
    }

    /// Forgets a QP of this number whose handle was dropped: what the CQ holds of it is not the new one's.
    pub(super) fn forget_dropped(&mut self, qp_num: u32) {
        self.end_batch();
        if let Some(index) = self.qps.queue_of(qp_num) {
            self.forget(qp_num, index);
            self.qps.remove(qp_num);
        }
    }

    /// Drops what the CQ holds of a QP that the device has let go of, and takes back the receives posted to a queue of
    /// its own. An SRQ lives on: slots of messages that have arrived are posted again.
    fn forget(&mut self, qp_num: u32, index: u32) {
        self.end_batch();
        let Self { poller, queues, owners, .. } = self;
        let queue = &mut queues[index as usize].queue;
        match poller {
            Poller::Direct(direct) => match queue {
                RecvQueue::Srq(srq) => {
                    direct.cq.purge(|cqe| {
                        let of_qp = cqe.qpn() == qp_num;
                        if of_qp {
                            // SAFETY: a CQE of a QP on this SRQ, to which the receiver posts its buffers.
                            let completion = unsafe { receive::complete(&mut srq.ring, cqe) };
                            if let Completion::Message(slot) | Completion::Failed(slot) = completion
                            {
                                // SAFETY: completed just now; nobody has seen its buffer.
                                unsafe { srq.ring.recycle(slot) };
                            }
                        }
                        of_qp
                    });
                    srq.ring.ring_doorbell();
                }
                RecvQueue::Rq(rq) => {
                    direct.cq.purge(|cqe| cqe.qpn() == qp_num);
                    rq.ring.reset(|context| owners.leave(context, 0, drop));
                }
                RecvQueue::Verbs(_) | RecvQueue::Closed => {}
            },
            Poller::Verbs(cq) => {
                let RecvQueue::Verbs(verbs) = queue else { return };
                // What completed before the reset took effect, too: not every driver drops it.
                cq.retain(|wc| {
                    if wc.wc.qp_num != qp_num {
                        return true;
                    }
                    if let Some((slot, _)) = verbs.complete(wc.wc.wr_id) {
                        verbs.recycle(slot);
                    }
                    false
                });
                if queue.srq().is_some() {
                    queue.ring_doorbell(owners);
                } else {
                    queue.take_back(|context| owners.leave(context, 0, drop));
                }
            }
        }
    }

    /// Ends the QPs whose handles were dropped and whose receives have all come back.
    pub(super) fn end_dropped(&mut self) {
        self.end_batch();
        let over: Vec<_> = self
            .ids()
            .filter(|&id| self.outstanding(id) == 0)
            .filter_map(|id| {
                let qp = self.qp_of(id)?;
                (!qp.has_handle()).then(|| (id, qp.qp_num()))
            })
            .collect();
        for (id, qp_num) in over {
            self.qps.remove(qp_num);
            self.close(id.index);
        }
        // Those on SRQs have been in ERROR since then. On the direct path what has come back stays on the CQ, to be
        // polled.
        for qp in self.qps.take_dropped() {
            // One that cannot be taken to ERROR is destroyed all the same.
            if let Ok(end) = qp.stop_receiving(Patience::Progress) {
                self.note_end(end);
            }
            if let Poller::Verbs(cq) = &mut self.poller {
                cq.retain(|_| true);
            }
        }
        if !self.has_arrived() {
            self.qps.remove_departed();
        }
    }
}
