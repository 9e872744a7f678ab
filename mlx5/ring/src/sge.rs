//! Scatter entries as callers give them.

use core::ptr::NonNull;

use mlx5_wire::be::Be64;
use mlx5_wire::data::DataSegment;

/// A piece of registered memory, with the layout of `struct ibv_sge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// First byte, as its memory region names it.
    pub addr: u64,
    /// Bytes. An entry of length 0 is left out, as libmlx5 does on a receive queue: a segment that says 0
    /// can mean 2 GiB.
    pub length: u32,
    /// Local key of the memory region.
    pub lkey: u32,
}

impl From<Sge> for DataSegment {
    #[inline(always)]
    fn from(Sge { addr, length, lkey }: Sge) -> Self {
        Self::new(addr, length, lkey)
    }
}

/// Writes `sges` to the `capacity` data segments at `segments`, and ends a shorter list.
///
/// # Safety
/// `segments` is aligned to 16 bytes and writable for `capacity` segments that the device does not read
/// now, and `sges.len() <= capacity`.
#[inline(always)]
pub(crate) unsafe fn scatter(segments: NonNull<DataSegment>, capacity: u32, sges: &[Sge]) {
    let mut segment = segments;
    // SAFETY: the end of the segments.
    let end = unsafe { segments.add(capacity as usize) };
    for sge in sges {
        if sge.length != 0 {
            // SAFETY: fewer than `capacity` segments have been written.
            unsafe {
                write(segment, (*sge).into());
                segment = segment.add(1);
            }
        }
    }
    if segment != end {
        // SAFETY: as above, and one segment is left.
        unsafe { write(segment, DataSegment::TERMINATOR) }
    }
}

/// Writes a list of one segment to the `capacity` data segments at `segments`.
///
/// # Safety
/// `segments` is aligned to 16 bytes and writable for `capacity` segments that the device does not read
/// now; `capacity` is not 0.
#[inline(always)]
pub unsafe fn write_one(segments: NonNull<DataSegment>, capacity: u32, segment: DataSegment) {
    debug_assert_ne!(segment.byte_count.get(), 0, "0 can mean 2 GiB");
    // SAFETY: the caller passes `capacity` writable segments, at least one, that the device does not read now.
    unsafe {
        if capacity > 1 {
            write(segments.add(1), DataSegment::TERMINATOR);
        }
        write(segments, segment);
    }
}

/// Copies the list of one WQE to another.
///
/// # Safety
/// Both lists are aligned to 16 bytes, and have `capacity` segments that the device does not read now; `from` has a
/// list.
#[inline(always)]
pub(crate) unsafe fn copy(from: NonNull<DataSegment>, to: NonNull<DataSegment>, capacity: u32) {
    for i in 0..capacity as usize {
        // SAFETY: below `capacity`.
        unsafe {
            let segment = from.add(i).read();
            write(to.add(i), segment);
            if segment.is_terminator() {
                return;
            }
        }
    }
}

/// Writes a segment with two stores.
///
/// # Safety
/// `segment` is aligned to 16 bytes and writable.
#[inline(always)]
pub(crate) unsafe fn write(segment: NonNull<DataSegment>, value: DataSegment) {
    let words = value.to_words();
    let to = segment.cast::<Be64>();
    // SAFETY: the caller's segment is aligned and writable: two words of eight bytes.
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

    const STALE: DataSegment = DataSegment::new(!0, !0, !0);

    const fn sge(length: u32) -> Sge {
        Sge { addr: 0x0102_0304_0506_0708, length, lkey: 0x090a_0b0c }
    }

    fn segments(write: impl FnOnce(NonNull<DataSegment>)) -> [DataSegment; 3] {
        let mut wqe = Wqe([STALE; 3]);
        write(NonNull::from(&mut wqe.0).cast());
        wqe.0
    }

    fn scattered(sges: &[Sge]) -> [DataSegment; 3] {
        // SAFETY: a WQE of three segments, aligned to 16 bytes.
        segments(|wqe| unsafe { scatter(wqe, 3, sges) })
    }

    #[test]
    fn empty_entries_are_left_out_and_a_shorter_list_is_ended() {
        let (one, two) = (sge(0x0d0e_0f10), sge(2));
        let segment = |sge: Sge| DataSegment::new(sge.addr, sge.length, sge.lkey);
        let (first, second, end) = (segment(one), segment(two), DataSegment::TERMINATOR);
        assert_eq!(scattered(&[]), [end, STALE, STALE]);
        assert_eq!(scattered(&[sge(0); 3]), [end, STALE, STALE]);
        assert_eq!(scattered(&[one, sge(0), two]), [first, second, end]);
        assert_eq!(scattered(&[one, two, one]), [first, second, first]);
    }
}
