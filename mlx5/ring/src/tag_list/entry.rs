//! Records of the entries of the list, and of the operations.

use core::mem::MaybeUninit;

use mlx5_wire::tm::{AppOp, CQE_REQUEST};
use mlx5_wire::tmh::Tmh;

/// The buffer is the device's.
pub(super) const LIVE: u8 = 1;
/// The CQE of the append is to come: the bit by which it was asked for.
pub(super) const APPENDING: u8 = CQE_REQUEST;
/// The CQE of a remove is to come.
pub(super) const REMOVING: u8 = 1 << 2;
/// A message has matched, and the CQE of its data is to come.
pub(super) const MATCHED: u8 = 1 << 3;
/// With [`MATCHED`]: software must finish the rendezvous.
pub(super) const INCOMPLETE: u8 = 1 << 4;

/// A receive that was appended. A handle whose receive is over never names another one: entries are used again, but
/// with another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    pub(super) entry: u16,
    pub(super) generation: u32,
}

impl Handle {
    /// Entry of the list.
    pub const fn entry(self) -> u16 {
        self.entry
    }
}

/// An entry of the list, in memory of the caller's.
#[derive(Debug)]
pub struct Entry<T> {
    /// The free entry after this one: 16 bits, stored in 32.
    pub(super) next: u32,
    pub(super) state: u8,
    pub(super) generation: u32,
    /// Bytes of the buffer, and the first one.
    pub(super) length: u32,
    pub(super) addr: u64,
    /// Header of the message that has matched.
    pub(super) header: Tmh,
    pub(super) data: MaybeUninit<T>,
}

impl<T> Entry<T> {
    pub(super) fn free(index: u16) -> Self {
        Self {
            next: index.wrapping_add(1).into(),
            state: 0,
            generation: 0,
            length: 0,
            addr: 0,
            header: Tmh::zeroed(),
            data: MaybeUninit::uninit(),
        }
    }

    #[inline(always)]
    pub(super) const fn has(&self, state: u8) -> bool {
        self.state & state != 0
    }
}

/// An operation that a CQE was asked for, in memory of the caller's.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub(super) op: AppOp,
    /// The entry that the operation is about, or [`Operation::NONE`].
    pub(super) entry: u16,
    /// Handled messages that it carried.
    pub(super) count: u16,
    /// Running count of blocks after it.
    pub(super) end: u32,
}

impl Operation {
    /// No list has this entry.
    pub(super) const NONE: u16 = u16::MAX;
}
