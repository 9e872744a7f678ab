//! The list of tagged buffers of a tag-matching SRQ, changed through the send queue of a QP on that SRQ.
//!
//! - An append names the entry that the append *after* it will use; its own was announced by the one
//!   before. So the list has one entry more than it holds tags, and the order in which entries are taken
//!   is fixed one append ahead: the free ones are a queue.
//! - An entry is free again when the last CQE that names it has come: that of the append and that of the
//!   remove, where they were asked for, and the one or two of a match.
//! - List operations complete in order, so a queue of their own shows what each CQE is about, and how
//!   much of the send queue is free.
//! - A remove always asks for its CQE: the message that matches may be on its way, and without the CQE
//!   the owner of the buffer would be unknown.

mod entry;
mod posting;

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use mlx5_wire::cqe::{APP_TAG_MATCHING, Cqe64, CqeFormat};
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::tm::{AppOp, REMOVE_SUCCESS};
use mlx5_wire::tmh::Tmh;

use crate::completion::Cqe;
use crate::sq::{BasicBlocks, BlockRun};

use entry::{APPENDING, INCOMPLETE, LIVE, MATCHED, REMOVING};

pub use entry::{Entry, Handle, Operation};
pub use posting::{Append, PostError, Posting};

/// Most tags a list can have: an entry is named by 16 bits, there is one more than tags, and one name is no
/// entry's.
pub const MAX_TAGS: u16 = u16::MAX - 1;
const _: () = assert!(MAX_TAGS < Operation::NONE);

/// Memory of the caller's for the records of a list of `tags` tags on a send queue of `blocks` blocks.
#[derive(Clone, Copy, Debug)]
pub struct Storage<T> {
    /// `tags + 1` entries.
    pub entries: NonNull<MaybeUninit<Entry<T>>>,
    /// `blocks` operations.
    pub operations: NonNull<MaybeUninit<Operation>>,
}

/// A tag list; `T` is what the caller wants back with each completion.
#[derive(Debug)]
pub struct TagList<T> {
    queue: BasicBlocks,
    entries: NonNull<Entry<T>>,
    tags: u16,
    /// The entry of the next append, which the last one announced, and the last free one.
    head: u16,
    tail: u16,
    /// Entries that are not free.
    used: u16,
    operations: NonNull<MaybeUninit<Operation>>,
    /// Running counts of operations that a CQE was asked for, and of those whose CQE has come.
    asked: u32,
    answered: u32,
    /// Running count of blocks up to the last operation that a CQE was asked for.
    asked_end: u32,
    /// Handled messages that the last operation with a number reported.
    carried: u16,
    /// There is a batch, or one was forgotten.
    open: bool,
}

// SAFETY: the list owns its memory by the contract of `new`.
unsafe impl<T: Send> Send for TagList<T> {}

