//! A slot of the table.
//!
//! | bytes | |
//! |---|---|
//! | 0..8 | lock: the number of the client that writes, or 0; a number of the server's processor |
//! | 8..16 | version |
//! | 16..24 | check sum of version and value |
//! | 24.. | value |

/// Bytes of a slot: several packets, so that a reader can meet a writer in the middle.
pub const SLOT: usize = 4096;
const HEADER: usize = 24;

/// Returns the bytes of a slot after its lock: each value follows from key and version.
pub fn content(key: usize, version: u64) -> Vec<u8> {
    let value: Vec<u8> = (HEADER..SLOT).map(|at| (version.wrapping_mul(31) as usize + key * 7 + at) as u8).collect();
    [&version.to_be_bytes()[..], &sum(version, &value).to_be_bytes(), &value].concat()
}

/// Returns the version of a slot; `None` if a writer was at work while it was read.
pub fn version(slot: &[u8]) -> Option<u64> {
    let version = number(&slot[8..]);
    (number(&slot[16..]) == sum(version, &slot[HEADER..])).then_some(version)
}

fn sum(version: u64, value: &[u8]) -> u64 {
    value.iter().fold(!version, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns eight bytes as a number.
fn number(bytes: &[u8]) -> u64 {
    bytes[..8].iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
