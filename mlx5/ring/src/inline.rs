//! Payload that the device wrote into the CQE instead of the posted buffer (scatter-to-CQE).

use core::ptr::{self, NonNull};

use mlx5_wire::data::DataSegment;

use crate::copy;

/// Copies `payload` to the buffers of a WQE, and returns what does not fit.
///
/// # Safety
/// `segments` has `max_sge` segments, and each up to the terminator names writable memory, apart from the payload.
#[cold]
pub(crate) unsafe fn scatter(mut payload: &[u8], segments: NonNull<DataSegment>, max_sge: u32) -> &[u8] {
    for i in 0..max_sge as usize {
        // SAFETY: the WQE has `max_sge` segments.
        let segment = unsafe { segments.add(i).read() };
        if payload.is_empty() || segment.is_terminator() {
            break;
        }
        let (chunk, left) = payload.split_at(payload.len().min(segment.byte_count.get() as usize));
        // SAFETY: the caller's segments name writable memory, apart from the payload; the chunk is no longer than the
        // segment.
        unsafe { copy_to(chunk, segment) };
        payload = left;
    }
    payload
}

/// Copies `chunk` to the buffer of `segment`.
///
/// # Safety
/// `segment` names as many writable bytes, apart from the chunk.
#[inline(always)]
unsafe fn copy_to(chunk: &[u8], segment: DataSegment) {
    let to = ptr::with_exposed_provenance_mut::<u8>(segment.addr.get() as usize);
    // SAFETY: the caller's segment names as many writable bytes, apart from the chunk.
    unsafe { copy::bytes(chunk, to) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_segment_gets_as_much_as_it_holds() {
        let payload = *b"abcdefghij";
        let mut memory = [[0u8; 4]; 3];
        let start = memory.as_mut_ptr().expose_provenance() as u64;
        let segment = |index: u64, len| DataSegment::new(start + 4 * index, len, 7);
        let ended = [segment(0, 3), segment(1, 2), DataSegment::TERMINATOR];
        let whole = [segment(2, 1), segment(0, 1), segment(1, 4)];
        let mut deliver = |segments: &[DataSegment; 3], len| {
            // SAFETY: the payload is as long, and the segments name the test's memory.
            unsafe {
                scatter(&payload[..len], NonNull::from(segments).cast(), 3);
                (&raw mut memory).read_volatile()
            }
        };
        assert_eq!(deliver(&ended, 0), [[0; 4]; 3]);
        assert_eq!(deliver(&ended, 3), [*b"abc\0", [0; 4], [0; 4]]);
        assert_eq!(deliver(&ended, 4), [*b"abc\0", *b"d\0\0\0", [0; 4]]);
        assert_eq!(deliver(&ended, 10), [*b"abc\0", *b"de\0\0", [0; 4]]);
        assert_eq!(deliver(&whole, 10), [*b"bbc\0", *b"cdef", *b"a\0\0\0"]);
    }
}
