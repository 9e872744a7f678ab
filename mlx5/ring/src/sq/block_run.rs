//! Writing WQEs of one basic block each, as list operations of tag matching are, by counting alone.

use core::ptr::NonNull;

use mlx5_wire::be::Be64;
use mlx5_wire::ctrl::{ControlSegment, SEND_WQE_BB};
use mlx5_wire::opcode::WqeOpcode;

use super::BasicBlocks;
use crate::prefetch;

/// Words of a basic block, and those of them after the control segment.
const WORDS: usize = SEND_WQE_BB / 8;
const BODY: usize = WORDS - 2;

impl BasicBlocks {
    /// Returns free blocks that follow each other, `most` at most, for WQEs of one block and this opcode.
    #[inline(always)]
    pub(crate) fn run(&self, opcode: WqeOpcode, most: u32) -> BlockRun {
        let at = self.posted & self.mask;
        let count = self.free_blocks().min(self.count() - at).min(most);
        let first = ControlSegment::first_word(opcode.get(), self.posted as u16, 0, 0) | self.qpn;
        let next = self.block(self.posted).cast::<Be64>();
        // SAFETY: no more blocks than there are up to the end of the ring.
        let end = unsafe { next.add(count as usize * WORDS) };
        BlockRun { next, end, first }
    }

    /// Takes note of the WQEs written to a run, and returns how many are new.
    #[inline(always)]
    pub(crate) fn commit(&mut self, run: BlockRun) -> u16 {
        let written = ControlSegment::index_of(run.first).wrapping_sub(self.posted as u16);
        self.posted = self.posted.wrapping_add(written.into());
        self.last = self.posted.wrapping_sub(1);
        written
    }

    /// Takes note of one WQE that was written to a run which is lost.
    pub(crate) const fn skip(&mut self) {
        self.advance(self.posted, self.posted.wrapping_add(1));
    }
}

/// Free blocks of a send queue, and how far they have been written: what a batch keeps in registers.
///
/// A run ends where the ring ends, so inside of it writing is counting. The blocks learn of the WQEs from
/// [`BasicBlocks::commit`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRun {
    next: NonNull<Be64>,
    end: NonNull<Be64>,
    /// First word of the next control segment, but for the size.
    first: u64,
}

impl BlockRun {
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.next == self.end
    }

    /// Writes a WQE of `2 + body.len()` words. The run is not full.
    ///
    /// # Safety
    /// The operation of the WQE stays sound until the device has executed it.
    #[inline(always)]
    pub(crate) unsafe fn write<const N: usize>(&mut self, body: [Be64; N]) {
        const { assert!(N % 2 == 0 && N <= BODY) }
        debug_assert!(!self.is_full());
        let units = 1 + N as u64 / 2;
        let first = self.first.wrapping_add(units * ControlSegment::UNIT);
        prefetch::ahead(self.next, 1);
        // SAFETY: a block of the ring, which has room for eight words. The device does not read a free block.
        unsafe {
            self.next.write_volatile(Be64::new(first));
            self.next.add(1).write_volatile(Be64::new(0));
            for (i, word) in body.into_iter().enumerate() {
                self.next.add(2 + i).write_volatile(word);
            }
            self.next = self.next.add(WORDS);
        }
        self.first = self.first.wrapping_add(ControlSegment::NEXT_INDEX);
    }
}
