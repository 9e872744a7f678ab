//! Striding receive queue (multi-packet RQ): many frames in one WQE.
//!
//! The buffer of a WQE is cut into strides. The device fills the WQEs in order, and the strides of each in order: a CQE
//! names the WQE, the first stride of its frame, and how many strides the frame takes. What does not fit into the rest
//! of a WQE goes to the next one, and a *filler* CQE says how many strides stay empty. A WQE has completed with its last
//! stride; its slot is held from then on, and given back as on a plain [`ReceiveQueue`].

use core::ptr::NonNull;

use mlx5_wire::frame::{StrideCount, StridingWqe};

use crate::completion::{Cqe, CqeKind};
use crate::receive::ReceiveRing;
use crate::rq::{Layout, LayoutError, ReceiveQueue};
use crate::slots::Slot;

/// How the buffer of each WQE is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// Strides of a WQE: a power of two below 2^14, because a CQE has 14 bits for the count of them.
    pub count: u32,
    /// Bytes of a stride: a power of two.
    pub size: u32,
}

impl Strides {
    /// Returns the bytes of all strides of a WQE.
    pub const fn bytes(&self) -> u32 {
        self.count * self.size
    }

    const fn check(&self) -> bool {
        self.count.is_power_of_two()
            && self.count <= StrideCount::MAX_STRIDES
            && self.size.is_power_of_two()
            && self.size <= 1 << 16
    }
}

/// A striding receive queue; `T` is what the caller gets back with each WQE.
#[derive(Debug)]
pub struct StridingQueue<T: Copy> {
    ring: ReceiveQueue<T>,
    strides: Strides,
    /// Running index of the WQE that the device fills.
    current: u16,
    /// Strides of it that were completed.
    consumed: u32,
    /// Its slot, which is posted, unless nothing of it was completed.
    slot: u32,
}

/// What a CQE means for a striding receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A frame has arrived.
    Frame(Place),
    /// Strides without a frame; the WQE has completed if a slot is named, which is held then.
    Filler(Option<u32>),
    /// A receive failed. The WQE, all of whose strides are over, was in this slot, which is held.
    Failed(u32),
    /// The CQE is not of a receive.
    NotAReceive,
    /// The CQE cannot be true: the device does not fill that WQE, or not that stride of it. Nothing was changed.
    Stray,
}

/// Where a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Slot of the WQE.
    pub slot: u32,
    /// First byte of the frame in the buffer of the WQE.
    pub offset: u32,
    /// Bytes of the frame, which are in the strides that it takes.
    pub len: u32,
    /// The WQE has completed: its slot is held.
    pub is_last: bool,
}

impl<T: Copy> StridingQueue<T> {
    /// Takes over a striding receive queue to which nothing was posted.
    ///
    /// # Errors
    /// [`LayoutError`].
    ///
    /// # Safety
    /// - That of [`ReceiveQueue::new`].
    /// - The device cuts the buffer of each WQE as `strides` says.
    pub unsafe fn new(
        layout: Layout,
        strides: Strides,
        slots: NonNull<Slot<T>>,
    ) -> Result<Self, LayoutError> {
        if !strides.check() {
            return Err(LayoutError::Stride);
        }
        // SAFETY: the caller's contract; the data segment is at a multiple of 16.
        let ring = unsafe { ReceiveQueue::with_lead(layout, StridingWqe::DATA as u32, slots) }?;
        for slot in 0..layout.wqe_cnt as usize {
            // SAFETY: the next segment of a WQE, which starts it and is not the device's yet.
            unsafe {
                let next = layout.buf.add(slot * layout.stride as usize);
                next.cast::<[u64; 2]>().write_volatile([0; 2]);
            }
        }
        Ok(Self { ring, strides, current: 0, consumed: 0, slot: 0 })
    }

    /// Returns the queue of WQEs: for posting, and for giving slots back.
    #[inline(always)]
    pub const fn ring(&self) -> &ReceiveQueue<T> {
        &self.ring
    }

    /// As [`ring`](Self::ring), to change it.
    ///
    /// # Safety
    /// The value is not replaced by another one, and WQEs are completed by [`complete`](Self::complete) alone. Each WQE
    /// that is posted has one buffer, of [`Strides::bytes`].
    #[inline(always)]
    pub const unsafe fn ring_mut(&mut self) -> &mut ReceiveQueue<T> {
        &mut self.ring
    }

    /// Returns how the buffers are cut.
    pub const fn strides(&self) -> Strides {
        self.strides
    }

    /// Completes the strides that `cqe` names.
    #[inline(always)]
    pub fn complete(&mut self, cqe: Cqe<'_>) -> Completion {
        if cqe.kind() != CqeKind::Send {
            return self.complete_other(cqe);
        }
        let count = cqe.stride_count();
        let (first, len) = (u32::from(cqe.wqe_counter()), count.len());
        let end = self.consumed + count.strides();
        // The frame is in strides that no CQE before has named. 16 bits of each factor and of the length: no overflow.
        let is_inside = first >= self.consumed
            && first * self.strides.size + len <= end * self.strides.size
            || count.is_filler();
        let is_next = cqe.wqe_id() == self.current && end > self.consumed;
        if !is_next || !is_inside || end > self.strides.count {
            return Completion::Stray;
        }
        if self.consumed == 0 {
            let Some(slot) = self.ring.posted_slot(self.current) else { return Completion::Stray };
            self.slot = slot;
        }
        let slot = self.slot;
        self.consumed = end;
        let is_last = end == self.strides.count;
        if is_last {
            self.finish();
        }
        if count.is_filler() {
            return Completion::Filler(is_last.then_some(slot));
        }
        Completion::Frame(Place { slot, offset: first * self.strides.size, len, is_last })
    }

    /// Completes the WQE that the device fills, which `slot` names.
    #[inline(always)]
    fn finish(&mut self) {
        // SAFETY: `posted_slot` returned it, and only this function and a reset end that.
        unsafe { self.ring.hold(self.slot) };
        self.current = self.current.wrapping_add(1);
        self.consumed = 0;
    }

    #[cold]
    fn complete_other(&mut self, cqe: Cqe<'_>) -> Completion {
        match cqe.kind() {
            // An error is the end of its WQE, which it does not name.
            CqeKind::Failed => match self.ring.posted_slot(self.current) {
                Some(slot) => {
                    self.slot = slot;
                    self.finish();
                    Completion::Failed(slot)
                }
                None => Completion::Stray,
            },
            CqeKind::NotAReceive => Completion::NotAReceive,
            _ => Completion::Stray,
        }
    }

    /// Takes every WQE back, as the device did: its WQ was reset or destroyed. Calls `each` as
    /// [`ReceiveQueue::reset`] does.
    pub fn reset(&mut self, each: impl FnMut(T)) {
        self.ring.reset(each);
        (self.current, self.consumed) = (0, 0);
    }
}

#[cfg(test)]
mod tests;
