//! Posting requests, many with one doorbell or each with its own.

use core::ptr::NonNull;

use mlx5_wire::be::Be64;
use mlx5_wire::ctrl::{ControlSegment, UNIT, UNITS_PER_BB};
use mlx5_wire::datagram::DatagramSegment;
use mlx5_wire::eth::{EthSegment, INLINE_L2_HEADER, MULTI_PACKET_HEAD};
use mlx5_wire::inline::INLINE_SEG;
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::remote::{AtomicSegment, RemoteAddressSegment};

use super::request::{Flags, Immediate, Payload, Pieces, PostError, Remote};
use super::wqe::Writer;
use super::{BasicBlocks, BlueFlame, COPIED_BLOCKS, SendQueue};
use crate::prefetch;
use crate::sge::Sge;

/// Posts to a send queue; dropping it rings the doorbell once for all WQEs written, unless each has a doorbell of its
/// own ([`SendQueue::posting_singly`]).
///
/// Each request takes the value that its completion gives back. A request that is refused writes nothing and ends
/// nothing: those before it are posted.
#[derive(Debug)]
pub struct Posting<'a, T: Copy> {
    queue: &'a mut SendQueue<T>,
    /// Each request has a doorbell of its own.
    is_single: bool,
}

/// A WQE that was begun: its address, its first word, the running indices of its blocks, and whether its flags say that
/// it asks for a CQE.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    block: NonNull<u8>,
    first_word: Be64,
    start: u32,
    end: u32,
    is_signaled: bool,
}

/// Opcode of a request, and the last word of its control segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct What(pub(super) WqeOpcode, pub(super) u32);

impl What {
    #[inline(always)]
    pub(super) const fn send(immediate: Immediate) -> Self {
        match immediate {
            Immediate::None => Self(WqeOpcode::SEND, 0),
            Immediate::Data(data) => Self(WqeOpcode::SEND_IMM, data),
            Immediate::Invalidate(rkey) => Self(WqeOpcode::SEND_INVAL, rkey),
        }
    }

    #[inline(always)]
    pub(super) const fn write(immediate: Option<u32>) -> Self {
        match immediate {
            None => Self(WqeOpcode::RDMA_WRITE, 0),
            Some(data) => Self(WqeOpcode::RDMA_WRITE_IMM, data),
        }
    }
}

impl<'a, T: Copy> Posting<'a, T> {
    #[inline(always)]
    pub(super) fn new(queue: &'a mut SendQueue<T>, is_single: bool) -> Self {
        Self { queue, is_single }
    }

    /// Returns the running count of blocks that were posted.
    #[inline(always)]
    pub const fn posted(&self) -> u32 {
        self.queue.posted()
    }

    /// Returns the number of the QP.
    pub(super) const fn qpn(&self) -> u32 {
        // As the first word of a control segment has it.
        (self.queue.blocks.qpn >> 8) as u32
    }

    /// Returns the number of basic blocks that can be written now.
    #[inline(always)]
    pub const fn free_blocks(&self) -> u32 {
        self.queue.free_blocks()
    }

