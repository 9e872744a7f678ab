//! Memory of a peer, as an RDMA request names it.

use std::fmt;
use std::ops::BitOr;

use mlx5_ring::sq::Remote;
use rdma_core_sys as sys;

use crate::error::{Error, Result};

/// What peers may do with [`RemoteMemory`](crate::RemoteMemory).
///
/// ```
/// use doorbell::RemoteAccess;
///
/// let access = RemoteAccess::READ | RemoteAccess::ATOMIC;
/// assert_ne!(access, RemoteAccess::READ);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAccess(sys::ibv_access_flags);

impl RemoteAccess {
    /// Read it, over queue pairs made with [`QpConfig::remote_read`](crate::QpConfig::remote_read).
    pub const READ: Self = Self(sys::IBV_ACCESS_REMOTE_READ);
    /// Write it, over queue pairs made with [`QpConfig::remote_write`](crate::QpConfig::remote_write).
    pub const WRITE: Self = Self(sys::IBV_ACCESS_REMOTE_WRITE);
    /// Change its numbers by atomic operations, over queue pairs made with
    /// [`QpConfig::remote_atomic`](crate::QpConfig::remote_atomic).
    pub const ATOMIC: Self = Self(sys::IBV_ACCESS_REMOTE_ATOMIC);

    pub(super) const fn flags(self) -> sys::ibv_access_flags {
        sys::IBV_ACCESS_LOCAL_WRITE | self.0
    }
}

impl BitOr for RemoteAccess {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Memory of a peer, or a part of it: address, length and key. The peer makes it
/// ([`RemoteMemory::region`](crate::RemoteMemory::region)) and tells it by whatever way.
///
/// Requests do not leave its bounds. Whether it exists is known to the peer alone: its device refuses what it does not
/// know, and the request fails.
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
    /// Bytes of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = 20;

    /// Memory that a peer has named otherwise, for example a program that does not use doorbell.
    pub const fn new(addr: u64, len: usize, rkey: u32) -> Self {
        Self { addr, len, rkey }
    }

    /// Returns `len` bytes from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when they are not inside.
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

    /// Address of the first byte, at the peer.
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Key.
    pub const fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Returns it as bytes, for messages: address and length as 64 bits each, key as 32, big-endian.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&(self.len as u64).to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// Returns what [`to_bytes`](Self::to_bytes) made the bytes of.
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
