//! The interface of the three ways of matching: operations on the list, and arrivals.

use mlx5_ring::sge::Sge;
use mlx5_ring::tag_list::Handle;

use super::direct::DirectTags;
use super::receives::Key;
use super::software::SoftwareTags;
use super::verbs::VerbsTags;
use crate::cq::Cq;
use crate::error::Result;
use crate::memory::{Buffer, BufferPool};
use crate::pd::ProtectionDomain;
use crate::qp::{QpConfig, QueuePair, SendSide};
use crate::status::WcStatus;

/// Arrivals taken at once.
pub(super) const BATCH: usize = 64;

/// A receive in the list of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListHandle {
    /// It is in none.
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
    /// For removes: the count that the device had before. A remove with the new count would let the device match messages
    /// to receives that later removes of the batch name.
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

pub(super) enum Engine {
    Direct(Box<DirectTags>),
    Verbs(Box<VerbsTags>),
    Software(Box<SoftwareTags>),
}

impl Engine {
    pub(super) const fn offloads(&self) -> bool {
        !matches!(self, Self::Software(_))
    }

    /// Arrivals that can wait to be taken.
    pub(super) fn cq(&self) -> &Cq {
        match self {
            Self::Direct(direct) => direct.cq_object(),
            Self::Verbs(verbs) => verbs.cq_object(),
            Self::Software(software) => software.cq_object(),
        }
    }

    /// Asks for an event when something arrives; `events` of the CQ were taken from its channel.
    pub(super) fn arm(&mut self, events: u32) -> Result<()> {
        match self {
            Self::Direct(direct) => direct.arm(events),
            Self::Verbs(verbs) => return verbs.cq_object().arm(false),
            Self::Software(software) => return software.arm(events),
        }
        Ok(())
    }

    /// Takes up to [`BATCH`] arrivals.
    pub(super) fn poll(&mut self, arrived: &mut Vec<Arrived>) {
        match self {
            Self::Direct(direct) => direct.poll(arrived),
            Self::Verbs(verbs) => verbs.poll(arrived),
            Self::Software(software) => software.poll(arrived),
        }
    }

    /// Posts operations with one doorbell. `each` gets the handle of each append. Returns
    /// how many were posted.
    ///
    /// # Errors
    /// The `errno` of the first operation that was not posted.
    pub(super) fn post(
        &mut self,
        operations: &[Operation],
        counts: Counts,
        each: impl FnMut(Key, ListHandle),
    ) -> (usize, Result<(), i32>) {
        match self {
            Self::Direct(direct) => direct.post(operations, counts, each),
            Self::Verbs(verbs) => verbs.post(operations, counts, each),
            Self::Software(_) => (operations.len(), Ok(())),
        }
    }

    /// Gives the device buffers for messages that match nothing, as long as it takes them and there are any.
    pub(super) fn refill(&mut self, pool: &BufferPool) -> u32 {
        match self {
            Self::Direct(direct) => direct.refill(pool),
            Self::Verbs(verbs) => verbs.refill(pool),
            Self::Software(software) => software.refill(pool),
        }
    }

    /// Returns how many of these buffers the device has.
    pub(super) fn posted(&self) -> u32 {
        match self {
            Self::Direct(direct) => direct.posted(),
            Self::Verbs(verbs) => verbs.posted(),
            Self::Software(software) => software.posted(),
        }
    }

    /// Creates a queue pair whose messages come here.
    pub(super) fn create_qp(
        &mut self,
        pd: &ProtectionDomain,
        config: &QpConfig,
        send: SendSide,
    ) -> Result<QueuePair> {
        match self {
            Self::Direct(direct) => direct.create_qp(pd, config, send),
            Self::Verbs(verbs) => verbs.create_qp(pd, config, send),
            Self::Software(software) => software.create_qp(config, send),
        }
    }

    /// Ends a queue pair that takes no receives any more, and of which all has arrived.
    pub(super) fn destroy_qp(&mut self, qp: QueuePair) {
        match self {
            Self::Direct(_) | Self::Verbs(_) => drop(qp),
            Self::Software(software) => software.destroy_qp(qp),
        }
    }

    /// Keeps a tagged buffer that the device may still write until it cannot.
    pub(super) fn defer(&self, buffer: Buffer) {
        let srq = match self {
            Self::Direct(direct) => direct.object(),
            Self::Verbs(verbs) => verbs.object(),
            Self::Software(_) => return,
        };
        srq.deferred().keep(buffer);
    }
}