    /// Sends a message (`IBV_WR_SEND`, `_WITH_IMM`, `_WITH_INV`).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    pub unsafe fn send<I: Pieces>(
        &mut self,
        payload: Payload<'_, I>,
        immediate: Immediate,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        // SAFETY: the caller's [memory] and [ready].
        unsafe { self.post(What::send(immediate), &(), payload, flags, data) }
    }

    /// Sends a datagram to where `to` says, from a UD QP.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    pub unsafe fn send_to<I: Pieces>(
        &mut self,
        to: &DatagramSegment,
        payload: Payload<'_, I>,
        immediate: Option<u32>,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        let what = match immediate {
            None => What(WqeOpcode::SEND, 0),
            Some(data) => What(WqeOpcode::SEND_IMM, data),
        };
        // SAFETY: the caller's [memory] and [ready].
        unsafe { self.post(what, to, payload, flags, data) }
    }

    /// Sends an Ethernet frame, from a raw packet QP: its first 18 bytes, which are copied to the WQE, and then the
    /// payload. `cs_flags` says which checksums the device writes ([`L3_CSUM`](mlx5_wire::eth::L3_CSUM),
    /// [`L4_CSUM`](mlx5_wire::eth::L4_CSUM)).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    pub unsafe fn send_frame<I: Pieces>(
        &mut self,
        header: &[u8; INLINE_L2_HEADER],
        cs_flags: u8,
        payload: Payload<'_, I>,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        let head = EthSegment::with_header(cs_flags, header);
        // SAFETY: the caller's [memory] and [ready].
        unsafe { self.post(What(WqeOpcode::SEND, 0), &head, payload, flags, data) }
    }

    /// Sends several Ethernet frames with one WQE and one completion, from a raw packet QP of a device that has
    /// enhanced multi-packet WQEs and needs no inline header. Each entry of `frames` is a frame. `cs_flags`, for all of
    /// them, are those of [`send_frame`](Self::send_frame).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super). There are frames, and none is empty.
    #[inline(always)]
    pub unsafe fn send_frames(&mut self, cs_flags: u8, frames: &[Sge], flags: Flags, data: T) -> Result<(), PostError> {
        debug_assert!(!frames.is_empty() && frames.iter().all(|frame| frame.length > 0), "an empty frame is 2 GiB");
        let head = EthSegment::without_header(cs_flags);
        // SAFETY: the caller's [memory] and [ready].
        unsafe { self.post(What(WqeOpcode::ENHANCED_MPSW, 0), &head, Payload::gather(frames), flags, data) }
    }

    /// Returns how many frames the next [`send_frames`](Self::send_frames) can have: at most `most`, as far as the
    /// longest WQE of the queue and its free blocks go, and at least one.
    #[inline]
    pub fn frames_of_next(&self, most: usize) -> usize {
        let units = self.queue.max_units.min(self.queue.free_blocks().saturating_mul(UNITS_PER_BB));
        (units.saturating_sub(MULTI_PACKET_HEAD) as usize).clamp(1, most)
    }

    /// Writes to memory of the peer (`IBV_WR_RDMA_WRITE`, `_WITH_IMM`).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    pub unsafe fn write<I: Pieces>(
        &mut self,
        to: Remote,
        payload: Payload<'_, I>,
        immediate: Option<u32>,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        let head = RemoteAddressSegment::new(to.addr, to.rkey).to_words();
        // SAFETY: the caller's [memory] and [ready].
        unsafe { self.post(What::write(immediate), &head, payload, flags, data) }
    }

    /// Reads memory of the peer into `sges` (`IBV_WR_RDMA_READ`).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    pub unsafe fn read(&mut self, from: Remote, sges: &[Sge], flags: Flags, data: T) -> Result<(), PostError> {
        let head = RemoteAddressSegment::new(from.addr, from.rkey).to_words();
        let what = What(WqeOpcode::RDMA_READ, 0);
        // SAFETY: the caller's [memory] and [ready].
        unsafe { self.post(what, &head, Payload::gather(sges), flags, data) }
    }

    /// Adds to eight bytes of the peer, and stores what was there to `result` (`IBV_WR_ATOMIC_FETCH_AND_ADD`).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    pub unsafe fn fetch_add(
        &mut self,
        at: Remote,
        add: u64,
        result: Sge,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        // SAFETY: the caller's [memory] and [ready].
        unsafe {
            let operands = AtomicSegment::fetch_add(add);
            self.atomic(WqeOpcode::ATOMIC_FA, at, operands, result, flags, data)
        }
    }

    /// Stores `swap` to eight bytes of the peer that say `compare`, and what was there to `result`
    /// (`IBV_WR_ATOMIC_CMP_AND_SWP`).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    pub unsafe fn compare_swap(
        &mut self,
        at: Remote,
        [compare, swap]: [u64; 2],
        result: Sge,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        // SAFETY: the caller's [memory] and [ready].
        unsafe {
            let operands = AtomicSegment::compare_swap(compare, swap);
            self.atomic(WqeOpcode::ATOMIC_CS, at, operands, result, flags, data)
        }
    }

    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    unsafe fn atomic(
        &mut self,
        opcode: WqeOpcode,
        at: Remote,
        operands: AtomicSegment,
        result: Sge,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        let [addr, rkey] = RemoteAddressSegment::new(at.addr, at.rkey).to_words();
        let [first, second] = operands.to_words();
        let head = [addr, rkey, first, second];
        // SAFETY: the caller's [memory] and [ready].
        unsafe { self.post(What(opcode, 0), &head, Payload::gather(&[result]), flags, data) }
    }

    /// Writes a WQE: control segment, the segments in `head`, payload.
    ///
    /// # Safety
    /// *memory* and *ready*, see [the module](super).
    #[inline(always)]
    pub(super) unsafe fn post<H: Copy, I: Pieces>(
        &mut self,
        what: What,
        head: &H,
        payload: Payload<'_, I>,
        flags: Flags,
        data: T,
    ) -> Result<(), PostError> {
        if !payload.has_inline() {
            // The compiler knows the size of these WQEs.
            let units = 1 + size_of::<H>() / UNIT;
            match *payload.sges {
                [] => {
                    let (_, begun) = self.start(what, head, units, flags, data)?;
                    self.finish(begun, false, data);
                    return Ok(());
                }
                [sge] if (1..INLINE_SEG).contains(&sge.length) => {
                    let (mut wqe, begun) = self.start(what, head, units + 1, flags, data)?;
                    // SAFETY: the segment is the unit that is left.
                    unsafe { wqe.sge(&sge) }
                    self.finish(begun, false, data);
                    return Ok(());
                }
                _ => {}
            }
        }
        let (inline, units) = payload.measure()?;
        let units_of_all = 1 + size_of::<H>() / UNIT + units;
        let (mut wqe, begun) = self.start(what, head, units_of_all, flags, data).map_err(|error| match error {
            PostError::TooLong if inline > 0 => PostError::InlineTooLong,
            error => error,
        })?;
        let is_in_block = units_of_all <= UNITS_PER_BB as usize;
        let has_inline = payload.has_inline();
        // SAFETY: what is written are the units that were measured.
        unsafe { wqe.payload(payload, inline, units, is_in_block) }
        self.finish(begun, has_inline, data);
        Ok(())
    }

    /// Posts a request that does nothing.
    ///
    /// # Errors
    /// [`PostError::Full`].
    ///
    /// # Safety
    /// *ready*, see [the module](super).
    pub unsafe fn nop(&mut self, flags: Flags, data: T) -> Result<(), PostError> {
        let (_, begun) = self.start(What(WqeOpcode::NOP, 0), &[0_u8; 0], 1, flags, data)?;
        self.finish(begun, false, data);
        Ok(())
    }

    /// Takes the blocks of a WQE of `units` units, and writes its control segment and the segments in `head`. The
    /// caller writes the other units. The queue learns of a request that has a doorbell of its own in
    /// [`finish`](Self::finish): what only the program needs comes after the register.
    #[inline(always)]
    pub(super) fn start<H: Copy>(
        &mut self,
        What(opcode, imm): What,
        head: &H,
        units: usize,
        flags: Flags,
        data: T,
    ) -> Result<(Writer, Begun), PostError> {
        let queue = &mut *self.queue;
        // A queue has at least one block.
        if units > UNITS_PER_BB as usize && units > queue.max_units as usize {
            return Err(PostError::TooLong);
        }
        let blocks = (units as u32).div_ceil(UNITS_PER_BB);
        let start = queue.posted();
        let end = start.wrapping_add(blocks);
        if blocks > queue.free_blocks() {
            return Err(PostError::Full);
        }
        let first = ControlSegment::first_word(opcode.get(), start as u16, 0, units as u8);
        let first_word = Be64::new(first | queue.blocks.qpn);
        let second = Be64::new(ControlSegment::second_word(flags.bits(), imm));
        let block = queue.blocks.block(start);
        if !self.is_single {
            queue.note(start, blocks, data);
            queue.blocks.advance(start, end);
        }
        // SAFETY: [exclusive] free blocks, of which the device reads none before the doorbell.
        let writer = unsafe { Writer::new(&queue.blocks, start, block, [first_word, second], head) };
        let is_signaled = flags.contains(Flags::SIGNALED);
        if !is_signaled {
            // SAFETY: the doorbell comes later.
            unsafe { queue.ask_if_needed(block, end) }
        } else if !self.is_single {
            queue.note_asked(end);
        }
        if !self.is_single {
            prefetch::ahead(block, blocks);
        }
        Ok((writer, Begun { block, first_word, start, end, is_signaled }))
    }

    /// Rings for the request that was written just now, if it has a doorbell of its own. The doorbell also covers what
    /// a forgotten posting has left.
    #[inline(always)]
    pub(super) fn finish(
        &mut self,
        Begun { block, first_word, start, end, is_signaled }: Begun,
        has_inline: bool,
        data: T,
    ) {
        let queue = &mut *self.queue;
        if !self.is_single {
            queue.has_inline |= has_inline;
            return;
        }
        // SAFETY: the WQE was written just now.
        unsafe { queue.ring(block, first_word, start, end, has_inline) }
        let blocks = end.wrapping_sub(start);
        queue.note(start, blocks, data);
        queue.blocks.advance(start, end);
        if is_signaled {
            queue.note_asked(end);
        }
        prefetch::ahead(block, blocks);
    }
}

