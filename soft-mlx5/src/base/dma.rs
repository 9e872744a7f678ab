//! Memory of a host behind a bus.

use std::fmt;

/// Bytes of the host's memory that lie together in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Address of the first byte in this process.
    pub address: u64,
    /// Bytes from there on, at least one.
    pub len: u64,
}

/// Access of the device to the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The device reads.
    Read,
    /// The device writes, and perhaps reads.
    Write,
}

/// Memory of the host under the addresses that drivers write into contexts and WQEs: guest physical addresses, or the
/// IOVAs of an IOMMU.
///
/// # Safety
/// The device may access each piece that [`translate`](Self::translate) returns in the way asked for until the method
/// of the device that runs meanwhile returns: the piece belongs to the host alone, no Rust reference reaches it, and
/// nothing else is mapped there. A piece may be missing (unmapped, or a file that became shorter): the device
/// survives such an access and reports it. Offset within 4096 bytes is the same on both sides.
pub unsafe trait Dma: fmt::Debug + Send + Sync {
    /// Returns the bytes from `address` on, as far as they lie together, or `None` if the host has no memory
    /// there or does not allow the access.
    fn translate(&self, address: u64, access: Access) -> Option<Piece>;
}
