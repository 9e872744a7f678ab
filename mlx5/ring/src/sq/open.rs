//! Writing a WQE call by call, as `ibv_wr_*` does: what it does, then its payload and its address in any order, and its control
//! segment last. Nothing of the queue changes before that.

use core::ptr::NonNull;

use mlx5_wire::be::Be64;
use mlx5_wire::ctrl::{ControlSegment, SEND_WQE_BB, UNIT, UNITS_PER_BB};
use mlx5_wire::data::DataSegment;
use mlx5_wire::datagram::DatagramSegment;
use mlx5_wire::inline::{INLINE_SEG, InlineHeader};
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::remote::{AtomicSegment, RemoteAddressSegment};

use super::request::{Flags, Immediate, Payload, Pieces, PostError, Remote};
use super::wqe::Writer;
use super::{SendQueue, What};
use crate::prefetch;
use crate::sge::Sge;

/// Units of an address.
const ADDRESS_UNITS: u32 = (DatagramSegment::SIZE / UNIT) as u32;

/// The next WQE of a queue, whose control segment is not written.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Control segment, as numbers; the first one counts the units so far.
    first: u64,
    second: u64,
}

impl Open {
    /// Returns the number of units so far, with that of the control segment.
    #[inline(always)]
    const fn units(&self) -> u32 {
        ControlSegment::units_of(self.first) as u32
    }

    fn opcode(&self) -> WqeOpcode {
        WqeOpcode::new((self.first >> 32) as u8)
    }

    /// Returns the bytes that are left in the first block.
    #[inline(always)]
    pub const fn room_in_block(&self) -> usize {
        SEND_WQE_BB.saturating_sub(self.units() as usize * UNIT)
    }

    /// Returns `true` for a SEND, a write or a read without its payload, which has room in the first block.
    #[inline(always)]
    pub const fn is_short(&self) -> bool {
        self.units() < UNITS_PER_BB - 1
    }

    /// Returns `true` if the WQE fills its first block.
    #[inline(always)]
    pub const fn fills_block(&self) -> bool {
        self.units() == UNITS_PER_BB
    }

    /// Returns `true` if the WQE is an atomic, which has one SGE of eight bytes.
    pub fn is_atomic(&self) -> bool {
        matches!(self.opcode(), WqeOpcode::ATOMIC_CS | WqeOpcode::ATOMIC_FA)
    }

    /// Returns `true` if the device writes to the memory of the payload, so that it cannot be inline.
    pub fn is_read(&self) -> bool {
        self.opcode() == WqeOpcode::RDMA_READ || self.is_atomic()
    }
}

impl<T: Copy> SendQueue<T> {
    /// Opens a SEND.
    ///
    /// # Errors
    /// [`PostError::Full`].
    #[inline(always)]
    pub fn open_send(&mut self, immediate: Immediate, flags: Flags) -> Result<Open, PostError> {
        self.open(What::send(immediate), &(), flags)
    }

    /// Opens a SEND to where [`put_address`](Self::put_address) says.
    ///
    /// # Errors
    /// [`PostError::Full`].
    #[inline(always)]
    pub fn open_datagram(&mut self, immediate: Immediate, flags: Flags) -> Result<Open, PostError> {
        let mut open = self.open(What::send(immediate), &(), flags)?;
        open.first += ControlSegment::UNIT * u64::from(ADDRESS_UNITS);
        Ok(open)
    }

    /// Opens a write to memory of the peer.
    ///
    /// # Errors
    /// [`PostError::Full`].
    #[inline(always)]
    pub fn open_write(
        &mut self,
        to: Remote,
        immediate: Option<u32>,
        flags: Flags,
    ) -> Result<Open, PostError> {
        self.open(
            What::write(immediate),
            &RemoteAddressSegment::new(to.addr, to.rkey).to_words(),
            flags,
        )
    }

    /// Opens a read of memory of the peer.
    ///
    /// # Errors
    /// [`PostError::Full`].
    #[inline(always)]
    pub fn open_read(&mut self, from: Remote, flags: Flags) -> Result<Open, PostError> {
        let head = RemoteAddressSegment::new(from.addr, from.rkey).to_words();
        self.open(What(WqeOpcode::RDMA_READ, 0), &head, flags)
    }

