//! Completion queue: a ring of CQEs that the device writes.

use core::mem::offset_of;
use core::ptr::NonNull;

use mlx5_wire::be::Be32;
use mlx5_wire::cqe::{Cqe64, OWNER};
use mlx5_wire::dbrec;
use mlx5_wire::mini_cqe::MiniCqeFormat;
use mlx5_wire::signature::{fold, is_signed};

use crate::barrier;
use crate::completion::{Cqe, CqeKind, LastWord, kind};
use crate::dbrec::DoorbellRecord;

/// Where a CQ is, as `mlx5dv_init_obj` reports it in `struct mlx5dv_cq`.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// First CQE.
    pub buf: NonNull<u8>,
    /// Doorbell record: consumer index and arm word.
    pub dbrec: NonNull<Be32>,
    /// Number of CQEs.
    pub cqe_cnt: u32,
    /// Bytes of a CQE: 64, or 128 of which the second half is the CQE proper.
    pub cqe_size: u32,
}

/// Why a CQ cannot be polled directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// The number of CQEs is not a power of two up to 2^23.
    CqeCount,
    /// CQEs of neither 64 nor 128 bytes.
    CqeSize,
}

impl Layout {
    /// Checks whether [`CompletionQueue::new`] can take it.
    pub const fn check(&self) -> Result<(), LayoutError> {
        // The consumer index has 24 bits, of which one must distinguish laps.
        if !self.cqe_cnt.is_power_of_two() || self.cqe_cnt > 1 << 23 {
            return Err(LayoutError::CqeCount);
        }
        if self.cqe_size != 64 && self.cqe_size != 128 {
            return Err(LayoutError::CqeSize);
        }
        Ok(())
    }
}

/// A completion queue polled from Rust.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(crate) stride: usize,
    count: u32,
    dbrec: DoorbellRecord,
    /// The last CQE proper of the buffer (for 128-byte CQEs: the second half of the last entry).
    last: NonNull<u8>,
    /// The next CQE, and the owner bit that it has when it is software's: what follows from the consumer index.
    next: NonNull<u8>,
    owner: u8,
    /// CQEs taken since creation.
    consumer_index: u32,
    /// The consumer index that the device knows.
    pub(crate) published: u32,
    /// `[stop]`: a CQE of the buffer. Those before it are taken without a look at the end of the buffer.
    stop: NonNull<u8>,
    pub(crate) compression: Option<MiniCqeFormat>,
}

