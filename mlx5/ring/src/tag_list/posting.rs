//! Posting list operations, many with one doorbell.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use mlx5_wire::be::{Be16, Be64};
use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::tm::{AppOp, CQE_REQUEST, SW_CNT_VALID, TagMatchingSegment, TmOpcode};

use super::TagList;
use super::entry::{Entry, Handle, LIVE, MATCHED, Operation, REMOVING};
use crate::sge::Sge;
use crate::sq::BlockRun;

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
    /// The caller's value, which the completion returns.
    pub data: T,
    /// Tag to match.
    pub tag: u64,
    /// Bits of the tag that count: a message matches when `header.tag & mask == tag`.
    pub mask: u64,
    /// Where the data goes, without headers; `None` for a receive without room for any.
    pub buffer: Option<Sge>,
    /// Ask for [`Completion::Appended`](super::Completion::Appended). The list sometimes asks for it by itself, because
    /// only a completion shows that the send queue has room again.
    pub signaled: bool,
}

/// Posts to a tag list; dropping it rings the doorbell once for all WQEs written.
///
/// Each operation can carry the number of unexpected messages that software has handled (`unexpected`,
/// modulo 2^16), which is what `IBV_OPS_TM_SYNC` does.
///
/// A run of appends is written by counting; the list is updated at its end, or when a CQE is requested.
#[derive(Debug)]
pub struct Posting<'a, T: Copy> {
    list: &'a mut TagList<T>,
    entries: NonNull<Entry<T>>,
    run: BlockRun,
    /// The entry of the next append, of 16 bits.
    head: usize,
}

impl<'a, T: Copy> Posting<'a, T> {
    #[inline(always)]
    pub(super) fn new(list: &'a mut TagList<T>) -> Self {
        list.open = true;
        let (entries, head) = (list.entries, list.head as usize);
        Self { entries, run: list.run(list.silent()), head, list }
    }

    /// Appends a receive.
    ///
    /// # Errors
    /// [`PostError::ListFull`], [`PostError::QueueFull`]; nothing was written then.
    ///
    /// # Safety
    /// The buffer is memory that its `lkey` covers, at an address of this process (with exposed provenance),
    /// and no code reads or writes it until a completion gives `data` back.
    #[inline(always)]
    pub unsafe fn append(&mut self, append: Append<T>, unexpected: Option<u16>) -> Result<Handle, PostError> {
        let Append { data, tag, mask, buffer, signaled } = append;
        let mut request = requested(signaled);
        if self.run.is_full() {
            let (run, must_ask) = self.list.extend(self.run, self.head())?;
            self.run = run;
            if must_ask {
                request = REQUEST;
            }
        }
        let index = self.head();
        // SAFETY: the entry at the head is one of the list.
        let entry = unsafe { self.entries.add(self.head).as_mut() };
        let next = entry.next;
        let buffer = buffer.filter(|buffer| buffer.length != 0);
        let segment = match buffer {
            Some(sge) => DataSegment::new(sge.addr, sge.length, sge.lkey),
            None => DataSegment::TERMINATOR,
        };
        entry.state = LIVE | request as u8;
        entry.data = MaybeUninit::new(data);
        (entry.addr, entry.length) = buffer.map_or((0, 0), |sge| (sge.addr, sge.length));
        let handle = Handle { entry: index, generation: entry.generation };
        self.head = next as usize;
        let [a, b, c, d] = operation(TmOpcode::Append, request, unexpected, next as u16, tag, mask).to_words();
        let [e, f] = segment.to_words();
        // SAFETY: no code touches the caller's buffer until its completion; the entry was announced by the append
        // before, and `next` is free.
        unsafe { self.run.write([a, b, c, d, e, f]) }
        self.list.carry(unexpected);
        if request != 0 {
            self.list.commit(self.run, next as u16);
            self.list.ask(AppOp::APPEND, index);
        }
        Ok(handle)
    }

    #[inline(always)]
    const fn head(&self) -> u16 {
        self.head as u16
    }

