//! The memory of a receiver of frames.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use mlx5_ring::frames::FrameBuffer;
use rdma_core_sys as sys;

use super::config::FrameConfig;
use crate::error::{Error, Result};
use crate::memory::{Buffer, BufferPool, PoolConfig};
use crate::pd::ProtectionDomain;

/// All buffers of a receiver, by index. Each is in a WQE, or spare.
///
/// `[counted]`: a buffer has one reference here, and one for each frame that was taken out of it. It is *whole* while
/// it has no reference but that here: no code reads it, and only the receiver makes new references.
pub(super) struct Buffers {
    all: Vec<Arc<Buffer>>,
    /// Buffers that are in no WQE; the one that was put here first is in front.
    spare: VecDeque<u32>,
    bytes: u32,
    lkey: u32,
}

impl Buffers {
    /// Makes a buffer for each of `wqes` WQEs, with the indices below that number, and the spare buffers.
    pub(super) fn new(pd: &ProtectionDomain, config: &FrameConfig, wqes: u32) -> Result<Self> {
        let (count, bytes) = (wqes.saturating_add(config.spare), config.shape.bytes());
        let pool = BufferPool::new(pd, &PoolConfig::new(count, bytes).pages(config.pages))?;
        let all: Vec<_> = std::iter::from_fn(|| pool.take()).map(Arc::new).collect();
        let lkey = pool.0.lkey();
        Error::check_range("buffers of the pool", all.len() as u64, count.into(), count.into())?;
        Ok(Self { all, spare: (wqes..count).collect(), bytes, lkey })
    }

    /// Returns the bytes of a buffer.
    pub(super) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns the local key of all buffers.
    pub(super) const fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Returns a buffer as a WQE has it.
    pub(super) fn get(&self, index: u32) -> FrameBuffer {
        FrameBuffer { start: self.all[index as usize].addr(), index }
    }

    /// Returns `true` if no frame was taken out of a buffer that still exists.
    pub(super) fn is_whole(&self, index: u32) -> bool {
        let whole = Arc::strong_count(&self.all[index as usize]) == 1;
        if whole {
            // [counted]: the code that dropped a frame has read its bytes before.
            fence(Ordering::Acquire);
        }
        whole
    }

    /// Returns another reference to a buffer, for a frame that is taken out of it.
    pub(super) fn share(&self, index: u32) -> Arc<Buffer> {
        Arc::clone(&self.all[index as usize])
    }

    /// Makes a buffer that is in no WQE any more a spare one, and returns another, which is whole; `None` if there is
    /// none.
    pub(super) fn exchange(&mut self, index: u32) -> Option<FrameBuffer> {
        let at = self.spare.iter().position(|&spare| self.is_whole(spare))?;
        let whole = self.spare.remove(at)?;
        self.spare.push_back(index);
        Some(self.get(whole))
    }

    /// Returns the scatter entry of a buffer.
    pub(super) fn sge(&self, buffer: FrameBuffer) -> sys::ibv_sge {
        let addr = buffer.start.as_ptr().expose_provenance() as u64;
        sys::ibv_sge { addr, length: self.bytes, lkey: self.lkey }
    }
}
