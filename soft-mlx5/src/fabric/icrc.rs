//! Invariant CRC: protects what no router changes, from the IP header to the last byte of padding.

const POLYNOMIAL: u32 = 0xedb8_8320;

const TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut byte = 0;
    while byte < 256 {
        let mut table = 1;
        while table < 8 {
            let before: u32 = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            table += 1;
        }
        byte += 1;
    }
    tables
};

/// A CRC-32 (the one of Ethernet) over bytes that come in pieces.
#[derive(Debug, Clone, Copy)]
pub struct Crc(u32);

impl Crc {
    /// A CRC over nothing.
    pub const fn new() -> Self {
        Self(!0)
    }

    /// Adds bytes, eight at a time where it can.
    pub fn add(mut self, bytes: &[u8]) -> Self {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let low = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]) ^ self.0;
            let high = u32::from_le_bytes([chunk[4], chunk[5], chunk[6], chunk[7]]);
            let [a, b, c, d] = low.to_le_bytes();
            let [e, f, g, h] = high.to_le_bytes();
            self.0 = TABLES[7][a as usize]
                ^ TABLES[6][b as usize]
                ^ TABLES[5][c as usize]
                ^ TABLES[4][d as usize]
                ^ TABLES[3][e as usize]
                ^ TABLES[2][f as usize]
                ^ TABLES[1][g as usize]
                ^ TABLES[0][h as usize];
        }
        for &byte in chunks.remainder() {
            self.0 = self.0 >> 8 ^ TABLES[0][(self.0 as u8 ^ byte) as usize];
        }
        self
    }

    /// The CRC of all bytes added, in the byte order of the wire.
    pub const fn finish(self) -> [u8; 4] {
        (!self.0).to_le_bytes()
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
