//! The ring itself: basic blocks, how far they are used, and the doorbell.

use core::ptr::NonNull;

use mlx5_wire::be::Be64;
use mlx5_wire::ctrl::{ControlSegment, SEND_WQE_BB};
use mlx5_wire::dbrec;

use super::{Layout, LayoutError};
use crate::barrier;
use crate::dbrec::DoorbellRecord;
use crate::uar::Register;

/// The basic blocks of a send queue, counted from when the QP left RESET. The lower 16 bits of a count are the index
/// that the device knows.
#[derive(Debug)]
pub struct BasicBlocks {
    buf: NonNull<u8>,
    /// The address after the last block.
    end: NonNull<u8>,
    pub(super) mask: u32,
    dbrec: DoorbellRecord,
    register: Register,
    /// The number of the QP, as the first word of each control segment has it.
    pub(super) qpn: u64,
    /// Blocks written.
    pub(super) posted: u32,
    /// First block of the WQE that was written last.
    pub(super) last: u32,
    /// Blocks that the device knows.
    rung: u32,
    /// Count of blocks at which the ring is full: `room` after those of WQEs that have completed.
    pub(super) full_at: u32,
    /// Most blocks that are outstanding: a lap, or fewer.
    pub(super) room: u32,
}

// SAFETY: [exclusive] the blocks are reached through `&mut` only.
unsafe impl Send for BasicBlocks {}

impl BasicBlocks {
    /// Takes over the send queue of a QP to which nothing was posted.
    ///
    /// # Errors
    /// See [`LayoutError`].
    ///
    /// # Safety
    /// `layout` is *exclusive*, see [the module](super).
    pub unsafe fn new(layout: Layout) -> Result<Self, LayoutError> {
        layout.check()?;
        Ok(Self {
            buf: layout.buf,
            // SAFETY: the end of the ring.
            end: unsafe { layout.buf.add(layout.wqe_cnt as usize * SEND_WQE_BB) },
            mask: layout.wqe_cnt - 1,
            // SAFETY: [exclusive] the second of the two words of the record.
            dbrec: unsafe { DoorbellRecord::new(layout.dbrec.add(dbrec::SEND)) },
            // SAFETY: [exclusive] the register as libmlx5 reports it.
            register: unsafe { Register::new(layout.register, layout.register_size) },
            qpn: ControlSegment::first_word(0, 0, layout.qpn, 0),
            posted: 0,
            last: 0,
            rung: 0,
            full_at: layout.wqe_cnt,
            room: layout.wqe_cnt,
        })
    }

    /// Returns the number of blocks.
    #[inline(always)]
    pub const fn count(&self) -> u32 {
        self.mask + 1
    }

    /// Returns the number of blocks that can be written now.
    #[inline(always)]
    pub const fn free_blocks(&self) -> u32 {
        self.full_at.wrapping_sub(self.posted)
    }

    /// Returns the running count of blocks written.
    #[inline(always)]
    pub const fn posted(&self) -> u32 {
        self.posted
    }

    /// Returns the running index of the first block of the last WQE.
    #[inline(always)]
    pub(super) const fn last(&self) -> u32 {
        self.last
    }

    /// Returns the running count of blocks that are free again.
    #[inline(always)]
    pub const fn retired(&self) -> u32 {
        self.full_at.wrapping_sub(self.room)
    }

    /// Returns the address of the block with running index `index`.
    #[inline(always)]
    pub(super) fn block(&self, index: u32) -> NonNull<u8> {
        // SAFETY: `mask` is that of the ring.
        unsafe { block_at(self.buf, self.mask, index) }
    }

    /// Returns the address after the last block.
    #[inline(always)]
    pub(super) const fn end(&self) -> NonNull<u8> {
        self.end
    }

    /// Returns the address of the first block.
    #[inline(always)]
    pub(super) const fn start(&self) -> NonNull<u8> {
        self.buf
    }

    /// Takes note of the next WQE, which has the blocks from running index `start` to `end`.
    #[inline(always)]
    pub(super) const fn advance(&mut self, start: u32, end: u32) {
        (self.last, self.posted) = (start, end);
    }

