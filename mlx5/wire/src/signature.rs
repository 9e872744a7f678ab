//! Signature of a CQE: byte 62.
//!
//! The rule was read from CQEs that ConnectX adapters wrote and people published; no public document states it. It
//! holds on every published dump whose consumer counter is known. All of those are error CQEs of 64 bytes with a
//! counter below 2^24. Good CQEs, 128-byte CQEs (here: the second half) and larger counters (here: 24 bits, as in
//! the doorbell record) are extrapolated. An array of mini CQEs has no signature.

/// Place of the signature in a CQE.
const SIGNATURE: usize = 62;
/// Bits of the consumer counter.
const COUNTER_MASK: u32 = 0xff_ffff;

/// Returns the signature that belongs into byte 62 of a CQE, whatever stands there now. `counter` is the index of
/// the CQE, which does not wrap at the size of the queue.
#[inline]
pub fn signature(cqe: &[u8; 64], counter: u32) -> u8 {
    residue(cqe) ^ cqe[SIGNATURE] ^ fold(counter)
}

/// Returns the XOR of the three bytes of the counter that a CQE was signed with.
///
/// Nothing else can be learned about the counter: below 256 it is this number, else one of many.
#[inline]
pub fn residue(cqe: &[u8; 64]) -> u8 {
    cqe.iter().fold(0xff, |sum, byte| sum ^ byte)
}

/// Returns `true` if the CQE carries the signature for `counter`: it was read whole, and at its own index. One CQE in
/// 256 that was torn or read at another index passes.
#[inline]
pub fn is_signed(cqe: &[u8; 64], counter: u32) -> bool {
    residue(cqe) == fold(counter)
}

/// Returns the XOR of the bytes of a counter.
#[inline]
pub fn fold(counter: u32) -> u8 {
    (counter & COUNTER_MASK).to_be_bytes().iter().fold(0, |sum, byte| sum ^ byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cqe::ErrorCqe;

    /// An error CQE of a ConnectX-4 Lx, which the kernel read at index 8 (netdev, January 2021).
    fn connectx4() -> [u8; 64] {
        let mut cqe = [0; 64];
        cqe[52..].copy_from_slice(&[0x60, 0x10, 0x68, 0x01, 0x0a, 0x00, 0x1d, 0xbb, 0x00, 0x0f, 0x9f, 0xd2]);
        cqe
    }

    #[test]
    fn a_cqe_of_an_adapter_is_signed_with_its_index() {
        assert!(is_signed(&connectx4(), 8));
        assert!(!is_signed(&connectx4(), 7));
        assert_eq!(residue(&connectx4()), 8);
        let mut blank = connectx4();
        blank[62] = 0;
        assert_eq!(signature(&blank, 8), 0x9f);
        assert_eq!(signature(&connectx4(), 8), 0x9f, "what stands there does not matter");
    }

    #[test]
    fn each_byte_and_each_byte_of_the_counter_counts() {
        for at in 0..64 {
            let mut torn = connectx4();
            torn[at] ^= 0x40;
            assert!(!is_signed(&torn, 8), "byte {at}");
        }
        assert_eq!((fold(0x2022), fold(0x2023), fold(0x12_3456)), (0x02, 0x03, 0x70));
        assert_eq!(fold(0xff00_0008), 8, "24 bits count");
        assert_eq!(ErrorCqe::from_bytes(&connectx4()).signature, 0x9f);
    }
}
