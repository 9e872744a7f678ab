//! Operations on the list of the device, and what it reports.

use mlx5_ring::sge::Sge;
use mlx5_ring::tag_list::Handle;

use super::ids::Key;
use crate::memory::Buffer;
use crate::status::WcStatus;

/// Arrivals taken at once.
pub(super) const BATCH: usize = 64;

/// A receive in the list of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListHandle {
    /// The receive is in no list.
    None,
    Direct(Handle),
    Verbs(u32),
}

/// An operation on the list. All ask for a completion, and carry a count of unexpected messages.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Append { receive: Key, tag: u64, mask: u64, sge: Sge },
    Remove { receive: Key, handle: ListHandle },
    Synchronize,
}

impl Operation {
    pub(super) const fn is_remove(&self) -> bool {
        matches!(self, Self::Remove { .. })
    }
}

/// The counts of unexpected messages that a batch of operations carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// For removes: the count that the device had before. A remove with the new count would let the device match
    /// messages to receives that later removes of the batch name.
    pub(super) before: u16,
    /// For appends and synchronisations, which stand after all removes: the messages that were handled.
    pub(super) now: u16,
}

/// A report of the device.
#[derive(Debug)]
pub(super) enum Arrived {
    /// An append was executed.
    Appended {
        phase: Executed,
    },
    /// A remove was executed.
    Removed {
        receive: Key,
        found: bool,
        phase: Executed,
    },
    Synchronized {
        phase: Executed,
    },
    /// A message has matched, and its data will follow.
    Matched {
        receive: Key,
        header: (u64, u32),
        incomplete: bool,
    },
    /// The data has come; with the header when the match was not reported before.
    Received {
        receive: Key,
        header: Option<(u64, u32)>,
        len: u32,
        qp_num: u32,
    },
    /// As `Received`, for a rendezvous of which only the headers came.
    Incomplete {
        receive: Key,
        header: Option<(u64, u32)>,
        len: u32,
        qp_num: u32,
    },
    /// The data will not come.
    Canceled {
        receive: Key,
    },
    /// A message that no receive in the list matched; `counted` by the device.
    Message {
        buffer: Buffer,
        counted: bool,
        qp_num: u32,
    },
    /// A queue pair failed with a receive that it had taken.
    Failed {
        status: WcStatus,
        qp_num: u32,
    },
    /// No list operation is executed any more.
    Broken {
        status: WcStatus,
    },
}

/// An operation that was executed: the count that it carried, and the device's count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Executed {
    pub(super) count: u16,
    pub(super) hw_phase: Option<u16>,
}

/// Returns the buffer of a receive as the device is to see it.
pub(super) fn sge(buffer: &Buffer) -> Sge {
    // Headers of a rendezvous that software must finish go into the buffer. The bytes after a smaller
    // one, up to the next cache line, belong to it alone.
    let length = (buffer.capacity() as u32).max(super::header::RENDEZVOUS as u32);
    let addr = buffer.addr().as_ptr().expose_provenance() as u64;
    Sge { addr, length, lkey: buffer.pool().lkey() }
}
