//! Who owns the buffers that are in the queues of a receiver.

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use mlx5_ring::sge::Sge;
use mlx5_wire::be::Be64;
use mlx5_wire::data::DataSegment;

use super::deferred_free::DeferredFree;
use super::lent::Lent;
use super::slot_context::{Owner, SlotContext};
use crate::memory::{Buffer, Pool};
use crate::pd::ProtectionDomain;

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
    /// Receives of several buffers, each buffer as a receive of its own would have it.
    lists: Vec<Vec<SlotContext>>,
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
        let parts = buffers
            .into_iter()
            .filter_map(|buffer| self.enter(buffer).ok())
            .map(|(context, sge)| {
                sges.push(sge);
                context
            })
            .collect();
        let list = match self.free_lists.pop() {
            Some(list) => {
                self.lists[list as usize] = parts;
                list
            }
            None => {
                self.lists.push(parts);
                self.lists.len() as u32 - 1
            }
        };
        Ok(SlotContext::of_list(list))
    }

    /// Returns the buffers of a receive, in order.
    pub(crate) fn parts<'a>(&'a self, context: &'a SlotContext) -> &'a [SlotContext] {
        match context.owner() {
            Owner::Pool(_) => slice::from_ref(context),
            Owner::List(list) => &self.lists[list as usize],
            Owner::Raw => &[],
        }
    }

    /// Returns a message of `len` bytes; `None` for a receive that has no buffer of ours.
    pub(super) fn lend(
        &self,
        queue: u32,
        slot: u32,
        context: SlotContext,
        len: u32,
    ) -> Option<Lent> {
        let parts = self.parts(&context);
        let first = parts.first()?;
        let capacity = parts.iter().map(|part| u64::from(part.capacity())).sum();
        // What the device reports is not trusted.
        let len = u64::from(len).min(capacity) as usize;
        let in_first = len.min(first.capacity() as usize);
        Some(Lent { queue, slot, context, start: first.start(), first: in_first, len })
    }

    pub(crate) fn lkey(&self, part: &SlotContext) -> u32 {
        self.pool(part.pool()).lkey()
    }

    /// Takes a buffer of `len` bytes out.
    ///
    /// # Safety
    /// The buffer was entered, is in no queue any more and no other code's, and has room for `len` bytes.
    #[inline(always)]
    pub(super) unsafe fn take(&mut self, pool: u32, start: NonNull<u8>, len: u32) -> Buffer {
        let owned = self.owned(pool);
        owned.buffers -= 1;
        // SAFETY: [pool-counted]: the reference of this buffer, which was entered; the rest is the caller's contract.
        unsafe { Buffer::new(Arc::from_raw(Arc::as_ptr(&owned.pool)), start, len) }
    }

    /// Keeps the buffers of a receive that the device may still write, until `deferred` releases them.
    pub(crate) fn defer(&self, context: &SlotContext, deferred: &DeferredFree) {
        for part in self.parts(context) {
            deferred.keep(Arc::clone(self.pool(part.pool())), part.start());
        }
    }

    /// Takes the buffers of a receive out; `len` bytes were received into them.
    pub(crate) fn leave(
        &mut self,
        context: SlotContext,
        mut len: u32,
        mut each: impl FnMut(Buffer),
    ) {
        let mut give = |owners: &mut Self, part: SlotContext| {
            let received = len.min(part.capacity());
            len -= received;
            // SAFETY: whoever takes a receive out has it from a slot that was given back without it.
            each(unsafe { owners.take(part.pool(), part.start(), received) });
        };
        match context.owner() {
            Owner::Pool(_) => give(self, context),
            Owner::List(list) => {
                let parts = std::mem::take(&mut self.lists[list as usize]);
                parts.into_iter().for_each(|part| give(self, part));
                self.free_lists.push(list);
            }
            Owner::Raw => {}
        }
    }
}
