//! Requests to a peer: posted, and waiting to be posted.

use super::header::{OfferedMemory, RENDEZVOUS, TagHeader};
use super::ids::{Key, SendId};

#[derive(Debug)]
pub(super) enum Posted {
    Message(SendId),
    /// The offer of a rendezvous, which ends with a FIN.
    Offer,
    Read {
        receive: Key,
        offer: TagHeader,
    },
    Fin,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Read { receive: Key, offer: TagHeader, memory: OfferedMemory },
    Fin([u8; RENDEZVOUS]),
}

impl Work {
    /// The receive that ends with it.
    pub(super) fn receive(self) -> Option<Key> {
        match self {
            Self::Read { receive, .. } => Some(receive),
            Self::Fin(_) => None,
        }
    }
}
