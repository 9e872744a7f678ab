//! The end of connections, queue pairs, queues, and of the device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mlx5_ring::cq::CompletionQueue;
use mlx5_ring::receive::{self, Completion, ReceiveRing};

use super::Receiver;
use super::batch::queue_of;
use super::failure::{Cause, Failure};
use super::queue::RecvQueue;
use super::slot_context::SlotContext;
use crate::context::Patience;
use crate::cq::{Completions, Poller};
use crate::error::{Error, Result};
use crate::events::DeviceEvents;
use crate::ids::{QueueId, SrqId};
use crate::memory::{Buffer, Memory};
use crate::qp::QueuePair;
use crate::qp_state::QpEnd;

impl<M: Memory> Receiver<M> {
    /// Disconnects a QP without losing messages that have arrived, whatever the peer does. Sends of the peer that have
    /// not completed fail. If the peer takes part, end the connection as [`QueuePair`] describes: then all sends of
    /// both sides complete. The steps:
    ///
    /// 1. `drain_qp` moves the QP to the error state. If the QP uses an SRQ, it waits for the event
    ///    [`LastWqeReached`](crate::DeviceEvent::LastWqeReached), after which the QP takes no more receives. It leaves
    ///    other events for the next reader of `events`.
    /// 2. The program polls until no completion is left: messages first, then flushed receives.
    /// 3. [`destroy_qp`](Self::destroy_qp) destroys the QP, or [`reset_qp`](Self::reset_qp) prepares it for the next
    ///    connection.
    ///
    /// Without `drain_qp`, [`destroy_qp`](Self::destroy_qp) and [`reset_qp`](Self::reset_qp) also wait, and drop
    /// messages that were not polled.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let doorbell_doc::World { mut receiver, qp, device: _device, .. } =
    /// #     doorbell_doc::World::new();
    /// let mut events = receiver.pd().context().events()?;
    /// receiver.drain_qp(&qp, &mut events, Duration::from_secs(1))?;
    /// let mut batch = receiver.poll();
    /// while let Some(next) = batch.next() {
    ///     println!("{next:?}");
    /// }
    /// drop(batch);
    /// receiver.destroy_qp(qp)?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the event does not arrive within `patience`: the QP is in the error state and can be
    /// destroyed safely, but receives that it took from the SRQ may be lost. [`Error::Foreign`] for a QP of another
    /// receiver or events of another device; [`Error::Verbs`].
    pub fn drain_qp(&mut self, qp: &QueuePair, events: &mut DeviceEvents, patience: Duration) -> Result<()> {
        self.queue_of(qp)?;
        if !events.context().is_same(self.pd.context()) {
            return Err(Error::Foreign { what: "the reader of events", domain: "device" });
        }
        let deadline = Instant::now().checked_add(patience);
        match qp.stop_receiving(Patience::Until(deadline))? {
            QpEnd::LastWqeMissing => Err(Error::TimedOut {
                operation: "drain_qp",
                subject: format!("QP {:#x} (event LAST_WQE_REACHED)", qp.qp_num()),
            }),
            _ => Ok(()),
        }
    }