    /// Opens an addition to eight bytes of the peer.
    ///
    /// # Errors
    /// [`PostError::Full`].
    #[inline(always)]
    pub fn open_fetch_add(
        &mut self,
        at: Remote,
        add: u64,
        flags: Flags,
    ) -> Result<Open, PostError> {
        self.open_atomic(WqeOpcode::ATOMIC_FA, at, AtomicSegment::fetch_add(add), flags)
    }

    /// Opens a comparison with eight bytes of the peer, which are replaced if they say `compare`.
    ///
    /// # Errors
    /// [`PostError::Full`].
    #[inline(always)]
    pub fn open_compare_swap(
        &mut self,
        at: Remote,
        [compare, swap]: [u64; 2],
        flags: Flags,
    ) -> Result<Open, PostError> {
        self.open_atomic(
            WqeOpcode::ATOMIC_CS,
            at,
            AtomicSegment::compare_swap(compare, swap),
            flags,
        )
    }

    #[inline(always)]
    fn open_atomic(
        &mut self,
        opcode: WqeOpcode,
        at: Remote,
        operands: AtomicSegment,
        flags: Flags,
    ) -> Result<Open, PostError> {
        let [addr, rkey] = RemoteAddressSegment::new(at.addr, at.rkey).to_words();
        let [first, second] = operands.to_words();
        self.open(What(opcode, 0), &[addr, rkey, first, second], flags)
    }

    /// Writes the segments in `head` after the place of the control segment.
    #[inline(always)]
    fn open<H: Copy>(
        &mut self,
        What(opcode, imm): What,
        head: &H,
        flags: Flags,
    ) -> Result<Open, PostError> {
        if self.free_blocks() == 0 {
            return Err(PostError::Full);
        }
        let start = self.posted();
        // SAFETY: a free block, which has room for any head.
        unsafe { Writer::head(self.blocks.block(start), head) };
        let units = 1 + size_of::<H>() / UNIT;
        let first = ControlSegment::first_word(opcode.get(), start as u16, 0, units as u8)
            | self.blocks.qpn;
        Ok(Open { first, second: ControlSegment::second_word(flags.bits(), imm) })
    }

    /// Writes the address of a datagram.
    ///
    /// # Safety
    /// `open` was opened by [`open_datagram`](Self::open_datagram) since the queue was posted to last.
    #[inline(always)]
    pub unsafe fn put_address(&mut self, open: &Open, to: &DatagramSegment) {
        debug_assert!(open.units() > ADDRESS_UNITS);
        let block = self.blocks.block(self.posted());
        // SAFETY: the first block of the open WQE is free.
        unsafe { Writer::head(block, &to.to_words()) };
        // A datagram of one SGE has two blocks.
        prefetch::ahead(block, 2);
    }

    /// Appends registered memory in the first block of a WQE, and closes it.
    ///
    /// # Safety
    /// As [`close`](Self::close), and *memory*; the block has room for a unit, and `sge` is of at least one byte, and below
    /// 2 GiB.
    #[inline(always)]
    pub unsafe fn close_with(&mut self, open: &Open, sge: Sge, data: T) {
        let start = self.posted();
        self.note(start, 1, data);
        let block = self.blocks.block(start);
        // SAFETY: a unit of the free block.
        unsafe { Writer::unit_of(block, open.units(), DataSegment::from(sge).to_words()) };
        self.commit(open, block, 1, 1);
        prefetch::ahead(block, 1);
    }

    /// Appends registered memory in the second block of a WQE that fills its first one, and closes it.
    ///
    /// # Safety
    /// As [`close`](Self::close), and *memory*; `open` fills its first block, two blocks are free and a WQE of the queue may have as
    /// many; `sge` is of at least one byte, and below 2 GiB.
    #[inline(always)]
    pub unsafe fn close_with_next(&mut self, open: &Open, sge: Sge, data: T) {
        debug_assert!(open.fills_block());
        let start = self.posted();
        self.note(start, 2, data);
        let [block, next] = [start, start.wrapping_add(1)].map(|index| self.blocks.block(index));
        // SAFETY: the first unit of a free block.
        unsafe { Writer::unit_of(next, 0, DataSegment::from(sge).to_words()) };
        self.commit(open, block, 1, 2);
    }

