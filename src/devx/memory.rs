//! Memory of queues that commands make.

use std::io;
use std::ptr::NonNull;

use mlx5_wire::be::Be32;
use rdma_core_sys::{self as sys, Mlx5dv};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::memory::{HugePages, Mapping};

/// Bytes from one doorbell record to the next, so that two queues do not share a cache line.
const RECORD: usize = 64;

/// The ring of a queue and behind it the doorbell record, registered as one UMEM. All bytes are zero at first.
pub(crate) struct QueueMemory {
    umem: *mut sys::mlx5dv_devx_umem,
    mapping: Option<Mapping>,
    record: usize,
    context: Context,
    mlx5dv: &'static Mlx5dv,
}

// SAFETY: plain memory; who may touch which part of it is the business of its queue.
unsafe impl Send for QueueMemory {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for QueueMemory {}

impl QueueMemory {
    /// Registers memory for a ring of `len` bytes.
    pub(crate) fn new(context: &Context, mlx5dv: &'static Mlx5dv, len: usize) -> Result<Self> {
        let failed = |operation, source| Error::verbs(operation, context.name(), source);
        let record = len.next_multiple_of(RECORD);
        let mapping = Mapping::new(record + RECORD, HugePages::No).map_err(|error| failed("mmap", error))?;
        let (start, size) = (mapping.start().as_ptr().cast(), mapping.len());
        // SAFETY: an open context, and memory that stays until the UMEM is gone.
        let umem = unsafe { (mlx5dv.devx_umem_reg)(context.as_raw(), start, size, sys::IBV_ACCESS_LOCAL_WRITE) };
        if umem.is_null() {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                // The kernel's answer for a context without a user of the firmware.
                Some(libc::EINVAL | libc::EOPNOTSUPP) => Error::Unsupported {
                    operation: "mlx5dv_devx_umem_reg",
                    when: "without DEVX, which the firmware or the kernel does not give to this context",
                },
                _ => failed("mlx5dv_devx_umem_reg", error),
            });
        }
        Ok(Self { umem, mapping: Some(mapping), record, context: context.clone(), mlx5dv })
    }

    /// Returns the number of the UMEM.
    pub(crate) fn umem_id(&self) -> u32 {
        // SAFETY: the structure lives as long as the value.
        unsafe { (*self.umem).umem_id }
    }

    /// Returns the first byte of the ring.
    pub(crate) fn ring(&self) -> NonNull<u8> {
        self.mapping.as_ref().map_or(NonNull::dangling(), Mapping::start)
    }

    /// Returns the offset of the doorbell record in the UMEM.
    pub(crate) const fn record_offset(&self) -> u64 {
        self.record as u64
    }

    /// Returns the doorbell record: the word of receives, and behind it the word of sends.
    pub(crate) fn record(&self) -> NonNull<Be32> {
        // SAFETY: the record lies in the mapping.
        unsafe { self.ring().add(self.record) }.cast()
    }
}

impl Drop for QueueMemory {
    fn drop(&mut self) {
        if self.context.owner().is_this_process() {
            // SAFETY: registered by us, and ended once.
            let errno = unsafe { (self.mlx5dv.devx_umem_dereg)(self.umem) };
            if self.context.destroyed("mlx5dv_devx_umem_dereg", errno) {
                return;
            }
        }
        std::mem::forget(self.mapping.take());
    }
}
