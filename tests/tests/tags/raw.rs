//! Peers that are no tag-matching queues.

use doorbell::tags::{OfferedMemory, PeerAddress, PeerId, TagHeader};
use doorbell::{Buffer, BufferPool, DataPath, PoolConfig, QpConfig, QueuePair, Receiver, RqConfig};
use doorbell_tests::sending_qp::SendingQp;
use doorbell_tests::{assert_matches, device, receiving};

use doorbell_tests::tags::Side;

/// A peer of plain queue pairs, which can send any message.
pub struct Raw {
    receiver: Receiver,
    _back: QueuePair,
    /// Its identifier at the other side.
    pub peer: PeerId,
    pub qp: SendingQp,
    pool: BufferPool,
}

impl Raw {
    /// Takes the place of the sender.
    pub fn connect(near: &mut Side) -> Self {
        let pd = near.tags.pd().clone();
        let mut receiver = device::receiver(&pd, 64);
        let config = QpConfig::rc();
        // The tests post to it through verbs, too.
        let mut qp = SendingQp::create_on(&mut receiver, &config, RqConfig::new(16), DataPath::Verbs).unwrap();
        let mut back = QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(16)).build().unwrap();
        let peer = near.tags.add_peer(&QpConfig::rc().min_rnr_timer(1)).unwrap();
        let there = near.tags.address(peer).unwrap();
        let (outgoing, incoming) = (qp.address().unwrap(), back.address().unwrap());
        near.tags.connect(peer, &PeerAddress { incoming, outgoing }).unwrap();
        qp.connect(&there.incoming).unwrap();
        back.connect(&there.outgoing).unwrap();
        let pool = BufferPool::new(&pd, &PoolConfig::new(8, 64)).unwrap();
        let rq = back.receive_queue().expect("a queue of its own");
        let received = BufferPool::new(&pd, &PoolConfig::new(8, 64)).unwrap();
        receiver.post(rq, std::iter::from_fn(|| received.take())).unwrap();
        Self { receiver, _back: back, peer, qp, pool }
    }

    /// Receives the next message of `near`, which must be an offer.
    pub fn offered(&mut self) -> OfferedMemory {
        assert_matches!(TagHeader::parse(&self.message()), Some(TagHeader::Rendezvous { memory, .. }) => memory)
    }

    /// Receives the next message of `near`.
    pub fn message(&mut self) -> Buffer {
        receiving::take(&mut self.receiver, 1).remove(0)
    }

    pub fn send(&mut self, header: &TagHeader, behind: &[u8]) {
        self.send_bytes(&[&header.to_bytes()[..], behind].concat());
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let mut buffer = self.pool.take().unwrap();
        buffer.extend_from_slice(bytes);
        self.qp.send(buffer, None).unwrap();
    }
}
