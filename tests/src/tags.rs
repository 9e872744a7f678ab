//! Tag matching between two sides in one process.

use doorbell::tags::{
    Offload, PeerId, ReceiveFailure, ReceiveId, Received, TagEvent, TagMatchingConfig, TagMatchingSrq, TaggedBuffer,
};
use doorbell::{BufferPool, CqConfig, PoolConfig, ProtectionDomain, QpConfig};

use crate::receiving::{wait, wait_for};
use crate::{assert_matches, device};

/// The mask of a tag without wildcards.
pub const ALL: u64 = u64::MAX;

/// One side of the connections.
pub struct Side {
    /// The queue.
    pub tags: TagMatchingSrq,
    /// For receives and for eager sends.
    pub pool: BufferPool,
    /// For rendezvous.
    pub readable: BufferPool,
    /// By connection.
    pub peers: Vec<PeerId>,
    /// Configuration of peers.
    pub config: QpConfig,
}

/// Sizes of a side.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Receives in the list.
    pub tags: u16,
    /// Receives of the SRQ.
    pub slots: u32,
    /// Buffers for messages that come before their receive.
    pub spare: u32,
    /// Bytes of a message.
    pub buffer_size: u32,
    /// Sends of each peer.
    pub sends: u32,
    /// Connections.
    pub peers: usize,
    /// The program synchronises the counts of unexpected messages.
    pub manual: bool,
}

/// Sizes for tests that need nothing special.
pub const SHAPE: Shape =
    Shape { tags: 16, slots: 64, spare: 192, buffer_size: 8192, sends: 32, peers: 1, manual: false };

impl Side {
    /// A side without peers.
    pub fn new(pd: &ProtectionDomain, offload: Offload, shape: &Shape) -> Self {
        let mut config = TagMatchingConfig::new(shape.tags).max_wr(shape.slots).cq(cq()).offload(offload);
        if shape.manual {
            config = config.manual_synchronization();
        }
        let mut tags = TagMatchingSrq::new(pd, &config).unwrap();
        let slots = BufferPool::new(pd, &PoolConfig::new(shape.slots + shape.spare, shape.buffer_size + 64)).unwrap();
        assert!(tags.keep_filled(&slots).unwrap() >= shape.slots);
        let count = 4 * u32::from(shape.tags) + 4 * shape.sends * shape.peers as u32;
        let pool = BufferPool::new(pd, &PoolConfig::new(count, shape.buffer_size)).unwrap();
        let readable = BufferPool::new(pd, &PoolConfig::new(count, shape.buffer_size).readable(true)).unwrap();
        let config = QpConfig::rc().max_send_wr(shape.sends).min_rnr_timer(1);
        Self { tags, pool, readable, peers: Vec::new(), config }
    }

    /// Posts a receive.
    pub fn post(&mut self, tag: u64, mask: u64) -> ReceiveId {
        let buffer = self.pool.take().expect("a buffer");
        self.tags.post(tag, mask, buffer).unwrap()
    }

    /// Sends eagerly.
    pub fn send(&mut self, peer: usize, tag: u64, context: u32, payload: &[u8]) {
        let message = tagged(&self.pool, payload);
        self.tags.send(self.peers[peer], tag, context, message).unwrap();
    }

    /// Sends eagerly to the first peer; the message has arrived when this returns.
    pub fn deliver(&mut self, tag: u64, context: u32, payload: &[u8]) {
        self.send(0, tag, context, payload);
        assert!(!self.sent());
    }

    /// Sends by rendezvous.
    pub fn offer(&mut self, peer: usize, tag: u64, context: u32, payload: &[u8]) {
        let mut buffer = self.readable.take().expect("a buffer");
        buffer.extend_from_slice(payload);
        self.tags.send_rendezvous(self.peers[peer], tag, context, buffer).unwrap();
    }

    /// The next event.
    #[track_caller]
    pub fn event(&mut self) -> TagEvent {
        wait_for("an event", || self.tags.next())
    }

