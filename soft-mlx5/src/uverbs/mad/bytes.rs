//! Numbers in big-endian bytes.

/// Writes a number of two bytes.
pub fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Writes a number of four bytes.
pub fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Writes a number of eight bytes.
pub fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

/// Reads a number of two bytes.
pub fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Reads a number of four bytes.
pub fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from(get16(bytes, at)) << 16 | u32::from(get16(bytes, at + 2))
}

/// Reads a number of eight bytes.
pub fn get64(bytes: &[u8], at: usize) -> u64 {
    u64::from(get32(bytes, at)) << 32 | u64::from(get32(bytes, at + 4))
}

/// Reads a GID.
pub fn gid(bytes: &[u8], at: usize) -> [u8; 16] {
    let mut gid = [0; 16];
    gid.copy_from_slice(&bytes[at..at + 16]);
    gid
}
