//! Posting receives.

use mlx5_ring::receive::ReceiveRing;

use super::buffer_owners::BufferOwners;
use super::datagram::GRH_SIZE;
use super::id::QueueId;
use super::queue::RecvQueue;
use super::verbs::VerbsQueue;
use super::{QueueEntry, Receiver};
use crate::error::Error;
use crate::memory::{Buffer, BufferPool};
use crate::mlx5::DirectSrq;

mod error;

pub use error::{PostError, PostFailure};

/// The sizes of buffers that a queue takes and has.
#[derive(Clone, Copy)]
pub(super) struct LeastBuffer {
    /// A queue pair for datagrams receives from the queue.
    datagrams: bool,
    /// The smallest first buffer that was posted since the queue was empty.
    posted: u32,
}

impl LeastBuffer {
    /// A queue of no receives, for messages of any length.
    pub(super) const EMPTY: Self = Self { datagrams: false, posted: u32::MAX };

    const fn check(&self, capacity: u32) -> Result<(), PostFailure> {
        if self.datagrams && capacity < GRH_SIZE as u32 {
            return Err(PostFailure::NoRoomForHeader { capacity });
        }
        Ok(())
    }

    /// Returns `true` if a buffer was posted.
    pub(super) const fn was_posted(&self) -> bool {
        self.posted != u32::MAX
    }

    /// Takes note of a buffer that is about to be posted, or refuses it.
    pub(super) fn take(&mut self, capacity: u32) -> Result<(), PostFailure> {
        self.check(capacity)?;
        self.posted = self.posted.min(capacity);
        Ok(())
    }

    /// A queue pair for datagrams is about to receive from the queue, which holds receives or not.
    pub(super) fn for_datagrams(&mut self, is_empty: bool) -> crate::error::Result<()> {
        if is_empty {
            self.posted = u32::MAX;
        }
        if self.posted < GRH_SIZE as u32 {
            return Err(Error::NoRoomForHeader { capacity: self.posted });
        }
        self.datagrams = true;
        Ok(())
    }
}

impl Receiver {
    /// Posts a receive for each buffer, with one doorbell for all, and returns their number.
    ///
    /// The device owns the buffers until [`poll`](Self::poll) returns their completions. If [`fill`](Self::fill) was
    /// used and its spare slot is empty, the last buffer goes there, and counts as posted.
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
    pub fn post<I>(&mut self, queue: impl Into<QueueId>, buffers: I) -> Result<usize, PostError>
    where
        I: IntoIterator<Item = Buffer>,
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

