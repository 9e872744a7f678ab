//! Posting list operations, many with one doorbell.

use core::mem::MaybeUninit;

use mlx5_wire::be::{Be16, Be64};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::tm::{AppOp, CQE_REQUEST, SW_CNT_VALID, TagMatchingSegment, TmOpcode};

use super::TagList;
use super::entry::{APPENDING, Handle, LIVE, MATCHED, Operation, REMOVING};
use crate::sge::Sge;

/// Why a list operation was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// All entries of the list are in use.
    ListFull,
    /// The send queue holds as many operations as it can: take completions.
    QueueFull,
    /// There is no such receive: it is over.
    Gone,
    /// The receive is being removed already.
    Removing,
    /// A message has matched the receive: it cannot be removed.
    Matched,
}

/// A receive to append (`IBV_WR_TAG_ADD`).
#[derive(Clone, Copy, Debug)]
pub struct Append<T> {
    /// What its completion gives back.
    pub data: T,
    /// Tag to match.
    pub tag: u64,
    /// Bits of the tag that count: a message matches when `header.tag & mask == tag`.
    pub mask: u64,
    /// Where the data goes, without headers; `None` for a receive without room for any.
    pub buffer: Option<Sge>,
    /// Ask for [`Completion::Appended`](super::Completion::Appended). Now and then it is asked for all the
    /// same: nothing else tells that the send queue has room again.
    pub signaled: bool,
}

/// Posts to a tag list; dropping it rings the doorbell once for all WQEs written.
///
/// Each operation can carry the number of unexpected messages that software has handled (`unexpected`,
/// modulo 2^16), which is what `IBV_OPS_TM_SYNC` does.
#[derive(Debug)]
pub struct Posting<'a, T: Copy> {
    list: &'a mut TagList<T>,
}

impl<'a, T: Copy> Posting<'a, T> {
    #[inline(always)]
    pub(super) fn new(list: &'a mut TagList<T>) -> Self {
        Self { list }
    }

    /// Appends a receive.
    ///
    /// # Errors
    /// [`PostError::ListFull`], [`PostError::QueueFull`]; nothing was written then.
    ///
    /// # Safety
    /// The buffer is memory that its `lkey` covers, at an address of this process (with exposed provenance),
    /// and nobody reads or writes it until a completion gives `data` back.
    #[inline(always)]
    pub unsafe fn append(
        &mut self,
        append: Append<T>,
        unexpected: Option<u16>,
    ) -> Result<Handle, PostError> {
        let list = &mut *self.list;
        if list.vacant() == 0 {
            return Err(PostError::ListFull);
        }
        if list.queue.vacant() == 0 {
            return Err(PostError::QueueFull);
        }
        let Append { data, tag, mask, buffer, signaled } = append;
        let signaled = signaled || list.must_ask();
        let index = list.head;
        // SAFETY: the entry at the head is one of the list.
        let entry = unsafe { list.entries.add(index.into()).as_mut() };
        let next = entry.next;
        let buffer = buffer.filter(|buffer| buffer.length != 0);
        let segment = match buffer {
            Some(sge) => DataSegment::new(sge.addr, sge.length, sge.lkey),
            None => DataSegment::TERMINATOR,
        };
        entry.state = if signaled { LIVE | APPENDING } else { LIVE };
        entry.data = MaybeUninit::new(data);
        (entry.addr, entry.length) = buffer.map_or((0, 0), |sge| (sge.addr, sge.length));
        let handle = Handle { entry: index, generation: entry.generation };
        list.head = next;
        list.used += 1;
        let [a, b, c, d] =
            operation(TmOpcode::Append, signaled, unexpected, next, tag, mask).to_words();
        let [e, f] = segment.to_words();
        // SAFETY: the buffer is the device's by the contract; the entry was announced by the append before,
        // and `next` is free.
        unsafe { list.queue.write(WqeOpcode::TAG_MATCHING, [a, b, c, d, e, f]) }
        self.note(signaled, AppOp::APPEND, index, unexpected);
        Ok(handle)
    }

