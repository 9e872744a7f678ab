//! Who owns the buffers that are in the queues of a receiver.

use std::ptr::NonNull;
use std::sync::Arc;

use mlx5_ring::sge::Sge;
use mlx5_wire::be::Be64;
use mlx5_wire::data::DataSegment;

use super::deferred_free::DeferredFree;
use super::lent::Lent;
use super::slot_context::{Owner, SlotContext};
use crate::memory::{Buffer, Pool};
use crate::pd::ProtectionDomain;

/// A buffer as a queue holds it: by number, without a reference count of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) addr: NonNull<u8>,
    pub(crate) capacity: u32,
    pub(crate) pool: u32,
}

impl Piece {
    /// Returns the buffer of a receive that has one.
    #[inline(always)]
    fn of(context: &SlotContext) -> Self {
        Self { addr: context.start(), capacity: context.capacity(), pool: context.pool() }
    }
}

// SAFETY: an address within a pool that the same owners keep alive.
unsafe impl Send for Piece {}

/// A pool of which buffers are in the queues.
///
/// `[pool-counted]`: for each buffer in a queue one reference to the pool was forgotten and is counted here; a buffer
/// that leaves takes one of them along. So no message touches the count that other threads have in their caches.
struct OwnedPool {
    pool: Arc<Pool>,
    buffers: usize,
    form: ReceiveForm,
}

/// How buffers of a pool are posted, but for the address.
#[derive(Clone, Copy)]
struct ReceiveForm {
    context: SlotContext,
    segment: DataSegment,
}

impl ReceiveForm {
    /// Returns what the slot of a buffer remembers, and its data segment.
    #[inline(always)]
    fn of(&self, buffer: &Buffer) -> (SlotContext, DataSegment) {
        let addr = buffer.addr().as_ptr().expose_provenance() as u64;
        (self.context.at(addr), DataSegment { addr: Be64::new(addr), ..self.segment })
    }
}

impl OwnedPool {
    fn new(pool: Arc<Pool>, number: u32) -> Self {
        let size = pool.buffer_size();
        let form = ReceiveForm {
            context: SlotContext::of_pool(number, size),
            segment: DataSegment::new(0, size, pool.lkey()),
        };
        Self { pool, buffers: 0, form }
    }
}

impl Drop for OwnedPool {
    fn drop(&mut self) {
        for _ in 0..self.buffers {
            // SAFETY: [pool-counted].
            drop(unsafe { Arc::from_raw(Arc::as_ptr(&self.pool)) });
        }
    }
}

/// Posts many buffers of one pool. What it says of the pool stays in registers meanwhile; the pool has the count when
/// it is dropped.
pub(super) struct PoolBatch<'a> {
    of: &'a mut OwnedPool,
    pool: *const Pool,
    form: ReceiveForm,
    count: usize,
}

impl PoolBatch<'_> {
    /// Returns `true` if `buffer` is of this pool.
    #[inline(always)]
    pub(super) fn has(&self, buffer: &Buffer) -> bool {
        std::ptr::eq(buffer.pool(), self.pool)
    }

    /// Returns how a buffer of the pool is posted.
    #[inline(always)]
    pub(super) fn describe(&self, buffer: &Buffer) -> (SlotContext, DataSegment) {
        self.form.of(buffer)
    }

    /// Keeps a buffer of the pool, which is in a queue from now on.
    #[inline(always)]
    pub(super) fn keep(&mut self, buffer: Buffer) {
        let (pool, _) = buffer.into_parts();
        debug_assert_eq!(Arc::as_ptr(&pool), self.pool);
        std::mem::forget(pool);
        self.count += 1;
    }
}

impl Drop for PoolBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.of.buffers += self.count;
    }
}

/// The pools of which buffers are in the queues, and the lists of receives of several buffers.
pub(crate) struct BufferOwners {
    pd: ProtectionDomain,
    /// By number; `None` is free for another pool.
    pools: Vec<Option<OwnedPool>>,
    lists: Vec<Vec<Piece>>,
    free_lists: Vec<u32>,
}

impl BufferOwners {
    pub(crate) const fn new(pd: ProtectionDomain) -> Self {
        Self { pd, pools: Vec::new(), lists: Vec::new(), free_lists: Vec::new() }
    }

