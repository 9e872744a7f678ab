//! Requests that are written call by call, and then posted together or taken back (`ibv_wr_start` to
//! `ibv_wr_complete` or `ibv_wr_abort`).

use core::ptr::NonNull;

use mlx5_wire::be::Be64;
use mlx5_wire::ctrl::{ControlSegment, SEND_WQE_BB, UNIT, UNITS_PER_BB};
use mlx5_wire::datagram::DatagramSegment;
use mlx5_wire::inline::{INLINE_SEG, InlineHeader};
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::remote::{AtomicSegment, RemoteAddressSegment};

use super::posting::What;
use super::wqe::Writer;
use super::{Flags, Immediate, Pieces, PostError, Posting, Remote, SendQueue};
use crate::prefetch;
use crate::sge::{self, Sge};

/// WQEs behind those that were posted, which the queue does not know before [`SendQueue::commit`]. Nothing may be
/// posted in another way meanwhile. Dropping a batch takes it back.
///
/// A request is begun, and then gets its payload, with which it has its WQE. A request that gets none is not posted.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Running index of the first block of the last WQE.
    last: u32,
    /// Running index of the block after the last WQE, where the request that was begun has its own.
    end: u32,
    /// Block at `end`.
    wqe: NonNull<u8>,
    /// First word of the WQE at `end`. It counts the units up to the payload.
    head: u64,
    /// Running count of blocks of the queue or of the batch up to the last WQE that asks for a CQE.
    asked: u32,
    has_inline: bool,
}

// SAFETY: the block is the queue's, of which a batch writes none by itself.
unsafe impl Send for Batch {}

/// The operation of a request; its payload comes after it.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// SEND of a connected QP.
    Send(Immediate),
    /// SEND of a UD QP, with immediate data. [`SendQueue::set_address`] says where to.
    Datagram(Option<u32>),
    /// RDMA WRITE, with immediate data.
    Write(Remote, Option<u32>),
    /// RDMA READ.
    Read(Remote),
    /// Fetch and add.
    FetchAdd(Remote, u64),
    /// Compare and swap.
    CompareSwap(Remote, [u64; 2]),
}

impl Batch {
    /// The opcode of a batch without requests.
    const NONE: u64 = 0xff << 32;

    /// Returns the opcode of the request that was begun last; if there is none, its number is that of no operation.
    #[inline(always)]
    pub const fn opcode(&self) -> WqeOpcode {
        WqeOpcode::new((self.head >> 32) as u8)
    }

    /// Returns the running index of the first block of the next WQE.
    pub const fn end(&self) -> u32 {
        self.end
    }

    /// Forgets the request that was begun last, so that nothing is taken for its payload.
    pub const fn refuse(&mut self) {
        self.head = Self::NONE;
    }

    /// Takes note that the request which was begun has its WQE, of this many blocks.
    #[inline(always)]
    const fn advance(&mut self, blocks: u32) {
        (self.last, self.end) = (self.end, self.end.wrapping_add(blocks));
    }
}

impl<T: Copy> SendQueue<T> {
    /// Starts a batch.
    #[inline(always)]
    pub const fn batch(&self) -> Batch {
        let (end, asked) = (self.posted(), self.ask_at.wrapping_sub(self.ask_after));
        Batch { last: end, end, wqe: self.blocks.start(), head: Batch::NONE, asked, has_inline: false }
    }

    /// Begins a request, in the place of one that was begun and has no payload. `data` is what its completion gives
    /// back.
    ///
    /// # Errors
    /// [`PostError::Full`]; nothing was written.
    ///
    /// # Safety
    /// *memory* and *ready* when the batch is posted, see [the module](super). The batch is of this queue, to which
    /// nothing was posted since it was started.
    #[inline(always)]
    pub unsafe fn begin(
        &mut self,
        batch: &mut Batch,
        operation: Operation,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        let remote = |to: Remote| RemoteAddressSegment::new(to.addr, to.rkey).to_words();
        let atomic = |at: Remote, operands: AtomicSegment| {
            let ([addr, rkey], [first, second]) = (remote(at), operands.to_words());
            [addr, rkey, first, second]
        };
        match operation {
            Operation::Send(immediate) => self.write_head(batch, What::send(immediate), Some(&()), flags, data),
            Operation::Datagram(immediate) => {
                let what = What::send(immediate.map_or(Immediate::None, Immediate::Data));
                self.write_head::<DatagramSegment>(batch, what, None, flags, data)
            }
            Operation::Write(to, immediate) => {
                self.write_head(batch, What::write(immediate), Some(&remote(to)), flags, data)
            }
            Operation::Read(from) => {
                self.write_head(batch, What(WqeOpcode::RDMA_READ, 0), Some(&remote(from)), flags, data)
            }
            Operation::FetchAdd(at, add) => {
                let head = atomic(at, AtomicSegment::fetch_add(add));
                self.write_head(batch, What(WqeOpcode::ATOMIC_FA, 0), Some(&head), flags, data)
            }
            Operation::CompareSwap(at, [compare, swap]) => {
                let head = atomic(at, AtomicSegment::compare_swap(compare, swap));
                self.write_head(batch, What(WqeOpcode::ATOMIC_CS, 0), Some(&head), flags, data)
            }
        }
    }

