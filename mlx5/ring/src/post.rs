//! Posting receives, many with one doorbell.

use core::num::NonZero;
use core::ptr::NonNull;

use mlx5_wire::data::DataSegment;

use crate::ring::{Ring, Step};
use crate::sge::{self, Sge};
use crate::slots::Slots;

/// Why a receive was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// No slot is free.
    Full,
    /// More SGEs than a WQE has room for.
    TooManySges,
}

/// Posts to a queue; dropping it rings the doorbell once for all WQEs written.
///
/// Slots up to `limit` are free and follow each other, so posting into them is writing and counting. The
/// queue is told at the end; until then nothing outside this value has changed.
#[derive(Debug)]
pub struct Posting<'a, Q: Ring> {
    queue: &'a mut Q,
    slots: Slots<Q::Data>,
    max_sge: NonZero<u32>,
    /// Next slot, and its WQE.
    slot: usize,
    wqe: NonNull<u8>,
    /// Slot at which counting ends.
    limit: usize,
    /// WQEs that were posted before.
    before: u32,
}

impl<'a, Q: Ring> Posting<'a, Q> {
    #[inline(always)]
    pub(crate) fn new(queue: &'a mut Q) -> Self {
        let (slot, limit) = queue.span();
        Self {
            slots: queue.book().view(),
            max_sge: queue.max_sge(),
            slot: slot as usize,
            wqe: queue.wqe(slot),
            limit: limit as usize,
            before: queue.posted(),
            queue,
        }
    }

    /// Posts one receive. Returns its slot on an SRQ, its running index on a receive queue: the lower 16
    /// bits are the `wqe_counter` of its completion.
    ///
    /// # Errors
    /// [`PostError::Full`] or [`PostError::TooManySges`]; nothing was written then, and the WQEs posted
    /// before stay posted.
    ///
    /// # Safety
    /// Each SGE names memory that its `lkey` covers and that nobody reads or writes until the WQE has
    /// completed, the QP of the receive queue is reset or destroyed, or the SRQ is destroyed. When a QP of
    /// the queue has scatter-to-CQE on, each `addr` is also where this process sees that memory.
    #[inline(always)]
    pub unsafe fn post(&mut self, data: Q::Data, sges: &[Sge]) -> Result<u32, PostError> {
        if sges.len() > self.max_sge.get() as usize {
            return Err(PostError::TooManySges);
        }
        if self.slot == self.limit {
            // SAFETY: the caller's contract; the length was checked.
            return unsafe { self.post_at_limit(data, sges) };
        }
        let slot = self.slot;
        // SAFETY: the slot is free, and the doorbell has not been rung.
        unsafe { self.write(slot, self.wqe, data, sges) };
        self.advance();
        Ok(self.queue.index(slot as u32))
    }

    /// Posts one receive of memory that is described as the device reads it.
    ///
    /// # Errors
    /// As with [`post`](Self::post).
    ///
    /// # Safety
    /// As [`post`](Self::post); and each segment names at least one byte.
    #[inline(always)]
    pub unsafe fn post_segments<const N: usize>(
        &mut self,
        data: Q::Data,
        segments: [DataSegment; N],
    ) -> Result<(), PostError> {
        if N > self.max_sge.get() as usize {
            return Err(PostError::TooManySges);
        }
        if self.slot == self.limit {
            let slot = self.step().ok_or(PostError::Full)?;
            // SAFETY: the slot is free, and the doorbell has not been rung; there are not too many segments.
            unsafe { self.write_segments(slot, self.queue.wqe(slot as u32), data, segments) }
        } else {
            // SAFETY: as above.
            unsafe { self.write_segments(self.slot, self.wqe, data, segments) }
            self.advance();
        }
        Ok(())
    }

    /// Posts a receive for each member of `receives`, of memory that is described as the device reads it, as
    /// many as fit: at fewer instructions than one by one.
    ///
    /// # Errors
    /// As with [`post`](Self::post), and how many were posted before.
    ///
    /// # Safety
    /// As [`post`](Self::post), for each; and each segment names at least one byte.
    #[inline(always)]
    pub unsafe fn post_each<R, const N: usize>(
        &mut self,
        receives: &[R],
        describe: impl Fn(&R) -> (Q::Data, [DataSegment; N]),
    ) -> Result<(), (usize, PostError)> {
        if N > self.max_sge.get() as usize {
            return Err((0, PostError::TooManySges));
        }
        let mut left = receives;
        loop {
            let (run, later) = left.split_at(left.len().min(self.limit - self.slot));
            // SAFETY: the caller's contract; the slots are free, and there are not too many segments.
            unsafe { self.write_run(run, &describe) }
            left = later;
            if left.is_empty() {
                return Ok(());
            }
            let (data, segments) = describe(&left[0]);
            // SAFETY: as above.
            if let Err(error) = unsafe { self.post_segments(data, segments) } {
                return Err((receives.len() - left.len(), error));
            }
            left = &left[1..];
        }
    }