    /// Posts buffers of `pool` until the queue is full or the pool is empty, and returns the number of receives.
    ///
    /// Give the pool one buffer more than the capacity of the SRQ. On the direct path an SRQ has one slot more than it can have
    /// receives: the spare slot. `fill` puts a buffer there, too, which the result does not count. It is posted as soon as
    /// another slot is free. With it, a batch recycles slots without writing WQEs.
    ///
    /// ```
    /// # use doorbell::{Receiver, ReceiverConfig, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
    /// let srq = receiver.create_srq(&SrqConfig::new(511))?;
    /// // One more than can be posted: each slot of the SRQ has a buffer of its own then.
    /// let pool = doorbell::BufferPool::new(&pd, 512, 4096)?;
    /// assert_eq!(receiver.fill(srq, &pool)?, 511);
    /// assert_eq!(pool.available(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PostError`] if the queue does not belong to this receiver, if the pool belongs to another protection domain,
    /// if its buffers are too small for the datagrams of the queue, or if the driver refuses. A full queue and an
    /// empty pool are not errors.
    pub fn fill(
        &mut self,
        queue: impl Into<QueueId>,
        pool: &BufferPool,
    ) -> Result<usize, PostError> {
        let queue = queue.into();
        let mut buffers = Vec::new();
        let refused = |reason| PostError { posted: 0, reason, buffers: Vec::new() };
        self.check_pool(queue, pool).map_err(refused)?;
        let (posted, result) =
            self.post_each(queue, &mut std::iter::from_fn(|| pool.take()), &mut buffers);
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
    pub(super) fn check_pool(&self, queue: QueueId, pool: &BufferPool) -> Result<(), PostFailure> {
        self.find(queue).ok_or(PostFailure::NoQueue)?;
        if !pool.pd().is_same(&self.pd) {
            return Err(PostFailure::WrongDomain);
        }
        self.queues[queue.index as usize].least_buffer.check(pool.buffer_size())
    }

    /// Posts one receive with several buffers, which the device fills in order, and rings the doorbell.
    ///
    /// ```
    /// # use doorbell::{BufferPool, Receiver, ReceiverConfig, SrqConfig};
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
    /// let srq = receiver.create_srq(&SrqConfig::new(15).max_sge(2))?;
    /// let (headers, payloads) = (BufferPool::new(&pd, 16, 64)?, BufferPool::new(&pd, 16, 4096)?);
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
    pub fn post_scatter(
        &mut self,
        queue: impl Into<QueueId>,
        buffers: Vec<Buffer>,
    ) -> Result<(), PostError> {
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
        let first = buffers[0].capacity() as u32;
        if let Err(reason) = self.queues[queue.index as usize].least_buffer.take(first) {
            return fail(reason, buffers);
        }
        let lens: Vec<_> = buffers.iter().map(|buffer| buffer.len()).collect();
        let mut sges = Vec::with_capacity(buffers.len());
        let context = match self.owners.enter_list(buffers, &mut sges) {
            Ok(context) => context,
            Err(buffers) => return fail(PostFailure::WrongDomain, buffers),
        };
        self.end_batch();
        let Self { queues, owners, .. } = self;
        let queue = &mut queues[queue.index as usize].queue;
        // SAFETY: the SGEs are buffers of ours, owned by the queue from now on.
        let posted = unsafe { queue.post(context, &sges) }.and_then(|()| match queue {
            // What is rejected is this one receive, which is taken back below.
            RecvQueue::Verbs(verbs) => {
                verbs.post_chain(owners, &mut Vec::new()).1.map_err(verbs_failure)
            }
            direct => {
                direct.ring_doorbell(owners);
                Ok(())
            }
        });
        if let Err(reason) = posted {
            let mut buffers = Vec::with_capacity(sges.len());
            owners.leave(context, 0, |buffer| buffers.push(buffer));
            buffers.iter_mut().zip(lens).for_each(|(buffer, len)| buffer.set_len(len));
            return fail(reason, buffers);
        }
        Ok(())
    }

    fn post_each(
        &mut self,
        queue: QueueId,
        buffers: &mut impl Iterator<Item = Buffer>,
        unposted: &mut Vec<Buffer>,
    ) -> (usize, Result<(), PostFailure>) {
        if self.find(queue).is_none() {
            return (0, Err(PostFailure::NoQueue));
        }
        self.end_batch();
        let Self { queues, owners, .. } = self;
        let QueueEntry { queue, least_buffer: least, .. } = &mut queues[queue.index as usize];
        let (posted, result) = match queue {
            RecvQueue::Srq(srq) => post_srq(srq, owners, least, buffers),
            RecvQueue::Rq(rq) => post_direct(&mut rq.ring, owners, least, buffers),
            RecvQueue::Verbs(verbs) => return post_verbs(verbs, owners, least, buffers, unposted),
            RecvQueue::Closed => return (0, Err(PostFailure::NoQueue)),
        };
        let result = result.map_err(|(reason, buffer)| {
            unposted.push(buffer);
            reason
        });
        (posted, result)
    }

    /// Puts a buffer into the slot of an SRQ that stays unposted. From any other queue it goes back to its pool.
    fn keep_spare(&mut self, queue: QueueId, buffer: Buffer) {
        let Self { queues, owners, .. } = self;
        if let RecvQueue::Srq(srq) = &mut queues[queue.index as usize].queue {
            srq.keeps_spare = true;
            load_spare(srq, owners, buffer).map_or_else(drop, drop);
        }
    }
}

/// Posts to an SRQ; what does not fit goes into its last slot, if it keeps a buffer there.
fn post_srq(
    srq: &mut DirectSrq,
    owners: &mut BufferOwners,
    least: &mut LeastBuffer,
    buffers: &mut impl Iterator<Item = Buffer>,
) -> (usize, Result<(), Unposted>) {
    let (posted, result) = post_direct(&mut srq.ring, owners, least, buffers);
    match result {
        Err((PostFailure::Full, buffer)) if srq.keeps_spare && !srq.ring.is_loaded() => {
            if let Err(buffer) = load_spare(srq, owners, buffer) {
                return (posted, Err((PostFailure::Full, buffer)));
            }
            let next = buffers.next().map_or(Ok(()), |buffer| Err((PostFailure::Full, buffer)));
            (posted + 1, next)
        }
        result => (posted, result),
    }
}

fn load_spare(
    srq: &mut DirectSrq,
    owners: &mut BufferOwners,
    buffer: Buffer,
) -> Result<(), Buffer> {
    let len = buffer.len();
    let (context, sge) = owners.enter(buffer)?;
    // SAFETY: a buffer of ours, owned by the queue from now on.
    if unsafe { srq.ring.load(context, &[sge]) }.is_ok() {
        return Ok(());
    }
    let mut back = None;
    owners.leave(context, len as u32, |buffer| back = Some(buffer));
    back.map_or(Ok(()), Err)
}

/// Why a buffer was not posted, and the buffer.
type Unposted = (PostFailure, Buffer);

/// Posts each buffer. From one to the next of the same pool only the address changes.
#[inline(always)]
fn post_direct<Q: ReceiveRing<Data = super::SlotContext>>(
    ring: &mut Q,
    owners: &mut BufferOwners,
    least: &mut LeastBuffer,
    buffers: &mut impl Iterator<Item = Buffer>,
) -> (usize, Result<(), Unposted>) {
    let mut posting = ring.posting();
    let mut posted = 0;
    let mut next = buffers.next();
    while let Some(first) = next {
        let Some(mut pool) = owners.batch(&first) else {
            return (posted, Err((PostFailure::WrongDomain, first)));
        };
        if let Err(reason) = least.take(first.capacity() as u32) {
            return (posted, Err((reason, first)));
        }
        let mut buffer = first;
        next = loop {
            let (context, segment) = pool.describe(&buffer);
            // SAFETY: a buffer of ours, which is not empty, and owned by the queue from now on.
            if unsafe { posting.post_segment(context, segment) }.is_err() {
                return (posted, Err((PostFailure::Full, buffer)));
            }
            posted += 1;
            pool.keep(buffer);
            buffer = match buffers.next() {
                Some(buffer) if pool.has(&buffer) => buffer,
                other => break other,
            };
        };
    }
    (posted, Ok(()))
}

fn post_verbs(
    queue: &mut VerbsQueue,
    owners: &mut BufferOwners,
    least: &mut LeastBuffer,
    buffers: &mut impl Iterator<Item = Buffer>,
    unposted: &mut Vec<Buffer>,
) -> (usize, Result<(), PostFailure>) {
    let mut chain = Chain { queue, owners, unposted };
    let collected = chain.collect(least, buffers);
    let (posted, flushed) = chain.flush();
    drop(chain);
    let ended = collected.map_err(|(reason, buffer)| {
        unposted.push(buffer);
        reason
    });
    (posted, flushed.and(ended))
}

/// Receives collected for one call. Dropping it posts them: what an iterator gave before it panicked is
/// with the device, as on the direct path.
struct Chain<'a> {
    queue: &'a mut VerbsQueue,
    owners: &'a mut BufferOwners,
    unposted: &'a mut Vec<Buffer>,
}

