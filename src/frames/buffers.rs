//! The memory of a receiver of frames.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use mlx5_wire::data::DataSegment;

use super::config::FrameConfig;
use crate::error::{Error, Result};
use crate::memory::{Buffer, BufferPool, PoolConfig};
use crate::pd::ProtectionDomain;

/// A buffer as its slot remembers it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) start: NonNull<u8>,
    /// Index in [`Buffers`].
    pub(super) index: u32,
}

// SAFETY: an address of memory that the receiver keeps.
unsafe impl Send for Posted {}

/// All buffers of a receiver, by index. Each is in a slot, spare, or held by frames that were taken out of it.
///
/// `[counted]`: a buffer has one reference here, and one for each frame that was taken out of it. While there is no other
/// than the one here, nobody reads it, and only the receiver makes new ones.
pub(super) struct Buffers {
    all: Vec<Arc<Buffer>>,
    /// Nobody has them.
    spare: Vec<u32>,
    /// They completed, and frames were taken out of them.
    taken: VecDeque<u32>,
    bytes: u32,
    lkey: u32,
}

impl Buffers {
    pub(super) fn new(pd: &ProtectionDomain, config: &FrameConfig) -> Result<Self> {
        let (count, bytes) = (config.wqes.saturating_add(config.spare), config.shape.bytes());
        let pool = BufferPool::with(pd, &PoolConfig::new(count, bytes).pages(config.pages))?;
        let all: Vec<_> = std::iter::from_fn(|| pool.take()).map(Arc::new).collect();
        let lkey = pool.0.lkey();
        Error::check_range("buffers of the pool", all.len() as u64, count.into(), count.into())?;
        Ok(Self {
            spare: (0..count).rev().collect(),
            taken: VecDeque::with_capacity(count as usize),
            all,
            bytes,
            lkey,
        })
    }

    /// Returns the bytes of a buffer.
    #[inline(always)]
    pub(super) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns `true` if no frame was taken out of a buffer that is still held.
    #[inline(always)]
    pub(super) fn is_whole(&self, index: u32) -> bool {
        let whole = Arc::strong_count(&self.all[index as usize]) == 1;
        if whole {
            // Whoever has dropped a frame has read its bytes before: [counted].
            fence(Ordering::Acquire);
        }
        whole
    }

    /// Returns another reference to a buffer, for a frame that is taken out of it.
    #[inline(always)]
    pub(super) fn share(&self, index: u32) -> Arc<Buffer> {
        Arc::clone(&self.all[index as usize])
    }

    /// Returns a buffer that nobody has.
    #[cold]
    pub(super) fn take_spare(&mut self) -> Option<Posted> {
        let index = self.spare.pop().or_else(|| {
            let at = self.taken.iter().position(|&index| self.is_whole(index))?;
            self.taken.swap_remove_back(at)
        })?;
        Some(Posted { start: self.all[index as usize].addr(), index })
    }

    /// Takes a buffer back that is in no slot any more.
    #[cold]
    pub(super) fn put(&mut self, buffer: Posted) {
        if self.is_whole(buffer.index) {
            self.spare.push(buffer.index);
        } else {
            self.taken.push_back(buffer.index);
        }
    }

    /// Returns the data segment of a buffer.
    pub(super) fn segment(&self, buffer: Posted) -> DataSegment {
        let addr = buffer.start.as_ptr().expose_provenance() as u64;
        DataSegment::new(addr, self.bytes, self.lkey)
    }
}
