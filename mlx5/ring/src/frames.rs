//! Receive queue of Ethernet frames: that of a raw packet QP, or a WQ. No other queue completes on its CQ.
//!
//! WQEs complete in the order of posting. Three running counts say who owns which WQE, so no slot has a state:
//!
//! ```text
//!  posted - slots           completed                posted
//!        |---- held: software's ---|---- the device's ----|
//! ```
//!
//! Each slot has a buffer at any time. A frame is read in place; its WQE is posted again by adding to the count of
//! posted WQEs, which writes no WQE. [`FrameQueue::replace`] writes one: another buffer takes the place of one that
//! frames were taken out of.
//!
//! A *plain* queue has one frame in a WQE. A *striding* one (multi-packet RQ) cuts the buffer of a WQE into strides,
//! which the device fills in order: a CQE names the WQE, the first stride of its frame, and how many strides the frame
//! takes. A frame that does not fit into the rest of a WQE goes to the next one, and a *filler* CQE says how many
//! strides stay empty. A WQE has completed with its last stride.

use core::ptr::NonNull;

use mlx5_wire::data::DataSegment;
use mlx5_wire::dbrec;
use mlx5_wire::frame::{StrideCount, StridingWqe};

use crate::barrier;
use crate::completion::{Cqe, CqeKind};
use crate::dbrec::DoorbellRecord;
use crate::rq::{Layout, LayoutError};
use crate::sge;

/// Use of the buffer of a WQE: one frame, or strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One frame of at most so many bytes.
    Plain(u32),
    /// Strides.
    Striding(Strides),
}

/// How the buffer of each WQE is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// Strides of a WQE: a power of two below 2^14, because a CQE has 14 bits for the count of them.
    pub count: u32,
    /// Bytes of a stride: a power of two.
    pub size: u32,
}

impl Shape {
    /// Returns the bytes of a buffer.
    pub const fn bytes(self) -> u32 {
        let Strides { count, size } = self.strides();
        count * size
    }

    /// Returns how many CQEs a WQE can have.
    pub const fn completions(self) -> u32 {
        self.strides().count
    }

    const fn strides(self) -> Strides {
        match self {
            Self::Plain(size) => Strides { count: 1, size },
            Self::Striding(strides) => strides,
        }
    }

    /// Returns the bytes of a WQE before its data segment; `None` for strides that no CQE can name, or no bytes at all.
    const fn lead(self) -> Option<u32> {
        match self {
            Self::Plain(bytes) if bytes > 0 => Some(0),
            Self::Striding(Strides { count, size })
                if count.is_power_of_two()
                    && count <= StrideCount::MAX_STRIDES
                    && size.is_power_of_two()
                    && size <= 1 << 16 =>
            {
                Some(StridingWqe::DATA as u32)
            }
            _ => None,
        }
    }
}

/// A buffer that a WQE describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameBuffer {
    /// First byte of the buffer.
    pub start: NonNull<u8>,
    /// The caller's number for it.
    pub index: u32,
}

// SAFETY: an address; the memory is not touched here.
unsafe impl Send for FrameBuffer {}

/// Where a frame is. The device does not write there before the WQE is [given back](FrameQueue::recycle).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Running index of the WQE, see [`FrameQueue::buffer`].
    pub wqe: u32,
    /// First byte.
    pub start: NonNull<u8>,
    /// Bytes, all of them in the buffer of the WQE.
    pub len: usize,
}

/// Meaning of a CQE for the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A frame has arrived.
    Frame(Frame),
    /// Strides without a frame.
    Filler,
    /// A receive failed, and its WQE, all of whose strides are over, has completed.
    Failed,
    /// The CQE is not of a receive.
    NotAReceive,
    /// The CQE cannot be true: the device does not fill that WQE, or not that part of it. Nothing was changed.
    Stray,
}

