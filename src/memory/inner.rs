//! The part of a pool that its buffers share: memory, registration, and free list.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crossbeam::queue::ArrayQueue;
use mlx5_wire::data::DataSegment;
use rdma_core_sys as sys;

use super::backing::Backing;
use crate::pd::ProtectionDomain;

/// First field of the owner of the memory of a receive: one more than the bytes that a receive of one buffer takes; 0
/// for all other receives.
#[derive(Debug)]
pub(crate) struct Bound(u32);

impl Bound {
    /// Kind of receives that do not have one buffer of a pool.
    pub(crate) const NONE: Self = Self(0);

    pub(super) const fn of_buffer(size: u32) -> Self {
        Self(size + 1)
    }

    #[inline(always)]
    pub(crate) const fn get(&self) -> u32 {
        self.0
    }
}

#[repr(C)]
pub(crate) struct Pool {
    /// In front: a [`SlotContext`](crate::raw::SlotContext) refers to it.
    pub(super) bound: Bound,
    pub(super) buffer_size: u32,
    /// The data segment of a receive into one buffer, whose address is missing.
    pub(super) segment: DataSegment,
    pub(super) pd: ProtectionDomain,
    pub(super) backing: ManuallyDrop<Backing>,
    /// The first buffer, after its headroom.
    pub(super) start: NonNull<u8>,
    pub(super) mr: *mut sys::ibv_mr,
    pub(super) lkey: u32,
    /// Key for peers, of a pool that they may read.
    pub(super) rkey: Option<u32>,
    /// Memory windows can be bound to it.
    pub(super) has_windows: bool,
    pub(super) headroom: u32,
    pub(super) stride: usize,
    pub(super) count: u32,
    pub(super) free: ArrayQueue<Free>,
}

/// The first byte of a buffer that no code uses.
pub(super) struct Free(pub(super) NonNull<u8>);

// SAFETY: an address.
unsafe impl Send for Free {}

// SAFETY: the region's handle is used to free it only; each buffer has one owner at a time, tracked by
// `Buffer` and the queues, and the free list is a concurrent queue.
unsafe impl Send for Pool {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for Pool {}

impl Pool {
    pub(crate) const fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(crate) const fn rkey(&self) -> Option<u32> {
        self.rkey
    }

    pub(crate) const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Returns `true` if a buffer starts at `addr`.
    pub(super) fn has(&self, addr: NonNull<u8>) -> bool {
        let offset = addr.addr().get().wrapping_sub(self.start.addr().get());
        offset % self.stride == 0 && offset / self.stride < self.count as usize
    }

    /// Bytes that a buffer holds.
    pub(crate) const fn buffer_size(&self) -> u32 {
        self.buffer_size
    }

    #[inline(always)]
    pub(super) const fn segment(&self) -> &DataSegment {
        &self.segment
    }

    /// Puts the buffer that starts at `start`, and that no code uses any more, on the free list.
    pub(crate) fn put(&self, start: NonNull<u8>) {
        debug_assert!(self.has(start));
        // The list has room for every buffer of the pool.
        let _ = self.free.push(Free(start));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: registered by us and deregistered once; no buffer is left, and a queue that may hold one keeps the
        // pool alive.
        if unsafe { self.pd.context().deregister(self.mr) } {
            // SAFETY: the device has no access any more; dropped once.
            unsafe { ManuallyDrop::drop(&mut self.backing) }
        }
    }
}
