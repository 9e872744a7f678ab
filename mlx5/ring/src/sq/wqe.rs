//! Writing a WQE, unit by unit, around the end of the ring.

use core::ptr::NonNull;

use mlx5_wire::be::{Be32, Be64};
use mlx5_wire::ctrl::{SEND_WQE_BB, UNIT};
use mlx5_wire::inline::InlineHeader;

use super::{BasicBlocks, Payload, Pieces};
use crate::copy;
use crate::sge::{self, Sge};

/// Writes to free blocks from the next one on. The device does not read them before the doorbell record covers
/// them, which a barrier keeps after all of this.
#[derive(Clone, Copy)]
pub(super) struct Writer {
    /// The next byte; before a segment at a unit inside of the ring.
    next: NonNull<u8>,
    start: NonNull<u8>,
    end: NonNull<u8>,
}

impl Writer {
    /// Writes the control segment and the segments in `head`, which stand directly after it, all in the block with
    /// running index `start`, which is at `block`.
    ///
    /// # Safety
    /// The blocks of the WQE, of which the caller writes no more than it has, are free.
    #[inline(always)]
    pub(super) unsafe fn new<H: Copy>(
        blocks: &BasicBlocks,
        start: u32,
        block: NonNull<u8>,
        ctrl: [Be64; 2],
        head: &H,
    ) -> Self {
        // SAFETY: all in one free block, whose words are aligned; the head is copied by bytes.
        unsafe {
            block.cast::<Be64>().write_volatile(ctrl[0]);
            block.cast::<Be64>().add(1).write_volatile(ctrl[1]);
            block.add(UNIT).cast::<H>().write_unaligned(*head);
            let next = match SEND_WQE_BB - UNIT - size_of::<H>() {
                0 => blocks.block(start.wrapping_add(1)),
                _ => block.add(UNIT + size_of::<H>()),
            };
            Self { next, start: blocks.start(), end: blocks.end() }
        }
    }

    /// Writes behind the first `units` units of the WQE with running index `start`, which is at `block`; they are all
    /// in this block.
    ///
    /// # Safety
    /// The blocks of the WQE, of which the caller writes no more than it has, are free.
    #[inline(always)]
    pub(super) unsafe fn behind(blocks: &BasicBlocks, start: u32, block: NonNull<u8>, units: usize) -> Self {
        let next = match SEND_WQE_BB - units * UNIT {
            0 => blocks.block(start.wrapping_add(1)),
            // SAFETY: inside of the block.
            _ => unsafe { block.add(units * UNIT) },
        };
        Self { next, start: blocks.start(), end: blocks.end() }
    }

    /// Writes a payload with this number of inline bytes and units. `is_in_block` says that the WQE has one block.
    ///
    /// # Safety
    /// [`Payload::measure`] has returned both, and the WQE has the units left.
    #[inline(always)]
    pub(super) unsafe fn payload<I: Pieces>(
        &mut self,
        payload: Payload<'_, I>,
        inline: usize,
        units: usize,
        is_in_block: bool,
    ) {
        // SAFETY: the caller's WQE has the units of these segments left.
        unsafe {
            if inline > 0 {
                self.inline(payload.inline, inline, is_in_block);
            }
            let gathered = units - InlineHeader::units(inline);
            if gathered == payload.sges.len() && self.has_room(gathered) {
                for sge in payload.sges {
                    self.next_sge(sge);
                }
                return;
            }
            for sge in payload.sges {
                if sge.length != 0 {
                    self.sge(sge);
                }
            }
        }
    }

    /// Returns `true` if the ring does not end before this number of units is written, nor right after it.
    #[inline(always)]
    pub(super) fn has_room(&self, units: usize) -> bool {
        // SAFETY: `next` is not after the end of the same ring.
        let room = unsafe { self.end.offset_from(self.next) } as usize;
        units * UNIT < room
    }

    /// Goes on at the start of the ring, where the next segment would begin at its end.
    #[inline(always)]
    fn wrap(&mut self) {
        if self.next == self.end {
            self.next = self.start;
        }
    }

