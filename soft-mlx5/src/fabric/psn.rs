//! Packet sequence numbers: 24 bits that wrap.

use crate::fabric::headers::PSN_MASK;

/// Returns `psn + n`.
pub const fn add(psn: u32, n: u32) -> u32 {
    psn.wrapping_add(n) & PSN_MASK
}

/// Returns how far `a` is ahead of `b`; negative if `b` is ahead.
pub const fn diff(a: u32, b: u32) -> i32 {
    // Shifted to the top, the sign is that of the 24-bit difference.
    (a.wrapping_sub(b) << 8) as i32 >> 8
}

/// Returns `true` if `psn` is one of the numbers from `start` up to, not including, `end`.
pub const fn is_within(psn: u32, start: u32, end: u32) -> bool {
    (psn.wrapping_sub(start) & PSN_MASK) < (end.wrapping_sub(start) & PSN_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        assert_eq!(add(0xff_ffff, 2), 1);
        assert_eq!(diff(1, 0xff_ffff), 2);
        assert_eq!(diff(0xff_ffff, 1), -2);
        assert_eq!(diff(5, 5), 0);
        assert!(is_within(0, 0xff_fffe, 2));
        assert!(!is_within(2, 0xff_fffe, 2));
        assert!(!is_within(0xff_fffd, 0xff_fffe, 2));
        assert!(!is_within(7, 7, 7));
    }
}
