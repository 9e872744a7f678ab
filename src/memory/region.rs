//! Memory of a peer, as an RDMA request names it.

use std::fmt;

use bitflags::bitflags;
use mlx5_ring::sq::Remote;
use rdma_core_sys as sys;

use crate::error::{Error, Result};

bitflags! {
    /// The operations that peers may perform on [`MemoryRegion`](crate::MemoryRegion) and
    /// [`OpaqueMemory`](crate::opaque::OpaqueMemory), and how the device orders its stores to it.
    ///
    /// ```
    /// use doorbell::RemoteAccess;
    ///
    /// let access = RemoteAccess::READ | RemoteAccess::ATOMIC;
    /// assert!(!access.contains(RemoteAccess::WRITE));
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RemoteAccess: sys::ibv_access_flags {
        /// RDMA READ, over queue pairs with [`QpConfig::remote_read`](crate::QpConfig::remote_read).
        const READ = sys::IBV_ACCESS_REMOTE_READ;
        /// RDMA WRITE, over queue pairs with [`QpConfig::remote_write`](crate::QpConfig::remote_write).
        const WRITE = sys::IBV_ACCESS_REMOTE_WRITE;
        /// Atomic operations, over queue pairs with [`QpConfig::remote_atomic`](crate::QpConfig::remote_atomic). They
        /// are atomic among requests through one adapter (`IBV_ATOMIC_HCA`).
        const ATOMIC = sys::IBV_ACCESS_REMOTE_ATOMIC;
        /// The stores of the device may pass each other on their way to the memory. What a peer wrote is complete when
        /// this side has polled the completion of a later message; a program that polls the memory itself must not set
        /// it. The page GPU memory of the book says more. A kernel that does not know the flag ignores it.
        const RELAXED_ORDERING = sys::IBV_ACCESS_RELAXED_ORDERING;
        /// A [`MemoryWindow`](crate::MemoryWindow) can be bound to the memory. Its peer accesses the memory as the
        /// window says, also where the memory itself allows no operation.
        const BIND = sys::IBV_ACCESS_MW_BIND;
    }
}

/// Address, length and key of memory at a peer. The peer creates it with
/// [`MemoryRegion::region`](crate::MemoryRegion::region) and sends it to this side.
///
/// Requests stay within its bounds. If the peer has freed the memory, its device refuses the request, and the request
/// fails.
///
/// ```
/// use doorbell::RemoteRegion;
///
/// let region = RemoteRegion::new(0x7f00_0000_0000, 4096, 0x1805);
/// let bytes: [u8; RemoteRegion::BYTES] = region.to_bytes();
/// assert_eq!(RemoteRegion::from_bytes(&bytes), region);
/// let record = region.slice(256, 64)?;
/// assert_eq!((record.addr(), record.len()), (0x7f00_0000_0100, 64));
/// assert!(region.slice(4090, 8).is_err());
/// # Ok::<(), doorbell::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    addr: u64,
    /// At most `isize::MAX`.
    len: usize,
    rkey: u32,
}

impl RemoteRegion {
    /// Length of [`to_bytes`](Self::to_bytes) in bytes.
    pub const BYTES: usize = 20;

    /// Describes memory of a peer that does not use doorbell.
    pub const fn new(addr: u64, len: usize, rkey: u32) -> Self {
        Self { addr, len, rkey }
    }

    /// Returns the part of `len` bytes that starts at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the part is not inside the region.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Result<Self> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok(Self { addr: self.addr.wrapping_add(offset as u64), len, rkey: self.rkey })
            }
            end => Err(Error::OutOfRange {
                what: "end of the slice of remote memory",
                value: end.map_or(u64::MAX, |end| end as u64),
                min: 0,
                max: self.len as u64,
            }),
        }
    }

    /// Returns the address of the first byte in the memory of the peer.
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "callers need the length only")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns the remote key.
    pub const fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Returns the region as bytes for a message: address and length as 64 bits each, key as 32 bits, big-endian.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&(self.len as u64).to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// Returns the region that [`to_bytes`](Self::to_bytes) encoded.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| {
            let bytes: [u8; 4] = std::array::from_fn(|byte| bytes[at + byte]);
            u32::from_be_bytes(bytes)
        };
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        Self { addr: long(0), len: long(8) as usize, rkey: word(16) }
    }

    #[inline(always)]
    pub(crate) const fn remote(&self) -> Remote {
        Remote { addr: self.addr, rkey: self.rkey }
    }

    /// Returns `true` if it is what atomic operations take.
    #[inline(always)]
    pub(crate) const fn is_a_number(&self) -> bool {
        self.len == size_of::<u64>() && self.addr % 8 == 0
    }
}

impl fmt::Debug for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { addr, len, rkey } = self;
        write!(f, "RemoteRegion({addr:#x}, {len} bytes, rkey {rkey:#x})")
    }
}
