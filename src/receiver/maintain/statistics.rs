//! What a receiver counts.

use super::super::Receiver;

/// What a [`Receiver`] has counted, see [`Receiver::statistics`].
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
    /// Receives handed to the device: those that have completed and those that are outstanding. What a reset
    /// or the end of a queue took back is not among them.
    pub posted: u64,
    /// Completions taken, failed ones included.
    pub received: u64,
    /// Batches.
    pub polls: u64,
    /// Batches in which nothing was taken.
    pub empty_polls: u64,
    /// Times that a queue was below its watermark and buffers were posted.
    pub refills: u64,
    /// Least number of receives that the device had of a queue with a watermark or a [`SharedPoster`](crate::SharedPoster) at the
    /// start of a batch, before anything was done about it; `None` when there is no such queue. Receives that have
    /// completed and wait to be polled are not among them, as far as the next 256 completions show.
    ///
    /// At 0 the next message meets no receive: a connection retries it later (RNR), and a datagram is dropped. The
    /// device counts both, see [`Context::out_of_buffer`](crate::Context::out_of_buffer).
    pub low_water: Option<u32>,
    /// Messages of which cache lines were prefetched, see
    /// [`ReceiverConfig::prefetch`](crate::ReceiverConfig::prefetch). One that waits for several batches is
    /// counted in each.
    pub prefetched: u64,
    /// CQEs whose signature was checked, see [`ReceiverConfig::verify_cqes`](crate::ReceiverConfig::verify_cqes).
    pub verified_cqes: u64,
    /// Those among them whose signature was wrong.
    pub wrong_cqes: u64,
    /// Queue pairs that ended without the report of their last receive, see
    /// [`QpEnd::LastWqeMissing`](crate::QpEnd::LastWqeMissing): so many receives may be lost to their SRQs.
    pub last_wqe_missing: u64,
}

impl Receiver {
    /// Starts counting; see [`statistics`](Self::statistics).
    pub fn enable_statistics(&mut self) {
        let seen = self.completions_taken();
        if self.maintenance.is_none() {
            self.maintenance_mut().seen = seen;
        }
    }

    pub(in super::super) fn count_missing_last_wqe(&mut self) {
        if let Some(work) = &mut self.maintenance {
            work.counted.last_wqe_missing += 1;
        }
    }

    /// What was counted since [`enable_statistics`](Self::enable_statistics), or since the first watermark, limit or
    /// [`SharedPoster`](crate::SharedPoster); `None` before.
    ///
    /// The counts follow from the indices of the rings, once per batch: a message costs nothing.
    pub fn statistics(&self) -> Option<Statistics> {
        let work = self.maintenance.as_ref()?;
        let mut counted = work.counted;
        counted.end_poll(self.completions_taken().wrapping_sub(work.seen));
        counted.posted = counted.received + self.all_outstanding();
        Some(counted)
    }

    fn all_outstanding(&self) -> u64 {
        self.ids().map(|queue| u64::from(self.outstanding(queue))).sum()
    }
}

impl Statistics {
    /// The batch before, if there was one, took `count` completions.
    pub(super) fn end_poll(&mut self, count: u32) {
        self.received += u64::from(count);
        if self.polls > 0 && count == 0 {
            self.empty_polls += 1;
        }
    }
}
