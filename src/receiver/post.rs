//! Posting receives.

use std::mem::{self, ManuallyDrop};
use std::ptr;

use mlx5_ring::receive::{PostError as RingError, ReceiveRing};

use super::post_error::PostError;
use super::queue::{DirectRq, DirectSrq, RecvQueue};
use super::slot_context::SlotContext;
use super::verbs_queue::VerbsQueue;
use super::{QueueEntry, Receiver};
use crate::ids::QueueId;
use crate::memory::{Buffer, BufferPool, Memory, Pool};
use crate::pd::ProtectionDomain;
use crate::post_failure::{GRH_SIZE, PostFailure};

impl Receiver {
    /// Posts one receive with several buffers, which the device fills in order, and rings the doorbell.
    ///
    /// ```
    /// # use doorbell::{BufferPool, CqConfig, PoolConfig, Receiver, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let mut receiver = Receiver::new(&pd, &CqConfig::new(1024))?;
    /// let srq = receiver.create_srq(&SrqConfig::new(15).max_sge(2))?;
    /// let headers = BufferPool::new(&pd, &PoolConfig::new(16, 64))?;
    /// let payloads = BufferPool::new(&pd, &PoolConfig::new(16, 4096))?;
    /// while let (Some(header), Some(payload)) = (headers.take(), payloads.take()) {
    ///     if let Err(error) = receiver.post_scatter(srq, vec![header, payload]) {
    ///         println!("{error}: {} buffers are still here", error.buffers.len());
    ///         break;
    ///     }
    /// }
    /// assert_eq!(receiver.free_slots(srq), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PostError`], which returns the buffers.
    pub fn post_scatter(&mut self, queue: impl Into<QueueId>, buffers: Vec<Buffer>) -> Result<(), PostError> {
        let queue = queue.into();
        let fail = |reason, buffers| Err(PostError { posted: 0, reason, buffers });
        let Some(max) = self.find(queue).map(|queue| queue.max_sge() as usize) else {
            return fail(PostFailure::NoQueue, buffers);
        };
        if buffers.is_empty() {
            return fail(PostFailure::NoBuffer, buffers);
        }
        if buffers.len() > max {
            return fail(PostFailure::TooManyBuffers { given: buffers.len(), max }, buffers);
        }
        if self.free_slots(queue) == 0 {
            return fail(PostFailure::Full, buffers);
        }
        self.end_batch();
        let entry = &mut self.queues[queue.index as usize];
        let domain = buffers.iter().try_for_each(|buffer| check(&self.pd, false, buffer.pool()));
        let checked = domain.and_then(|()| check(&self.pd, entry.datagrams, buffers[0].pool()));
        if let Err(reason) = checked {
            return fail(reason, buffers);
        }
        let context = SlotContext::of_list(buffers);
        // SAFETY: buffers of the domain, as many as a receive takes, and owned by the queue from now on.
        if let Err(reason) = unsafe { entry.queue.post(context) } {
            // SAFETY: [slot-owns], of a list that was not posted.
            return fail(reason, unsafe { context.into_list() });
        }
        let mut unposted = Vec::new();
        // SAFETY: [slot-owns], of a list that was not posted: it is the only receive.
        let rejected = |context: SlotContext| unposted = unsafe { context.into_list() };
        match entry.queue.ring_doorbell(rejected) {
            Ok(()) => Ok(()),
            Err(reason) => fail(reason, unposted),
        }
    }
}

