//! Work of a receiver beside receiving, once per batch: it posts what other threads give back, refills queues that run
//! low, and counts. A receiver that was asked for none of it pays one compare per batch.

mod events;
mod handover;
mod shared;
mod statistics;
mod wake_state;

use std::collections::VecDeque;
use std::iter;
use std::sync::Arc;

use super::Receiver;
use super::batch::queue_of;
use super::queue::RecvQueue;
use super::verify::WrongCqe;
use crate::cq::Poller;
use crate::error::{Error, Result};
use crate::ids::{QueueId, SrqId};
use crate::memory::{Buffer, BufferPool, Memory};
use crate::post_failure::PostFailure;
use crate::qp::Qp;
use crate::qp_state::QpState;

pub use shared::SharedPoster;
pub use statistics::{SrqStatistics, Statistics};

use shared::{Returned, Wake};

/// The parts of `wake_state` and `handover`: their test has other atomics.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU8, Ordering, fence};

    pub(super) use crossbeam::queue::ArrayQueue;
}

/// Completions that are looked at to count those that wait.
const WAITING: u32 = 256;

/// The state of this work.
#[derive(Default)]
pub(super) struct Maintenance {
    queues: Vec<Kept>,
    wake: Option<Arc<Wake>>,
    pub(super) counted: Statistics,
    /// The queues of completions that wait to be polled.
    waiting: Vec<u32>,
    /// Completions taken, modulo 2^32, when they were counted last.
    seen: u32,
    /// CQEs whose signature was wrong, where they are checked.
    pub(super) wrong_cqes: Option<VecDeque<WrongCqe>>,
}

impl Drop for Maintenance {
    /// Handles may live on: the buffers that they were given go back to their pools.
    fn drop(&mut self) {
        let Some(wake) = &self.wake else { return };
        wake.wake_state.close();
        let returned = self.queues.iter().flat_map(|kept| &kept.returned);
        returned.for_each(|returned| returned.buffers.clear());
    }
}

/// One queue that is kept.
struct Kept {
    queue: QueueId,
    /// The queue has had a receive.
    was_posted_to: bool,
    returned: Option<Arc<Returned>>,
    refill: Option<BufferPool>,
    srq_limit: Option<u32>,
    /// The device has reported the limit, which is armed again once there are as many receives.
    limit_reached: bool,
}

impl Kept {
    /// Returns `true` if the receiver posts to the queue.
    const fn is_fed(&self) -> bool {
        self.returned.is_some() || self.refill.is_some()
    }

    /// Gives the buffers for a closed queue back to their pools. Returns `true` if more may come.
    fn turn_away(&self) -> bool {
        self.returned.as_ref().is_some_and(|returned| {
            returned.buffers.clear();
            // Without another handle no more buffers come; those that came meanwhile are dropped with `returned`.
            Arc::strong_count(returned) > 1
        })
    }
}

impl<M: Memory> Receiver<M> {
    /// Fills a queue with buffers of `pool` and keeps it filled, and returns how many receives the queue has now: a
    /// batch that starts with fewer than half of its [capacity](Self::capacity) outstanding first posts as many buffers
    /// as the pool has and the queue takes. A second call replaces the pool. [`arm`](crate::Completions::arm) posts
    /// nothing: call [`refill`](Self::refill) before.
    ///
    /// The receive queue of a failed or dropped queue pair is not refilled, because its receives would be flushed.
    /// [`reset_qp`](Self::reset_qp) resumes refilling.
    ///
    /// A buffer that another thread drops returns to the pool without a wake-up. While a queue is less than half
    /// full and the pool is empty, [`wait`](crate::Completions::wait) therefore checks the pool every 5 ms. A program
    /// that sleeps on [`channel`](crate::Completions::channel) or in a task uses a
    /// [`shared_poster`](Self::shared_poster), which wakes it.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let (receiver, srq, pool) = (&mut world.receiver, world.srq, &world.pool);
    /// receiver.keep_filled(srq, pool)?;
    /// for number in 0..100u8 {
    /// #     world.send(&[number]);
    /// #     let receiver = &mut world.receiver;
    ///     let mut batch = receiver.poll();
    ///     // Taken out of the queue: the next batch posts another buffer.
    ///     let buffer = batch.next().expect("a message has arrived")?.take()?;
    ///     assert_eq!(*buffer, [number]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Gone`] if the queue does not exist; [`Error::NoRoomForHeader`] if the buffers are too small for the
    /// datagrams of the queue; [`Error::Foreign`] if the pool belongs to another protection domain.
    pub fn keep_filled(&mut self, queue: impl Into<QueueId>, pool: &BufferPool<M>) -> Result<u32> {
        let queue = queue.into();
        self.find(queue).ok_or(Error::Gone { what: "queue" })?;
        match self.check_pool(queue, pool) {
            Ok(()) => {}
            Err(PostFailure::NoRoomForHeader { capacity }) => {
                return Err(Error::NoRoomForHeader { capacity });
            }
            Err(_) => {
                return Err(Error::Foreign { what: "the pool", domain: "protection domain" });
            }
        }
        self.kept(queue).refill = Some(pool.cast());
        self.refill();
        Ok(self.outstanding(queue))
    }

