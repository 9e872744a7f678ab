//! Peers of tag matching that come and go.

use doorbell::tags::Offload;
use doorbell_tests::tags::{ALL, SHAPE, Shape, Side, join, pair, ways};

use super::{World, soak};

const TAG: u64 = 7;

/// Both ends, without peers.
struct Peers {
    near: Side,
    far: Side,
}

fn peers(offload: Offload) -> Peers {
    let sizes = Shape { tags: 4, slots: 40, spare: 8, buffer_size: 4096, ..SHAPE };
    let (near, far) = pair(offload, &Shape { sends: 2, peers: 0, ..sizes });
    Peers { near, far }
}

impl World for Peers {
    fn round(&mut self, round: u32) {
        let Self { near, far } = self;
        join(near, far, 0);
        let [early, late, send, offer] = [
            [true, false, true, false],
            [false, true, true, false],
            [true, false, false, true],
            [false, true, false, true],
            // An offer without a receive.
            [false, false, false, true],
            // Nothing is sent.
            [false; 4],
        ][round as usize % 6];
        if early {
            near.post(TAG, ALL);
        }
        if send {
            far.send(0, TAG, 0, &[0; 8]);
        }
        if offer {
            far.offer(0, TAG, 0, &[0; 3000]);
        }
        if (send || offer) && !early {
            near.wait_unexpected(1);
        }
        if late {
            near.post(TAG, ALL);
        }
        if early || late {
            near.received();
            // The side that reads has a FIN to send.
            far.wait_read(near);
            assert_eq!(far.sent(), offer);
        }
        near.tags.remove_peer(near.peers[0]).unwrap();
        far.tags.remove_peer(far.peers[0]).unwrap();
        while far.tags.next().is_some() {}
        assert!(near.tags.next().is_none());
        assert_eq!((near.tags.unexpected(), far.tags.offered()), (0, 0));
        for pool in [&near.pool, &far.pool, &far.readable] {
            assert_eq!(pool.available(), pool.count() as usize);
        }
    }

    fn poll(&mut self) {
        assert!(self.near.tags.next().is_none());
        assert!(self.far.tags.next().is_none());
    }
}

#[test]
fn peers_matched_by_the_device() {
    if !ways().contains(&Offload::Required) {
        doorbell_tests::skip!("the device matches no tags");
    }
    soak(peers(Offload::Required));
}

#[test]
fn peers_matched_by_the_library() {
    soak(peers(Offload::Never));
}
