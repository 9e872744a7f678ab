//! Counters of a receiver.

use mlx5_ring::receive::ReceiveRing;

use super::super::Receiver;
use super::super::queue::RecvQueue;
use crate::ids::SrqId;
use crate::memory::Memory;
use crate::qp_state::QpEnd;

/// Counters of a [`Receiver`], from [`Receiver::statistics`].
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let receiver = &mut world.receiver;
/// receiver.enable_statistics();
/// # drop(receiver.poll());
/// # world.send(b"hello");
/// # let receiver = &mut world.receiver;
/// let mut batch = receiver.poll();
/// while batch.next().is_some() {}
/// drop(batch);
/// let counted = receiver.statistics().expect("counting was asked for");
/// assert_eq!((counted.received, counted.empty_polls), (1, 1));
/// println!("{counted:?}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Receives posted to the device, without those that a reset or the end of a queue took back.
    pub posted: u64,
    /// Completions polled, including failures.
    pub received: u64,
    /// Batches.
    pub polls: u64,
    /// Batches without a completion.
    pub empty_polls: u64,
    /// Refills of a queue that is kept filled.
    pub refills: u64,
    /// Fewest receives that the device had at the start of a batch, of a queue that is kept filled or has a
    /// [`SharedPoster`](crate::SharedPoster); `None` without such a queue, and before its first receive. Receives that
    /// have completed and were not polled yet are left out, as far as they are among the next 256 completions.
    ///
    /// At 0 the next message finds no receive: a connected peer sends it again later (RNR), and a datagram is
    /// dropped. [`Context::out_of_buffer`](crate::Context::out_of_buffer) counts both.
    pub low_water: Option<u32>,
    /// CQEs whose signature was checked, see [`Receiver::verify_cqes`].
    pub verified_cqes: u64,
    /// CQEs whose signature was wrong.
    pub wrong_cqes: u64,
    /// Queue pairs that ended with [`QpEnd::LastWqeMissing`](crate::QpEnd::LastWqeMissing): so many receives may be
    /// lost to their SRQs.
    pub last_wqe_missing: u64,
}

/// The order of the receives of an SRQ on the direct path, from [`Receiver::srq_statistics`].
///
/// ```
/// # let mut world = doorbell_doc::World::new();
/// # let (receiver, srq) = (&mut world.receiver, world.srq);
/// let before = receiver.srq_statistics(srq).expect("the direct path");
/// # world.send(b"hello");
/// # let receiver = &mut world.receiver;
/// while receiver.poll().next().is_some() {}
/// let now = receiver.srq_statistics(srq).expect("the direct path");
/// println!("{:.2} of the links lead to the next slot", now.adjacent_since(&before));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqStatistics {
    /// Receives posted to the device, modulo 2^32.
    pub posted: u32,
    /// Posted receives whose link leads to another slot than the next in memory, modulo 2^32. Each may cost the adapter
    /// a fetch.
    pub jumps: u32,
    /// Receives that [wait](crate::SrqConfig#receives-that-wait) for an older one.
    pub waiting: u32,
}

impl SrqStatistics {
    /// Returns the share of the receives posted since `before` that the next in memory follows: 1.0 if each does, or if
    /// none was posted.
    pub fn adjacent_since(&self, before: &Self) -> f64 {
        let posted = self.posted.wrapping_sub(before.posted);
        1.0 - f64::from(self.jumps.wrapping_sub(before.jumps)) / f64::from(posted.max(1))
    }
}

impl<M: Memory> Receiver<M> {
    /// Returns in which order the receives of an SRQ were posted; `None` on the verbs path, with a
    /// [patience](crate::SrqConfig::patience) of 0, and if there is no such SRQ.
    pub fn srq_statistics(&self, srq: SrqId) -> Option<SrqStatistics> {
        let RecvQueue::Ordered(srq) = self.find(srq.0)? else { return None };
        let ring = &srq.ring;
        Some(SrqStatistics { posted: ring.posted(), jumps: ring.jumps(), waiting: ring.waiting() })
    }

    /// Starts counting; see [`statistics`](Self::statistics).
    pub fn enable_statistics(&mut self) {
        self.maintenance_mut();
    }

    /// Counts a QP whose receives may be lost to their SRQ.
    pub(in super::super) fn count_end(&mut self, end: QpEnd) {
        if let (Some(work), QpEnd::LastWqeMissing) = (&mut self.maintenance, end) {
            work.counted.last_wqe_missing += 1;
        }
    }

    /// Returns the counters since [`enable_statistics`](Self::enable_statistics), or since the first `keep_filled`,
    /// limit or [`SharedPoster`](crate::SharedPoster); `None` before.
    ///
    /// They follow from the indices of the rings, once per batch: a message costs nothing.
    pub fn statistics(&self) -> Option<Statistics> {
        let work = self.maintenance.as_ref()?;
        let mut counted = work.counted;
        counted.end_poll(self.cq.poller.taken().wrapping_sub(work.seen));
        let outstanding: u64 = self.ids().map(|queue| u64::from(self.outstanding(queue))).sum();
        counted.posted = counted.received + outstanding;
        Some(counted)
    }
}

impl Statistics {
    /// Counts the batch before, if there was one, which took `count` completions.
    pub(super) fn end_poll(&mut self, count: u32) {
        self.received += u64::from(count);
        if self.polls > 0 && count == 0 {
            self.empty_polls += 1;
        }
    }
}
