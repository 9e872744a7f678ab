//! Peers that lie, that fail and that go.

use doorbell::tags::{NotSentTagged, OfferedMemory, Offload, ReceiveFailure, TagEvent, TagHeader};
use doorbell::{BufferPool, Error, NotSent, QpConfig};
use doorbell_tests::device;

use crate::raw::Raw;
use crate::world::{ALL, SHAPE, Shape, Side, pair, wait, ways};

/// Offers a buffer to a peer; returns the FIN that ends the rendezvous, in parts.
fn offer(near: &mut Side, to: &mut Raw) -> (u64, u32, OfferedMemory) {
    let mut buffer = near.readable.take().unwrap();
    buffer.set_len(1000);
    near.tags.send_rendezvous(to.peer, 5, 6, buffer).unwrap();
    (5, 6, to.offered())
}

fn malformed(near: &mut Side, from: &mut Raw, fin: (u64, u32, OfferedMemory)) {
    let (tag, context, memory) = fin;
    let OfferedMemory { addr, rkey, len } = memory;
    let header = TagHeader::Fin { tag, context, memory };
    let behind = [&addr.to_be_bytes()[..], &rkey.to_be_bytes(), &len.to_be_bytes()].concat();
    from.send(&header, &behind);
    match near.event() {
        TagEvent::Malformed { peer, .. } => assert_eq!(peer, from.peer),
        other => panic!("{other:?}"),
    }
    assert_eq!(near.tags.offered(), 1);
}

/// Only the peer that was offered a buffer ends the rendezvous, and only with what it was offered.
#[test]
fn an_offer_is_ended_by_the_fin_of_its_own_peer() {
    for way in ways() {
        let (mut near, _far) = pair(way, &SHAPE);
        let (mut reader, mut other) = (Raw::connect(&mut near), Raw::connect(&mut near));
        let (tag, context, memory) = offer(&mut near, &mut reader);
        malformed(&mut near, &mut other, (tag, context, memory));
        malformed(&mut near, &mut reader, (tag + 1, context, memory));
        malformed(&mut near, &mut reader, (tag, context + 1, memory));
        let OfferedMemory { addr, rkey, len } = memory;
        for memory in [
            OfferedMemory { addr: addr + 64, rkey, len },
            OfferedMemory { addr, rkey: rkey ^ 1, len },
            OfferedMemory { addr, rkey, len: len - 1 },
        ] {
            malformed(&mut near, &mut reader, (tag, context, memory));
        }
        let header = TagHeader::Fin { tag, context, memory };
        let behind = [&addr.to_be_bytes()[..], &rkey.to_be_bytes(), &len.to_be_bytes()].concat();
        reader.send(&header, &behind);
        assert!(near.sent());
        assert_eq!(near.tags.offered(), 0);
    }
}

#[test]
fn a_rendezvous_with_a_buffer_of_another_domain_is_refused() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        let elsewhere = near.tags.pd().context().alloc_pd().unwrap();
        let pool = BufferPool::readable(&elsewhere, 1, 64).unwrap();
        let mut buffer = pool.take().unwrap();
        buffer.set_len(64);
        let refused = near.tags.send_rendezvous(near.peers[0], 1, 0, buffer).unwrap_err();
        assert!(
            matches!(refused.reason, NotSentTagged::Queue(NotSent::WrongDomain)),
            "{refused:?}"
        );
        assert_eq!((refused.buffer.len(), near.tags.offered()), (64, 0));
        // The connection has not suffered.
        near.send(0, 1, 0, &[7]);
        far.post(1, ALL);
        assert_eq!(*far.received().buffer, [7]);
    }
}

#[test]
fn buffers_without_room_for_headers_are_refused() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        for size in [8, 31] {
            let small = BufferPool::new(near.tags.pd(), 64, size).unwrap();
            let refused = near.tags.fill(&small).unwrap_err();
            assert!(matches!(refused, Error::OutOfRange { .. }), "{refused:?}");
            assert!(refused.to_string().contains("32"), "{refused}");
            assert_eq!(small.available(), 64);
        }
        near.tags.fill(&BufferPool::new(near.tags.pd(), 64, 32).unwrap()).unwrap();
        far.send(0, 1, 0, &[7]);
        near.post(1, ALL);
        assert_eq!(*near.received().buffer, [7]);
    }
}