impl<M: Memory> Receiver<M> {
    /// Posts a receive for each buffer, with one doorbell for all, and returns their number.
    ///
    /// The device owns the buffers until [`poll`](Self::poll) returns their completions. The result counts
    /// buffers: if [`fill`](Self::fill) was used and its spare slot is empty, the last buffer goes there.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::new();
    /// # let kept: Vec<_> = std::iter::from_fn(|| world.pool.take()).collect();
    /// # let (receiver, srq) = (&mut world.receiver, world.srq);
    /// match receiver.post(srq, kept) {
    ///     Ok(posted) => println!("{posted} receives posted"),
    ///     Err(error) => {
    ///         println!("{error}");
    ///         println!("{} buffers are still here", error.buffers.len());
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`PostError`] at the first buffer that cannot be posted. It returns this buffer and all that follow, so it
    /// consumes the iterator. To leave the rest in the iterator, post `buffers.by_ref().take(room)` with `room` from
    /// [`free_slots`](Self::free_slots).
    pub fn post<I>(&mut self, queue: impl Into<QueueId>, buffers: I) -> Result<usize, PostError<Buffer<M>>>
    where
        I: IntoIterator<Item = Buffer<M>>,
    {
        let mut rest = buffers.into_iter();
        let mut unposted = Vec::new();
        match self.post_each(queue.into(), &mut rest, &mut unposted) {
            (posted, Ok(())) => Ok(posted),
            (posted, Err(reason)) => {
                unposted.extend(rest);
                Err(PostError { posted, reason, buffers: unposted })
            }
        }
    }

    /// Posts buffers of `pool` until the queue is full or the pool is empty, and returns the number of receives that it
    /// posted.
    ///
    /// Give the pool one buffer more than the capacity of the SRQ. On the direct path an SRQ has one slot more than it
    /// can have receives: the spare slot. `fill` puts a buffer there, too, which is not posted and not counted until
    /// another slot is free. So `capacity` receives take `capacity` + 1 buffers of the pool. With it, a batch recycles
    /// slots without writing WQEs.
    ///
    /// ```
    /// # use doorbell::{BufferPool, CqConfig, PoolConfig, Receiver, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// // One more than can be posted: each slot of the SRQ has a buffer of its own then.
    /// let pool = BufferPool::new(&pd, &PoolConfig::new(512, 4096))?;
    /// let mut receiver = Receiver::new(&pd, &CqConfig::for_pool(&pool))?;
    /// let srq = receiver.create_srq(&SrqConfig::for_pool(&pool))?;
    /// assert_eq!(receiver.fill(srq, &pool)?, 511);
    /// assert_eq!(pool.available(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PostError`] if the queue does not belong to this receiver, if the pool belongs to another protection domain,
    /// if its buffers are too small for the datagrams of the queue, or if the driver refuses. A full queue and an
    /// empty pool are not errors.
    pub fn fill(&mut self, queue: impl Into<QueueId>, pool: &BufferPool<M>) -> Result<usize, PostError<Buffer<M>>> {
        let queue = queue.into();
        let mut buffers = Vec::new();
        let refused = |reason| PostError { posted: 0, reason, buffers: Vec::new() };
        self.check_pool(queue, pool).map_err(refused)?;
        let (posted, result) = self.post_each(queue, &mut std::iter::from_fn(|| pool.take()), &mut buffers);
        match result {
            Ok(()) => Ok(posted),
            Err(PostFailure::Full) => {
                buffers.pop().into_iter().for_each(|buffer| self.keep_spare(queue, buffer));
                Ok(posted)
            }
            Err(reason) => Err(PostError { posted, reason, buffers }),
        }
    }

    /// Refuses a pool whose buffers a queue cannot take, whether it has buffers now or not.
    pub(super) fn check_pool(&self, queue: QueueId, pool: &BufferPool<M>) -> Result<(), PostFailure> {
        self.find(queue).ok_or(PostFailure::NoQueue)?;
        check(&self.pd, self.queues[queue.index as usize].datagrams, &pool.0)
    }

    /// Posts each buffer, with one doorbell for all. A buffer that cannot be posted, and those that the driver does not
    /// take, are added to `unposted`, which is empty.
    fn post_each(
        &mut self,
        queue: QueueId,
        buffers: &mut impl Iterator<Item = Buffer<M>>,
        unposted: &mut Vec<Buffer<M>>,
    ) -> (usize, Result<(), PostFailure>) {
        if self.find(queue).is_none() {
            return (0, Err(PostFailure::NoQueue));
        }
        self.end_batch();
        let Self { queues, unrung, pd, .. } = self;
        let entry = &mut queues[queue.index as usize];
        // If the iterator panics, the next call rings the doorbell.
        entry.ring_later(queue.index, unrung);
        let QueueEntry { queue, datagrams, unrung: rings_later, .. } = entry;
        let mut last = None;
        let (posted, result) = match queue {
            RecvQueue::Ordered(srq) => post_all(pd, *datagrams, buffers, &mut last, srq),
            RecvQueue::Srq(srq) => post_all(pd, *datagrams, buffers, &mut last, srq),
            RecvQueue::Rq(rq) => post_all(pd, *datagrams, buffers, &mut last, rq),
            RecvQueue::Verbs(verbs) => post_all(pd, *datagrams, buffers, &mut last, verbs),
            RecvQueue::Closed => (0, Err(PostFailure::NoQueue)),
        };
        // SAFETY: [slot-owns], of a receive that was not posted.
        let rejected = |context: SlotContext| unsafe {
            context.into_buffers(0, |buffer| unposted.push(buffer.cast()));
        };
        let rung = queue.ring_doorbell(rejected);
        let waiting = queue.waiting() > 0;
        unrung.clear();
        *rings_later = false;
        if waiting {
            self.start_waiting();
        }
        let posted = posted - unposted.len();
        unposted.extend(last);
        (posted, rung.and(result))
    }

    /// Puts a buffer into the slot of an SRQ that stays unposted. From any other queue it goes back to its pool.
    fn keep_spare(&mut self, queue: QueueId, buffer: Buffer<M>) {
        // SAFETY: a buffer of the domain, which is the queue's from now on.
        let loaded = unsafe {
            match &mut self.queues[queue.index as usize].queue {
                RecvQueue::Ordered(srq) => {
                    srq.keeps_spare = true;
                    srq.load(&buffer)
                }
                RecvQueue::Srq(srq) => {
                    srq.keeps_spare = true;
                    srq.load(&buffer)
                }
                _ => return,
            }
        };
        if loaded.is_ok() {
            mem::forget(buffer);
        }
    }
}

