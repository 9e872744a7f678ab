//! Scatter entries as callers give them.

use core::ptr::NonNull;

use mlx5_wire::data::DataSegment;

/// A piece of registered memory (`struct ibv_sge`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// First byte, as its memory region names it.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key of the memory region.
    pub lkey: u32,
}

/// Writes `sges` to the `capacity` data segments at `segments`, and ends a shorter list.
///
/// # Safety
/// `segments` is aligned to 16 bytes and writable for `capacity` segments that the device does not read
/// now, and `sges.len() <= capacity`.
#[inline(always)]
pub(crate) unsafe fn scatter(segments: NonNull<DataSegment>, capacity: u32, sges: &[Sge]) {
    let mut segment = segments.as_ptr();
    for sge in sges {
        // SAFETY: fewer than `capacity` segments have been written; the slot is software's.
        unsafe {
            segment.write(DataSegment::new(sge.addr, sge.length, sge.lkey));
            segment = segment.add(1);
        }
    }
    if (sges.len() as u32) < capacity {
        // SAFETY: as above, and one segment is left.
        unsafe { segment.write(DataSegment::TERMINATOR) }
    }
}
