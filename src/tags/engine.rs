//! The three ways of matching.

use super::arrival::{Arrived, Counts, ListHandle, Operation};
use super::direct::DirectTags;
use super::ids::Key;
use super::software::SoftwareTags;
use super::verbs::VerbsTags;
use crate::cq::CqCore;
use crate::error::Result;
use crate::memory::{Buffer, BufferPool};
use crate::pd::ProtectionDomain;
use crate::qp::{QpConfig, QueuePair, SendSide};

pub(super) enum Engine {
    Direct(Box<DirectTags>),
    Verbs(Box<VerbsTags>),
    Software(Box<SoftwareTags>),
}

impl Engine {
    pub(super) const fn offloads(&self) -> bool {
        !matches!(self, Self::Software(_))
    }

    /// Returns the CQ of the arrivals.
    pub(super) fn core(&self) -> &CqCore {
        match self {
            Self::Direct(direct) => &direct.objects.cq,
            Self::Verbs(verbs) => &verbs.objects.cq,
            Self::Software(software) => software.core(),
        }
    }

    /// Asks for an event when something arrives; `events` of the CQ were taken from its channel.
    pub(super) fn arm(&mut self, events: u32) -> Result<()> {
        match self {
            Self::Direct(direct) => direct.objects.cq.arm_after(events, false),
            Self::Verbs(verbs) => verbs.objects.cq.arm_after(events, false),
            Self::Software(software) => software.arm(events),
        }
    }

    /// Takes up to [`BATCH`](super::arrival::BATCH) arrivals.
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
    pub(super) fn create_qp(&mut self, pd: &ProtectionDomain, config: &QpConfig, send: SendSide) -> Result<QueuePair> {
        match self {
            Self::Direct(direct) => direct.objects.create_qp(pd, config, send),
            Self::Verbs(verbs) => verbs.objects.create_qp(pd, config, send),
            Self::Software(software) => software.create_qp(pd, config, send),
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
            Self::Direct(direct) => &direct.objects.srq,
            Self::Verbs(verbs) => &verbs.objects.srq,
            Self::Software(_) => return,
        };
        srq.deferred().keep(buffer);
    }
}