    /// Appends registered memory to a WQE, and closes it. Returns `false`, and has no effect, if there is no room, or if an SGE is
    /// not of at least one byte and below 2 GiB: [`put`](Self::put) says why.
    ///
    /// # Safety
    /// As [`close`](Self::close), and *memory*.
    #[inline(always)]
    pub unsafe fn close_with_sges(&mut self, open: &Open, sges: &[Sge], data: T) -> bool {
        let units = open.units() + sges.len() as u32;
        let blocks = units.div_ceil(UNITS_PER_BB);
        if units > UNITS_PER_BB && units > self.max_units || blocks > self.free_blocks() {
            return false;
        }
        let start = self.posted();
        // SAFETY: the units are in free blocks.
        let mut writer = unsafe { Writer::at(&self.blocks, start, open.units()) };
        let wraps = !writer.has_room(sges.len());
        for sge in sges {
            if !(1..INLINE_SEG).contains(&sge.length) {
                return false;
            }
            // SAFETY: the WQE has as many units left as SGEs.
            unsafe { if wraps { writer.sge(sge) } else { writer.next_sge(sge) } }
        }
        self.note(start, blocks, data);
        let block = self.blocks.block(start);
        self.commit(open, block, sges.len(), blocks);
        prefetch::ahead(block, blocks);
        true
    }

    /// Appends the `len` inline bytes that `pieces` have together in the first block of a WQE, and closes it.
    ///
    /// # Safety
    /// As [`close`](Self::close); the block has room for the header and the bytes, of which there is at least one.
    #[inline(always)]
    pub unsafe fn close_with_inline(
        &mut self,
        open: &Open,
        len: usize,
        pieces: impl Pieces,
        data: T,
    ) {
        let (start, unit) = (self.posted(), open.units());
        self.has_inline = true;
        self.note(start, 1, data);
        let block = self.blocks.block(start);
        self.commit(open, block, InlineHeader::units(len), 1);
        // SAFETY: room of the block, which the device does not read before the doorbell.
        unsafe { Writer::inline_at(block.add(unit as usize * UNIT), len, pieces) };
        prefetch::ahead(block, 1);
    }

    /// Appends a payload.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// *memory*, see [the module](super); `open` was opened since the queue was posted to last.
    pub unsafe fn put<I: Pieces>(
        &mut self,
        open: &mut Open,
        payload: Payload<'_, I>,
    ) -> Result<(), PostError> {
        let (inline, more) = payload.measure()?;
        let units = open.units() + more as u32;
        if units > UNITS_PER_BB && units > self.max_units {
            return Err(if inline > 0 { PostError::InlineTooLong } else { PostError::TooLong });
        }
        if units.div_ceil(UNITS_PER_BB) > self.free_blocks() {
            return Err(PostError::Full);
        }
        let start = self.posted();
        self.has_inline |= payload.has_inline();
        // SAFETY: the units are in free blocks, and were measured.
        unsafe { Writer::at(&self.blocks, start, open.units()).payload(payload, inline, more) };
        open.first += ControlSegment::UNIT * more as u64;
        Ok(())
    }

    /// Writes the control segment: the WQE is posted, and the next doorbell hands it over.
    ///
    /// # Safety
    /// *ready*, see [the module](super); all parts of `open` were written, and it was opened since the queue was posted to
    /// last.
    #[inline(always)]
    pub unsafe fn close(&mut self, open: &Open, data: T) {
        let start = self.posted();
        let blocks = open.units().div_ceil(UNITS_PER_BB);
        self.note(start, blocks, data);
        self.commit(open, self.blocks.block(start), 0, blocks);
    }

    /// Writes the control segment of the next WQE, with `more` units, of `blocks` blocks from `block` on.
    #[inline(always)]
    fn commit(&mut self, open: &Open, block: NonNull<u8>, more: usize, blocks: u32) {
        let first = open.first + ControlSegment::UNIT * more as u64;
        let start = self.posted();
        let end = start.wrapping_add(blocks);
        self.blocks.advance(start, end);
        // SAFETY: the first block of the WQE, which the device does not read before the doorbell.
        unsafe { Writer::unit_of(block, 0, [Be64::new(first), Be64::new(open.second)]) };
        self.note_last(end, open.second & ControlSegment::CQ_UPDATE != 0);
    }
}
