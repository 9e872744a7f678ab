//! Copies of a few bytes, without a call: inline data, and payload that came in a CQE.

/// Copies `bytes`, few of which need no call.
///
/// # Safety
/// As many bytes at `to` are writable, apart from `bytes`.
#[inline(always)]
pub(crate) unsafe fn bytes(bytes: &[u8], to: *mut u8) {
    // SAFETY: the caller's `to` has room.
    unsafe {
        // Two pieces, which may overlap. The most common lengths need the fewest comparisons.
        match bytes.len() {
            len if len <= 16 => match len {
                8.. => ends::<8>(bytes, to),
                4.. => ends::<4>(bytes, to),
                _ => any(bytes, to),
            },
            17..=32 => ends::<16>(bytes, to),
            33..=64 => ends::<32>(bytes, to),
            _ => any(bytes, to),
        }
    }
}

/// As [`bytes`], any number of bytes.
///
/// # Safety
/// As [`bytes`].
// Cold, so that the caller keeps its values in registers.
#[cold]
unsafe fn any(bytes: &[u8], to: *mut u8) {
    // SAFETY: the caller's `to` has room.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
}

/// As [`bytes`], from `N` to twice as many bytes.
///
/// # Safety
/// As [`bytes`].
#[inline(always)]
unsafe fn ends<const N: usize>(bytes: &[u8], to: *mut u8) {
    let (from, last) = (bytes.as_ptr(), bytes.len() - N);
    // SAFETY: both pieces are inside of the bytes.
    unsafe {
        to.copy_from_nonoverlapping(from, N);
        to.add(last).copy_from_nonoverlapping(from.add(last), N);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_nothing_beside() {
        let from: [u8; 100] = core::array::from_fn(|i| i as u8 + 1);
        for len in 0..=from.len() {
            let mut to = [0; 101];
            // SAFETY: `to` has room for all lengths.
            unsafe { bytes(&from[..len], to.as_mut_ptr()) }
            assert_eq!(to[..len], from[..len]);
            assert!(to[len..].iter().all(|byte| *byte == 0), "{len}");
        }
    }
}