    /// Writes receives into the slots that come next.
    ///
    /// # Safety
    /// There are as many in the run; else as [`write_segments`](Self::write_segments).
    #[inline(always)]
    unsafe fn write_run<R, const N: usize>(
        &mut self,
        run: &[R],
        describe: &impl Fn(&R) -> (Q::Data, [DataSegment; N]),
    ) {
        for receive in run {
            let (data, segments) = describe(receive);
            // SAFETY: the caller's contract.
            unsafe { self.write_segments(self.slot, self.wqe, data, segments) }
            self.advance();
        }
    }

    /// # Safety
    /// `wqe` is the WQE of `slot`, which the device does not read now, and `N <= max_sge`.
    #[inline(always)]
    unsafe fn write_segments<const N: usize>(
        &mut self,
        slot: usize,
        wqe: NonNull<u8>,
        data: Q::Data,
        segments: [DataSegment; N],
    ) {
        debug_assert!(segments.iter().all(|segment| segment.byte_count.get() != 0));
        // SAFETY: the caller's contract.
        unsafe {
            sge::scatter_exactly(wqe.add(Q::LEAD).cast(), self.max_sge.get(), segments);
            self.slots.set_data_at(slot, data);
        }
    }

    /// The next slot of the run was written.
    #[inline(always)]
    fn advance(&mut self) {
        self.slot += 1;
        // SAFETY: at most the end of the last WQE.
        self.wqe = unsafe { self.wqe.add(self.queue.stride()) };
    }

    /// # Safety
    /// As [`post`](Self::post); there are not too many SGEs.
    #[inline(always)]
    unsafe fn post_at_limit(&mut self, data: Q::Data, sges: &[Sge]) -> Result<u32, PostError> {
        let slot = self.step().ok_or(PostError::Full)?;
        // SAFETY: the slot is free, and the doorbell has not been rung.
        unsafe { self.write(slot, self.queue.wqe(slot as u32), data, sges) };
        Ok(self.queue.index(slot as u32))
    }

    /// The slot to write when the run is used up, and goes on behind it. `None` when no slot is free.
    #[inline(always)]
    fn step(&mut self) -> Option<usize> {
        let step = step(self.queue, self.slot as u32);
        (self.slot, self.limit) = (step.next as usize, step.limit as usize);
        self.wqe = self.queue.wqe(step.next);
        (step.slot != Step::FULL).then_some(step.slot as usize)
    }

    /// # Safety
    /// `wqe` is the WQE of `slot`, which the device does not read now; at most `max_sge` SGEs.
    #[inline(always)]
    unsafe fn write(&mut self, slot: usize, wqe: NonNull<u8>, data: Q::Data, sges: &[Sge]) {
        // SAFETY: the caller's contract.
        unsafe {
            sge::scatter(wqe.add(Q::LEAD).cast(), self.max_sge.get(), sges);
            self.slots.set_data_at(slot, data);
        }
    }

    /// WQEs written so far, which the doorbell will cover.
    #[inline(always)]
    pub fn posted(&self) -> u32 {
        let (start, _) = self.queue.span();
        self.queue.posted().wrapping_add(self.slot as u32 - start).wrapping_sub(self.before)
    }
}

impl<Q: Ring> Drop for Posting<'_, Q> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.commit(self.slot as u32);
        self.queue.ring();
    }
}

/// Where free slots follow each other in no order, this is what each WQE takes, so it calls nothing.
#[inline(never)]
extern "C" fn step<Q: Ring>(queue: &mut Q, upto: u32) -> Step {
    match queue.hop(upto) {
        Some(next) => Step { slot: upto, next, limit: next },
        None => step_farther(queue, upto),
    }
}

#[cold]
#[inline(never)]
extern "C" fn step_farther<Q: Ring>(queue: &mut Q, upto: u32) -> Step {
    queue.step(upto)
}
