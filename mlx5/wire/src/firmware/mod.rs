//! Firmware commands: headers, contexts and capabilities, as `mlx5_ifc.h` of Linux and rdma-core names them.
//!
//! A command is a block of big-endian words. [`command`] has what all commands share and the short ones, the other
//! modules have the contexts and the commands around them. Fields that no driver of Linux uses are left out: reading
//! ignores them, [`put`](cq::CqContext::put) leaves them as they are. Page lists (`pas`) follow the formats as 64-bit
//! words; [`pages`] reads them.

#[macro_use]
pub mod fields;

pub mod capabilities;
pub mod command;
pub mod counters;
pub mod cq;
pub mod dct;
pub mod eq;
pub mod flow;
pub mod mkey;
pub mod qp;
pub mod register;
pub mod srq;
pub mod transport;
pub mod vport;
pub mod wq;

/// Returns the page addresses in the bytes after a format: words of 64 bits. A rest of fewer bytes is ignored.
pub fn pages(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> + '_ {
    let words = bytes.chunks_exact(8);
    words.map(|word| word.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}
