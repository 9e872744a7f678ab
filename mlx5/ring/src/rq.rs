//! Receive queue of one QP: a ring of scatter lists.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use mlx5_wire::be::Be32;
use mlx5_wire::data::DataSegment;
use mlx5_wire::dbrec;

use crate::barrier;
use crate::dbrec::DoorbellRecord;
use crate::sge::{self, Sge};
use crate::slots::{self, Slots};

/// Where a receive queue is, as `mlx5dv_init_obj` reports it in `struct mlx5dv_qp`.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// First WQE.
    pub buf: NonNull<u8>,
    /// Receive word of the doorbell record.
    pub dbrec: NonNull<Be32>,
    /// Number of WQEs.
    pub wqe_cnt: u32,
    /// Bytes from one WQE to the next.
    pub stride: u32,
}

/// Why a receive queue cannot be driven directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// The number of WQEs is not a power of two between 1 and 32,768.
    SlotCount,
    /// The stride is not a power of two with room for a data segment.
    Stride,
}

impl Layout {
    /// SGEs that a WQE has room for.
    pub const fn max_sge(&self) -> u32 {
        self.stride / 16
    }

    /// Whether [`ReceiveQueue::new`] can take it.
    pub const fn check(&self) -> Result<(), LayoutError> {
        // `wqe_counter` has 16 bits and must tell a slot from the same slot one lap later.
        if !self.wqe_cnt.is_power_of_two() || self.wqe_cnt > 1 << 15 {
            return Err(LayoutError::SlotCount);
        }
        if !self.stride.is_power_of_two() || self.stride < 16 {
            return Err(LayoutError::Stride);
        }
        Ok(())
    }
}

/// Memory of the caller's in which a queue of `wqe_cnt` WQEs keeps its books.
#[derive(Clone, Copy, Debug)]
pub struct Storage<T> {
    /// `wqe_cnt` bytes.
    pub states: NonNull<u8>,
    /// `wqe_cnt` values.
    pub data: NonNull<MaybeUninit<T>>,
}

/// Why a receive was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// No slot is free.
    Full,
    /// More SGEs than a WQE has room for.
    TooManySges,
}

/// A receive queue; `T` is what the caller wants back with each completion.
#[derive(Debug)]
pub struct ReceiveQueue<T> {
    wqes: NonNull<u8>,
    stride_shift: u32,
    max_sge: u32,
    dbrec: DoorbellRecord,
    /// Running index of the next WQE.
    pub(crate) head: u32,
    /// The head that the device knows.
    rung: u32,
    /// Running index of the next completion, if all stay in order.
    pub(crate) tail: u16,
    pub(crate) slots: Slots<T>,
}

// SAFETY: the queue owns its slots by the contract of `new`.
unsafe impl<T: Send> Send for ReceiveQueue<T> {}

impl<T: Copy> ReceiveQueue<T> {
    /// Takes over a fresh receive queue.
    ///
    /// # Errors
    /// See [`LayoutError`].
    ///
    /// # Safety
    /// `layout` describes a receive queue to which nothing was posted since its QP was created or reset,
    /// and to which nobody else posts; its buffer and doorbell record stay mapped, and `storage` valid
    /// and untouched by others, for as long as the queue exists.
    pub unsafe fn new(layout: Layout, storage: Storage<T>) -> Result<Self, LayoutError> {
        layout.check()?;
        // SAFETY: forwarded from the caller.
        let (dbrec, slots) = unsafe {
            (
                DoorbellRecord::new(layout.dbrec),
                Slots::new(storage.states, storage.data, layout.wqe_cnt),
            )
        };
        Ok(Self {
            wqes: layout.buf,
            stride_shift: layout.stride.trailing_zeros(),
            max_sge: layout.max_sge(),
            dbrec,
            head: 0,
            rung: 0,
            tail: 0,
            slots,
        })
    }

    /// WQEs that can be posted at once.
    pub const fn slots(&self) -> u32 {
        self.slots.mask() + 1
    }

    /// SGEs that a WQE has room for.
    pub const fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Running index of the next WQE; its lower 16 bits stand in the doorbell record.
    pub const fn head(&self) -> u32 {
        self.head
    }

    /// What software remembers of the slots.
    pub const fn book(&self) -> &Slots<T> {
        &self.slots
    }

    #[inline(always)]
    pub(crate) fn segments(&self, slot: u32) -> NonNull<DataSegment> {
        let offset = ((slot & self.slots.mask()) as usize) << self.stride_shift;
        // SAFETY: the slot is masked to the buffer.
        unsafe { self.wqes.add(offset).cast() }
    }