impl Chain<'_> {
    fn collect(
        &mut self,
        least: &mut LeastBuffer,
        buffers: &mut impl Iterator<Item = Buffer>,
    ) -> Result<(), Unposted> {
        for buffer in buffers {
            if self.queue.free_slots() == 0 {
                return Err((PostFailure::Full, buffer));
            }
            if let Err(reason) = least.take(buffer.capacity() as u32) {
                return Err((reason, buffer));
            }
            let foreign = |buffer| (PostFailure::WrongDomain, buffer);
            let (context, _) = self.owners.enter(buffer).map_err(foreign)?;
            // A slot is free.
            let _ = self.queue.post(context);
        }
        Ok(())
    }

    fn flush(&mut self) -> (usize, Result<(), PostFailure>) {
        let mut rejected = Vec::new();
        let (posted, result) = self.queue.post_chain(self.owners, &mut rejected);
        for context in rejected {
            self.owners.leave(context, 0, |buffer| self.unposted.push(buffer));
        }
        (posted, result.map_err(verbs_failure))
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        // Nothing is left in the chain after a flush.
        let _ = self.flush();
    }
}

fn verbs_failure(errno: i32) -> PostFailure {
    match errno {
        libc::ENOMEM => PostFailure::Full,
        errno => PostFailure::Verbs(errno),
    }
}
