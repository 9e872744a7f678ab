//! A receiver and senders, in one process.

use doorbell::tags::{
    Offload, PeerId, ReceiveFailure, ReceiveId, Received, TagEvent, TagMatchingConfig,
    TagMatchingSrq, TaggedBuffer,
};
use doorbell::{BufferPool, ProtectionDomain, QpConfig};
use doorbell_tests::device;

pub const ALL: u64 = u64::MAX;

/// One side of the connections.
pub struct Side {
    pub tags: TagMatchingSrq,
    /// For receives and for eager sends.
    pub pool: BufferPool,
    /// For rendezvous.
    pub readable: BufferPool,
    pub peers: Vec<PeerId>,
    config: QpConfig,
}

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub tags: u16,
    pub slots: u32,
    /// Buffers for messages that come before their receive.
    pub spare: u32,
    pub buffer_size: u32,
    pub sends: u32,
    pub peers: usize,
    /// The program synchronises the counts of unexpected messages.
    pub manual: bool,
}

pub const SHAPE: Shape = Shape {
    tags: 16,
    slots: 64,
    spare: 192,
    buffer_size: 8192,
    sends: 32,
    peers: 1,
    manual: false,
};

impl Side {
    pub fn new(pd: &ProtectionDomain, offload: Offload, shape: &Shape) -> Self {
        let mut config = TagMatchingConfig::new(shape.tags)
            .slots(shape.slots)
            .path(device::path())
            .offload(offload);
        if shape.manual {
            config = config.manual_synchronization();
        }
        let mut tags = TagMatchingSrq::new(pd, &config).unwrap();
        let slots = BufferPool::new(pd, shape.slots + shape.spare, shape.buffer_size + 64).unwrap();
        assert!(tags.fill(&slots).unwrap() >= shape.slots);
        let count = 4 * u32::from(shape.tags) + 4 * shape.sends * shape.peers as u32;
        let pool = BufferPool::new(pd, count, shape.buffer_size).unwrap();
        let readable = BufferPool::readable(pd, count, shape.buffer_size).unwrap();
        let config = QpConfig::rc().sends(shape.sends).min_rnr_timer(1);
        let peers = (0..shape.peers).map(|_| tags.add_peer(&config).unwrap()).collect();
        Self { tags, pool, readable, peers, config }
    }

    pub fn post(&mut self, tag: u64, mask: u64) -> ReceiveId {
        let buffer = self.pool.take().expect("a buffer");
        self.tags.post(tag, mask, buffer).unwrap()
    }

    pub fn send(&mut self, peer: usize, tag: u64, context: u32, payload: &[u8]) {
        let mut message = TaggedBuffer::new(self.pool.take().expect("a buffer")).unwrap();
        message.set_len(payload.len());
        message.copy_from_slice(payload);
        self.tags.send(self.peers[peer], tag, context, message).unwrap();
    }

    pub fn offer(&mut self, peer: usize, tag: u64, context: u32, payload: &[u8]) {
        let mut buffer = self.readable.take().expect("a buffer");
        buffer.set_len(payload.len());
        buffer.copy_from_slice(payload);
        self.tags.send_rendezvous(self.peers[peer], tag, context, buffer).unwrap();
    }

    /// The next event.
    #[track_caller]
    pub fn event(&mut self) -> TagEvent {
        self.next("an event").unwrap()
    }

    #[track_caller]
    pub fn next(&mut self, what: &str) -> Option<TagEvent> {
        let mut event = None;
        wait(what, || {
            event = self.tags.poll();
            event.is_some()
        });
        event
    }

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
        match self.event() {
            TagEvent::Failed { receive, cause, buffer } => {
                assert_eq!((receive, cause), (id, ReceiveFailure::TooLong { len: bytes }));
                assert!(buffer.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the peers have read all that was offered.
    #[track_caller]
    pub fn wait_read(&mut self, other: &mut Self) {
        wait("the FIN", || {
            assert!(other.tags.poll().is_none());
            self.tags.probe(0, 0);
            self.tags.offered() == 0
        });
    }

    /// Waits for the end of a send.
    #[track_caller]
    pub fn sent(&mut self) -> bool {
        match self.event() {
            TagEvent::Sent(sent) => {
                assert!(sent.status.is_success(), "{}", sent.status);
                sent.rendezvous
            }
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub fn cancelled(&mut self, id: ReceiveId) {
        match self.event() {
            TagEvent::Cancelled { receive, .. } => assert_eq!(receive, id),
            other => panic!("{other:?}"),
        }
    }

    /// Polls until so many messages wait for receives.
    #[track_caller]
    pub fn wait_unexpected(&mut self, count: usize) {
        self.wait_unexpected_at_least(count);
        assert_eq!(self.tags.unexpected(), count);
    }

    /// Polls until so many messages or more wait for receives.
    #[track_caller]
    pub fn wait_unexpected_at_least(&mut self, count: usize) {
        wait("unexpected messages", || {
            assert!(self.tags.probe(0, 0).is_none() || self.tags.unexpected() > 0);
            self.tags.unexpected() >= count
        });
    }
}

pub use doorbell_tests::receiving::wait;

/// Two sides, connected as often as the shape says.
pub fn pair(offload: Offload, shape: &Shape) -> (Side, Side) {
    let pd = device::pd();
    between(&pd, (offload, offload), shape)
}

pub fn between(
    pd: &ProtectionDomain,
    (near, far): (Offload, Offload),
    shape: &Shape,
) -> (Side, Side) {
    let (mut near, mut far) = (Side::new(pd, near, shape), Side::new(pd, far, shape));
    (0..shape.peers).for_each(|at| connect(&mut near, &mut far, at));
    (near, far)
}

fn connect(near: &mut Side, far: &mut Side, at: usize) {
    let (one, other) = (near.peers[at], far.peers[at]);
    let (here, there) = (near.tags.address(one).unwrap(), far.tags.address(other).unwrap());
    near.tags.connect(one, &there).unwrap();
    far.tags.connect(other, &here).unwrap();
}

/// Makes a connection in the place of one that was removed.
pub fn join(near: &mut Side, far: &mut Side, at: usize) {
    for side in [&mut *near, &mut *far] {
        side.peers[at] = side.tags.add_peer(&side.config).unwrap();
    }
    connect(near, far, at);
}

/// The ways of matching that the device under test has.
pub fn ways() -> Vec<Offload> {
    let pd = device::pd();
    let config = TagMatchingConfig::new(1).path(device::path());
    let auto = TagMatchingSrq::new(&pd, &config).unwrap();
    if auto.offload() { vec![Offload::Required, Offload::Never] } else { vec![Offload::Never] }
}