    /// Writes a WQE up to its payload, but for the first word; who passes no `head` writes it later.
    #[inline(always)]
    pub(super) fn write_head<H: Copy>(
        &mut self,
        batch: &mut Batch,
        What(opcode, imm): What,
        head: Option<&H>,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        const { assert!(UNIT + size_of::<H>() <= SEND_WQE_BB, "one block") }
        let start = batch.end;
        if start == self.blocks.full_at {
            return Err(PostError::Full);
        }
        let units = 1 + size_of::<H>() / UNIT;
        let first = ControlSegment::first_word(opcode.get(), start as u16, 0, units as u8) | self.blocks.qpn;
        let block = self.blocks.block(start);
        // SAFETY: [exclusive] a free block, of which the device reads nothing before the doorbell; its words are
        // aligned, and the head is copied by bytes.
        unsafe {
            block.cast::<Be64>().add(1).write_volatile(Be64::new(ControlSegment::second_word(flags.bits(), imm)));
            if let Some(head) = head {
                block.add(UNIT).cast::<H>().write_unaligned(*head);
            }
        }
        self.note(start, 1, data);
        (batch.wqe, batch.head) = (block, first);
        if flags.contains(Flags::SIGNALED) {
            batch.asked = start.wrapping_add(1);
        }
        prefetch::ahead(block, 1);
        Ok(())
    }

    /// Says where the request that was begun last, a datagram, goes to: to QP `qpn` at the end of an address vector. It
    /// may have its payload.
    ///
    /// # Safety
    /// As for [`begin`](Self::begin), which has begun a datagram; the vector can be read.
    #[inline(always)]
    pub unsafe fn set_address(&mut self, batch: &Batch, vector: NonNull<DatagramSegment>, qpn: u32, qkey: u32) {
        // SAFETY: [exclusive] the caller's datagram has a place for it, in a block that the device does not read, and
        // that is apart from the caller's vector. Segments are aligned to a byte.
        unsafe {
            let to = batch.wqe.add(UNIT).cast::<DatagramSegment>();
            to.copy_from_nonoverlapping(vector, 1);
            (*to.as_ptr()).set_destination(qpn, qkey);
        }
    }

    /// Has registered memory be the payload of the request that was begun last, which is no datagram: one entry, which
    /// is not empty and of less than 2 GiB.
    ///
    /// # Safety
    /// As for [`begin`](Self::begin), which has begun a request, and it has no payload yet.
    #[inline(always)]
    pub unsafe fn set_sge(&mut self, batch: &mut Batch, sge: Sge) {
        let at = ControlSegment::units_of(batch.head);
        debug_assert!(u32::from(at) < UNITS_PER_BB, "a datagram");
        // SAFETY: the request has units left in its block, which is free.
        unsafe {
            let to = batch.wqe.add(usize::from(at) * UNIT);
            Self::put(batch, to, sge);
        }
        batch.advance(1);
    }

    /// As [`set_sge`](Self::set_sge), of a datagram.
    ///
    /// # Errors
    /// As of [`Posting::send_to`]; the request has no payload then.
    ///
    /// # Safety
    /// As for [`set_sge`](Self::set_sge).
    #[inline(always)]
    pub unsafe fn set_datagram_sge(&mut self, batch: &mut Batch, sge: Sge) -> Result<(), PostError> {
        debug_assert_eq!(u32::from(ControlSegment::units_of(batch.head)), UNITS_PER_BB, "no datagram");
        if self.max_units <= UNITS_PER_BB {
            return Err(PostError::TooLong);
        }
        let second = batch.end.wrapping_add(1);
        if second == self.blocks.full_at {
            return Err(PostError::Full);
        }
        self.note_second_block(batch.end, second);
        // SAFETY: the second block is free, too.
        unsafe { Self::put(batch, self.blocks.block(second), sge) }
        batch.advance(2);
        Ok(())
    }