/// A receive queue of frames.
///
/// Invariants, which `SAFETY` comments cite by name:
/// - `[slots]`: `buffers` has an initialised buffer for each slot, and only this value uses it.
/// - `[open]`: unless `limit` is 0, the device fills WQE `completed`. `limit` is then the number of its strides, and
///   `base` the first byte of its buffer.
#[derive(Debug)]
pub struct FrameQueue {
    is_striding: bool,
    /// A plain buffer is one stride.
    strides: Strides,
    /// Running count of WQEs that have completed: the index of the one that the device fills.
    completed: u32,
    /// Running count of posted WQEs.
    posted: u32,
    /// Strides of the WQE that the device fills that are over; see [open].
    consumed: u32,
    limit: u32,
    base: NonNull<u8>,
    buffers: NonNull<FrameBuffer>,
    mask: u32,
    /// CQEs number WQEs modulo the size of the queue, once a CQE has told.
    has_masked_ids: Option<bool>,
    /// The count that the doorbell record has. An empty batch may end in a forked child, which lacks the record.
    rung: u32,
    dbrec: DoorbellRecord,
    /// The data segment of the first WQE.
    segments: NonNull<u8>,
    stride: usize,
    max_sge: u32,
    lkey: u32,
}

// SAFETY: the queue has its WQEs, its record and its slots to itself by the contract of `new`.
unsafe impl Send for FrameQueue {}

impl FrameQueue {
    /// Takes over a receive queue to which nothing was posted, and posts `posted`, a buffer for each slot.
    /// [`ring_doorbell`](Self::ring_doorbell) hands them over.
    ///
    /// # Errors
    /// [`LayoutError`].
    ///
    /// # Panics
    /// When `posted` has fewer buffers than the queue has slots.
    ///
    /// # Safety
    /// - `layout` describes such a queue, to which no other code posts, and whose device cuts buffers as `shape` says;
    ///   its buffer and doorbell record stay mapped for as long as the value exists.
    /// - `slots` is valid for reads and writes of `wqe_cnt` buffers for as long, and no other code uses it.
    /// - Each buffer has [`Shape::bytes`] bytes that `lkey` covers, and that no code reads or writes until its WQE has
    ///   completed, or the queue was reset or destroyed.
    pub unsafe fn new(
        layout: Layout,
        shape: Shape,
        lkey: u32,
        slots: NonNull<FrameBuffer>,
        posted: impl IntoIterator<Item = FrameBuffer>,
    ) -> Result<Self, LayoutError> {
        layout.check()?;
        let Some(lead) = shape.lead().filter(|lead| layout.stride >= lead + 16) else {
            return Err(LayoutError::Stride);
        };
        let mut this = Self {
            is_striding: lead > 0,
            strides: shape.strides(),
            completed: 0,
            posted: 0,
            consumed: 0,
            limit: 0,
            base: layout.buf,
            buffers: slots,
            mask: layout.wqe_cnt - 1,
            has_masked_ids: None,
            rung: 0,
            // SAFETY: the caller keeps the record mapped, and no other code posts to the queue.
            dbrec: unsafe { DoorbellRecord::new(layout.dbrec) },
            // SAFETY: inside the first WQE.
            segments: unsafe { layout.buf.add(lead as usize) },
            stride: layout.stride as usize,
            max_sge: (layout.stride - lead) / 16,
            lkey,
        };
        let mut posted = posted.into_iter();
        for slot in 0..layout.wqe_cnt as usize {
            let buffer = posted.next().expect("a buffer for each slot");
            // SAFETY: a slot and its WQE, which is not the device's yet. A striding one starts with a next segment of
            // zeros.
            unsafe {
                if lead > 0 {
                    let next = layout.buf.add(slot * this.stride);
                    next.cast::<[u64; 2]>().write_volatile([0; 2]);
                }
                this.write(slot as u32, buffer);
            }
        }
        this.posted = layout.wqe_cnt;
        Ok(this)
    }