impl<T: Copy> SendQueue<T> {
    /// Rings for all WQEs that no doorbell has covered. The last of them is at `last`, begins with `first_word`, and
    /// has the blocks from running index `start` to `end`. `has_inline` says whether it has inline pieces, if it is the
    /// only one.
    ///
    /// # Safety
    /// Such a WQE was written.
    #[inline(always)]
    unsafe fn ring(&mut self, last: NonNull<u8>, first_word: Be64, start: u32, end: u32, has_inline: bool) {
        let wanted = self.blue_flame != BlueFlame::Never && (has_inline || self.blue_flame == BlueFlame::Always);
        let is_only = self.blocks.rung() == start;
        let has_room = end.wrapping_sub(start) <= COPIED_BLOCKS;
        if wanted && is_only && has_room && ControlSegment::units_of(first_word.get()) > 1 {
            // SAFETY: [register] the register is this queue's alone, and a half of it has room for the WQE, which is
            // the only one.
            unsafe { self.blocks.ring_blue_flame(last, start, end) }
        } else {
            self.blocks.ring_with(first_word, end);
        }
        self.has_inline = false;
    }
}

impl<T: Copy> Drop for Posting<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // A doorbell has covered each request.
        if self.is_single {
            return;
        }
        let queue = &mut *self.queue;
        if queue.blocks.unrung() == 0 {
            return;
        }
        let (start, end) = (queue.blocks.last(), queue.posted());
        let (last, first_word) = queue.blocks.last_wqe();
        if queue.signals_last {
            queue.note_asked(queue.posted());
            // SAFETY: a WQE that no doorbell has covered.
            unsafe { BasicBlocks::add(last, ControlSegment::CQ_UPDATE) }
        }
        // SAFETY: a WQE that no doorbell has covered.
        unsafe { queue.ring(last, first_word, start, end, queue.has_inline) }
    }
}