    /// The next receive that is over, with its message.
    #[track_caller]
    pub fn received(&mut self) -> Received {
        loop {
            match self.event() {
                TagEvent::Received(received) => return received,
                TagEvent::BuffersLow { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next event is that a message was too long for this receive.
    #[track_caller]
    pub fn too_long(&mut self, id: ReceiveId, bytes: usize) {
        let event = self.event();
        assert_matches!(event, TagEvent::Failed { receive, cause, buffer } => {
            assert_eq!((receive, cause), (id, ReceiveFailure::TooLong { len: bytes }));
            assert!(buffer.is_empty());
        });
    }

    /// Waits until the peers have read all that was offered.
    #[track_caller]
    pub fn wait_read(&mut self, other: &mut Self) {
        wait("the FIN", || {
            assert!(other.tags.next().is_none());
            self.tags.probe(0, 0);
            self.tags.offered() == 0
        });
    }

    /// Waits for the end of a send, and returns whether it was one by rendezvous.
    #[track_caller]
    pub fn sent(&mut self) -> bool {
        assert_matches!(self.event(), TagEvent::Sent(sent) => {
            assert!(sent.status.is_success(), "{}", sent.status);
            sent.rendezvous
        })
    }

    /// The next event is the end of a receive that was cancelled.
    #[track_caller]
    pub fn cancelled(&mut self, id: ReceiveId) {
        assert_matches!(self.event(), TagEvent::Cancelled { receive, .. } if receive == id);
    }

    /// Polls until `count` messages wait for receives.
    #[track_caller]
    pub fn wait_unexpected(&mut self, count: usize) {
        self.wait_unexpected_at_least(count);
        assert_eq!(self.tags.unexpected(), count);
    }

    /// Polls until `count` messages or more wait for receives.
    #[track_caller]
    pub fn wait_unexpected_at_least(&mut self, count: usize) {
        wait("unexpected messages", || {
            assert!(self.tags.probe(0, 0).is_none() || self.tags.unexpected() > 0);
            self.tags.unexpected() >= count
        });
    }
}

/// A message with this payload.
pub fn tagged(pool: &BufferPool, payload: &[u8]) -> TaggedBuffer {
    let mut message = TaggedBuffer::new(pool.take().expect("a buffer")).unwrap();
    message.set_len(payload.len());
    message.copy_from_slice(payload);
    message
}

/// Two sides, connected as often as the shape says.
pub fn pair(offload: Offload, shape: &Shape) -> (Side, Side) {
    between(&device::pd(), (offload, offload), shape)
}

/// Two sides that match in different ways.
pub fn between(pd: &ProtectionDomain, (near, far): (Offload, Offload), shape: &Shape) -> (Side, Side) {
    let (mut near, mut far) = (Side::new(pd, near, shape), Side::new(pd, far, shape));
    (0..shape.peers).for_each(|at| join(&mut near, &mut far, at));
    (near, far)
}

/// Makes a connection, in the place of a removed one or after the last.
pub fn join(near: &mut Side, far: &mut Side, at: usize) {
    let [one, other] = [&mut *near, &mut *far].map(|side| {
        let peer = side.tags.add_peer(&side.config).unwrap();
        side.peers.splice(at..side.peers.len().min(at + 1), [peer]);
        peer
    });
    let (here, there) = (near.tags.address(one).unwrap(), far.tags.address(other).unwrap());
    near.tags.connect(one, &there).unwrap();
    far.tags.connect(other, &here).unwrap();
}

/// Lets some time pass.
pub fn spin(rounds: u64) {
    (0..rounds).for_each(|_| std::hint::spin_loop());
}

/// The CQs of a queue: on the path under test, as large as it needs.
pub fn cq() -> CqConfig {
    CqConfig::new(1).path(device::path())
}

/// The ways of matching that the device under test has.
pub fn ways() -> Vec<Offload> {
    let config = TagMatchingConfig::new(1).cq(cq());
    let auto = TagMatchingSrq::new(&device::pd(), &config).unwrap();
    if auto.offload() { vec![Offload::Required, Offload::Never] } else { vec![Offload::Never] }
}