    /// Writes the WQE and the buffer of a slot.
    ///
    /// # Safety
    /// `slot` is below the number of slots, and not the device's.
    unsafe fn write(&mut self, slot: u32, buffer: FrameBuffer) {
        let addr = buffer.start.as_ptr().expose_provenance() as u64;
        let segment = DataSegment::new(addr, self.strides.count * self.strides.size, self.lkey);
        // SAFETY: [slots]; the caller's `slot` exists and is not the device's, so its WQE is in the buffer and may be
        // written.
        unsafe {
            self.buffers.add(slot as usize).write(buffer);
            let segments = self.segments.add(slot as usize * self.stride).cast();
            sge::write_one(segments, self.max_sge, segment);
        }
    }

    /// Returns the buffer that the WQE with this running index has, or had last.
    #[inline(always)]
    pub fn buffer(&self, wqe: u32) -> FrameBuffer {
        // SAFETY: [slots]; masked.
        unsafe { self.buffers.add((wqe & self.mask) as usize).read() }
    }

    /// Returns the running index of the WQE that the device fills.
    pub const fn completed(&self) -> u32 {
        self.completed
    }

    /// Calls `each` with the buffers that the device may write.
    pub fn posted(&self, each: impl FnMut(FrameBuffer)) {
        let count = self.posted.wrapping_sub(self.completed);
        (0..count).map(|i| self.buffer(self.completed.wrapping_add(i))).for_each(each);
    }

    /// Completes the frame that `cqe` names. Returns `None`, and changes nothing, for what [`complete`](Self::complete)
    /// must look at: all but frames; on a striding queue also the first and the last frame of a WQE, and those after a
    /// filler.
    #[inline(always)]
    pub fn frame(&mut self, cqe: Cqe<'_>) -> Option<Frame> {
        if cqe.kind() != CqeKind::Send {
            return None;
        }
        if self.is_striding { self.next_strides(cqe) } else { self.plain_frame(cqe) }
    }

    #[inline(always)]
    fn plain_frame(&mut self, cqe: Cqe<'_>) -> Option<Frame> {
        let (wqe, len) = (self.completed, cqe.byte_count());
        if cqe.wqe_counter() != wqe as u16 || wqe == self.posted || len > self.strides.size {
            return None;
        }
        self.completed = wqe.wrapping_add(1);
        Some(Frame { wqe, start: self.buffer(wqe).start, len: len as usize })
    }

    /// Completes a frame that starts with the next stride of a WQE and does not end it. The index of the WQE in the CQE
    /// is left to `any_strides`, which takes the first and the last CQE of each WQE: 3 instructions of 48.
    #[inline(always)]
    fn next_strides(&mut self, cqe: Cqe<'_>) -> Option<Frame> {
        let count = cqe.byte_count();
        // The bits above the number of strides, one of which says filler, make it larger than any WQE has.
        let (first, strides, len) = (self.consumed, count >> 16, StrideCount(count).len());
        let end = first + strides;
        if cqe.wqe_counter() != first as u16 || len > strides * self.strides.size || end >= self.limit {
            return None;
        }
        self.consumed = end;
        // SAFETY: [open]: the frame is in the strides from `first` to `end`, which come before `limit`.
        let start = unsafe { self.base.add((first * self.strides.size) as usize) };
        Some(Frame { wqe: self.completed, start, len: len as usize })
    }

    /// Completes what `cqe` names.
    pub fn complete(&mut self, cqe: Cqe<'_>) -> Completion {
        match cqe.kind() {
            CqeKind::NotAReceive => Completion::NotAReceive,
            _ if self.completed == self.posted => Completion::Stray,
            CqeKind::Send if self.is_striding => self.any_strides(cqe),
            CqeKind::Send => self.plain_frame(cqe).map_or(Completion::Stray, Completion::Frame),
            // An error is the end of its WQE, which it does not name on a striding queue.
            CqeKind::Failed if self.is_striding || cqe.wqe_counter() == self.completed as u16 => {
                self.finish(Completion::Failed)
            }
            _ => Completion::Stray,
        }
    }

