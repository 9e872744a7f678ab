//! Scatter entries as callers give them.

use core::ptr::NonNull;

use mlx5_wire::be::Be64;
use mlx5_wire::data::DataSegment;

/// A piece of registered memory (`struct ibv_sge`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// First byte, as its memory region names it.
    pub addr: u64,
    /// Bytes. An entry of length 0 is left out, as libmlx5 does on a receive queue: a segment that says 0
    /// can mean 2 GiB.
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
    let mut segment = segments;
    let mut written = 0;
    for sge in sges {
        if sge.length != 0 {
            // SAFETY: fewer than `capacity` segments have been written.
            unsafe {
                write(segment, DataSegment::new(sge.addr, sge.length, sge.lkey));
                segment = segment.add(1);
            }
            written += 1;
        }
    }
    if written < capacity {
        // SAFETY: as above, and one segment is left.
        unsafe { write(segment, DataSegment::TERMINATOR) }
    }
}

/// Writes a segment with two stores.
///
/// # Safety
/// `segment` is aligned to 16 bytes and writable.
#[inline(always)]
unsafe fn write(segment: NonNull<DataSegment>, value: DataSegment) {
    let words = value.to_words();
    let to = segment.cast::<Be64>();
    // SAFETY: two words of eight bytes, by the contract.
    unsafe {
        to.write_volatile(words[0]);
        to.add(1).write_volatile(words[1]);
    }
}