// SAFETY: the queue is polled through `&mut` only.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    /// Takes over a CQ from which nothing was polled.
    ///
    /// # Errors
    /// See [`LayoutError`].
    ///
    /// # Safety
    /// `layout` describes a CQ that no other code polls, resizes or arms; its buffer and record stay mapped
    /// for as long as the queue exists, and its CQEs were initialised as the driver does (opcode 15).
    pub unsafe fn new(layout: Layout) -> Result<Self, LayoutError> {
        layout.check()?;
        // SAFETY: the offset is inside the first entry.
        let cqes = unsafe { layout.buf.add(layout.cqe_size as usize - Cqe64::SIZE) };
        Ok(Self {
            stride: layout.cqe_size as usize,
            count: layout.cqe_cnt,
            // SAFETY: the caller keeps the record mapped, and no other code polls the CQ.
            dbrec: unsafe { DoorbellRecord::new(layout.dbrec) },
            // SAFETY: inside the last entry.
            last: unsafe { cqes.add((layout.cqe_cnt - 1) as usize * layout.cqe_size as usize) },
            next: cqes,
            owner: 0,
            consumer_index: 0,
            published: 0,
            stop: cqes,
            compression: None,
        })
    }

    /// Number of CQEs.
    pub const fn capacity(&self) -> u32 {
        self.count
    }

    /// CQEs taken since creation (wrapping); the lower 24 bits stand in the doorbell record.
    pub const fn consumer_index(&self) -> u32 {
        self.consumer_index
    }

    /// Returns the number of CQEs that were taken and not [published](Self::publish).
    #[inline(always)]
    pub const fn unpublished(&self) -> u32 {
        self.consumer_index.wrapping_sub(self.published)
    }

    /// Returns `true` if nothing has arrived that was not taken.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.peek().is_none()
    }

    /// Bytes from one CQE to the next: 64 or 128.
    #[inline(always)]
    pub const fn stride(&self) -> usize {
        self.stride
    }

    /// Owner bit of software's CQEs on the lap of `index`.
    #[inline(always)]
    pub(crate) const fn owner(&self, index: u32) -> u8 {
        (index & self.count != 0) as u8 & OWNER
    }

    #[inline(always)]
    pub(crate) fn cqe(&self, index: u32) -> NonNull<u8> {
        let before_last = (!index & (self.count - 1)) as usize * self.stride;
        // SAFETY: the index is masked to the buffer.
        unsafe { self.last.sub(before_last) }
    }

    /// Takes the next CQE, if it has arrived. It stays readable until the consumer index is
    /// [published](Self::publish), and is not seen again, published or not.
    #[expect(clippy::should_implement_trait, reason = "the item borrows from the queue")]
    #[inline]
    pub fn next(&mut self) -> Option<Cqe<'_>> {
        // SAFETY: it is software's until the consumer index is published, which needs `&mut self`.
        let mut cqe = unsafe { self.peek()?.detach() };
        if cqe.kind() == CqeKind::Compressed && self.expand(self.consumer_index) {
            // SAFETY: as above.
            cqe = unsafe { Cqe::read(self.next, self.owner, self.stride).detach() };
        }
        self.advance();
        Some(cqe)
    }

    /// Returns the next CQE, if it has arrived, without taking it. A compressed block shows its title.
    #[inline(always)]
    pub fn peek(&self) -> Option<Cqe<'_>> {
        self.arrived_at(self.next, self.owner)
    }

    /// As [`peek`](Self::peek), and cheaper if the CQE has this `op_own` except for the owner bit, or has not arrived.
    #[inline(always)]
    pub fn peek_likely(&self, op_own: u8) -> Option<Cqe<'_>> {
        // SAFETY: the next CQE of the buffer.
        let last_word = unsafe { LastWord::read(self.next) };
        let kind = if last_word.is(op_own, self.owner) {
            kind(op_own)
        } else if last_word.is_pending(self.owner) {
            return None;
        } else {
            last_word.kind(self.owner)
        };
        barrier::owner_before_cqe();
        // SAFETY: the owner bit says that it is software's.
        Some(unsafe { Cqe::new(self.next, last_word, kind, self.stride) })
    }

    /// Returns the next CQE, without taking it, if it has arrived and has this `op_own` except for the owner bit:
    /// [`REQUESTER`](crate::completion::REQUESTER) or [`SEND`](crate::completion::SEND), say. A caller that expects one
    /// opcode compares one byte, where [`peek`](Self::peek) finds out what came.
    #[inline(always)]
    pub fn peek_only(&self, op_own: u8) -> Option<Cqe<'_>> {
        // SAFETY: the next CQE of the buffer.
        let last_word = unsafe { LastWord::read(self.next) };
        if !last_word.is(op_own, self.owner) {
            return None;
        }
        barrier::owner_before_cqe();
        // SAFETY: the owner bit says that it is software's.
        Some(unsafe { Cqe::new(self.next, last_word, kind(op_own), self.stride) })
    }

    /// Returns `true` if the next CQE is not one of those that [`stop_after`](Self::stop_after) counted.
    #[inline(always)]
    pub fn is_at_stop(&self) -> bool {
        self.next >= self.stop
    }

    /// Has [`is_at_stop`](Self::is_at_stop) return `true` after `count` more CQEs, or earlier at the end of the buffer.
    /// A caller that takes one CQE at a time makes one comparison before it, where [`advance`](Self::advance) and a
    /// count of unpublished CQEs make two.
    #[inline(always)]
    pub fn stop_after(&mut self, count: u32) {
        let stop = self.next.as_ptr().wrapping_add(count as usize * self.stride);
        self.stop = NonNull::new(stop.min(self.last.as_ptr())).unwrap_or(self.last);
    }

    /// As [`advance`](Self::advance), where [`is_at_stop`](Self::is_at_stop) returned `false`.
    ///
    /// # Safety
    /// [`is_at_stop`](Self::is_at_stop) returned `false`, and no CQE was taken since.
    #[inline(always)]
    pub unsafe fn advance_before_stop(&mut self) {
        self.consumer_index = self.consumer_index.wrapping_add(1);
        // SAFETY: [stop]: the next CQE is before another one of the buffer.
        self.next = unsafe { self.next.add(self.stride) };
    }

    /// Takes the CQE that [`peek`](Self::peek) or [`peek_only`](Self::peek_only) returned, which is no title of a
    /// compressed block.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.consumer_index = self.consumer_index.wrapping_add(1);
        if self.next == self.last {
            return self.start_lap();
        }
        // SAFETY: it was not the last CQE of the buffer.
        self.next = unsafe { self.next.add(self.stride) };
    }

    #[cold]
    #[inline(never)]
    fn start_lap(&mut self) {
        self.seek(self.consumer_index);
    }

    /// Goes to the CQE at `index`.
    fn seek(&mut self, index: u32) {
        self.consumer_index = index;
        self.next = self.cqe(index);
        self.owner = self.owner(index);
        self.stop = self.next;
    }

    /// Gives all CQEs that were taken back to the device: stores the consumer index if that changes it.
    ///
    /// Call it before a doorbell that hands over receives, see
    /// [`ReceiveRing`](crate::receive::ReceiveRing#order-with-the-cq).
    #[inline(always)]
    pub fn publish(&mut self) {
        if self.consumer_index != self.published {
            self.published = self.consumer_index;
            barrier::cqe_before_consumer_index();
            self.dbrec.write(dbrec::completion_queue(self.consumer_index));
        }
    }

    /// Shows the next CQEs that have arrived, at most `count`, with their indices, and takes none; returns their
    /// number. It ends before a compressed block, of which only the first CQE is one.
    pub fn look_ahead(&self, count: u32, mut each: impl FnMut(u32, Cqe<'_>)) -> u32 {
        for ahead in 0..count.min(self.count) {
            let index = self.consumer_index.wrapping_add(ahead);
            let cqe = self.arrived(index).filter(|cqe| cqe.kind() != CqeKind::Compressed);
            let Some(cqe) = cqe else { return ahead };
            each(index, cqe);
        }
        count.min(self.count)
    }

    /// Checks the [signatures](mlx5_wire::signature) of the next CQEs that have arrived, at most `count`, and takes
    /// none. Calls `wrong` with the index and the bytes of each whose signature is not that of its index; returns how
    /// many it has checked. It ends before a compressed block, whose arrays have no signature.
    pub fn verify_ahead(&self, count: u32, mut wrong: impl FnMut(u32, [u8; Cqe64::SIZE])) -> u32 {
        self.look_ahead(count, |index, cqe| {
            let bytes = cqe.bytes();
            if !is_signed(&bytes, index) {
                wrong(index, bytes);
            }
        })
    }

    /// Drops every CQE that has arrived and for which `remove` returns `true`, and keeps the order of the others. A
    /// driver does so when a QP is reset or destroyed, because its number may come back.
    pub fn purge(&mut self, mut remove: impl FnMut(Cqe<'_>) -> bool) -> u32 {
        let start = self.consumer_index;
        let mut end = start;
        while end.wrapping_sub(start) < self.count {
            let Some(cqe) = self.arrived(end) else { break };
            if cqe.kind() == CqeKind::Compressed {
                // A CQE that is not a title stays as it is.
                self.expand(end);
            }
            end = end.wrapping_add(1);
        }
        // From the newest to the oldest, so that kept CQEs move towards the producer and each target has
        // been read before it is overwritten.
        let mut removed = 0;
        let mut index = end;
        while index != start {
            index = index.wrapping_sub(1);
            if remove(self.software_cqe(index)) {
                removed += 1;
            } else if removed > 0 {
                // SAFETY: two entries of the buffer, which are software's.
                unsafe {
                    let owner = self.owner(index);
                    self.store(self.entry(index), index, owner, index.wrapping_add(removed));
                }
            }
        }
        if removed > 0 {
            // Moved CQEs stand after all that are given back: no store to a moved one can come too late.
            self.seek(start.wrapping_add(removed));
            self.publish();
        }
        removed
    }

    /// Stores a whole entry at `to`. It was at `from`, on a lap with this owner bit.
    ///
    /// # Safety
    /// `entry` is readable, and apart from the entry at `to`, which is software's.
    unsafe fn store(&mut self, entry: *const u8, from: u32, owner: u8, to: u32) {
        // The signature is over the index and the owner bit: one that was wrong stays wrong.
        let signature = fold(from) ^ fold(to) ^ owner ^ self.owner(to);
        // SAFETY: the caller's `entry` is readable, and the entry at `to` is software's; both bytes are inside the CQE.
        unsafe {
            self.entry(to).copy_from_nonoverlapping(entry, self.stride);
            let cqe = self.cqe(to);
            let op_own = cqe.add(offset_of!(Cqe64, op_own));
            op_own.write_volatile(op_own.read_volatile() & !OWNER | self.owner(to));
            let signed = cqe.add(offset_of!(Cqe64, signature));
            signed.write_volatile(signed.read_volatile() ^ signature);
        }
    }

    /// Returns the start of the entry at `index`, whose CQE proper is its last 64 bytes.
    fn entry(&self, index: u32) -> *mut u8 {
        // SAFETY: inside the entry.
        unsafe { self.cqe(index).sub(self.stride - Cqe64::SIZE).as_ptr() }
    }

    /// Returns the CQE at `index`, if the device has written it.
    #[inline(always)]
    fn arrived(&self, index: u32) -> Option<Cqe<'_>> {
        self.arrived_at(self.cqe(index), self.owner(index))
    }

    /// Returns `cqe`, which is one of the buffer, if the device has written it on the lap with this owner bit.
    #[inline(always)]
    fn arrived_at(&self, cqe: NonNull<u8>, owner: u8) -> Option<Cqe<'_>> {
        // SAFETY: a CQE of the buffer.
        let last_word = unsafe { LastWord::read(cqe) };
        let kind = last_word.kind(owner);
        if kind == CqeKind::Pending {
            return None;
        }
        barrier::owner_before_cqe();
        // SAFETY: the owner bit says that it is software's.
        Some(unsafe { Cqe::new(cqe, last_word, kind, self.stride) })
    }

    /// Returns the CQE at `index`, which is software's.
    pub(crate) fn software_cqe(&self, index: u32) -> Cqe<'_> {
        let cqe = self.cqe(index);
        // SAFETY: a CQE of the buffer; software's until the consumer index is published, which needs `&mut`.
        unsafe { Cqe::read(cqe, self.owner(index), self.stride) }
    }
}

#[cfg(test)]
mod tests;