    /// Starts a batch of posts; the doorbell rings when it is dropped.
    #[inline(always)]
    pub fn posting(&mut self) -> Posting<'_, T> {
        Posting { head: self.head, queue: self }
    }

    /// The completion of WQE `wqe_counter`: its slot, which is the caller's until
    /// [`release`](Self::release) or [`recycle`](Self::recycle). `None` when no such WQE is posted.
    pub fn complete(&mut self, wqe_counter: u16) -> Option<u32> {
        let slot = u32::from(wqe_counter) & self.slots.mask();
        // Of the indices that share a slot only the one posted last can complete.
        let age = (self.head as u16).wrapping_sub(wqe_counter);
        if age == 0 || u32::from(age) > self.slots() || self.slots.state(slot) != slots::POSTED {
            return None;
        }
        self.slots.set_state(slot, slots::HELD);
        self.tail = wqe_counter.wrapping_add(1);
        Some(slot)
    }

    /// Gives a completed slot back without its buffer.
    ///
    /// # Safety
    /// `slot` came from [`complete`](Self::complete) and was not given back since.
    pub unsafe fn release(&mut self, slot: u32) {
        debug_assert_eq!(self.slots.state(slot), slots::HELD);
        self.slots.set_state(slot, slots::EMPTY);
    }

    /// Gives a completed slot back with its buffer, and posts what can be posted, for which
    /// [`ring`](Self::ring) rings. Nothing, when an earlier slot is still with the device: the buffer then
    /// follows it.
    ///
    /// # Safety
    /// As [`release`](Self::release); and the buffer is the device's again, as with [`Posting::post`].
    pub unsafe fn recycle(&mut self, slot: u32) {
        self.slots.set_state(slot, slots::LOADED);
        loop {
            let cursor = self.head & self.slots.mask();
            match self.slots.state(cursor) {
                slots::LOADED => {}
                slots::EMPTY if self.slots.state(slot) == slots::LOADED => {
                    self.copy_wqe(slot, cursor);
                    self.slots.set_state(slot, slots::EMPTY);
                }
                _ => return,
            }
            self.slots.set_state(cursor, slots::POSTED);
            self.head = self.head.wrapping_add(1);
        }
    }

    /// Posts loaded slots from `head` on; returns the new head.
    #[cold]
    #[inline(never)]
    fn post_loaded(&mut self, mut head: u32) -> u32 {
        while self.slots.state(head) == slots::LOADED {
            self.slots.set_state(head, slots::POSTED);
            head = head.wrapping_add(1);
        }
        head
    }

    fn copy_wqe(&mut self, from: u32, to: u32) {
        // SAFETY: both slots are free and distinct; each has `max_sge` segments. `from` was posted, so
        // its data is initialised.
        unsafe {
            let (source, target) = (self.segments(from), self.segments(to));
            source.copy_to_nonoverlapping(target, self.max_sge as usize);
            self.slots.set_data(to, self.slots.data(from));
        }
    }

    /// Hands the WQEs posted since the last doorbell to the device.
    #[inline(always)]
    pub fn ring(&mut self) {
        if self.rung == self.head {
            return;
        }
        self.rung = self.head;
        barrier::wqe_before_doorbell_record();
        self.dbrec.write(dbrec::work_queue(self.head));
    }

    /// The QP went to RESET, which zeroes both words of its doorbell record: starts over from index 0.
    /// `f` gets the data of each slot that held a buffer.
    pub fn reset(&mut self, mut f: impl FnMut(T)) {
        for slot in 0..self.slots() {
            let state = self.slots.state(slot);
            self.slots.set_state(slot, slots::EMPTY);
            if matches!(state, slots::LOADED | slots::POSTED) {
                // SAFETY: a loaded or posted slot has data.
                f(unsafe { self.slots.data(slot) });
            }
        }
        self.head = 0;
        self.rung = 0;
        self.tail = 0;
    }
}

/// Posts to a receive queue; dropping it rings the doorbell once for all WQEs written.
#[derive(Debug)]
pub struct Posting<'a, T: Copy> {
    queue: &'a mut ReceiveQueue<T>,
    head: u32,
}

impl<T: Copy> Posting<'_, T> {
    /// Posts one receive and returns its running index, whose lower 16 bits are the `wqe_counter` of its
    /// completion.
    ///
    /// # Errors
    /// [`PostError::Full`] or [`PostError::TooManySges`]; nothing was written then, and the WQEs posted
    /// before stay posted.
    ///
    /// # Safety
    /// Each SGE names memory that its `lkey` covers and that nobody reads or writes until the WQE has
    /// completed or the QP is reset or destroyed. When the QP has scatter-to-CQE on, each `addr` is also
    /// where this process sees that memory.
    #[inline(always)]
    pub unsafe fn post(&mut self, data: T, sges: &[Sge]) -> Result<u32, PostError> {
        if sges.len() > self.queue.max_sge as usize {
            return Err(PostError::TooManySges);
        }
        if self.queue.slots.state(self.head) != slots::EMPTY {
            self.head = self.queue.post_loaded(self.head);
            if self.queue.slots.state(self.head) != slots::EMPTY {
                return Err(PostError::Full);
            }
        }
        let index = self.head;
        // SAFETY: the slot is free and the doorbell has not been rung; the length was checked.
        unsafe { sge::scatter(self.queue.segments(index), self.queue.max_sge, sges) }
        self.queue.slots.set_data(index, data);
        self.queue.slots.set_state(index, slots::POSTED);
        self.head = index.wrapping_add(1);
        Ok(index)
    }

    /// WQEs written so far, which the doorbell will cover.
    pub const fn posted(&self) -> u32 {
        self.head.wrapping_sub(self.queue.head)
    }
}

impl<T: Copy> Drop for Posting<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.head = self.head;
        self.queue.ring();
    }
}

#[cfg(test)]
mod tests;