/// Meaning of a CQE for a tag list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion<T> {
    /// An append was executed.
    Appended {
        /// The receive.
        handle: Handle,
        /// Unexpected messages that the device had counted.
        hw_phase: u16,
        /// The count of handled messages in the append. Unless the two agree, the receive matches nothing until
        /// an operation carries the device's count.
        phase: u16,
    },
    /// A remove found its receive, which nothing will match: it is over.
    Removed {
        /// The receive.
        handle: Handle,
        /// The caller's value.
        data: T,
        /// Unexpected messages that the device had counted.
        hw_phase: u16,
        /// The count of handled messages in the remove.
        phase: u16,
    },
    /// A remove came too late (`IBV_WC_TM_ERR`): a message has matched.
    TooLate {
        /// The receive.
        handle: Handle,
        /// Unexpected messages that the device had counted.
        hw_phase: u16,
        /// The count of handled messages in the remove.
        phase: u16,
    },
    /// A synchronisation was executed.
    Synchronized {
        /// The count that it carried, or that the last operation before it with a count carried.
        count: u16,
    },
    /// A message has matched, and its data will follow.
    Matched {
        /// The receive.
        handle: Handle,
        /// Header of the message.
        header: Tmh,
    },
    /// A message has matched and its data is there: the receive is over.
    Received {
        /// The receive.
        handle: Handle,
        /// The caller's value.
        data: T,
        /// Header of the message.
        header: Tmh,
        /// Bytes of the message.
        byte_count: u32,
    },
    /// A rendezvous has matched that software must finish (`IBV_WC_TM_RNDV_INCOMPLETE`): its headers are in
    /// the buffer, as far as they fit. The receive is over.
    Incomplete {
        /// The receive.
        handle: Handle,
        /// The caller's value.
        data: T,
        /// Header of the message.
        header: Tmh,
        /// Bytes of the headers.
        byte_count: u32,
    },
    /// A message has matched, and its data will not come (`MLX5_CQE_APP_OP_TM_MSG_COMPLETION_CANCELED`).
    /// The receive is over.
    Canceled {
        /// The receive.
        handle: Handle,
        /// The caller's value.
        data: T,
    },
    /// No receive matched: the message is in the SRQ slot that the CQE names. The device has counted it.
    Unexpected,
    /// The message carries no tag: it is in the SRQ slot that the CQE names.
    NoTag,
    /// The CQE is not of tag matching.
    Other,
    /// The CQE names a receive that is not posted, or an operation that is not outstanding: it is an error.
    Stray,
}

impl<T: Copy> TagList<T> {
    /// A list for `tags` tags, with all entries free. `tags` is from 1 to [`MAX_TAGS`].
    ///
    /// # Safety
    /// - `queue` is that of a QP on a tag-matching SRQ for at least `tags` tags, to whose list nothing was
    ///   posted, and to which no other code posts.
    /// - `storage` is valid, and untouched by others, for as long as the list exists.
    pub unsafe fn new(queue: BasicBlocks, storage: Storage<T>, tags: u16) -> Self {
        debug_assert!((1..=MAX_TAGS).contains(&tags));
        for index in 0..=tags {
            // SAFETY: one of `tags + 1` entries.
            unsafe { storage.entries.add(index.into()).write(MaybeUninit::new(Entry::free(index))) }
        }
        Self {
            queue,
            entries: storage.entries.cast(),
            tags,
            head: 0,
            tail: tags,
            used: 0,
            operations: storage.operations,
            asked: 0,
            answered: 0,
            asked_end: 0,
            open: false,
            carried: 0,
        }
    }

    /// Tags that the list holds.
    pub const fn tags(&self) -> u16 {
        self.tags
    }

    /// Tags that can be appended now, as far as the send queue has room. Appends of a batch that was forgotten
    /// count from the next batch or completion on.
    #[inline(always)]
    pub const fn free_entries(&self) -> u16 {
        self.tags - self.used
    }

    /// Operations that can be posted now.
    #[inline(always)]
    pub const fn free_operations(&self) -> u32 {
        self.queue.free_blocks()
    }

    /// Operations whose CQE was asked for and has not come.
    pub const fn outstanding(&self) -> u32 {
        self.asked.wrapping_sub(self.answered)
    }

    /// Operations that can be posted before one must ask for a CQE, so that the send queue gets room again.
    #[inline(always)]
    const fn silent(&self) -> u32 {
        let since = self.queue.posted().wrapping_sub(self.asked_end);
        (self.queue.count() / 4).saturating_sub(since)
    }

    /// Room for `most` appends, as far as list and send queue have it in one piece.
    #[inline(always)]
    fn run(&self, most: u32) -> BlockRun {
        self.queue.run(WqeOpcode::TAG_MATCHING, most.min(self.free_entries().into()))
    }

    /// Takes note of appends that were written to a run; `head` is the entry of the next one.
    #[inline(always)]
    fn commit(&mut self, run: BlockRun, head: u16) {
        self.used += self.queue.commit(run);
        self.head = head;
    }