    /// Writes the data segment of `sge`.
    ///
    /// # Safety
    /// The WQE has a unit left.
    #[inline(always)]
    pub(super) unsafe fn sge(&mut self, sge: &Sge) {
        // SAFETY: the caller's WQE has a unit left.
        unsafe { self.next_sge(sge) }
        self.wrap();
    }

    /// Writes one unit.
    ///
    /// # Safety
    /// The WQE has a unit left.
    pub(super) unsafe fn unit(&mut self, words: [Be64; 2]) {
        // SAFETY: the caller's WQE has a unit left, in a free block; units are aligned to their size.
        unsafe {
            self.next.cast::<[Be64; 2]>().write_volatile(words);
            self.next = self.next.add(UNIT);
        }
        self.wrap();
    }

    /// As [`sge`](Self::sge), where the ring does not end after it.
    ///
    /// # Safety
    /// The WQE has a unit left.
    #[inline(always)]
    pub(super) unsafe fn next_sge(&mut self, sge: &Sge) {
        // SAFETY: the caller's WQE has a unit left, in a free block; a unit never reaches over the end of the ring.
        unsafe {
            sge::write(self.next.cast(), (*sge).into());
            self.next = self.next.add(UNIT);
        }
    }

    /// Writes an inline segment of the `len` bytes that `pieces` have together. `is_in_block` says that the WQE has one
    /// block.
    ///
    /// # Safety
    /// The WQE has [`InlineHeader::units`] left for `len` bytes.
    #[inline(always)]
    pub(super) unsafe fn inline(&mut self, pieces: impl Pieces, len: usize, is_in_block: bool) {
        let end = InlineHeader::SIZE + len;
        // SAFETY: `next` is not after the end of the same ring. The caller's WQE has units left: free blocks.
        unsafe {
            if !is_in_block && self.next.addr().get() + end > self.end.addr().get() {
                *self = self.inline_around_end(pieces, len);
                return;
            }
            self.next.cast::<Be32>().write_volatile(InlineHeader::new(len as u32).byte_count);
            let mut to = self.next.add(InlineHeader::SIZE);
            // The pieces may be shared with the device: no slice may borrow them.
            for piece in pieces {
                let piece = piece.as_ref();
                copy::bytes(piece, to.as_ptr());
                to = to.add(piece.len());
            }
            // The next segment starts at a unit.
            self.next = self.next.add(end.next_multiple_of(UNIT));
        }
        self.wrap();
    }

    /// As [`inline`](Self::inline), where the segment goes on at the start of the ring.
    ///
    /// # Safety
    /// As [`inline`](Self::inline).
    // By value, so that the caller keeps its own in registers.
    #[cold]
    unsafe fn inline_around_end(mut self, pieces: impl Pieces, len: usize) -> Self {
        // SAFETY: the caller's WQE has units left: the first bytes of one, in a free block.
        unsafe {
            self.next.cast::<Be32>().write_volatile(InlineHeader::new(len as u32).byte_count);
            self.next = self.next.add(InlineHeader::SIZE);
        }
        for piece in pieces {
            // SAFETY: the pieces are no more bytes than the header says.
            unsafe { self.bytes(piece.as_ref()) }
        }
        let end = InlineHeader::SIZE + len;
        // SAFETY: at most the end of the last unit of the segment, inside of the ring.
        self.next = unsafe { self.next.add(end.next_multiple_of(UNIT) - end) };
        self
    }

    /// Copies inline bytes, which go on at the start of the ring at any byte.
    ///
    /// # Safety
    /// The inline segment has as many bytes left.
    unsafe fn bytes(&mut self, bytes: &[u8]) {
        let from = NonNull::from(bytes).cast::<u8>();
        // SAFETY: `next` is not after the end of the same ring.
        let room = unsafe { self.end.offset_from(self.next) } as usize;
        // SAFETY: the caller's segment has as many bytes left: free blocks as far as the end of the ring and from its
        // start on, which are not memory that a slice can borrow.
        unsafe {
            if bytes.len() <= room {
                from.copy_to_nonoverlapping(self.next, bytes.len());
                self.next = self.next.add(bytes.len());
            } else {
                from.copy_to_nonoverlapping(self.next, room);
                from.add(room).copy_to_nonoverlapping(self.start, bytes.len() - room);
                self.next = self.start.add(bytes.len() - room);
            }
        }
    }
}
