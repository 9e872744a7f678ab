//! Invariant CRC: covers the fields that no router changes, from the IP header to the last byte of padding.

use crc32fast::Hasher;

/// A CRC-32 (the one of Ethernet) over bytes that come in pieces.
#[derive(Debug, Clone)]
pub struct Crc(Hasher);

impl Crc {
    /// Starts a CRC, over no bytes.
    pub fn new() -> Self {
        Self(Hasher::new())
    }

    /// Adds bytes.
    pub fn add(mut self, bytes: &[u8]) -> Self {
        self.0.update(bytes);
        self
    }

    /// Returns the CRC of all bytes added, in the byte order of the wire.
    pub fn finish(self) -> [u8; 4] {
        self.0.finalize().to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_of_crc32() {
        assert_eq!(Crc::new().add(b"123456789").finish(), 0xcbf4_3926u32.to_le_bytes());
    }

    #[test]
    fn pieces_add_up() {
        let bytes: Vec<u8> = (0..100u32).map(|i| (i * 7) as u8).collect();
        let whole = Crc::new().add(&bytes).finish();
        for cut in 0..bytes.len() {
            assert_eq!(Crc::new().add(&bytes[..cut]).add(&bytes[cut..]).finish(), whole);
        }
    }
}
