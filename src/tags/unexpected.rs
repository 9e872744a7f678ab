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