    /// Resets a QP to state INIT, so that it can be connected again.
    ///
    /// Completions of receives that were not polled are dropped; the [`Sender`](crate::Sender) still returns every
    /// request. Receives of its own receive queue return to their pools. Receives of an SRQ stay posted; the call waits
    /// until the device has returned those that the QP took for an incomplete message, and posts them again. After 5 s
    /// without any event of the device the call returns [`QpEnd::LastWqeMissing`]; if the device has never reported a
    /// last WQE, later calls do not wait.
    ///
    /// The reset changes the PSN, so exchange [addresses](QueuePair::address) again. If the QP has a
    /// [`Sender`](crate::Sender), poll the sender until [`Sender::is_busy`](crate::Sender::is_busy) returns `false`
    /// before connecting the QP again. Post new receives to its own receive queue.
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
    /// Completions of receives that were not polled are dropped; the [`Sender`](crate::Sender) still returns every
    /// request. Receives of its own receive queue return to their pools. Receives of an SRQ stay posted; the call waits
    /// until the device has returned those that the QP took for an incomplete message, and posts them again. After 5 s
    /// without any event of the device the call returns
    /// [`QpEnd::LastWqeMissing`]; if the device has never reported a last WQE, later calls do not wait.
    ///
    /// Dropping the [`QueuePair`] instead does not wait. [`poll`](Self::poll) then returns the messages that have
    /// arrived and, flushed, the receives that the QP still had. The next queue pair made on this receiver or
    /// [`destroy_srq`](Self::destroy_srq) destroys the QP, and may wait then. Its own receive queue occupies its
    /// entries of the CQ until then.
    ///
    /// If the QP has a [`Sender`](crate::Sender), it is destroyed when the sender has returned its requests and is
    /// polled again: `while sender.poll().next().is_some() {}`.
    ///
    /// In an event loop use `destroy_qp`. A working device reports the last WQE at once, also while the program reads
    /// [asynchronous events](crate::DeviceEvents).
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
    /// [`Error::InUse`] while a QP uses it, also a destroyed or dropped one whose [`Sender`](crate::Sender) was not
    /// polled since: poll the sender and repeat the call. [`Error::Gone`] and [`Error::Foreign`] if it is not an SRQ of
    /// this receiver. If the driver refuses, the memory that the device may use is leaked with a warning.
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<()> {
        self.end_dropped();
        let object = self.srq_object(id)?;
        // The receiver has one, and this is the other.
        if Arc::strong_count(&object) > 2 {
            return Err(Error::InUse {
                what: "SRQ",
                users: "queue pairs or DC targets",
                action: "destroy the queue pairs, poll their senders, and drop the targets",
            });
        }
        self.end_batch();
        let Self { cq, queues, qps, .. } = self;
        match &mut cq.poller {
            Poller::Direct(direct) => {
                direct.cq.purge(|cqe| queue_of(queues, qps, cqe) == Some(id.0.index));
            }
            Poller::Verbs(cq) => cq.retain(|wc| wc.queue() != id.0.index),
        }
        queues[id.0.index as usize].queue.defer();
        drop(object);
        self.close(id.0.index);
        Ok(())
    }