/// Refuses a buffer that a queue cannot take.
#[inline(always)]
pub(super) fn check(pd: &ProtectionDomain, datagrams: bool, pool: &Pool) -> Result<(), PostFailure> {
    if pool.pd().id() != pd.id() {
        return Err(PostFailure::WrongDomain);
    }
    let capacity = pool.buffer_size();
    if datagrams && capacity < GRH_SIZE as u32 {
        return Err(PostFailure::NoRoomForHeader { capacity });
    }
    Ok(())
}

/// A queue to which buffers are posted one by one.
trait TakesBuffers {
    /// Posts a receive into one buffer.
    ///
    /// # Safety
    /// The buffer is of the domain, and the queue's from now on unless there is no room.
    unsafe fn post<M: Memory>(&mut self, buffer: &Buffer<M>) -> Result<(), RingError>;

    /// Puts a receive into the slot that stays unposted, if that is to have a buffer and has none.
    ///
    /// # Safety
    /// As [`post`](Self::post).
    unsafe fn load<M: Memory>(&mut self, _buffer: &Buffer<M>) -> Result<(), RingError> {
        Err(RingError::Full)
    }
}

impl<Q: ReceiveRing<Data = SlotContext>> TakesBuffers for DirectSrq<Q> {
    #[inline(always)]
    unsafe fn post<M: Memory>(&mut self, buffer: &Buffer<M>) -> Result<(), RingError> {
        // SAFETY: the caller's buffer is of the domain, and the queue's.
        unsafe { self.ring.post_segment(SlotContext::of(buffer), buffer.receive_segment()) }.map(drop)
    }

    unsafe fn load<M: Memory>(&mut self, buffer: &Buffer<M>) -> Result<(), RingError> {
        if !self.keeps_spare {
            return Err(RingError::Full);
        }
        // SAFETY: the caller's buffer is of the domain, and the queue's.
        unsafe { self.ring.load(SlotContext::of(buffer), &[buffer.receive_sge()]) }
    }
}

impl TakesBuffers for DirectRq {
    #[inline(always)]
    unsafe fn post<M: Memory>(&mut self, buffer: &Buffer<M>) -> Result<(), RingError> {
        // SAFETY: the caller's buffer is of the domain, and the queue's.
        unsafe { self.ring.post_segment(SlotContext::of(buffer), buffer.receive_segment()) }.map(drop)
    }
}

impl TakesBuffers for VerbsQueue {
    unsafe fn post<M: Memory>(&mut self, buffer: &Buffer<M>) -> Result<(), RingError> {
        Self::post(self, SlotContext::of(buffer))
    }
}

/// Posts buffers until one cannot be posted, which it puts into `last`. The queue owns those that were posted.
fn post_all<M: Memory>(
    pd: &ProtectionDomain,
    datagrams: bool,
    buffers: &mut impl Iterator<Item = Buffer<M>>,
    last: &mut Option<Buffer<M>>,
    queue: &mut impl TakesBuffers,
) -> (usize, Result<(), PostFailure>) {
    let (mut posted, mut next) = (0, buffers.next());
    while let Some(first) = next {
        let pool: *const Pool = first.pool();
        if let Err(reason) = check(pd, datagrams, first.pool()) {
            *last = Some(first);
            return (posted, Err(reason));
        }
        let (count, stopped) = post_pool(first, buffers, queue);
        posted += count;
        next = stopped;
        // There was no room for it.
        if let Some(buffer) = next.take_if(|buffer| ptr::eq(buffer.pool(), pool)) {
            // SAFETY: a buffer of the domain, which is the queue's from now on.
            if unsafe { queue.load(&buffer) }.is_err() {
                *last = Some(buffer);
                return (posted, Err(PostFailure::Full));
            }
            mem::forget(buffer);
            posted += 1;
            next = buffers.next();
        }
    }
    (posted, Ok(()))
}

/// Posts a buffer that was checked, and those of the same pool that follow. Returns their number, and the first buffer
/// that was not posted: there is no room for it, or it is of another pool.
#[inline(never)]
fn post_pool<M: Memory>(
    first: Buffer<M>,
    buffers: &mut impl Iterator<Item = Buffer<M>>,
    queue: &mut impl TakesBuffers,
) -> (usize, Option<Buffer<M>>) {
    let (mut posted, mut buffer) = (0, ManuallyDrop::new(first));
    let pool: *const Pool = buffer.pool();
    // SAFETY: a buffer of the domain, which is the queue's from now on.
    while ptr::eq(buffer.pool(), pool) && unsafe { queue.post(&buffer) }.is_ok() {
        posted += 1;
        match buffers.next() {
            Some(next) => buffer = ManuallyDrop::new(next),
            None => return (posted, None),
        }
    }
    (posted, Some(ManuallyDrop::into_inner(buffer)))
}
