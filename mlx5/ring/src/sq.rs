//! Send queue: a ring of basic blocks.
//!
//! Only what tag matching needs: WQEs of one basic block each, which are list operations. The queue counts
//! blocks; whoever posts also learns from completions how far the device has come.

use core::ptr::NonNull;

use mlx5_wire::be::{Be32, Be64};
use mlx5_wire::ctrl::{ControlSegment, SEND_WQE_BB};
use mlx5_wire::dbrec;
use mlx5_wire::opcode::WqeOpcode;

use crate::barrier;
use crate::dbrec::DoorbellRecord;
use crate::prefetch;
use crate::uar::Register;

/// Where a send queue is, as `mlx5dv_init_obj` reports it in `struct mlx5dv_qp`.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// First basic block (`sq.buf`).
    pub buf: NonNull<u8>,
    /// Doorbell record of the QP: two words.
    pub dbrec: NonNull<Be32>,
    /// Number of basic blocks (`sq.wqe_cnt`).
    pub wqe_cnt: u32,
    /// Bytes of a basic block (`sq.stride`).
    pub stride: u32,
    /// UAR register (`bf.reg`).
    pub register: NonNull<u8>,
    /// Bytes of one half of the register (`bf.size`); 0 when it has no second one.
    pub register_size: u32,
    /// Number of the QP.
    pub qpn: u32,
}

/// Why a send queue cannot be driven directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// The number of basic blocks is not a power of two up to 32,768.
    BlockCount,
    /// The basic blocks are not of 64 bytes.
    Stride,
}

impl Layout {
    /// Whether [`SendQueue::new`] can take it.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub const fn check(&self) -> Result<(), LayoutError> {
        if !self.wqe_cnt.is_power_of_two() || self.wqe_cnt > 1 << 15 {
            return Err(LayoutError::BlockCount);
        }
        if self.stride as usize != SEND_WQE_BB {
            return Err(LayoutError::Stride);
        }
        Ok(())
    }
}

/// Words of a basic block, and those of them behind the control segment.
const WORDS: usize = SEND_WQE_BB / 8;
const BODY: usize = WORDS - 2;

/// Blocks by which lines are fetched before they are written. The device has read them since they were written
/// last, so most are in no cache; the store buffer alone holds only a few WQEs while their lines come. Behind
/// the end of the ring it is a hint in vain.
const AHEAD: usize = 16;

/// A send queue.
#[derive(Debug)]
pub struct SendQueue {
    blocks: NonNull<Be64>,
    mask: u32,
    dbrec: DoorbellRecord,
    register: Register,
    qpn: u32,
    /// Blocks written since the queue exists; those that the device knows; those that it has executed.
    posted: u32,
    rung: u32,
    done: u32,
}

// SAFETY: the queue owns its blocks by the contract of `new`.
unsafe impl Send for SendQueue {}

impl SendQueue {
    /// Takes over the send queue of a QP to which nothing was posted.
    ///
    /// # Errors
    /// See [`LayoutError`].
    ///
    /// # Safety
    /// `layout` describes a send queue to which nobody else posts; its buffer, record and register stay mapped
    /// for as long as the queue exists.
    pub unsafe fn new(layout: Layout) -> Result<Self, LayoutError> {
        layout.check()?;
        Ok(Self {
            blocks: layout.buf.cast(),
            mask: layout.wqe_cnt - 1,
            // SAFETY: the second word of the record; the rest is the caller's contract.
            dbrec: unsafe { DoorbellRecord::new(layout.dbrec.add(dbrec::SEND)) },
            // SAFETY: the caller's contract.
            register: unsafe { Register::new(layout.register, layout.register_size) },
            qpn: layout.qpn,
            posted: 0,
            rung: 0,
            done: 0,
        })
    }

    /// Basic blocks.
    pub const fn blocks(&self) -> u32 {
        self.mask + 1
    }

    /// Basic blocks that can be written now.
    #[inline(always)]
    pub const fn vacant(&self) -> u32 {
        self.blocks() - self.posted.wrapping_sub(self.done)
    }

    /// Running count of basic blocks written; its lower 16 bits are the index of the next one.
    #[inline(always)]
    pub const fn posted(&self) -> u32 {
        self.posted
    }

    /// Vacant blocks that follow each other, `most` at most, for WQEs of one block and this opcode.
    #[inline(always)]
    pub(crate) fn span(&self, opcode: WqeOpcode, most: u32) -> Span {
        let at = self.posted & self.mask;
        let count = self.vacant().min(self.blocks() - at).min(most);
        let first = ControlSegment::first_word(opcode.get(), self.posted as u16, self.qpn, 0);
        let next = self.block(self.posted);
        // SAFETY: no more blocks than there are up to the end of the ring.
        let end = unsafe { next.add(count as usize * WORDS) };
        Span { next, end, first }
    }

    /// Takes note of the WQEs written to a span, and returns how many are new.
    #[inline(always)]
    pub(crate) fn commit(&mut self, span: Span) -> u16 {
        let written = ControlSegment::index_of(span.first).wrapping_sub(self.posted as u16);
        self.posted = self.posted.wrapping_add(written.into());
        written
    }

    /// Takes note of one WQE that was written to a span which is lost.
    pub(crate) const fn skip(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    #[inline(always)]
    fn block(&self, index: u32) -> NonNull<Be64> {
        // SAFETY: the index is masked to the ring.
        unsafe { self.blocks.add((index & self.mask) as usize * WORDS) }
    }

    /// Hands the WQEs written since the last doorbell to the device.
    #[inline(always)]
    pub fn ring(&mut self) {
        if self.rung == self.posted {
            return;
        }
        self.rung = self.posted;
        // SAFETY: the first word of the last WQE; volatile because the device may read it.
        let first = unsafe { self.block(self.posted.wrapping_sub(1)).read_volatile() };
        barrier::wqe_before_doorbell_record();
        self.dbrec.write(dbrec::work_queue(self.posted));
        self.register.ring(first);
    }

    /// The device has executed the WQEs before running index `upto`.
    #[inline(always)]
    pub(crate) const fn executed(&mut self, upto: u32) {
        self.done = upto;
    }
}

/// Vacant blocks of a [`SendQueue`], and how far they have been written: what a batch keeps in registers.
///
/// It ends where the ring ends, so inside of it writing is counting. The queue learns of the WQEs from
/// [`SendQueue::commit`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    next: NonNull<Be64>,
    end: NonNull<Be64>,
    /// First word of the next control segment, but for the size.
    first: u64,
}

impl Span {
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.next == self.end
    }

    /// Writes a WQE of `2 + body.len()` words. The span is not full.
    ///
    /// # Safety
    /// What the WQE tells the device to do is sound, until it has done it.
    #[inline(always)]
    pub(crate) unsafe fn write<const N: usize>(&mut self, body: [Be64; N]) {
        const { assert!(N % 2 == 0 && N <= BODY) }
        debug_assert!(!self.is_full());
        let units = 1 + N as u64 / 2;
        let first = self.first.wrapping_add(units * ControlSegment::UNIT);
        prefetch::for_write::<{ AHEAD * SEND_WQE_BB }, _>(self.next.as_ptr());
        // SAFETY: a block of the ring, which has room for eight words. The device does not read a vacant block.
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