    /// Starts a batch of operations; the doorbell rings when it is dropped.
    #[inline(always)]
    pub fn posting(&mut self) -> Posting<'_, T> {
        if self.open {
            self.recover();
        }
        Posting::new(self)
    }

    /// Takes note of the appends of a batch that was forgotten, which the next doorbell hands over.
    #[cold]
    #[inline(never)]
    fn recover(&mut self) {
        self.open = false;
        // Their WQEs follow each other from the last one that was noted on, and so do their entries. The one
        // after them is free: there is one entry more than tags.
        while let Some(entry) = self.entry(self.head).filter(|entry| entry.has(LIVE)) {
            self.head = entry.next as u16;
            self.queue.skip();
            self.used += 1;
        }
    }

    /// Returns the caller's value of a receive, if the receive is not over.
    pub fn data(&self, handle: Handle) -> Option<T> {
        let entry = self.live(handle)?;
        // SAFETY: a live entry has data.
        Some(unsafe { entry.data.assume_init() })
    }

    /// The state of a receive that is not over.
    #[inline(always)]
    fn live(&self, handle: Handle) -> Option<&Entry<T>> {
        self.entry(handle.entry).filter(|entry| entry.generation == handle.generation && entry.has(LIVE))
    }

    #[inline(always)]
    fn entry(&self, index: u16) -> Option<&Entry<T>> {
        // SAFETY: in range; software's memory, which the device does not know.
        (index <= self.tags).then(|| unsafe { self.entries.add(index.into()).as_ref() })
    }

    #[inline(always)]
    fn entry_mut(&mut self, index: u16) -> Option<&mut Entry<T>> {
        // SAFETY: in range; software's memory, which the device does not know and `self` borrows mutably.
        (index <= self.tags).then(|| unsafe { self.entries.add(index.into()).as_mut() })
    }

    fn handle(&self, index: u16) -> Handle {
        let generation = self.entry(index).map_or(0, |entry| entry.generation);
        Handle { entry: index, generation }
    }

    /// Takes note of a CQE, and brings inline data of a matched message to its buffer.
    ///
    /// For a message in an SRQ slot the result is only its kind: the SRQ completes the slot.
    ///
    /// # Safety
    /// `cqe` came from the CQ of the list's SRQ, of entries of `cqe_size` bytes, and is passed once and in
    /// order; buffers were appended under the contract of [`Posting::append`].
    pub unsafe fn complete(&mut self, cqe: Cqe<'_>, cqe_size: usize) -> Completion<T> {
        if self.open {
            self.recover();
        }
        let opcode = cqe.opcode();
        if cqe.app() != APP_TAG_MATCHING || !(opcode.is_responder() || opcode == CqeOpcode::NoPacket) {
            return Completion::Other;
        }
        match cqe.app_op() {
            AppOp::UNEXPECTED => Completion::Unexpected,
            AppOp::NO_TAG => Completion::NoTag,
            AppOp::APPEND | AppOp::REMOVE | AppOp::NOOP => self.answer(cqe),
            // SAFETY: the caller's CQE is of the list's SRQ and is passed once and in order.
            op => unsafe { self.message(op, cqe, cqe_size) }.unwrap_or(Completion::Stray),
        }
    }

    /// A list operation was executed.
    fn answer(&mut self, cqe: Cqe<'_>) -> Completion<T> {
        if self.outstanding() == 0 {
            return Completion::Stray;
        }
        let at = self.answered & (self.queue.count() - 1);
        // SAFETY: masked to the array; written when its CQE was asked for.
        let operation = unsafe { self.operations.add(at as usize).read().assume_init() };
        if operation.op != cqe.app_op() {
            return Completion::Stray;
        }
        self.answered = self.answered.wrapping_add(1);
        self.queue.retire(operation.end);
        let result = cqe.list_result();
        let hw_phase = result.hw_phase_cnt.get();
        let index = operation.entry;
        let handle = self.handle(index);
        let Some(entry) = self.entry_mut(index) else {
            return Completion::Synchronized { count: operation.count };
        };
        if operation.op == AppOp::APPEND {
            entry.state &= !APPENDING;
            self.free_entry(index);
            return Completion::Appended { handle, hw_phase, phase: operation.count };
        }
        entry.state &= !REMOVING;
        let found = result.success.get() & REMOVE_SUCCESS != 0;
        let completion = if found && entry.has(LIVE) && !entry.has(MATCHED) {
            entry.state &= !LIVE;
            // SAFETY: a live entry has data.
            let data = unsafe { entry.data.assume_init() };
            Completion::Removed { handle, data, hw_phase, phase: operation.count }
        } else if found {
            // The device cannot have removed a receive that is over or matched.
            Completion::Stray
        } else {
            Completion::TooLate { handle, hw_phase, phase: operation.count }
        };
        self.free_entry(index);
        completion
    }

    /// A message has matched an entry, or its data has come.
    ///
    /// # Safety
    /// As [`complete`](Self::complete).
    unsafe fn message(&mut self, op: AppOp, cqe: Cqe<'_>, cqe_size: usize) -> Option<Completion<T>> {
        let index = cqe.app_info();
        let handle = self.handle(index);
        let byte_count = cqe.byte_count();
        let entry = self.entry_mut(index).filter(|entry| entry.has(LIVE))?;
        let matched = entry.has(MATCHED);
        // SAFETY: a live entry has data.
        let data = unsafe { entry.data.assume_init() };
        match op {
            AppOp::CONSUMED | AppOp::CONSUMED_SW_RNDV if !matched => {
                let header = cqe.tmh();
                let incomplete = if op == AppOp::CONSUMED { 0 } else { INCOMPLETE };
                entry.state |= MATCHED | incomplete;
                entry.header = header;
                return Some(Completion::Matched { handle, header });
            }
            AppOp::EXPECTED if matched => {}
            AppOp::CONSUMED_MSG | AppOp::CONSUMED_MSG_SW_RNDV if !matched => {
                entry.header = cqe.tmh();
            }
            AppOp::MSG_COMPLETION_CANCELED => {
                entry.state &= !(LIVE | MATCHED | INCOMPLETE);
                self.free_entry(index);
                return Some(Completion::Canceled { handle, data });
            }
            _ => return None,
        }
        let header = entry.header;
        let incomplete = op == AppOp::CONSUMED_MSG_SW_RNDV || entry.has(INCOMPLETE);
        entry.state &= !(LIVE | MATCHED | INCOMPLETE);
        if cqe.format() == CqeFormat::Inline64 && cqe_size > Cqe64::SIZE {
            if let Some(payload) = cqe.inline_payload() {
                let len = payload.len().min(byte_count.min(entry.length) as usize);
                let to = core::ptr::with_exposed_provenance_mut::<u8>(entry.addr as usize);
                // SAFETY: the buffer was appended with this length under a contract that makes it writable,
                // and belongs to software again; a CQE and a buffer do not overlap.
                unsafe { to.copy_from_nonoverlapping(payload.as_ptr(), len) }
            }
        }
        self.free_entry(index);
        Some(if incomplete {
            Completion::Incomplete { handle, data, header, byte_count }
        } else {
            Completion::Received { handle, data, header, byte_count }
        })
    }

    /// Frees an entry that no CQE will name any more.
    fn free_entry(&mut self, index: u16) {
        let Some(entry) = self.entry_mut(index).filter(|entry| entry.state == 0) else { return };
        entry.generation = entry.generation.wrapping_add(1);
        let tail = self.tail;
        if let Some(last) = self.entry_mut(tail) {
            last.next = index.into();
        }
        self.tail = index;
        self.used -= 1;
    }

    /// Takes back every receive that is not over: the SRQ was destroyed. `each` gets their data.
    pub fn drain(&mut self, mut each: impl FnMut(T)) {
        for index in 0..=self.tags {
            if let Some(entry) = self.entry_mut(index).filter(|entry| entry.has(LIVE)) {
                entry.state &= !LIVE;
                // SAFETY: a live entry has data.
                each(unsafe { entry.data.assume_init() });
            }
        }
    }
}

#[cfg(test)]
mod tests;
