//! Send queue: a ring of basic blocks that holds the WQEs of one QP.
//!
//! - A WQE is up to 63 units of 16 bytes and takes whole [`blocks`](BasicBlocks) of 64. It starts at any block
//!   and goes on at the start of the ring where it reaches the end. So the queue counts blocks, not requests.
//! - A CQE names the first block of a WQE by the running index. It retires that WQE and all before it, because a
//!   WQE without a CQE of its own has succeeded: the device reports each one that fails, asked or not.
//! - Which WQEs ask for a CQE is the caller's choice ([`Flags::SIGNALED`]). The queue asks on its own before it is
//!   full of WQEs that nothing would retire.
//! - After each request all state is in the queue. A [`Posting`] that is forgotten costs a late doorbell.
//!
//! # Safety
//! All `unsafe` of sends has one contract, by these names:
//!
//! - *exclusive*: the queue was empty, its QP in RESET, when [`SendQueue::new`] took it over, and nothing but this
//!   value posts to it. Its buffer and doorbell record and its register stay mapped, and the storage valid and
//!   untouched by others, for as long as the value exists. The QP was made without a signature in its WQEs, and so that
//!   the data of READs and atomics goes to memory and never into a CQE.
//! - *register*: with [`BlueFlame`] other than [`Never`](BlueFlame::Never), no other queue has this register.
//! - *memory*: what an SGE or a remote key names stays valid, the memory that a READ or an atomic writes is
//!   untouched, and the memory that a SEND or WRITE reads is not written, until the request's value has come
//!   back from [`SendQueue::complete`] or [`SendQueue::reset`]. Inline bytes are copied at once, and are as many as
//!   [`Payload::inline_len`] says.
//! - *ready*: the QP is in RTS, or in SQD, SQE or error, when something is posted.

mod batch;
mod block_run;
mod blocks;
mod completion;
mod dynamic;
mod posting;
mod progress;
mod request;
#[cfg(test)]
mod tests;
mod window;
mod wqe;

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use mlx5_wire::be::Be32;
use mlx5_wire::ctrl::{ControlSegment, MAX_DS, SEND_WQE_BB, UNIT, UNITS_PER_BB};

pub use batch::{Batch, Operation};
pub(crate) use block_run::BlockRun;
pub use blocks::BasicBlocks;
pub use completion::{Completed, Completion, Failure, Run};
pub use posting::Posting;
pub use progress::Progress;
pub use request::{Flags, Immediate, Payload, Pieces, PostError, Remote};
pub use window::{KeyChange, MAX_WINDOW, Window};

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
    /// Checks that the queue can be driven directly.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub const fn check(&self) -> Result<(), LayoutError> {
        // `wqe_counter` has 16 bits and must distinguish a block from the same block one lap later.
        if !self.wqe_cnt.is_power_of_two() || self.wqe_cnt > 1 << 15 {
            return Err(LayoutError::BlockCount);
        }
        if self.stride as usize != SEND_WQE_BB {
            return Err(LayoutError::Stride);
        }
        Ok(())
    }
}

/// When a WQE is copied to the register, so that the device need not read it from memory. The doorbell must be that
/// of a single WQE, of 2 to 16 units, and the register must have two halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlueFlame {
    /// Never: the register is shared, or BlueFlame is switched off (`MLX5_SHUT_UP_BF`).
    Never,
    /// When it was given inline pieces (`MLX5_POST_SEND_PREFER_BF=0`).
    Inline,
    /// Always.
    Always,
}

/// Most blocks of a WQE that is copied.
const COPIED_BLOCKS: u32 = 4;

/// How a send queue is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most basic blocks of a WQE. More than the queue has or than a WQE can have counts as that many. The fewer, the
    /// more WQEs can be posted without a CQE.
    pub max_wqe_blocks: u32,
    /// When WQEs are copied to the register.
    pub blue_flame: BlueFlame,
}

/// The record of the WQE that starts at a block, in the caller's memory.
#[derive(Debug)]
pub struct Record<T> {
    /// Blocks of the WQE; 0 in the middle of one.
    blocks: u32,
    data: MaybeUninit<T>,
}

impl<T> Record<T> {
    /// The record of a WQE of one block.
    pub const fn single(data: T) -> Self {
        Self { blocks: 1, data: MaybeUninit::new(data) }
    }

    /// The record of a block at which no WQE starts.
    pub const fn none() -> Self {
        Self { blocks: 0, data: MaybeUninit::uninit() }
    }
}

/// A send queue; `T` is what the caller wants back with each completion.
#[derive(Debug)]
pub struct SendQueue<T> {
    blocks: BasicBlocks,
    /// One record for each block.
    records: NonNull<Record<T>>,
    blue_flame: BlueFlame,
    /// Most units of a WQE.
    max_units: u32,
    /// A WQE that ends at this running count of blocks or after it asks for a CQE whatever its flags.
    ask_at: u32,
    /// How many blocks after the last WQE that asked this is: one more than may follow it without asking.
    ask_after: u32,
    /// Whether the last WQE of each posting with one doorbell asks for a CQE.
    signals_last: bool,
    /// Whether a WQE that no doorbell has covered was given inline pieces, be they empty.
    has_inline: bool,
}

