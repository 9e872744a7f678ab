//! Scatter entries as callers give them.

use core::mem::offset_of;
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

impl Sge {
    /// Returns the length in the lower half and the key in the upper half: they are one word in memory.
    #[inline(always)]
    const fn length_and_key(&self) -> u64 {
        const { assert!(offset_of!(Self, length) == 8 && offset_of!(Self, lkey) == 12) }
        const { assert!(cfg!(target_endian = "little")) }
        // SAFETY: the second word of the entry.
        unsafe { (&raw const *self).cast::<u64>().add(1).read() }
    }
}

impl From<&Sge> for DataSegment {
    #[inline(always)]
    fn from(sge: &Sge) -> Self {
        let word = sge.length_and_key();
        Self::new(sge.addr, word as u32, (word >> 32) as u32)
    }
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
        if sge.length_and_key() as u32 != 0 {
            // SAFETY: fewer than `capacity` segments have been written.
            unsafe {
                write(segment, sge.into());
                segment = segment.add(1);
            }
        }
    }
    if segment != end {
        // SAFETY: as above, and one segment is left.
        unsafe { write(segment, DataSegment::TERMINATOR) }
    }
}

/// Writes `sges`, none of which has length 0, to the `capacity` data segments at `segments`, and ends a shorter list. Returns
/// `false` if one has length 0: the segments are then not a list.
///
/// # Safety
/// `segments` is aligned to 16 bytes and writable for `capacity` segments that the device does not read
/// now, and `sges.len() <= capacity`.
#[inline(always)]
pub unsafe fn scatter_all(segments: NonNull<DataSegment>, capacity: u32, sges: &[Sge]) -> bool {
    let mut segment = segments;
    for sge in sges {
        if sge.length_and_key() as u32 == 0 {
            return false;
        }
        // SAFETY: fewer than `capacity` segments have been written.
        unsafe {
            write(segment, sge.into());
            segment = segment.add(1);
        }
    }
    if sges.len() != capacity as usize {
        // SAFETY: one segment is left.
        unsafe { write(segment, DataSegment::TERMINATOR) }
    }
    true
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
        write(segments, segment);
        if capacity > 1 {
            write(segments.add(1), DataSegment::TERMINATOR);
        }
    }
}

/// Copies the list of one WQE to another.
///
/// # Safety
/// Both are aligned to 16 bytes, and have `capacity` segments that the device does not read now; `from` has a list.
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
unsafe fn write(segment: NonNull<DataSegment>, value: DataSegment) {
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

    fn written(sges: &[Sge]) -> [DataSegment; 3] {
        let stale = DataSegment::new(!0, !0, !0);
        let mut wqe = Wqe([stale; 3]);
        // SAFETY: a WQE of three segments, aligned to 16 bytes.
        unsafe { scatter(NonNull::from(&mut wqe.0).cast(), 3, sges) }
        wqe.0
    }

    #[test]
    fn a_list_without_empty_entries_is_written_the_same() {
        let sge = |length| Sge { addr: 0x1000, length, lkey: 7 };
        let mut wqe = Wqe([DataSegment::new(!0, !0, !0); 3]);
        for list in [&[][..], &[sge(1)], &[sge(1), sge(2)], &[sge(1), sge(2), sge(3)]] {
            wqe.0 = [DataSegment::new(!0, !0, !0); 3];
            // SAFETY: a WQE of three segments, aligned to 16 bytes.
            assert!(unsafe { scatter_all(NonNull::from(&mut wqe.0).cast(), 3, list) });
            assert_eq!(wqe.0, written(list));
        }
        // SAFETY: as above.
        assert!(!unsafe { scatter_all(NonNull::from(&mut wqe.0).cast(), 3, &[sge(1), sge(0)]) });
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
