//! The queues of a receiver: making them, and asking for them by their names.

use std::sync::Arc;

use super::datagram::GRH_SIZE;
use super::queue::{QueueObject, RecvQueue};
use super::verbs::VerbsQueue;
use super::{QueueEntry, QueueId, Receiver, RqId, Srq, SrqConfig, SrqId};
use crate::error::{Error, Result};
use crate::mlx5;
use crate::qp::{Qp, QpConfig, QueuePair, SendSide};
use crate::sender::Sender;
use crate::trace::trace_event;

impl Receiver {
    /// Creates a shared receive queue.
    ///
    /// ```
    /// # use doorbell::{QpConfig, Receiver, ReceiverConfig, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let mut receiver = Receiver::new(&pd, &ReceiverConfig::new().cq_capacity(1024))?;
    /// let srq = receiver.create_srq(&SrqConfig::new(511))?;
    /// // The CQ must have an entry for each receive that can complete on it.
    /// let refused = receiver.create_srq(&SrqConfig::new(2047)).unwrap_err();
    /// println!("{refused}");
    /// receiver.destroy_srq(srq)?;
    /// receiver.create_srq(&SrqConfig::new(1023))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::CqTooSmall`], [`Error::OutOfRange`], [`Error::NotDirect`], [`Error::Verbs`].
    pub fn create_srq(&mut self, config: &SrqConfig) -> Result<SrqId> {
        self.check_cq()?;
        config.check(self.pd.context().attr())?;
        let (srq, max_wr) = Srq::create(&self.pd, config)?;
        // SAFETY: a fresh SRQ that no other code knows.
        unsafe { self.add_srq(Arc::new(srq), max_wr, config.max_sge) }
    }