    /// Takes a receive out of the list. Its completion tells whether a message was faster.
    ///
    /// # Errors
    /// [`PostError::Gone`], [`PostError::Removing`], [`PostError::Matched`], [`PostError::QueueFull`];
    /// nothing was written then.
    #[inline(always)]
    pub fn remove(&mut self, handle: Handle, unexpected: Option<u16>) -> Result<(), PostError> {
        let list = &mut *self.list;
        let state = list.live(handle).ok_or(PostError::Gone)?.state;
        if state & REMOVING != 0 {
            return Err(PostError::Removing);
        }
        if state & MATCHED != 0 {
            return Err(PostError::Matched);
        }
        if list.queue.vacant() == 0 {
            return Err(PostError::QueueFull);
        }
        if let Some(entry) = list.entry_mut(handle.entry) {
            entry.state |= REMOVING;
        }
        let words = operation(TmOpcode::Remove, true, unexpected, handle.entry, 0, 0).to_words();
        // SAFETY: names an entry that was appended and whose last CQE has not come.
        unsafe { list.queue.write(WqeOpcode::TAG_MATCHING, words) }
        self.note(true, AppOp::REMOVE, handle.entry, unexpected);
        Ok(())
    }

    /// Changes no receive (`IBV_WR_TAG_SYNC`): says that software has handled `unexpected` messages, or only
    /// that the device has come as far, when it is `signaled`. Now and then a completion is asked for all
    /// the same, as with [`append`](Self::append).
    ///
    /// # Errors
    /// [`PostError::QueueFull`]; nothing was written then.
    #[inline(always)]
    pub fn synchronize(
        &mut self,
        unexpected: Option<u16>,
        signaled: bool,
    ) -> Result<(), PostError> {
        let list = &mut *self.list;
        if list.queue.vacant() == 0 {
            return Err(PostError::QueueFull);
        }
        let signaled = signaled || list.must_ask();
        let words = operation(TmOpcode::Nop, signaled, unexpected, 0, 0, 0).to_words();
        // SAFETY: changes no entry.
        unsafe { list.queue.write(WqeOpcode::TAG_MATCHING, words) }
        self.note(signaled, AppOp::NOOP, Operation::NONE, unexpected);
        Ok(())
    }

    /// Takes note of the operation that was just written.
    #[inline(always)]
    fn note(&mut self, signaled: bool, op: AppOp, entry: u16, count: Option<u16>) {
        let list = &mut *self.list;
        if let Some(count) = count {
            list.carried = count;
        }
        if !signaled {
            list.silent += 1;
            return;
        }
        list.silent = 0;
        let at = list.asked & (list.queue.blocks() - 1);
        let operation = Operation { op, entry, count: list.carried, end: list.queue.posted() };
        // SAFETY: masked to the array. No more operations are outstanding than the queue has blocks.
        unsafe { list.operations.add(at as usize).write(MaybeUninit::new(operation)) }
        list.asked = list.asked.wrapping_add(1);
    }
}

impl<T: Copy> Drop for Posting<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.list.queue.ring();
    }
}

#[inline(always)]
const fn operation(
    opcode: TmOpcode,
    signaled: bool,
    unexpected: Option<u16>,
    index: u16,
    tag: u64,
    mask: u64,
) -> TagMatchingSegment {
    let (counted, sw_cnt) = match unexpected {
        Some(count) => (SW_CNT_VALID, count),
        None => (0, 0),
    };
    TagMatchingSegment {
        opcode: opcode.byte(),
        flags: if signaled { CQE_REQUEST | counted } else { counted },
        index: Be16::new(index),
        reserved4: [0; 2],
        sw_cnt: Be16::new(sw_cnt),
        reserved8: [0; 8],
        append_tag: Be64::new(tag),
        append_mask: Be64::new(mask),
    }
}