    /// Returns a handle with which any thread gives buffers to a queue. The next batch posts them. The handle wakes a
    /// thread that sleeps in [`wait`](crate::Completions::wait). An event loop also watches [`wake_fd`](Self::wake_fd).
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # world.send(b"hello");
    /// # let (receiver, srq) = (&mut world.receiver, world.srq);
    /// let poster = receiver.shared_poster(srq)?;
    /// let mut batch = receiver.poll();
    /// let message = batch.next().expect("a message has arrived")?.take()?;
    /// drop(batch);
    /// std::thread::spawn(move || poster.post(message)).join().expect("no panic")?;
    /// // The next batch posts it; `wait` would be woken for that.
    /// receiver.refill();
    /// assert_eq!(receiver.free_slots(srq), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Gone`] if the queue does not exist; [`Error::Verbs`] if the process has no descriptors left.
    pub fn shared_poster(&mut self, queue: impl Into<QueueId>) -> Result<SharedPoster<M>> {
        let queue = queue.into();
        self.find(queue).ok_or(Error::Gone { what: "queue" })?;
        // The capacity is one more than can be posted: `fill` keeps a spare.
        let capacity = self.capacity(queue) as usize + 1;
        let known = self.maintenance.as_ref().and_then(|work| work.wake.clone());
        let wake = match known {
            Some(wake) => wake,
            None => {
                let failed = |error| Error::verbs("eventfd", self.pd.context().name(), error);
                Arc::new(Wake::new().map_err(failed)?)
            }
        };
        self.maintenance_mut().wake = Some(Arc::clone(&wake));
        let pd = self.pd.clone();
        let kept = self.kept(queue);
        let returned = kept.returned.get_or_insert_with(|| Arc::new(Returned::new(capacity, pd, wake)));
        Ok(SharedPoster::new(Arc::clone(returned)))
    }