    /// Takes note that the WQEs before running index `end` have completed.
    #[inline(always)]
    pub(crate) const fn retire(&mut self, end: u32) {
        self.full_at = end.wrapping_add(self.room);
    }

    /// Moves the ring to a count of blocks, all of them retired.
    #[cfg(test)]
    pub(super) const fn jump_to(&mut self, index: u32) {
        self.rung = index;
        self.retire(index);
    }

    /// Starts again. The halves of the register go on in turn. A doorbell that came after the reset of the QP may have
    /// written the record.
    pub(super) fn reset(&mut self) {
        (self.posted, self.last, self.rung) = (0, 0, 0);
        self.retire(0);
        self.dbrec.write(dbrec::work_queue(0));
    }

    /// See [`Register::select_half`].
    #[inline(always)]
    pub(super) const fn select_half(&mut self, offset: usize) -> usize {
        self.register.select_half(offset)
    }

    /// Returns the number of blocks that no doorbell has covered.
    #[inline(always)]
    pub(super) const fn unrung(&self) -> u32 {
        self.posted.wrapping_sub(self.rung)
    }

    /// Returns the running count of blocks that the device knows.
    #[inline(always)]
    pub(super) const fn rung(&self) -> u32 {
        self.rung
    }

    /// Sets bits in the second word of the control segment of the WQE at `block`.
    ///
    /// # Safety
    /// No doorbell has covered it.
    #[inline(always)]
    pub(super) unsafe fn add(block: NonNull<u8>, bits: u64) {
        // SAFETY: the second word of the caller's WQE, which the device does not read yet.
        unsafe {
            let word = block.cast::<Be64>().add(1);
            word.write_volatile(Be64::new(word.read_volatile().get() | bits));
        }
    }

    /// Returns the address of the last WQE, and its first word.
    #[inline(always)]
    pub(super) fn last_wqe(&self) -> (NonNull<u8>, Be64) {
        let last = self.block(self.last);
        // SAFETY: the first word of a WQE; volatile because the device may read it.
        (last, unsafe { last.cast::<Be64>().read_volatile() })
    }

    /// Hands the WQEs written since the last doorbell to the device, if there are any, with the first eight bytes of
    /// the last one.
    #[inline(always)]
    pub fn ring(&mut self) {
        if self.unrung() > 0 {
            self.ring_with(self.last_wqe().1, self.posted);
        }
    }

    /// As [`ring`](Self::ring), when there are such WQEs up to running count `end`, the last of which begins with
    /// `first_word`.
    #[inline(always)]
    pub(super) fn ring_with(&mut self, first_word: Be64, end: u32) {
        self.announce(end);
        self.register.write(first_word);
    }

    /// As [`ring_with`](Self::ring_with), with the whole of the only WQE that no doorbell has covered.
    ///
    /// # Safety
    /// The WQE is at `first` and has the blocks from running index `start` to `end`. A half of the register has room
    /// for it, and the register is as *register* says, see [the module](super).
    #[inline(always)]
    pub(super) unsafe fn ring_blue_flame(&mut self, first: NonNull<u8>, start: u32, end: u32) {
        self.announce(end);
        let Self { buf, mask, register, .. } = self;
        // SAFETY: [register]; the caller's WQE is at `first` and fits in a half; the other blocks are in the ring.
        unsafe {
            let others = (1..end.wrapping_sub(start)).map(|block| block_at(*buf, *mask, start.wrapping_add(block)));
            register.copy(first, others);
        }
    }

    /// Writes the doorbell record of all WQEs up to running count `end`.
    #[inline(always)]
    fn announce(&mut self, end: u32) {
        self.rung = end;
        barrier::wqe_before_doorbell_record();
        self.dbrec.write(dbrec::work_queue(end));
        barrier::doorbell_record_before_uar();
    }
}

/// Returns the address of the block with running index `index`.
///
/// # Safety
/// `buf` is a ring of `mask + 1` blocks.
#[inline(always)]
pub(super) unsafe fn block_at(buf: NonNull<u8>, mask: u32, index: u32) -> NonNull<u8> {
    // SAFETY: the index is masked to the ring.
    unsafe { buf.add((index & mask) as usize * SEND_WQE_BB) }
}
