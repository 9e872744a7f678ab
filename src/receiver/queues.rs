//! The queues of a receiver: making them, and asking for them by their names.

use std::sync::Arc;

use super::queue::RecvQueue;
use super::verbs_queue::QueueObject;
use super::{Only, QueueEntry, Receiver};
use crate::cq::{CqConfig, Poller};
use crate::error::{Error, Result};
use crate::ids::{QueueId, RqId, SrqId};
use crate::memory::{BufferPool, Memory};
use crate::post_failure::GRH_SIZE;
use crate::qp::{Qp, QueuePair, ReceiveSide};
use crate::receive_from::{ReceiveFrom, RqConfig};
use crate::srq::{Srq, SrqConfig};
use crate::trace::trace_event;

/// Messages that [`next`](Receiver::next) takes at most before it gives their receives back.
pub(crate) const MOST_UPKEEP: u32 = 16;

/// The smallest receive queue that the direct path makes, in receives.
const LEAST_RECEIVES: u32 = 4;

impl CqConfig {
    /// Describes the CQ of a [`Receiver`] whose queue receives into this pool: an entry for each of its buffers.
    /// [`SrqConfig::for_pool`] and [`RqConfig::for_pool`] describe the queue. For several pools see
    /// [`and`](Self::and).
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::{BufferPool, CqConfig, PoolConfig, Receiver, SrqConfig};
    ///
    /// let pool = BufferPool::new(&pd, &PoolConfig::new(256, 4096))?;
    /// let mut receiver = Receiver::new(&pd, &CqConfig::for_pool(&pool))?;
    /// let srq = receiver.create_srq(&SrqConfig::for_pool(&pool))?;
    /// assert_eq!(receiver.fill(srq, &pool)?, 255);
    /// assert_eq!(pool.available(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn for_pool<M: Memory>(pool: &BufferPool<M>) -> Self {
        Self::new(pool.count().max(LEAST_RECEIVES))
    }
}

impl SrqConfig {
    /// Describes an SRQ with a slot for each buffer of this pool. One slot stays unposted: the SRQ has outstanding
    /// receives for all buffers but one. On the direct path [`fill`](Receiver::fill) puts a buffer there, too, on the
    /// verbs path it stays in the pool.
    pub fn for_pool<M: Memory>(pool: &BufferPool<M>) -> Self {
        Self::new(pool.count().saturating_sub(1).max(1))
    }
}

impl RqConfig {
    /// Describes a queue with a receive for each buffer of this pool.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use doorbell::{BufferPool, CqConfig, PoolConfig, QpConfig, QueuePair, Receiver, RqConfig};
    ///
    /// let pool = BufferPool::new(&pd, &PoolConfig::new(64, 4096))?;
    /// let mut receiver = Receiver::new(&pd, &CqConfig::for_pool(&pool))?;
    /// let qp = QueuePair::builder(&QpConfig::rc())
    ///     .receive(&mut receiver, RqConfig::for_pool(&pool))
    ///     .build()?;
    /// let queue = qp.receive_queue().expect("a queue of its own");
    /// assert_eq!(receiver.fill(queue, &pool)?, 64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn for_pool<M: Memory>(pool: &BufferPool<M>) -> Self {
        Self::new(pool.count())
    }
}