    /// Posts the buffers that other threads returned, and fills every queue of [`keep_filled`](Self::keep_filled),
    /// however full it is. Batches do this automatically.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # world.send(b"hello");
    /// # let (receiver, srq, pool) = (&mut world.receiver, world.srq, &world.pool);
    /// receiver.keep_filled(srq, pool)?;
    /// let mut batch = receiver.poll();
    /// let taken = batch.next().map(|message| message.map(|message| message.take()));
    /// drop(batch);
    /// // Now, and not when the next batch begins.
    /// receiver.refill();
    /// assert_eq!(receiver.free_slots(srq), 0);
    /// # drop(taken);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refill(&mut self) {
        self.keep_queues(true);
    }

    /// Does the work of a batch of at most `budget` completions; returns how many it may take.
    #[cold]
    #[inline(never)]
    pub(super) fn maintain(&mut self, budget: u32) -> u32 {
        let taken = self.cq.poller.taken();
        if let Some(work) = &mut self.maintenance {
            let count = taken.wrapping_sub(work.seen);
            work.seen = taken;
            work.counted.end_poll(count);
            work.counted.polls += 1;
        }
        self.keep_queues(false);
        self.verify(budget)
    }

    /// Returns `true` if a queue that is kept filled is less than half full, because its pool is empty.
    pub(super) fn is_short_of_buffers(&self) -> bool {
        self.maintenance.as_ref().is_some_and(|work| {
            let mut kept = work.queues.iter().filter(|kept| kept.refill.is_some() && self.is_alive(kept.queue));
            kept.any(|kept| self.is_low(kept.queue))
        })
    }

    /// Returns `true` if a queue has so few receives that it is refilled.
    fn is_low(&self, queue: QueueId) -> bool {
        self.outstanding(queue) < self.capacity(queue).div_ceil(2)
    }

    fn keep_queues(&mut self, all: bool) {
        let Some(mut work) = self.maintenance.take() else {
            return;
        };
        self.find_waiting(&mut work);
        let Maintenance { queues, counted, waiting, .. } = &mut *work;
        let exists = |kept: &Kept| self.find(kept.queue).is_some();
        queues.retain(|kept| exists(kept) || kept.turn_away());
        for kept in queues.iter_mut() {
            if self.find(kept.queue).is_none() {
                continue;
            }
            let queue = kept.queue;
            let outstanding = self.outstanding(queue);
            kept.was_posted_to |= outstanding > 0;
            if kept.was_posted_to && kept.is_fed() {
                let waits = waiting.iter().filter(|&&index| index == queue.index).count() as u32;
                let left = outstanding.saturating_sub(waits + self.find(queue).map_or(0, RecvQueue::waiting));
                counted.low_water = Some(counted.low_water.map_or(left, |least| least.min(left)));
            }
            if let Some(returned) = &kept.returned {
                let room = self.free_slots(queue) as usize;
                if room > 0 && !returned.buffers.is_empty() {
                    // Buffers of this domain, and no more than there is room for: what a failing QP refuses goes back
                    // to its pool.
                    let _ = self.post(queue, iter::from_fn(|| returned.buffers.take().map(Buffer::cast)).take(room));
                }
            }
            if let Some(pool) = &kept.refill {
                let wanted = (all || self.is_low(queue)) && self.free_slots(queue) > 0 && self.is_alive(queue);
                // A pool that the queue can take; what a failing QP refuses goes back to it.
                if wanted && self.fill(queue, &pool.cast()).is_ok_and(|posted| posted > 0) {
                    counted.refills += 1;
                }
            }
            if let Some(limit) = kept.srq_limit.filter(|_| kept.limit_reached) {
                // If the driver refuses, the next refill tries again.
                kept.limit_reached =
                    self.outstanding(queue) < limit || self.set_srq_limit(SrqId(queue), limit).is_err();
            }
        }
        self.maintenance = Some(work);
    }

    /// Notes the queues of the completions that wait to be polled, if their number matters to a queue that is fed.
    fn find_waiting(&mut self, work: &mut Maintenance) {
        let Maintenance { queues, waiting, .. } = work;
        waiting.clear();
        if !queues.iter().any(Kept::is_fed) {
            return;
        }
        // Once: batches do not allocate.
        waiting.reserve(WAITING as usize);
        match &mut self.cq.poller {
            Poller::Direct(direct) => {
                direct.cq.look_ahead(WAITING, |_, cqe| {
                    waiting.extend(queue_of(&self.queues, &self.qps, cqe));
                });
            }
            Poller::Verbs(cq) => waiting.extend(cq.look_ahead(WAITING as usize).map(|wc| wc.queue())),
        }
    }

    /// Returns `true` if there is such a queue and messages may come there. A queue pair that is in ERROR or was
    /// dropped flushes everything that is posted to its own queue.
    fn is_alive(&self, queue: QueueId) -> bool {
        let flushes = |qp: &Arc<Qp>| qp.known_state() == QpState::Error || !qp.has_handle();
        self.find(queue).is_some() && !self.qp_of(queue).is_some_and(flushes)
    }

    /// Posts what other threads gave back, as far as there is room. Buffers for closed queues go back to their pools.
    pub(super) fn post_all_returned(&mut self) {
        self.keep_queues(false);
    }

    /// Notes that the owner is about to sleep: from now on a buffer that is given back wakes it. Returns `true` if a
    /// buffer was given back already.
    pub(super) fn park(&self) -> bool {
        let Some(Maintenance { wake: Some(wake), queues, .. }) = self.maintenance.as_deref() else {
            return false;
        };
        wake.park();
        queues.iter().any(|kept| {
            let waiting = kept.returned.as_ref().is_some_and(|given| !given.buffers.is_empty());
            waiting && self.free_slots(kept.queue) > 0
        })
    }

    /// Notes that the owner is awake again.
    pub(crate) fn unpark(&self) {
        if let Some(wake) = self.wake() {
            wake.wake_state.unpark();
        }
    }

    fn wake(&self) -> Option<&Wake> {
        self.maintenance.as_ref()?.wake.as_deref()
    }

    /// Returns a descriptor that becomes readable when a [`SharedPoster`] receives a buffer after
    /// [`arm`](crate::Completions::arm), or `None` if there is no such handle. [`arm`](crate::Completions::arm) makes
    /// it unreadable, and a batch posts the buffer.
    pub fn wake_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.wake().map(Wake::as_fd)
    }

    pub(super) fn maintenance_mut(&mut self) -> &mut Maintenance {
        let seen = self.cq.poller.taken();
        // Each call of `next` does this work.
        self.set_upkeep_after(0);
        self.has_more_to_do = true;
        self.maintenance.get_or_insert_with(|| {
            let mut work = Box::<Maintenance>::default();
            work.seen = seen;
            work
        })
    }

    fn kept(&mut self, queue: QueueId) -> &mut Kept {
        let queues = &mut self.maintenance_mut().queues;
        let at = queues.iter().position(|kept| kept.queue == queue).unwrap_or_else(|| {
            queues.push(Kept {
                queue,
                was_posted_to: false,
                returned: None,
                refill: None,
                srq_limit: None,
                limit_reached: false,
            });
            queues.len() - 1
        });
        &mut queues[at]
    }
}
