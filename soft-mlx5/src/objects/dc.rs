//! Dynamic connections: what an initiator, a target, and each connection of a target remember.

use std::collections::{BTreeMap, BTreeSet};

use super::{AddressVector, DcAttr, Qpn};
use crate::fabric::headers::DcHeader;

/// Port and number of an initiator.
pub type Source = (u16, u32);

/// Role of a queue pair in dynamic connections.
#[derive(Debug, Default)]
pub enum Role {
    /// None: it has another service.
    #[default]
    None,
    /// Its requests name their targets.
    Initiator(Initiator),
    /// It listens, and never gets a packet itself.
    Target(Target),
    /// It serves one initiator in the name of a target, and no driver knows it.
    Connection(Connection),
}

impl Role {
    /// Returns the role that these attributes give.
    pub fn of(attr: DcAttr) -> Self {
        match attr {
            DcAttr::None => Self::None,
            DcAttr::Initiator { streams_in_error } => {
                Self::Initiator(Initiator { streams_in_error, ..Initiator::default() })
            }
            DcAttr::Target { key } => Self::Target(Target { key, ..Target::default() }),
        }
    }

    /// Returns `true` if the driver hears of it: the faults of a target are those of its initiators.
    pub fn raises_events(&self) -> bool {
        matches!(self, Self::None | Self::Initiator(_))
    }

    /// Returns the header of its packets; `number` is the initiator.
    pub fn header(&self, number: u32) -> Option<DcHeader> {
        match self {
            Self::Initiator(Initiator { session, peer: Some(peer), .. }) => {
                Some(DcHeader { key: peer.key, session: *session, initiator: number })
            }
            Self::Connection(Connection { session, source, .. }) => {
                Some(DcHeader { key: 0, session: *session, initiator: source.1 })
            }
            _ => None,
        }
    }
}

/// An initiator.
#[derive(Debug, Default)]
pub struct Initiator {
    /// Number of its last connection.
    pub session: u64,
    /// The target of that connection.
    pub peer: Option<Peer>,
    /// Streams in error that stop the whole queue; `None` without streams.
    pub streams_in_error: Option<u32>,
    /// Streams in error.
    pub failed: BTreeSet<u16>,
}

/// A target, as a request names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Number.
    pub number: u32,
    /// Access key.
    pub key: u64,
    /// Path.
    pub path: AddressVector,
}

/// A target.
#[derive(Debug, Default)]
pub struct Target {
    /// Key that initiators must name.
    pub key: u64,
    /// Path of answers, without a destination.
    pub path: AddressVector,
    /// It takes no more requests.
    pub drained: bool,
    /// Requests with another key.
    pub violations: u32,
    /// The next request with another key raises an event.
    pub armed: bool,
    /// Connections by initiator: the number of the last session, and the queue pair that serves it.
    pub connections: BTreeMap<Source, (u64, Qpn)>,
}

/// A connection of a target.
#[derive(Debug, Clone, Copy)]
pub struct Connection {
    /// Its target.
    pub target: u32,
    /// Its initiator.
    pub source: Source,
    /// Its number.
    pub session: u64,
}