/// A failed send is reported once as the failure of its peer, and returns its buffer.
#[test]
fn a_dead_peer_fails_once() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        let config = QpConfig::rc().sends(4).retry_cnt(1).timeout(8);
        let gone = far.tags.add_peer(&config).unwrap();
        let here = near.tags.add_peer(&config).unwrap();
        let (one, other) = (near.tags.address(here).unwrap(), far.tags.address(gone).unwrap());
        near.tags.connect(here, &other).unwrap();
        far.tags.connect(gone, &one).unwrap();
        near.tags.remove_peer(here).unwrap();
        far.peers = vec![gone];
        far.send(0, 1, 0, &[1]);
        far.send(0, 1, 0, &[2]);
        let (mut failed, mut sent) = (0, 0);
        while sent < 2 {
            match far.event() {
                TagEvent::PeerFailed { peer, status } => {
                    assert!(peer == gone && !status.is_success());
                    assert_eq!(sent, 0, "reported after its sends");
                    failed += 1;
                }
                TagEvent::Sent(end) => {
                    assert!(end.peer == gone && !end.status.is_success());
                    sent += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(failed, 1, "{way:?}");
    }
}

#[test]
fn offers_of_a_peer_that_was_removed_are_forgotten() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        (0..3).for_each(|context| far.offer(0, 7, context, &[1; 100]));
        far.send(0, 7, 3, &[9]);
        near.wait_unexpected(4);
        near.tags.remove_peer(near.peers[0]).unwrap();
        assert_eq!(near.tags.unexpected(), 1, "{way:?}");
        near.post(7, ALL);
        assert_eq!(near.received().context, 3);
    }
}

/// Reads that wait for room in the send queue when their peer is removed: each receive gets its event.
#[test]
fn reads_that_wait_end_with_their_peer() {
    for way in ways().into_iter().filter(|way| *way == Offload::Never) {
        let (mut near, mut far) = pair(way, &Shape { sends: 1, peers: 1, ..SHAPE });
        let other = far.tags.add_peer(&QpConfig::rc().sends(32).min_rnr_timer(1)).unwrap();
        let here = near.tags.add_peer(&QpConfig::rc().sends(1).min_rnr_timer(1)).unwrap();
        let (one, two) = (near.tags.address(here).unwrap(), far.tags.address(other).unwrap());
        near.tags.connect(here, &two).unwrap();
        far.tags.connect(other, &one).unwrap();
        far.peers = vec![other];
        let free = near.pool.available();
        (0..8).for_each(|context| far.offer(0, 7, context, &[1; 8000]));
        near.wait_unexpected(8);
        for _ in 0..8 {
            near.post(7, ALL);
        }
        near.tags.remove_peer(here).unwrap();
        for _ in 0..8 {
            match near.tags.poll().expect("an event of each receive") {
                TagEvent::Received(_)
                | TagEvent::Failed {
                    cause: ReceiveFailure::PeerGone | ReceiveFailure::Read(_),
                    ..
                } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((near.tags.outstanding(), near.pool.available()), (0, free));
    }
}

/// A peer that takes the place of one that was removed is another one.
#[test]
fn the_name_of_a_removed_peer_is_not_that_of_the_next() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        far.send(0, 7, 0, &[]);
        near.wait_unexpected(1);
        let removed = near.peers[0];
        near.tags.remove_peer(removed).unwrap();
        let next = near.tags.add_peer(&QpConfig::rc()).unwrap();
        assert_ne!(removed, next);
        assert!(matches!(near.tags.remove_peer(removed), Err(Error::Gone { .. })));
        near.post(7, ALL);
        assert_eq!(near.received().peer, removed);
        near.tags.remove_peer(next).unwrap();
    }
}

/// As many peers come and go as the device has time for; those that have gone cost nothing.
#[test]
fn removed_peers_leave_no_memory() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        for round in 0..device::share(100) as u32 {
            let [here, there] = [&mut near, &mut far]
                .map(|side| side.tags.add_peer(&QpConfig::rc().sends(1).min_rnr_timer(1)).unwrap());
            let one = near.tags.address(here).unwrap();
            let two = far.tags.address(there).unwrap();
            near.tags.connect(here, &two).unwrap();
            far.tags.connect(there, &one).unwrap();
            far.peers = vec![there];
            near.post(7, ALL);
            far.send(0, 7, round, &[]);
            let got = near.received();
            assert_eq!((got.peer, got.context), (here, round));
            drop(got);
            wait("the end of the send", || far.tags.poll().is_some());
            near.tags.remove_peer(here).unwrap();
            far.tags.remove_peer(there).unwrap();
        }
    }
}
