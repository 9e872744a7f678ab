//! Where the buffers of a pool are in its memory.

use std::ptr::NonNull;

use super::config::PoolConfig;
use crate::error::{Error, Result};

/// Buffers start on cache lines, so that the device never shares one with a neighbour's bytes, nor with a
/// headroom.
pub(super) const ALIGNMENT: usize = 64;

/// Bytes that one SGE can name: its length has 31 bits, and in a send WQE 0 stands for 2^31.
const MAX_SGE: u64 = (1 << 31) - 1;

/// Buffers of one size at equal distances.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slots {
    /// The first buffer, after its headroom.
    pub(super) start: NonNull<u8>,
    pub(super) count: u32,
    pub(super) buffer_size: u32,
    pub(super) headroom: u32,
    pub(super) stride: usize,
}

/// Returns the bytes of the cache lines for the headroom, and for headroom and buffer together. Refuses invalid sizes.
fn lines(config: &PoolConfig) -> Result<(usize, usize)> {
    Error::check_range("count of buffers", config.count.into(), 1, u32::MAX.into())?;
    let (size, headroom) = (u64::from(config.buffer_size), u64::from(config.headroom));
    Error::check_range("buffer_size", size, 1, MAX_SGE)?;
    // They can be sent together.
    Error::check_range("headroom", headroom, 0, MAX_SGE - size)?;
    let front = (config.headroom as usize).next_multiple_of(ALIGNMENT);
    Ok((front, front + (config.buffer_size as usize).next_multiple_of(ALIGNMENT)))
}

impl Slots {
    /// Bytes of memory that starts on a cache line and holds all buffers.
    pub(super) fn len(config: &PoolConfig) -> Result<u64> {
        let (_, stride) = lines(config)?;
        Ok(stride as u64 * u64::from(config.count))
    }

    /// As many buffers as fit into `len` bytes, and at most as many as were asked for.
    ///
    /// # Safety
    /// The bytes are of one allocation.
    pub(super) unsafe fn cut(first: NonNull<u8>, len: usize, config: &PoolConfig) -> Result<Self> {
        let (front, stride) = lines(config)?;
        let unaligned = first.as_ptr().addr().wrapping_neg() % ALIGNMENT;
        let one = front as u64 + u64::from(config.buffer_size);
        if (len as u64) < unaligned as u64 + one {
            // Enough at any address.
            let min = one + ALIGNMENT as u64 - 1;
            let max = isize::MAX as u64;
            let what = "size of the memory in bytes";
            return Err(Error::OutOfRange { what, value: len as u64, min, max });
        }
        // The last buffer needs no bytes after it.
        let after = stride - front - config.buffer_size as usize;
        let count = (len - unaligned + after) / stride;
        let start = after_start(first, unaligned + front);
        Ok(Self {
            start,
            count: config.count.min(count.min(u32::MAX as usize) as u32),
            buffer_size: config.buffer_size,
            headroom: config.headroom,
            stride,
        })
    }

    /// Returns the start of a buffer.
    pub(super) fn at(&self, index: usize) -> NonNull<u8> {
        debug_assert!(index < self.count as usize);
        after_start(self.start, index * self.stride)
    }
}

/// Returns the address `bytes` bytes after `first`, inside the memory. There may be no allocation of this process: the
/// memory of another device has addresses, too.
fn after_start(first: NonNull<u8>, bytes: usize) -> NonNull<u8> {
    // SAFETY: no memory goes around the end of the address space.
    unsafe { NonNull::new_unchecked(first.as_ptr().wrapping_add(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Lines([u8; 1024]);

    /// Offset of the first buffer, count and stride in so many bytes, of which the first is `skip` after the
    /// start of a line.
    fn cut(skip: usize, len: usize, config: &PoolConfig) -> Option<(usize, u32, usize)> {
        let mut memory = Lines([0; 1024]);
        let bytes = &mut memory.0[skip..][..len];
        let first = NonNull::from(&mut *bytes).cast::<u8>();
        // SAFETY: the bytes of the slice.
        let slots = unsafe { Slots::cut(first, len, config) }.ok()?;
        let offset = slots.start.as_ptr().addr() - first.as_ptr().addr();
        let end = offset + (slots.count as usize - 1) * slots.stride + slots.buffer_size as usize;
        assert!(end <= len, "the last of {} buffers ends at {end} of {len}", slots.count);
        Some((offset, slots.count, slots.stride))
    }

    #[test]
    fn messages_start_on_cache_lines_after_their_headroom() {
        let plain = PoolConfig::new(u32::MAX, 100);
        assert_eq!(cut(0, 1024, &plain), Some((0, 8, 128)));
        assert_eq!(cut(1, 1023, &plain), Some((63, 7, 128)));
        // 100 bytes of the last stride are enough.
        assert_eq!(cut(0, 128 + 100, &plain), Some((0, 2, 128)));
        assert_eq!(cut(0, 128 + 99, &plain), Some((0, 1, 128)));
        let roomy = plain.headroom(14);
        assert_eq!(cut(0, 1024, &roomy), Some((64, 5, 192)));
        assert_eq!(cut(0, 64 + 99, &roomy), None);
        assert_eq!(cut(0, 64 + 100, &roomy), Some((64, 1, 192)));
        assert_eq!(cut(0, 1024, &PoolConfig::new(3, 64).headroom(65)), Some((128, 3, 192)));
    }

    #[test]
    fn no_buffers_at_all_are_refused() {
        assert!(Slots::len(&PoolConfig::new(0, 64)).is_err());
        assert_eq!(cut(0, 1024, &PoolConfig::new(0, 64)), None);
    }

    #[test]
    fn sizes_that_cannot_be_sent_are_refused() {
        for (size, headroom) in [(0, 0), (1 << 31, 0), (1 << 30, 1 << 30)] {
            let config = PoolConfig::new(1, size).headroom(headroom);
            assert!(Slots::len(&config).is_err(), "{size} bytes after {headroom}");
        }
        let config = PoolConfig::new(3, (1 << 30) - 1).headroom(1 << 30);
        assert_eq!(Slots::len(&config).unwrap(), 3 << 31);
    }
}
