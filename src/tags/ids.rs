//! Names of receives, sends and peers.

/// Identifies a peer of a [`TagMatchingSrq`](super::TagMatchingSrq).
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// # let doorbell_doc::Tags { tags, peer, .. } = &mut world;
/// # let peer = *peer;
/// use doorbell::QpConfig;
/// use doorbell::tags::TagEvent;
///
/// // One for each connection; events and sends name it.
/// let another = tags.add_peer(&QpConfig::rc())?;
/// assert_ne!(another, peer);
/// # world.send(7, b"hello");
/// # let doorbell_doc::Tags { tags, pool, .. } = &mut world;
/// tags.post(7, u64::MAX, pool.take().expect("a free buffer"))?;
/// # let event = world.event();
/// # let doorbell_doc::Tags { peer, .. } = &mut world;
/// # let peer = *peer;
/// assert!(matches!(event, TagEvent::Received(got) if got.peer == peer));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId {
    pub(super) owner: u32,
    pub(super) index: u32,
    /// Number of peers that had the index before.
    pub(super) generation: u32,
}

impl PeerId {
    /// Returns the place of the peer in its queue. Places count up from 0 as peers are added: if a program adds its
    /// peers in the order of their ranks, the place is the rank. The place of a removed peer is used again.
    ///
    /// ```
    /// # let mut world = doorbell_doc::Tags::new();
    /// # let doorbell_doc::Tags { tags, peer, .. } = &mut world;
    /// # let peer = *peer;
    /// use doorbell::QpConfig;
    ///
    /// assert_eq!(peer.index(), 0);
    /// assert_eq!(tags.add_peer(&QpConfig::rc())?.index(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// Identifies a send. The ids of a queue ascend.
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// # let doorbell_doc::Tags { pool, tags, peer, .. } = &mut world;
/// # let peer = *peer;
/// use std::collections::HashMap;
///
/// use doorbell::tags::{SendId, TagEvent, TaggedBuffer};
///
/// // Messages on their way, each with its purpose.
/// let mut outstanding: HashMap<SendId, &str> = HashMap::new();
/// let message = TaggedBuffer::new(pool.take().expect("a free buffer")).expect("room");
/// outstanding.insert(tags.send(peer, 7, 0, message)?, "the first");
/// # let event = world.event();
/// if let TagEvent::Sent(sent) = event {
///     assert_eq!(outstanding.remove(&sent.send), Some("the first"));
/// }
/// # assert!(outstanding.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendId(pub(super) u64);

/// Identifies a receive. No two receives have the same id.
///
/// ```
/// # let mut world = doorbell_doc::Tags::new();
/// # let doorbell_doc::Tags { tags, pool, .. } = &mut world;
/// use doorbell::tags::TagEvent;
///
/// let first = tags.post(7, u64::MAX, pool.take().expect("a free buffer"))?;
/// let second = tags.post(7, u64::MAX, pool.take().expect("a free buffer"))?;
/// assert_ne!(first, second);
/// # world.send(7, b"hello");
/// # let event = world.event();
/// // The oldest one that matches has it.
/// assert!(matches!(event, TagEvent::Received(got) if got.receive == first));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveId {
    pub(super) owner: u32,
    pub(super) key: Key,
}

impl ReceiveId {
    /// No receive.
    pub(super) const NONE: Self = Self { owner: u32::MAX, key: Key::NONE };
}

/// A receive of one queue, as its completions name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) index: u32,
    /// 30 bits.
    pub(super) generation: u32,
}

impl Key {
    /// No receive.
    pub(super) const NONE: Self = Self { index: u32::MAX, generation: 0 };

    /// 62 bits that name it.
    pub(super) const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 & GENERATIONS }
    }
}

pub(super) const GENERATIONS: u32 = (1 << 30) - 1;
