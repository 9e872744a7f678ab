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

/// Writes `list` to the first of `capacity` data segments, and ends it if it is shorter.
///
/// # Safety
/// As [`scatter`].
#[inline(always)]
pub(crate) unsafe fn scatter_exactly<const N: usize>(
    segments: NonNull<DataSegment>,
    capacity: u32,
    list: [DataSegment; N],
) {
    // SAFETY: the caller's contract.
    unsafe {
        for (i, segment) in list.into_iter().enumerate() {
            write(segments.add(i), segment);
        }
        if N < capacity as usize {
            write(segments.add(N), DataSegment::TERMINATOR);
        }
    }
}

/// Moves the memory of a segment.
///
/// # Safety
/// `segment` is aligned to 16 bytes, and writable.
#[inline(always)]
pub(crate) unsafe fn readdress(segment: NonNull<DataSegment>, addr: u64) {
    // SAFETY: the second of two words of eight bytes, by the contract.
    unsafe { segment.cast::<Be64>().add(1).write_volatile(Be64::new(addr)) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(16))]
    struct Wqe([DataSegment; 3]);

    fn written(sges: &[Sge]) -> [DataSegment; 3] {
        let stale = DataSegment::new(!0, !0, !0);
        let mut wqe = Wqe([stale; 3]);
        // SAFETY: a WQE of three segments, aligned to 16 bytes.
        unsafe { scatter(NonNull::from(&mut wqe.0).cast(), 3, sges) }
        wqe.0
    }

    #[test]
    fn empty_entries_are_left_out_and_a_shorter_list_is_ended() {
        let sge = |length| Sge { addr: 0x1000, length, lkey: 7 };
        let (one, two) = (DataSegment::new(0x1000, 1, 7), DataSegment::new(0x1000, 2, 7));
        let (end, stale) = (DataSegment::TERMINATOR, DataSegment::new(!0, !0, !0));
        assert_eq!(written(&[]), [end, stale, stale]);
        assert_eq!(written(&[sge(0), sge(0), sge(0)]), [end, stale, stale]);
        assert_eq!(written(&[sge(1), sge(0), sge(2)]), [one, two, end]);
        assert_eq!(written(&[sge(1), sge(2), sge(1)]), [one, two, one]);
    }
}
