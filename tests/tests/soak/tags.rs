//! Peers of tag matching that come and go.

use doorbell::tags::{Offload, PeerId, TagEvent, TagMatchingConfig, TagMatchingSrq, TaggedBuffer};
use doorbell::{BufferPool, ProtectionDomain, QpConfig};
use doorbell_tests::device;
use doorbell_tests::receiving::wait;

use super::{World, soak};

const TAG: u64 = 7;

/// Both ends.
struct Peers {
    near: TagMatchingSrq,
    far: TagMatchingSrq,
    pool: BufferPool,
    /// What peers may read.
    readable: BufferPool,
}

fn side(pd: &ProtectionDomain, offload: Offload) -> TagMatchingSrq {
    let config = TagMatchingConfig::new(4).slots(40).path(device::path()).offload(offload);
    let mut tags = TagMatchingSrq::new(pd, &config).unwrap();
    tags.fill(&BufferPool::new(pd, 48, 128).unwrap()).unwrap();
    tags
}

/// The next event.
fn event(tags: &mut TagMatchingSrq) -> TagEvent {
    let mut event = None;
    wait("an event", || {
        event = tags.poll();
        event.is_some()
    });
    event.unwrap()
}

impl Peers {
    fn new(offload: Offload) -> Self {
        let pd = device::pd();
        let pool = BufferPool::new(&pd, 4, 4096).unwrap();
        let readable = BufferPool::readable(&pd, 4, 4096).unwrap();
        Self { near: side(&pd, offload), far: side(&pd, offload), pool, readable }
    }

    fn connect(&mut self) -> (PeerId, PeerId) {
        let Self { near, far, .. } = self;
        let config = QpConfig::rc().sends(2).min_rnr_timer(1);
        let [here, there] = [&mut *near, far].map(|side| side.add_peer(&config).unwrap());
        let (one, other) = (near.address(here).unwrap(), self.far.address(there).unwrap());
        near.connect(here, &other).unwrap();
        self.far.connect(there, &one).unwrap();
        (here, there)
    }

    fn send(&mut self, to: PeerId) {
        let mut message = TaggedBuffer::new(self.pool.take().unwrap()).unwrap();
        message.set_len(8);
        self.far.send(to, TAG, 0, message).unwrap();
    }

    fn offer(&mut self, to: PeerId) {
        let mut buffer = self.readable.take().unwrap();
        buffer.set_len(3000);
        self.far.send_rendezvous(to, TAG, 0, buffer).unwrap();
    }

    fn post(&mut self) {
        self.near.post(TAG, u64::MAX, self.pool.take().unwrap()).unwrap();
    }

    fn wait_unexpected(&mut self) {
        wait("an unexpected message", || self.near.probe(TAG, u64::MAX).is_some());
    }

    /// Both sides have what they wait for.
    fn received(&mut self) {
        let received = event(&mut self.near);
        assert!(matches!(received, TagEvent::Received(_)), "{received:?}");
        // The side that reads has a FIN to send.
        let mut sent = None;
        wait("the end of a send", || {
            assert!(self.near.poll().is_none());
            sent = self.far.poll();
            sent.is_some()
        });
        assert!(
            matches!(&sent, Some(TagEvent::Sent(sent)) if sent.status.is_success()),
            "{sent:?}"
        );
    }
}

impl World for Peers {
    fn round(&mut self, round: u32) {
        let (here, there) = self.connect();
        match round % 6 {
            0 => {
                self.post();
                self.send(there);
                self.received();
            }
            1 => {
                self.send(there);
                self.wait_unexpected();
                self.post();
                self.received();
            }
            2 => {
                self.post();
                self.offer(there);
                self.received();
            }
            3 => {
                self.offer(there);
                self.wait_unexpected();
                self.post();
                self.received();
            }
            // Nobody reads it.
            4 => {
                self.offer(there);
                self.wait_unexpected();
            }
            // Nothing is sent.
            _ => {}
        }
        self.near.remove_peer(here).unwrap();
        self.far.remove_peer(there).unwrap();
        while self.far.poll().is_some() {}
        assert!(self.near.poll().is_none());
        assert_eq!((self.near.unexpected(), self.far.offered()), (0, 0));
        assert_eq!((self.pool.available(), self.readable.available()), (4, 4));
    }

    fn poll(&mut self) {
        assert!(self.near.poll().is_none());
        assert!(self.far.poll().is_none());
    }
}

#[test]
fn peers_matched_by_the_device() {
    let pd = device::pd();
    if !TagMatchingSrq::new(&pd, &TagMatchingConfig::new(4).path(device::path())).unwrap().offload()
    {
        doorbell_tests::skip!("the device matches no tags");
    }
    soak(Peers::new(Offload::Required));
}

#[test]
fn peers_matched_by_the_library() {
    soak(Peers::new(Offload::Never));
}