    /// Writes the only entry of the payload, and the first word of the WQE.
    ///
    /// # Safety
    /// *exclusive* `to` is in a free block; as for [`set_sge`](Self::set_sge).
    #[inline(always)]
    unsafe fn put(batch: &Batch, to: NonNull<u8>, sge: Sge) {
        debug_assert!((1..INLINE_SEG).contains(&sge.length), "0 can mean 2 GiB");
        debug_assert_ne!(batch.head, Batch::NONE, "no request");
        // SAFETY: [exclusive] units of free blocks, which the device does not read before the doorbell.
        unsafe {
            batch.wqe.cast::<Be64>().write_volatile(Be64::new(batch.head + ControlSegment::UNIT));
            sge::write(to.cast(), sge.into());
        }
    }

    /// As [`set_sge`](Self::set_sge), with any list, of any request. Entries of length 0 are left out.
    ///
    /// # Errors
    /// As of [`Posting::send`]; the request has no payload then.
    ///
    /// # Safety
    /// As for [`set_sge`](Self::set_sge).
    pub unsafe fn set_sges(&mut self, batch: &mut Batch, sges: &[Sge]) -> Result<(), PostError> {
        if sges.iter().any(|sge| sge.length >= INLINE_SEG) {
            return Err(PostError::SgeTooLong);
        }
        let sges = || sges.iter().filter(|sge| sge.length != 0);
        let mut wqe = self.payload(batch, sges().count())?;
        for sge in sges() {
            // SAFETY: one of the units of the payload.
            unsafe { wqe.sge(sge) }
        }
        Ok(())
    }

    /// Has copied bytes be the payload of the request that was begun last: `len` in all pieces.
    ///
    /// # Errors
    /// As of [`Posting::send`]; the request has no payload then.
    ///
    /// # Safety
    /// As for [`set_sge`](Self::set_sge); the pieces are `len` bytes.
    #[inline(always)]
    pub unsafe fn set_inline(&mut self, batch: &mut Batch, pieces: impl Pieces, len: u32) -> Result<(), PostError> {
        let units = InlineHeader::units(len as usize);
        let mut wqe = self.payload(batch, units).map_err(|error| match error {
            PostError::TooLong => PostError::InlineTooLong,
            error => error,
        })?;
        batch.has_inline = true;
        if len > 0 {
            // SAFETY: the units of the payload are those of `len` bytes.
            unsafe { wqe.inline(pieces, len as usize, false) }
        }
        Ok(())
    }

    /// Takes the blocks of a payload of this many units; returns where to write it.
    #[inline(always)]
    pub(super) fn payload(&mut self, batch: &mut Batch, units: usize) -> Result<Writer, PostError> {
        debug_assert_ne!(batch.head, Batch::NONE, "no request");
        let (start, at) = (batch.end, ControlSegment::units_of(batch.head) as usize);
        let total = at + units;
        if total > UNITS_PER_BB as usize && total > self.max_units as usize {
            return Err(PostError::TooLong);
        }
        let blocks = (total as u32).div_ceil(UNITS_PER_BB);
        if blocks > self.blocks.full_at.wrapping_sub(start) {
            return Err(PostError::Full);
        }
        if blocks > 1 {
            self.note_blocks(start, blocks);
        }
        batch.advance(blocks);
        let first = Be64::new(batch.head + units as u64 * ControlSegment::UNIT);
        // SAFETY: [exclusive] the first word of a WQE that the device does not read before the doorbell; free blocks,
        // and a unit of the first one or the end of it.
        unsafe {
            batch.wqe.cast::<Be64>().write_volatile(first);
            Ok(Writer::behind(&self.blocks, start, batch.wqe, at))
        }
    }

    /// Adds the WQEs of a batch to those that were posted. Dropping the posting rings the doorbell.
    ///
    /// # Safety
    /// As for [`begin`](Self::begin).
    #[inline(always)]
    pub unsafe fn commit(&mut self, batch: &Batch) -> Posting<'_, T> {
        if batch.end != self.posted() {
            self.blocks.advance(batch.last, batch.end);
            self.note_asked(batch.asked);
            // SAFETY: the doorbell comes later.
            unsafe { self.ask_if_needed(self.blocks.block(batch.last), batch.end) }
            self.has_inline |= batch.has_inline;
        }
        self.posting()
    }
}
