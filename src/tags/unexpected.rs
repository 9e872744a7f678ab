//! Messages that no receive waited for.

use std::collections::VecDeque;

use super::header::OfferedMemory;
use super::ids::PeerId;
use crate::memory::Buffer;

/// A tagged message that the device did not deliver by itself.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) peer: PeerId,
    pub(super) tag: u64,
    pub(super) context: u32,
    pub(super) content: Content,
    /// In the order of arrival, from 1 on; 0 when it has none yet.
    pub(super) number: u64,
}

#[derive(Debug)]
pub(super) enum Content {
    /// The message with its header.
    Eager(Buffer),
    /// Where to read it.
    Rendezvous(OfferedMemory),
}

/// A message that waits for a receive, from [`probe`](super::TagMatchingSrq::probe).
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// # world.send(7, b"hello");
/// # let doorbell_doc::Tags { tags, peer, .. } = &mut world;
/// # let peer = *peer;
/// // The size of a message that has no receive yet.
/// let found = loop {
///     match tags.probe(7, u64::MAX) {
///         Some(found) => break found,
///         None => std::thread::yield_now(),
///     }
/// };
/// assert_eq!((found.peer, found.tag, found.len), (peer, 7, 5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// The sender.
    pub peer: PeerId,
    /// The tag.
    pub tag: u64,
    /// The context.
    pub context: u32,
    /// Length of the payload in bytes.
    pub len: usize,
}

/// Messages in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Unexpected(VecDeque<Message>);

impl Unexpected {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a message at its place, which is nearly always the last.
    pub(super) fn push(&mut self, message: Message) {
        let at = self.0.iter().rposition(|other| other.number < message.number);
        self.0.insert(at.map_or(0, |at| at + 1), message);
    }

    fn position(&self, tag: u64, mask: u64) -> Option<usize> {
        self.0.iter().position(|message| message.tag & mask == tag)
    }

    /// The oldest one that a receive for `tag` under `mask` matches.
    pub(super) fn take(&mut self, tag: u64, mask: u64) -> Option<Message> {
        self.0.remove(self.position(tag, mask)?)
    }

    pub(super) fn probe(&self, tag: u64, mask: u64) -> Option<Probe> {
        let message = &self.0[self.position(tag, mask)?];
        let len = match &message.content {
            Content::Eager(buffer) => buffer.len() - super::header::EAGER,
            Content::Rendezvous(memory) => memory.len as usize,
        };
        Some(Probe { peer: message.peer, tag: message.tag, context: message.context, len })
    }

    /// Forgets offers of a peer that was removed: they cannot be read any more.
    pub(super) fn forget_offers(&mut self, peer: PeerId) {
        self.0.retain(|message| message.peer != peer || matches!(message.content, Content::Eager(_)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(index: u32) -> PeerId {
        PeerId { owner: 0, index, generation: 0 }
    }

    /// An offer; its context is its number.
    fn offer(from: u32, tag: u64, number: u64) -> Message {
        let memory = OfferedMemory { addr: 0x1000, rkey: 9, len: 64 };
        Message { peer: peer(from), tag, context: number as u32, content: Content::Rendezvous(memory), number }
    }

    /// A message whose receive was matched by another comes back, and stands before those that have arrived since.
    #[test]
    fn messages_are_taken_in_the_order_of_arrival() {
        let mut unexpected = Unexpected::default();
        for (tag, number) in [(7, 3), (8, 5), (7, 1), (7, 4)] {
            unexpected.push(offer(0, tag, number));
        }
        assert_eq!(unexpected.probe(7, u64::MAX).map(|probe| (probe.context, probe.len)), Some((1, 64)));
        let taken: Vec<_> = std::iter::from_fn(|| unexpected.take(7, u64::MAX)).map(|message| message.number).collect();
        assert_eq!(taken, [1, 3, 4]);
        assert_eq!(unexpected.take(0, 1).map(|message| message.number), Some(5));
        assert_eq!(unexpected.len(), 0);
    }

    #[test]
    fn offers_of_other_peers_stay() {
        let mut unexpected = Unexpected::default();
        (1..4).for_each(|number| unexpected.push(offer(number as u32 % 2, 7, number)));
        unexpected.forget_offers(peer(1));
        let left: Vec<_> = std::iter::from_fn(|| unexpected.take(0, 0)).map(|message| message.number).collect();
        assert_eq!(left, [2]);
    }
}