// SAFETY: [exclusive] the queue is driven through `&mut` only, and no other code uses its storage.
unsafe impl<T: Send> Send for SendQueue<T> {}

impl<T: Copy> SendQueue<T> {
    /// Takes over the send queue of a QP. `storage` has a record for each basic block.
    ///
    /// # Errors
    /// See [`LayoutError`].
    ///
    /// # Safety
    /// `layout` and `storage` are *exclusive*, and the register is as *register* says, see [the module](self).
    pub unsafe fn new(
        layout: Layout,
        config: Config,
        storage: NonNull<MaybeUninit<Record<T>>>,
    ) -> Result<Self, LayoutError> {
        // SAFETY: [exclusive], which the caller keeps.
        let blocks = unsafe { BasicBlocks::new(layout) }?;
        let count = layout.wqe_cnt;
        let max_units = config.max_wqe_blocks.clamp(1, count).saturating_mul(UNITS_PER_BB);
        let max_units = max_units.min(MAX_DS);
        for index in 0..count as usize {
            // SAFETY: [exclusive] one of `count` records.
            unsafe { storage.add(index).write(MaybeUninit::new(Record::none())) }
        }
        let halves_are_too_small = layout.register_size < COPIED_BLOCKS * layout.stride;
        let blue_flame = if halves_are_too_small { BlueFlame::Never } else { config.blue_flame };
        // A WQE of any size finds room as soon as those that asked are retired.
        let room = count - max_units.div_ceil(UNITS_PER_BB);
        let ask_after = room.min(count / 4) + 1;
        Ok(Self {
            blocks,
            records: storage.cast(),
            blue_flame,
            max_units,
            ask_at: ask_after,
            ask_after,
            signals_last: false,
            has_inline: false,
        })
    }

    /// Returns this queue with at most `blocks` blocks between two WQEs that ask for a CQE.
    #[must_use]
    pub fn with_max_silent(mut self, blocks: u32) -> Self {
        self.ask_after = self.ask_after.min(blocks.saturating_add(1));
        self.note_asked(self.posted());
        self
    }

    /// Returns this queue with at most `blocks` blocks outstanding, but at least those of the largest WQE.
    #[must_use]
    pub fn with_max_outstanding(mut self, blocks: u32) -> Self {
        let largest = self.max_units.div_ceil(UNITS_PER_BB);
        let room = blocks.clamp(largest, self.blocks.count());
        let retired = self.retired();
        self.blocks.room = room;
        self.blocks.retire(retired);
        self.with_max_silent((room - largest).min(room / 4))
    }

    /// Returns this queue such that a WQE asks for a CQE only if its flags say so. The caller must notice when no CQE
    /// would retire the WQEs.
    #[must_use]
    pub const fn without_asking(mut self) -> Self {
        // Further than any WQE can be posted.
        self.ask_after = 1 << 31;
        self.note_asked(self.posted());
        self
    }

    /// Returns this queue such that the last WQE of each posting asks for a CQE: with its completion everything that
    /// was posted so far comes back. A request with a doorbell of its own asks as its flags say.
    #[must_use]
    pub const fn signaling_last(mut self) -> Self {
        self.signals_last = true;
        self
    }

    /// Has the next doorbell written to the half of the register at this offset; returns that of the other half. Queues
    /// of one owner that share a register take its halves in turn.
    #[inline(always)]
    pub fn select_half(&mut self, offset: usize) -> usize {
        self.blocks.select_half(offset)
    }

    /// Returns the number of basic blocks that can be outstanding.
    pub const fn capacity(&self) -> u32 {
        self.blocks.room
    }

    /// Returns the number of basic blocks that can be written now.
    #[inline(always)]
    pub const fn free_blocks(&self) -> u32 {
        self.blocks.free_blocks()
    }

    /// Returns the running count of blocks that were posted.
    #[inline(always)]
    pub const fn posted(&self) -> u32 {
        self.blocks.posted()
    }

    /// Returns the running count of blocks that are retired.
    #[inline(always)]
    pub const fn retired(&self) -> u32 {
        self.blocks.retired()
    }

    /// Returns `true` if all that was posted is retired.
    pub const fn is_empty(&self) -> bool {
        self.free_blocks() == self.capacity()
    }

    /// Returns `true` if the last WQE asks for a CQE: then everything that is outstanding comes back.
    pub const fn is_covered(&self) -> bool {
        self.is_empty() || self.posted() == self.ask_at.wrapping_sub(self.ask_after)
    }