    /// Starts to post buffers of the pool of `buffer`; `None` if that is of another protection domain.
    #[inline]
    pub(super) fn batch(&mut self, buffer: &Buffer) -> Option<PoolBatch<'_>> {
        let is_it = |owned: &Option<OwnedPool>| {
            owned.as_ref().is_some_and(|owned| std::ptr::eq(&*owned.pool, buffer.pool()))
        };
        // Few pools, and in nearly every program one.
        let number = match self.pools.iter().position(is_it) {
            Some(number) => number,
            None => self.add(buffer.clone_pool())?,
        };
        let of = self.pools[number].as_mut()?;
        Some(PoolBatch { pool: Arc::as_ptr(&of.pool), form: of.form, count: 0, of })
    }

    /// Returns how a buffer is posted, if it is of the pool with this number.
    #[inline(always)]
    pub(super) fn describe_of(
        &self,
        pool: u32,
        buffer: &Buffer,
    ) -> Option<(SlotContext, DataSegment)> {
        let owned = self.pools.get(pool as usize)?.as_ref()?;
        std::ptr::eq(&*owned.pool, buffer.pool()).then(|| owned.form.of(buffer))
    }

    #[cold]
    fn add(&mut self, pool: Arc<Pool>) -> Option<usize> {
        if !pool.pd().is_same(&self.pd) {
            return None;
        }
        self.forget_unused();
        let number = self.pools.iter().position(Option::is_none).unwrap_or_else(|| {
            self.pools.push(None);
            self.pools.len() - 1
        });
        self.pools[number] = Some(OwnedPool::new(pool, number as u32));
        Some(number)
    }

    /// Lets go of the pools of which no buffer is in a queue.
    pub(super) fn forget_unused(&mut self) {
        for owned in &mut self.pools {
            owned.take_if(|owned| owned.buffers == 0);
        }
    }

    /// Returns the pool with this number.
    #[inline(always)]
    fn owned(&mut self, number: u32) -> &mut OwnedPool {
        // The number comes from a slot or a list, whose buffers keep the pool here.
        self.pools[number as usize].as_mut().expect("[pool-counted]")
    }

    fn pool(&self, number: u32) -> &Arc<Pool> {
        &self.pools[number as usize].as_ref().expect("[pool-counted]").pool
    }

    /// Enters a buffer that is about to be posted, or gives back one of another domain.
    pub(crate) fn enter(&mut self, buffer: Buffer) -> Result<(SlotContext, Sge), Buffer> {
        let Some(mut batch) = self.batch(&buffer) else {
            return Err(buffer);
        };
        let (context, segment) = batch.describe(&buffer);
        batch.keep(buffer);
        let (length, lkey) = (segment.byte_count.get(), segment.lkey.get());
        Ok((context, Sge { addr: context.addr(), length, lkey }))
    }

    /// Enters the buffers of one receive, or gives them back when one is of another domain.
    pub(crate) fn enter_list(
        &mut self,
        buffers: Vec<Buffer>,
        sges: &mut Vec<Sge>,
    ) -> Result<SlotContext, Vec<Buffer>> {
        if !buffers.iter().all(|buffer| buffer.pool().pd().is_same(&self.pd)) {
            return Err(buffers);
        }
        sges.clear();
        let pieces = buffers
            .into_iter()
            .filter_map(|buffer| self.enter(buffer).ok())
            .map(|(context, sge)| {
                sges.push(sge);
                Piece::of(&context)
            })
            .collect();
        let list = match self.free_lists.pop() {
            Some(list) => {
                self.lists[list as usize] = pieces;
                list
            }
            None => {
                self.lists.push(pieces);
                self.lists.len() as u32 - 1
            }
        };
        Ok(SlotContext::of_list(list))
    }

    /// Returns the buffers of a receive, in order; one that is not a list has one.
    pub(crate) fn pieces(&self, context: &SlotContext) -> impl Iterator<Item = Piece> + '_ {
        let (single, list) = match context.owner() {
            Owner::Pool(_) => (Some(Piece::of(context)), &[][..]),
            Owner::List(list) => (None, &self.lists[list as usize][..]),
            Owner::Raw => (None, &[][..]),
        };
        single.into_iter().chain(list.iter().copied())
    }

    /// Returns a message of `len` bytes; `None` for a receive that has no buffer of ours.
    pub(super) fn lend(
        &self,
        queue: u32,
        slot: u32,
        context: SlotContext,
        len: u32,
    ) -> Option<Lent> {
        let first = self.pieces(&context).next()?;
        let capacity = self.pieces(&context).map(|piece| u64::from(piece.capacity)).sum();
        // What the device reports is not trusted.
        let len = u64::from(len).min(capacity) as usize;
        let in_first = len.min(first.capacity as usize);
        Some(Lent { queue, slot, context, start: first.addr, first: in_first, len })
    }

    pub(crate) fn lkey(&self, piece: &Piece) -> u32 {
        self.pool(piece.pool).lkey()
    }

    /// Takes a buffer of `len` bytes out.
    ///
    /// # Safety
    /// The buffer was entered, is in no queue any more and nobody else's, and has room for `len` bytes.
    #[inline(always)]
    pub(super) unsafe fn take(&mut self, pool: u32, start: NonNull<u8>, len: u32) -> Buffer {
        let owned = self.owned(pool);
        owned.buffers -= 1;
        // SAFETY: [pool-counted]: the reference of this buffer, which was entered; the rest is the caller's contract.
        unsafe { Buffer::new(Arc::from_raw(Arc::as_ptr(&owned.pool)), start, len) }
    }

    /// Keeps the buffers of a receive that the device may still write, until `deferred` releases them.
    pub(crate) fn defer(&self, context: &SlotContext, deferred: &DeferredFree) {
        for piece in self.pieces(context) {
            deferred.keep(Arc::clone(self.pool(piece.pool)), piece.addr);
        }
    }

    /// Takes the buffers of a receive out; `len` bytes were received into them.
    pub(crate) fn leave(
        &mut self,
        context: SlotContext,
        mut len: u32,
        mut each: impl FnMut(Buffer),
    ) {
        let mut give = |owners: &mut Self, piece: &Piece| {
            let part = len.min(piece.capacity);
            len -= part;
            // SAFETY: whoever takes a receive out has it from a slot that was given back without it.
            each(unsafe { owners.take(piece.pool, piece.addr, part) });
        };
        match context.owner() {
            Owner::Pool(_) => {
                let piece = Piece::of(&context);
                give(self, &piece);
            }
            Owner::List(list) => {
                let pieces = std::mem::take(&mut self.lists[list as usize]);
                pieces.iter().for_each(|piece| give(self, piece));
                self.free_lists.push(list);
            }
            Owner::Raw => {}
        }
    }
}