    /// # Safety
    /// Nothing was posted to the SRQ, and no other code posts to it.
    pub(super) unsafe fn add_srq(
        &mut self,
        srq: Arc<Srq>,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<SrqId> {
        // SAFETY: nothing was posted to the caller's SRQ, and no other code posts to it.
        let id = unsafe { self.add(QueueObject::Srq(srq), max_wr, max_sge) }?;
        trace_event!(
            device = self.pd.context().name(),
            max_wr,
            capacity = self.capacity(id),
            max_sge,
            "shared receive queue created"
        );
        Ok(SrqId(id))
    }

    /// Creates a queue pair that only receives, and completes its receives on this receiver. It is in state INIT:
    /// post receives before connecting it. The send settings of `config` are ignored;
    /// [`create_qp_with_sender`](Self::create_qp_with_sender) creates a queue pair that also sends.
    ///
    /// ```
    /// # use doorbell::{QpConfig, Receiver, ReceiverConfig, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
    /// // Two connections that share their receives, and one with receives of its own.
    /// let srq = receiver.create_srq(&SrqConfig::new(511))?;
    /// let one = receiver.create_qp(&QpConfig::rc().srq(srq))?;
    /// let two = receiver.create_qp(&QpConfig::rc().srq(srq))?;
    /// let three = receiver.create_qp(&QpConfig::rc().receives(128, 1))?;
    /// assert_eq!(one.receive_queue(), None);
    /// let queue = three.receive_queue().expect("a queue of its own");
    /// assert_eq!(receiver.capacity(queue), 128);
    /// # drop((one, two));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Foreign`] for an SRQ of another receiver; [`Error::NoRoomForHeader`] for datagrams into an SRQ whose
    /// posted buffers are too small for the GRH; the errors of [`create_srq`](Self::create_srq).
    pub fn create_qp(&mut self, config: &QpConfig) -> Result<QueuePair> {
        config.check(self.pd.context().attr())?;
        let send = SendSide::idle(Arc::clone(&self.cq));
        self.make_qp(&config.clone().idle(), send)
    }

    /// Creates a queue pair that receives through this receiver and sends through `sender`. [`QueuePair::send_queue`]
    /// is its queue there.
    ///
    /// ```
    /// # use doorbell::{QpConfig, Receiver, ReceiverConfig, Sender, SenderConfig, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
    /// let mut sender = Sender::new(&pd, &SenderConfig::new())?;
    /// let srq = receiver.create_srq(&SrqConfig::new(511))?;
    /// let config = QpConfig::rc().srq(srq).sends(64);
    /// let qp = receiver.create_qp_with_sender(&config, &mut sender)?;
    /// let queue = qp.send_queue().expect("made with a sender");
    /// assert_eq!(sender.capacity(queue), 64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Foreign`] for a sender of another protection domain; [`Error::CqTooSmall`] if the CQ of the receiver
    /// or of the sender has too few entries; [`Error::Unsupported`] if only one of the two CQs has real-time
    /// timestamps; the errors of [`create_qp`](Self::create_qp).
    pub fn create_qp_with_sender(
        &mut self,
        config: &QpConfig,
        sender: &mut Sender,
    ) -> Result<QueuePair> {
        if self.cq.is_in_real_time() != sender.is_in_real_time() {
            return Err(Error::Unsupported {
                operation: "create_qp_with_sender",
                when: "with real_time_timestamps in one of ReceiverConfig and SenderConfig: set it in both",
            });
        }
        let send = sender.send_side(&self.pd)?;
        let mut qp = self.make_qp(config, send)?;
        // SAFETY: a fresh QP that no other code knows.
        unsafe { sender.enter(&mut qp, config) }?;
        Ok(qp)
    }

    /// Makes a queue pair that sends there.
    pub(crate) fn make_qp(&mut self, config: &QpConfig, send: SendSide) -> Result<QueuePair> {
        self.check_cq()?;
        self.end_dropped();
        let srq = config.shared().map(|id| self.srq_object(id)).transpose()?;
        let mut qp =
            QueuePair::create(&self.pd, config, Arc::clone(&self.cq), srq, self.mlx5dv(), send)?;
        trace_event!(
            device = self.pd.context().name(),
            qp_num = qp.qp_num(),
            shared = config.shared().is_some(),
            sends = config.max_send_wr,
            "queue pair created"
        );
        let made = qp.object().cap().max_recv_wr;
        // SAFETY: a fresh QP that no other code knows.
        unsafe { self.enter(&mut qp, config, made, config.max_recv_sge()) }?;
        Ok(qp)
    }

    /// Takes a new QP in, with a receive queue of its own unless it is on an SRQ.
    ///
    /// # Safety
    /// Nothing was posted to its receive queue, and no other code posts to it.
    pub(super) unsafe fn enter(
        &mut self,
        qp: &mut QueuePair,
        config: &QpConfig,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<()> {
        let object = qp.object();
        if let Some(id) = config.shared() {
            self.expect_datagrams(id.0, config)?;
        }
        self.forget_dropped(object.qp_num());
        let index = match config.shared() {
            Some(id) => id.0.index,
            None => {
                // SAFETY: nothing was posted to the caller's receive queue, and no other code posts to it.
                let id = unsafe { self.add_rq(Arc::clone(&object), max_wr, max_sge) }?;
                self.expect_datagrams(id.0, config)?;
                qp.set_receive_queue(id);
                id.0.index
            }
        };
        self.qps.insert(&object, index);
        Ok(())
    }

    /// Has a queue refuse buffers that are too small for datagrams from now on, when a queue pair like `config` takes
    /// them from it.
    fn expect_datagrams(&mut self, id: QueueId, config: &QpConfig) -> Result<()> {
        if config.qp_type != rdma_core_sys::IBV_QPT_UD {
            return Ok(());
        }
        let entry = &mut self.queues[id.index as usize];
        let mut capacity = u32::MAX;
        entry.queue.each(|context| {
            // SAFETY: [slot-owns], of a slot that is not free.
            let first = unsafe { context.sges() }.next();
            capacity = first.map_or(capacity, |sge| capacity.min(sge.length));
        });
        if capacity < GRH_SIZE as u32 {
            return Err(Error::NoRoomForHeader { capacity });
        }
        entry.datagrams = true;
        Ok(())
    }

    /// # Safety
    /// Nothing was posted to the receive queue, and no other code posts to it.
    unsafe fn add_rq(&mut self, qp: Arc<Qp>, max_wr: u32, max_sge: u32) -> Result<RqId> {
        // SAFETY: nothing was posted to the caller's receive queue, and no other code posts to it.
        let id = unsafe { self.add(QueueObject::Rq(qp), max_wr, max_sge) }?;
        trace_event!(
            qp_num = self.qp_of(id).map_or(0, |qp| qp.qp_num()),
            max_wr,
            capacity = self.capacity(id),
            max_sge,
            "receive queue created"
        );
        Ok(RqId(id))
    }

    /// Adds a queue in the place of a closed one, if there is one, unless the CQ cannot hold its completions.
    ///
    /// # Safety
    /// Nothing was posted to the queue, and no other code posts to it.
    unsafe fn add(&mut self, object: QueueObject, max_wr: u32, max_sge: u32) -> Result<QueueId> {
        let closed = self.queues.iter().position(|entry| entry.queue.is_closed());
        let index = closed.unwrap_or(self.queues.len()) as u32;
        let queue = match (self.mlx5dv(), object) {
            (Some(mlx5dv), QueueObject::Srq(srq)) => {
                // SAFETY: nothing was posted to the caller's SRQ, and no other code posts to it.
                unsafe { mlx5::shared_receive_queue(mlx5dv, srq) }.map(RecvQueue::Srq)
            }
            (Some(mlx5dv), QueueObject::Rq(qp)) => {
                // SAFETY: nothing was posted to the caller's receive queue, and no other code posts to it.
                unsafe { mlx5::receive_queue(mlx5dv, qp) }.map(RecvQueue::Rq)
            }
            (None, object) => Ok(RecvQueue::Verbs(VerbsQueue::new(object, index, max_wr, max_sge))),
        };
        let queue = queue.map_err(|error| self.pd.context().not_direct(error))?;
        let capacity = u64::from(queue.capacity());
        self.check_room(capacity)?;
        self.committed += capacity;
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        let (lent, unrung, datagrams) = (None, false, false);
        let entry = QueueEntry { queue, number, lent, unrung, datagrams };
        match self.queues.get_mut(index as usize) {
            Some(closed) => *closed = entry,
            None => {
                self.queues.push(entry);
                // A batch adds each queue once, and allocates nothing.
                self.unrung.reserve(self.queues.len());
            }
        }
        Ok(QueueId { receiver: self.id, index, number })
    }

    /// Gives up a queue that the device does not use any more.
    pub(super) fn close(&mut self, index: u32) {
        let entry = &mut self.queues[index as usize];
        self.committed -= u64::from(entry.queue.capacity());
        entry.queue = RecvQueue::Closed;
        // When a single queue is left, its messages need no look-up again.
        let open = self.queues.iter().rposition(|entry| !entry.queue.is_closed());
        self.queues.truncate(open.map_or(0, |last| last + 1));
        self.post_all_returned();
    }

    fn check_room(&self, receives: u64) -> Result<()> {
        let (needed, capacity) = (self.committed + receives, u64::from(self.cq.capacity()));
        if needed > capacity {
            return Err(Error::CqTooSmall {
                setting: "ReceiverConfig::cq_capacity",
                capacity,
                needed,
            });
        }
        Ok(())
    }

    /// Returns a queue of this receiver that was not destroyed.
    pub(super) fn find(&self, id: QueueId) -> Option<&RecvQueue> {
        let entry = self.queues.get(id.index as usize)?;
        let is_it = id.receiver == self.id && entry.number == id.number && !entry.queue.is_closed();
        is_it.then_some(&entry.queue)
    }

    /// Returns the names of all queues.
    pub(super) fn ids(&self) -> impl Iterator<Item = QueueId> + '_ {
        let open = self.queues.iter().enumerate().filter(|(_, entry)| !entry.queue.is_closed());
        open.map(|(index, entry)| QueueId {
            receiver: self.id,
            index: index as u32,
            number: entry.number,
        })
    }

    pub(super) fn srq_object(&self, id: SrqId) -> Result<Arc<Srq>> {
        match self.find(id.0) {
            None if id.0.receiver == self.id => Err(Error::Gone { what: "SRQ" }),
            queue => queue
                .and_then(RecvQueue::srq)
                .cloned()
                .ok_or(Error::Foreign { what: "the SRQ", domain: "receiver" }),
        }
    }

    /// Returns how many receives can be outstanding on a queue, or 0 if the queue does not exist.
    ///
    /// ```
    /// # use doorbell::{QpConfig, Receiver, ReceiverConfig, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
    /// # let srq = receiver.create_srq(&SrqConfig::new(511))?;
    /// # let pool = doorbell::BufferPool::new(&pd, 1, 64)?;
    /// let all = receiver.capacity(srq);
    /// assert_eq!(receiver.free_slots(srq), all);
    /// receiver.post(srq, pool.take())?;
    /// assert_eq!(receiver.free_slots(srq), all - 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn capacity(&self, queue: impl Into<QueueId>) -> u32 {
        self.find(queue.into()).map_or(0, RecvQueue::capacity)
    }

    /// Returns how many receives can be posted to a queue now.
    pub fn free_slots(&self, queue: impl Into<QueueId>) -> u32 {
        self.find(queue.into()).map_or(0, RecvQueue::free_slots)
    }

    /// Returns the number of receives that are with the device, or have completed and were not taken. A buffer in the
    /// slot that stays unposted is not among them.
    pub(super) fn outstanding(&self, queue: QueueId) -> u32 {
        self.find(queue).map_or(0, RecvQueue::outstanding)
    }

    /// Returns the queue pair whose own receive queue this is.
    pub(super) fn qp_of(&self, queue: QueueId) -> Option<&Arc<Qp>> {
        self.find(queue).and_then(RecvQueue::qp)
    }
}