    /// Takes back every posted receive after the device was removed. Each is a [`Failure`] with
    /// [`Cause::DeviceRemoved`] and its buffers. Receives of an SRQ have QP number 0.
    ///
    /// The end of the device's [events](crate::Context::events) shows that it was removed and no longer accesses
    /// memory. Poll first: buffers of messages that arrived and were not polled are returned too, without their
    /// lengths.
    ///
    /// ```
    /// # let doorbell_doc::World { mut receiver, device, .. } = doorbell_doc::World::new();
    /// # device.remove();
    /// // For example in a thread of its own: it ends when the device is gone.
    /// for event in receiver.pd().context().events()? {
    ///     println!("{:?}", event?);
    /// }
    /// while let Some(message) = receiver.poll().next() {
    ///     println!("the last messages: {message:?}");
    /// }
    /// for failure in receiver.reclaim()? {
    ///     println!("{failure}: {} buffers", failure.buffers.len());
    /// }
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] while the device may still write the posted memory.
    pub fn reclaim(&mut self) -> Result<Vec<Failure<Buffer<M>>>> {
        if !self.pd.context().is_removed() {
            return Err(Error::Unsupported {
                operation: "reclaim",
                when: "before the device was removed: read its events until they end, or destroy the queues",
            });
        }
        self.end_batch();
        match &mut self.cq.poller {
            Poller::Direct(direct) => _ = direct.cq.purge(|_| true),
            Poller::Verbs(cq) => cq.retain(|_| false),
        }
        let mut failures = Vec::new();
        for entry in &mut self.queues {
            let qp_num = entry.queue.qp().map_or(0, |qp| qp.qp_num());
            entry.queue.take_back(|context| {
                let mut failure = Failure::of(qp_num, Cause::DeviceRemoved);
                // SAFETY: [slot-owns], taken back just now.
                unsafe { context.into_buffers(0, |buffer| failure.buffers.push(buffer.cast())) };
                failures.push(failure);
            });
        }
        Ok(failures)
    }

    /// Takes a QP to RESET, in which the device has let go of all its receives, and forgets what the CQ holds of it.
    /// Returns the queue that it completes, and how it ended.
    fn let_go(&mut self, qp: &mut QueuePair) -> Result<(QueueId, QpEnd)> {
        let id = self.queue_of(qp)?;
        // A doorbell that is rung after the reset would hand over what is taken back.
        self.end_batch();
        let mut end = QpEnd::Complete;
        // RESET takes back the receives of the QP's own queue. Receives that it took from an SRQ complete in ERROR
        // only. Through verbs, the driver drops the completions of a QP in RESET without naming their slots: they are
        // taken out before.
        if self.mlx5dv().is_none() || qp.receive_queue().is_none() {
            end = qp.stop_receiving(Patience::Progress)?;
            self.count_end(end);
        }
        if let Poller::Verbs(cq) = &mut self.cq.poller {
            cq.retain(|_| true);
        }
        qp.modify_to_reset()?;
        self.forget(qp.qp_num(), id.index);
        Ok((id, end))
    }

    /// Returns the queue that a QP of this receiver completes.
    pub(super) fn queue_of(&self, qp: &QueuePair) -> Result<QueueId> {
        qp.receives().filter(|&id| self.find(id).is_some()).ok_or(Error::Foreign { what: "the QP", domain: "receiver" })
    }

    /// Forgets a QP of this number whose handle was dropped: what the CQ holds of it is not the new one's.
    pub(super) fn forget_dropped(&mut self, qp_num: u32) {
        if let Some(index) = self.qps.queue_of(qp_num) {
            self.forget(qp_num, index);
            self.qps.remove(qp_num);
        }
    }

    /// Drops what the CQ holds of a QP that the device has let go of, and takes back the receives posted to a queue of
    /// its own. An SRQ lives on: slots of messages that have arrived are posted again.
    fn forget(&mut self, qp_num: u32, index: u32) {
        self.end_batch();
        // SAFETY: [slot-owns], of a receive that was taken back.
        let put_back = |context: SlotContext| unsafe { context.into_buffers(0, drop) };
        let Self { cq, queues, .. } = self;
        let queue = &mut queues[index as usize].queue;
        match &mut cq.poller {
            Poller::Direct(direct) => match queue {
                RecvQueue::Ordered(srq) => {
                    post_again(&mut direct.cq, &mut srq.ring, qp_num);
                    self.start_waiting();
                }
                RecvQueue::Srq(srq) => post_again(&mut direct.cq, &mut srq.ring, qp_num),
                RecvQueue::Rq(rq) => {
                    direct.cq.purge(|cqe| cqe.qpn() == qp_num);
                    rq.ring.reset(put_back);
                }
                RecvQueue::Verbs(_) | RecvQueue::Closed => {}
            },
            Poller::Verbs(cq) => {
                let RecvQueue::Verbs(verbs) = queue else { return };
                // Completions from before the reset took effect go, too: not every driver drops them.
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
                    let _ = queue.ring_doorbell(put_back);
                } else {
                    queue.take_back(put_back);
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
        // Queue pairs on SRQs have been in ERROR since they were dropped. On the direct path their completions stay on
        // the CQ, to be polled.
        for qp in self.qps.take_dropped() {
            // A queue pair that cannot be taken to ERROR is destroyed all the same.
            if let Ok(end) = qp.stop_receiving(Patience::Progress) {
                self.count_end(end);
            }
            if let Poller::Verbs(cq) = &mut self.cq.poller {
                cq.retain(|_| true);
            }
        }
        if !self.has_completions() {
            self.qps.remove_departed();
        }
    }
}

/// Drops the CQEs of a QP on this SRQ, to which the receiver posts its buffers, and posts the receives again.
fn post_again<Q: ReceiveRing>(cq: &mut CompletionQueue, ring: &mut Q, qp_num: u32) {
    cq.purge(|cqe| {
        let of_qp = cqe.qpn() == qp_num;
        if of_qp {
            // SAFETY: a CQE of a QP on this SRQ, to which the receiver posts its buffers.
            let completion = unsafe { receive::complete(ring, cqe) };
            if let Completion::Message(slot) | Completion::Failed(slot) = completion {
                // SAFETY: completed just now; its buffer was not lent yet.
                unsafe { ring.recycle(slot) };
            }
        }
        of_qp
    });
    ring.give_back();
    ring.ring_doorbell();
}