    /// Returns unit `number` of the WQE that starts at running index `start`, as long as that is outstanding.
    pub fn unit(&self, start: u32, number: u8) -> [u8; UNIT] {
        let (block, at) = (u32::from(number) / UNITS_PER_BB, number as usize % UNITS_PER_BB as usize);
        // SAFETY: [exclusive] a unit of a block of the ring, which this value alone writes; units are aligned to their
        // size.
        let words =
            unsafe { self.blocks.block(start.wrapping_add(block)).add(at * UNIT).cast::<[u64; 2]>().read_volatile() };
        let mut unit = [0; UNIT];
        unit[..8].copy_from_slice(&words[0].to_ne_bytes());
        unit[8..].copy_from_slice(&words[1].to_ne_bytes());
        unit
    }

    /// Starts a batch of requests; the doorbell rings once when it is dropped.
    #[inline(always)]
    pub fn posting(&mut self) -> Posting<'_, T> {
        Posting::new(self, false)
    }

    /// As [`posting`](Self::posting), for requests of which each has a doorbell of its own: the request is with the
    /// device when the call that posts it returns.
    #[inline(always)]
    pub fn posting_singly(&mut self) -> Posting<'_, T> {
        Posting::new(self, true)
    }

    /// Starts the queue again, as `ibv_modify_qp` to RESET does. `each` gets back what is outstanding, in order.
    ///
    /// # Safety
    /// The QP is in RESET, or destroyed, and the CQ holds no CQE of it any more.
    pub unsafe fn reset(&mut self, mut each: impl FnMut(T)) {
        let mut run = self.run_of_all();
        // SAFETY: nothing is freed before the next line.
        while let Some(data) = unsafe { run.next() } {
            each(data);
        }
        self.blocks.reset();
        self.note_asked(0);
        self.has_inline = false;
    }

    /// Makes the WQE at `block`, which is unsignaled and ends at running count `end`, ask for a CQE if nothing would
    /// retire the WQEs otherwise.
    ///
    /// # Safety
    /// No doorbell has covered it.
    #[inline(always)]
    unsafe fn ask_if_needed(&mut self, block: NonNull<u8>, end: u32) {
        // The two are less than half of all numbers apart.
        if end.wrapping_sub(self.ask_at) as i32 >= 0 {
            // SAFETY: no doorbell has covered the caller's WQE.
            unsafe { self.ask_by_itself(block, end) }
        }
    }

    /// # Safety
    /// As for [`ask_if_needed`](Self::ask_if_needed).
    #[cold]
    unsafe fn ask_by_itself(&mut self, block: NonNull<u8>, end: u32) {
        // SAFETY: no doorbell has covered the caller's WQE.
        unsafe { BasicBlocks::add(block, ControlSegment::CQ_UPDATE) }
        self.note_asked(end);
    }

    /// Takes note that the WQE which ends at running count `end` asks for a CQE.
    #[inline(always)]
    const fn note_asked(&mut self, end: u32) {
        self.ask_at = end.wrapping_add(self.ask_after);
    }

    /// Takes note of the request of a WQE of `blocks` blocks from running index `start` on.
    #[inline(always)]
    fn note(&mut self, start: u32, blocks: u32, data: T) {
        // SAFETY: [exclusive] a record of the queue.
        unsafe { self.record(start).write(Record { blocks, data: MaybeUninit::new(data) }) }
        self.note_middle(start, blocks);
    }

    /// Takes note that the WQE at running index `start` has `blocks` blocks.
    #[inline(always)]
    fn note_blocks(&mut self, start: u32, blocks: u32) {
        // SAFETY: [exclusive] a record of the queue.
        unsafe { self.record(start).as_mut().blocks = blocks }
        self.note_middle(start, blocks);
    }

    /// As [`note_blocks`](Self::note_blocks), of a WQE of two blocks.
    #[inline(always)]
    fn note_second_block(&mut self, start: u32, second: u32) {
        // SAFETY: [exclusive] a record of the queue.
        unsafe { self.record(start).as_mut().blocks = 2 }
        self.note_middle_block(second);
    }

    /// Takes note that no WQE starts in the middle of the one of `blocks` blocks at running index `start`.
    #[inline(always)]
    fn note_middle(&mut self, start: u32, blocks: u32) {
        if blocks > 1 {
            self.note_middle_block(start.wrapping_add(1));
            if blocks > 2 {
                self.note_other_middle_blocks(start, blocks);
            }
        }
    }

    // Apart, because the compiler would unroll the loop where it knows the most that there can be.
    #[inline(never)]
    fn note_other_middle_blocks(&mut self, start: u32, blocks: u32) {
        for middle in 2..blocks {
            self.note_middle_block(start.wrapping_add(middle));
        }
    }

    #[inline(always)]
    fn note_middle_block(&mut self, index: u32) {
        // SAFETY: [exclusive] a record of the queue.
        unsafe { self.record(index).as_mut().blocks = 0 }
    }

    /// Returns the address of the record of the block with running index `index`.
    #[inline(always)]
    fn record(&self, index: u32) -> NonNull<Record<T>> {
        // SAFETY: [exclusive] an array with a record for each block; the index is masked to it.
        unsafe { self.records.add((index & self.blocks.mask) as usize) }
    }
}
