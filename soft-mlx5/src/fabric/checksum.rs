//! The one's complement sum of the Internet.

/// Returns the sum of 16-bit words, not folded; an odd byte at the end counts as if a zero followed.
pub fn words(bytes: &[u8]) -> u32 {
    let low = |pair: &[u8]| pair.get(1).map_or(0, |low| u32::from(*low));
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | low(pair)).sum()
}

/// Adds the carries back in.
pub fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the sum of 16-bit words: all ones over bytes that hold their own checksum.
pub fn sum(bytes: &[u8]) -> u16 {
    folded(words(bytes))
}

/// Puts the checksum of a range into two bytes of it.
pub fn set(frame: &mut [u8], range: std::ops::Range<usize>, at: usize, more: u32) -> u16 {
    frame[at..at + 2].fill(0);
    let sum = !folded(more + words(&frame[range]));
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    // The example of RFC 1071, section 3.
    #[test]
    fn the_published_sum() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(sum(&[0x12]), 0x1200);
    }
}