impl<M: Memory> Receiver<M> {
    /// Creates a shared receive queue.
    ///
    /// ```
    /// # use doorbell::{CqConfig, Receiver, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let mut receiver = Receiver::new(&pd, &CqConfig::new(1024))?;
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
        unsafe { self.add_srq(Arc::new(srq), &SrqConfig { max_wr, ..config.clone() }) }
    }

    /// # Safety
    /// Nothing was posted to the SRQ, and no other code posts to it.
    pub(super) unsafe fn add_srq(&mut self, srq: Arc<Srq>, size: &SrqConfig) -> Result<SrqId> {
        // SAFETY: nothing was posted to the caller's SRQ, and no other code posts to it.
        let id = unsafe { self.add(QueueObject::Srq(srq), size) }?;
        trace_event!(
            device = self.pd.context().name(),
            max_wr = size.max_wr,
            capacity = self.capacity(id),
            max_sge = size.max_sge,
            "shared receive queue created"
        );
        Ok(SrqId(id))
    }

    /// Returns where a queue pair receives that is about to be made.
    pub(crate) fn receive_side(&mut self, from: ReceiveFrom) -> Result<ReceiveSide> {
        self.check_cq()?;
        self.end_dropped();
        let (srq, own) = match from {
            ReceiveFrom::Srq(id) => (Some(self.srq_object(id)?), (0, 0)),
            ReceiveFrom::Own(RqConfig { max_wr, max_sge }) => {
                // Sizes of 0 are refused, and are those of a queue pair that does not receive.
                Error::check_range("max_wr of receives", max_wr.into(), 1, u32::MAX.into())?;
                Error::check_range("max_sge of receives", max_sge.into(), 1, u32::MAX.into())?;
                (None, (max_wr, max_sge))
            }
        };
        let cq = Arc::clone(&self.cq.object);
        Ok(ReceiveSide { cq, srq, own, mlx5dv: self.mlx5dv() })
    }

    /// Takes a new queue pair in, with a receive queue of its own unless it is on an SRQ.
    ///
    /// # Safety
    /// Nothing was posted to its receive queue, and no other code posts to it. The queue pair was made with the
    /// [`receive_side`](Self::receive_side) of this receiver.
    pub(crate) unsafe fn enter(&mut self, qp: &mut QueuePair, from: ReceiveFrom) -> Result<()> {
        let object = qp.object();
        if let ReceiveFrom::Srq(id) = from {
            self.expect_datagrams(id.0, &object)?;
        }
        self.forget_dropped(object.qp_num());
        let id = match from {
            ReceiveFrom::Srq(id) => id.0,
            ReceiveFrom::Own(RqConfig { max_sge, .. }) => {
                let made = object.cap().max_recv_wr;
                // SAFETY: nothing was posted to the caller's receive queue, and no other code posts to it.
                let id = unsafe { self.add_rq(Arc::clone(&object), made, max_sge) }?;
                self.expect_datagrams(id.0, &object)?;
                id.0
            }
        };
        qp.set_receives(id);
        self.qps.insert(&object, id.index);
        Ok(())
    }

    /// Takes a new DC target of an SRQ in, made with the [`receive_side`](Self::receive_side) of that SRQ.
    pub(crate) fn enter_target(&mut self, target: &Arc<Qp>, srq: SrqId) {
        self.forget_dropped(target.qp_num());
        self.qps.insert(target, srq.0.index);
    }

    /// Has a queue refuse buffers that are too small for datagrams from now on, when this queue pair takes
    /// them from it.
    fn expect_datagrams(&mut self, id: QueueId, qp: &Qp) -> Result<()> {
        if qp.qp_type() != rdma_core_sys::IBV_QPT_UD {
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
        let id = unsafe { self.add(QueueObject::Rq(qp), &SrqConfig::new(max_wr).max_sge(max_sge)) }?;
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
    unsafe fn add(&mut self, object: QueueObject, size: &SrqConfig) -> Result<QueueId> {
        // A queue that is the only one so far is not noted where it needs a doorbell.
        self.end_batch();
        let closed = self.queues.iter().position(|entry| entry.queue.is_closed());
        let index = closed.unwrap_or(self.queues.len()) as u32;
        // SAFETY: nothing was posted to the caller's queue, and no other code posts to it.
        let queue = unsafe { RecvQueue::new(self.mlx5dv(), object, index, size) };
        let queue = queue.map_err(|error| self.pd.context().not_direct(error))?;
        let capacity = u64::from(queue.capacity());
        self.cq.check_room(self.committed, capacity, "capacity in CqConfig::new")?;
        self.committed += capacity;
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        let entry = QueueEntry { queue, number, unrung: false, datagrams: false };
        self.only = Only::Other;
        match self.queues.get_mut(index as usize) {
            Some(closed) => *closed = entry,
            None => {
                self.queues.push(entry);
                // A batch adds each queue once, and allocates nothing.
                self.unrung.reserve(self.queues.len());
            }
        }
        self.plan_upkeep();
        Ok(QueueId { receiver: self.id, index, number })
    }

    /// Gives up a queue that the device does not use any more.
    pub(super) fn close(&mut self, index: u32) {
        self.only = Only::Other;
        let entry = &mut self.queues[index as usize];
        self.committed -= u64::from(entry.queue.capacity());
        entry.queue = RecvQueue::Closed;
        // When a single queue is left, its messages need no look-up again.
        let open = self.queues.iter().rposition(|entry| !entry.queue.is_closed());
        self.queues.truncate(open.map_or(0, |last| last + 1));
        self.plan_upkeep();
        self.post_all_returned();
    }

    /// Takes note of the [only queue](Only), and decides how many messages [`next`](Self::next) takes before it gives
    /// their receives back: so few that the smallest queue keeps three quarters of its receives. 0 where each call has
    /// [more to do](Self::maintain).
    pub(super) fn plan_upkeep(&mut self) {
        let open = self.queues.iter().filter(|entry| !entry.queue.is_closed());
        let smallest = open.map(|entry| entry.queue.capacity()).min().unwrap_or(0);
        self.only = match &self.queues[..] {
            [QueueEntry { queue: RecvQueue::Ordered(_), .. }] => Only::Ordered,
            [QueueEntry { queue: RecvQueue::Rq(_), .. }] => Only::Rq,
            _ => Only::Other,
        };
        self.set_upkeep_after(if self.maintenance.is_some() { 0 } else { (smallest / 4).clamp(1, MOST_UPKEEP) });
    }

    /// Has the next call of [`next`](Self::next) do the work that is due, and later ones after so many CQEs.
    pub(super) fn set_upkeep_after(&mut self, cqes: u32) {
        self.upkeep_after = cqes;
        if let Poller::Direct(direct) = &mut self.cq.poller {
            direct.cq.stop_after(0);
        }
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
        open.map(|(index, entry)| QueueId { receiver: self.id, index: index as u32, number: entry.number })
    }

    pub(super) fn srq_object(&self, id: SrqId) -> Result<Arc<Srq>> {
        match self.find(id.0) {
            None if id.0.receiver == self.id => Err(Error::Gone { what: "SRQ" }),
            queue => {
                queue.and_then(RecvQueue::srq).cloned().ok_or(Error::Foreign { what: "the SRQ", domain: "receiver" })
            }
        }
    }

    /// Returns how many receives can be outstanding on a queue, or 0 if the queue does not exist.
    ///
    /// ```
    /// # use doorbell::{CqConfig, PoolConfig, Receiver, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let mut receiver = Receiver::new(&pd, &CqConfig::new(4096))?;
    /// # let srq = receiver.create_srq(&SrqConfig::new(511))?;
    /// # let pool = doorbell::BufferPool::new(&pd, &PoolConfig::new(1, 64))?;
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