    /// Takes a receive out of the list. Its completion says whether a message was faster.
    ///
    /// # Errors
    /// [`PostError::Gone`], [`PostError::Removing`], [`PostError::Matched`], [`PostError::QueueFull`];
    /// nothing was written then.
    #[inline(always)]
    pub fn remove(&mut self, handle: Handle, unexpected: Option<u16>) -> Result<(), PostError> {
        let state = self.list.live(handle).ok_or(PostError::Gone)?.state;
        if state & REMOVING != 0 {
            return Err(PostError::Removing);
        }
        if state & MATCHED != 0 {
            return Err(PostError::Matched);
        }
        let index = handle.entry;
        // SAFETY: names an entry that was appended and whose last CQE has not come.
        unsafe { self.write(TmOpcode::Remove, REQUEST, unexpected, index)? }
        if let Some(entry) = self.list.entry_mut(index) {
            entry.state |= REMOVING;
        }
        self.list.ask(AppOp::REMOVE, index);
        Ok(())
    }

    /// Changes no receive (`IBV_WR_TAG_SYNC`): says that software has handled `unexpected` messages, or, if it is
    /// `signaled`, only that the device has come as far. The list sometimes asks for a completion by itself, as with
    /// [`append`](Self::append).
    ///
    /// # Errors
    /// [`PostError::QueueFull`]; nothing was written then.
    #[inline(always)]
    pub fn synchronize(&mut self, unexpected: Option<u16>, signaled: bool) -> Result<(), PostError> {
        self.list.commit(self.run, self.head());
        let request = requested(signaled || self.list.silent() == 0);
        // SAFETY: changes no entry.
        unsafe { self.write(TmOpcode::Nop, request, unexpected, 0)? }
        if request != 0 {
            self.list.ask(AppOp::NOOP, Operation::NONE);
        }
        Ok(())
    }

    /// Writes an operation that is no append, after those of the run.
    ///
    /// # Safety
    /// As [`BlockRun::write`].
    #[inline(always)]
    unsafe fn write(
        &mut self,
        opcode: TmOpcode,
        request: u32,
        unexpected: Option<u16>,
        index: u16,
    ) -> Result<(), PostError> {
        let head = self.head();
        let list = &mut *self.list;
        list.commit(self.run, head);
        let mut one = list.queue.run(WqeOpcode::TAG_MATCHING, 1);
        if one.is_full() {
            return Err(PostError::QueueFull);
        }
        // SAFETY: the caller's operation stays sound until the device has executed it.
        unsafe { one.write(operation(opcode, request, unexpected, index, 0, 0).to_words()) }
        list.queue.commit(one);
        list.carry(unexpected);
        self.run = list.run(0);
        Ok(())
    }
}

impl<T: Copy> TagList<T> {
    /// The next run of a batch, of one append at least, and whether that must ask for a CQE.
    #[cold]
    #[inline(never)]
    fn extend(&mut self, run: BlockRun, head: u16) -> Result<(BlockRun, bool), PostError> {
        self.commit(run, head);
        if self.free_entries() == 0 {
            return Err(PostError::ListFull);
        }
        if self.queue.free_blocks() == 0 {
            return Err(PostError::QueueFull);
        }
        let silent = self.silent();
        Ok((self.run(silent.max(1)), silent == 0))
    }

    /// An operation carries the number of messages that were handled.
    #[inline(always)]
    fn carry(&mut self, unexpected: Option<u16>) {
        if let Some(count) = unexpected {
            self.carried = count;
        }
    }

    /// Takes note that the last operation asks for a CQE.
    #[inline(always)]
    fn ask(&mut self, op: AppOp, entry: u16) {
        let end = self.queue.posted();
        let at = self.asked & (self.queue.count() - 1);
        let operation = Operation { op, entry, count: self.carried, end };
        // SAFETY: masked to the array. No more operations are outstanding than the queue has blocks.
        unsafe { self.operations.add(at as usize).write(MaybeUninit::new(operation)) }
        self.asked = self.asked.wrapping_add(1);
        self.asked_end = end;
    }
}

impl<T: Copy> Drop for Posting<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.list.commit(self.run, self.head());
        self.list.open = false;
        self.list.queue.ring();
    }
}

/// [`CQE_REQUEST`] in a whole register.
const REQUEST: u32 = CQE_REQUEST as u32;

#[inline(always)]
const fn requested(signaled: bool) -> u32 {
    if signaled { REQUEST } else { 0 }
}

#[inline(always)]
const fn operation(
    opcode: TmOpcode,
    request: u32,
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
        flags: request as u8 | counted,
        index: Be16::new(index),
        reserved4: [0; 2],
        sw_cnt: Be16::new(sw_cnt),
        reserved8: [0; 8],
        append_tag: Be64::new(tag),
        append_mask: Be64::new(mask),
    }
}