    /// Completes the strides of a frame or of a filler, of the WQE that the device fills.
    fn any_strides(&mut self, cqe: Cqe<'_>) -> Completion {
        let Strides { count, size } = self.strides;
        let (wqe, strides) = (self.completed, cqe.stride_count());
        let (first, len) = (u32::from(cqe.wqe_counter()), strides.len());
        let end = self.consumed + strides.strides();
        // The frame is in strides that no CQE before has named. 16 bits of each factor and of the length: no overflow.
        let is_inside = first >= self.consumed && first * size + len <= end * size;
        // Adapters are believed to write the running index. DPDK compares only the number of the WQE in its queue.
        let has_masked_id = cqe.wqe_id() != wqe as u16;
        let is_wqe = !has_masked_id || u32::from(cqe.wqe_id()) == wqe & self.mask;
        let is_next = is_wqe && self.consumed < end && end <= count;
        if !is_next || !is_inside && !strides.is_filler() {
            return Completion::Stray;
        }
        if wqe as u16 != (wqe & self.mask) as u16 {
            self.has_masked_ids = Some(has_masked_id);
        }
        let base = self.buffer(wqe).start;
        // A frame after a filler is looked at here, where the caller counts what the filler says was dropped.
        (self.consumed, self.base) = (end, base);
        self.limit = if strides.is_filler() { 0 } else { count };
        let completion = if strides.is_filler() {
            Completion::Filler
        } else {
            // SAFETY: inside of the buffer, which has `count` strides: they were checked above.
            let start = unsafe { base.add((first * size) as usize) };
            Completion::Frame(Frame { wqe, start, len: len as usize })
        };
        if end == count { self.finish(completion) } else { completion }
    }

    /// Returns whether CQEs of a striding queue number WQEs modulo the size of the queue, and not up to 2^16. `None`
    /// until the queue has gone round.
    pub const fn has_masked_ids(&self) -> Option<bool> {
        self.has_masked_ids
    }

    /// Completes the WQE that the device fills, by what is returned.
    fn finish(&mut self, completion: Completion) -> Completion {
        self.completed = self.completed.wrapping_add(1);
        (self.consumed, self.limit) = (0, 0);
        completion
    }

    /// Returns the number of WQEs that have completed and were not given back.
    #[inline(always)]
    pub const fn held(&self) -> u32 {
        self.mask + 1 - self.posted.wrapping_sub(self.completed)
    }

    /// Returns `true` if a WQE is held, or was given back since the last doorbell.
    #[inline(always)]
    pub const fn has_unposted(&self) -> bool {
        self.rung.wrapping_sub(self.completed) != self.mask + 1
    }

    /// Returns the buffer of a held WQE, of which 0 is the oldest.
    pub fn held_buffer(&self, at: u32) -> FrameBuffer {
        self.buffer(self.posted.wrapping_add(at))
    }

    /// Describes another buffer in a held WQE.
    ///
    /// # Panics
    /// When fewer are held.
    #[cold]
    pub fn replace(&mut self, at: u32, buffer: FrameBuffer) {
        assert!(at < self.held(), "WQE {at} of {} that are held", self.held());
        // SAFETY: masked, and held: not the device's. `recycle` asks for what posting its buffer takes.
        unsafe { self.write(self.posted.wrapping_add(at) & self.mask, buffer) }
    }

    /// Posts the oldest `count` of the held WQEs again.
    ///
    /// # Safety
    /// - So many are held.
    /// - For the buffer of each, the last clause of [`new`](Self::new) holds again.
    #[inline(always)]
    pub unsafe fn recycle(&mut self, count: u32) {
        debug_assert!(count <= self.held());
        self.posted = self.posted.wrapping_add(count);
    }

    /// Hands everything posted to the device: stores the doorbell record if that changes it.
    ///
    /// Publish the consumer index of the CQ before, see [`ReceiveRing`](crate::receive::ReceiveRing#order-with-the-cq).
    #[inline(always)]
    pub fn ring_doorbell(&mut self) {
        if self.posted != self.rung {
            self.rung = self.posted;
            barrier::wqe_before_doorbell_record();
            self.dbrec.write(dbrec::work_queue(self.rung));
        }
    }
}

#[cfg(test)]
mod tests;
