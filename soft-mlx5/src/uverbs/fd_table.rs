//! Which descriptors of the process belong to a device.
//!
//! Every interposed call looks here first, also in signal handlers and before the allocator works. So the
//! table is a fixed array of atomics, without lock and allocation.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Descriptors above this limit cannot be ours.
pub const LIMIT: usize = 1 << 16;

static TABLE: [AtomicU32; LIMIT] = [const { AtomicU32::new(0) }; LIMIT];

/// Kind of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An open uverbs device.
    Uverbs,
    /// A completion channel or an asynchronous event file.
    Events,
    /// The file of the connection manager.
    RdmaCm,
    /// A file for management datagrams.
    Umad,
    /// A file of a device or of the connection manager that a parent process opened: no device here belongs to it.
    Inherited,
    /// A socket of RDMA netlink, which belongs to no device.
    Netlink,
}

/// A descriptor that belongs to a device. Copies of a descriptor have equal entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Kind.
    pub kind: Kind,
    /// Device of this process.
    pub slot: u8,
    /// Open file of that device.
    pub id: u32,
}

const KIND_SHIFT: u32 = 28;
const SLOT_SHIFT: u32 = 25;
const ID_MASK: u32 = (1 << SLOT_SHIFT) - 1;

impl Entry {
    fn pack(self) -> u32 {
        let kind = match self.kind {
            Kind::Uverbs => 1,
            Kind::Events => 2,
            Kind::Inherited => 3,
            Kind::RdmaCm => 4,
            Kind::Netlink => 5,
            Kind::Umad => 6,
        };
        kind << KIND_SHIFT | u32::from(self.slot & 7) << SLOT_SHIFT | self.id & ID_MASK
    }

    fn unpack(packed: u32) -> Option<Self> {
        let kind = match packed >> KIND_SHIFT {
            1 => Kind::Uverbs,
            2 => Kind::Events,
            3 => Kind::Inherited,
            4 => Kind::RdmaCm,
            5 => Kind::Netlink,
            6 => Kind::Umad,
            _ => return None,
        };
        Some(Self { kind, slot: (packed >> SLOT_SHIFT & 7) as u8, id: packed & ID_MASK })
    }
}

fn word(fd: RawFd) -> Option<&'static AtomicU32> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Returns the entry of a descriptor, or `None` if the descriptor is not ours.
#[inline]
pub fn get(fd: RawFd) -> Option<Entry> {
    Entry::unpack(word(fd)?.load(Ordering::Acquire))
}

/// Makes a descriptor ours; returns `false` if its number is beyond [`LIMIT`].
pub fn set(fd: RawFd, entry: Entry) -> bool {
    word(fd).map(|word| word.store(entry.pack(), Ordering::Release)).is_some()
}

/// Makes a descriptor foreign again; returns its entry.
pub fn clear(fd: RawFd) -> Option<Entry> {
    Entry::unpack(word(fd)?.swap(0, Ordering::AcqRel))
}

/// Marks the descriptors of the parent's devices as inherited, in a child after a fork.
pub fn mark_all_inherited() {
    for word in &TABLE {
        let packed = word.load(Ordering::Relaxed);
        match Entry::unpack(packed).map(|entry| entry.kind) {
            Some(Kind::Uverbs | Kind::RdmaCm | Kind::Umad) => {
                let inherited = Entry { kind: Kind::Inherited, slot: 0, id: 0 };
                word.store(inherited.pack(), Ordering::Release);
            }
            // A read gives the events that were left in the socket.
            Some(Kind::Events) => word.store(0, Ordering::Release),
            Some(Kind::Inherited | Kind::Netlink) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_packing() {
        // Far above any descriptor that this process opens.
        let fd = LIMIT as RawFd - 1;
        assert_eq!(get(fd), None);
        for entry in [
            Entry { kind: Kind::Uverbs, slot: 0, id: 0 },
            Entry { kind: Kind::Events, slot: 7, id: ID_MASK },
            Entry { kind: Kind::RdmaCm, slot: 7, id: ID_MASK },
        ] {
            assert!(set(fd, entry));
            assert_eq!(get(fd), Some(entry));
            assert_eq!(clear(fd), Some(entry));
        }
        assert_eq!((get(fd), get(-1), get(fd + 1)), (None, None, None));
        assert!(!set(fd + 1, Entry { kind: Kind::Uverbs, slot: 0, id: 0 }));
    }
}
