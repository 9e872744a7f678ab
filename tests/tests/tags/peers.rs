//! Peers that lie, that fail and that go.

use doorbell::tags::{NotSentTagged, OfferedMemory, Offload, ReceiveFailure, TagEvent, TagHeader};
use doorbell::{BufferPool, Error, NotSent, PoolConfig, QpConfig};
use doorbell_tests::{
    assert_matches,
    tags::{ALL, SHAPE, Shape, join, pair, ways},
};

use crate::raw::Raw;

/// Ends a rendezvous with this memory.
fn fin(from: &mut Raw, tag: u64, context: u32, memory: OfferedMemory) {
    let OfferedMemory { addr, rkey, len } = memory;
    let behind = [&addr.to_be_bytes()[..], &rkey.to_be_bytes(), &len.to_be_bytes()].concat();
    from.send(&TagHeader::Fin { tag, context, memory }, &behind);
}

/// Only the peer that was offered a buffer ends the rendezvous, and only with that buffer.
#[test]
fn an_offer_is_ended_by_the_fin_of_its_own_peer() {
    for way in ways() {
        let (mut near, _far) = pair(way, &SHAPE);
        let mut peers = [Raw::connect(&mut near), Raw::connect(&mut near)];
        let mut buffer = near.readable.take().unwrap();
        buffer.set_len(1000);
        near.tags.send_rendezvous(peers[0].peer, 5, 6, buffer).unwrap();
        let offered = peers[0].offered();
        let OfferedMemory { addr, rkey, len } = offered;
        for (from, tag, context, memory) in [
            (1, 5, 6, offered),
            (0, 6, 6, offered),
            (0, 5, 7, offered),
            (0, 5, 6, OfferedMemory { addr: addr + 64, ..offered }),
            (0, 5, 6, OfferedMemory { rkey: rkey ^ 1, ..offered }),
            (0, 5, 6, OfferedMemory { len: len - 1, ..offered }),
        ] {
            let from = &mut peers[from];
            fin(from, tag, context, memory);
            assert_matches!(near.event(), TagEvent::Malformed { peer, .. } if peer == from.peer);
            assert_eq!(near.tags.offered(), 1, "{tag} {context} {memory:?}");
        }
        fin(&mut peers[0], 5, 6, offered);
        assert!(near.sent());
        assert_eq!(near.tags.offered(), 0);
    }
}

/// Nothing is read of an offer without bytes: its peer need not allow a READ.
#[test]
fn an_offer_of_no_bytes_is_not_read() {
    for way in ways() {
        let (mut near, _far) = pair(way, &SHAPE);
        let mut raw = Raw::connect(&mut near);
        let memory = OfferedMemory { addr: 0, rkey: 0, len: 0 };
        raw.send(&TagHeader::Rendezvous { tag: 5, context: 6, memory }, &[0; 16]);
        near.wait_unexpected(1);
        near.post(5, ALL);
        let got = near.received();
        assert!(got.peer == raw.peer && got.buffer.is_empty());
        assert_matches!(TagHeader::parse(&raw.message()), Some(TagHeader::Fin { tag: 5, context: 6, .. }));
    }
}

#[test]
fn a_rendezvous_with_a_buffer_of_another_domain_is_refused() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        let elsewhere = near.tags.pd().context().alloc_pd().unwrap();
        let pool = BufferPool::new(&elsewhere, &PoolConfig::new(1, 64).readable(true)).unwrap();
        let mut buffer = pool.take().unwrap();
        buffer.set_len(64);
        let refused = near.tags.send_rendezvous(near.peers[0], 1, 0, buffer).unwrap_err();
        assert!(matches!(refused.reason, NotSentTagged::Queue(NotSent::WrongDomain)), "{refused:?}");
        assert_eq!((refused.payload.len(), near.tags.offered()), (64, 0));
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
            let small = BufferPool::new(near.tags.pd(), &PoolConfig::new(64, size)).unwrap();
            let refused = near.tags.keep_filled(&small).unwrap_err();
            assert_matches!(refused, Error::OutOfRange { .. });
            assert!(refused.to_string().contains("32"), "{refused}");
            assert_eq!(small.available(), 64);
        }
        near.tags.keep_filled(&BufferPool::new(near.tags.pd(), &PoolConfig::new(64, 32)).unwrap()).unwrap();
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
        let config = QpConfig::rc().max_send_wr(4).retry_cnt(1).timeout(8);
        (near.config, far.config) = (config.clone(), config);
        join(&mut near, &mut far, 0);
        near.tags.remove_peer(near.peers[0]).unwrap();
        let gone = far.peers[0];
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

/// The side that offers removes one of its peers: what the other was offered can still be read.
#[test]
fn offers_to_another_peer_stay() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &Shape { peers: 2, ..SHAPE });
        (0..2).for_each(|peer| far.offer(peer, 7, 0, &[1; 100]));
        near.wait_unexpected(2);
        let gone = far.peers[0];
        far.tags.remove_peer(gone).unwrap();
        assert_matches!(far.event(), TagEvent::Sent(sent) if sent.peer == gone && !sent.status.is_success());
        assert_eq!((far.tags.next().is_none(), far.tags.offered()), (true, 1));
    }
}

/// READs wait for room in the send queue when their peer is removed. Each receive gets its event.
#[test]
fn reads_that_wait_end_with_their_peer() {
    for way in ways().into_iter().filter(|way| *way == Offload::Never) {
        let (mut near, mut far) = pair(way, &Shape { sends: 1, ..SHAPE });
        far.config = far.config.max_send_wr(32);
        join(&mut near, &mut far, 0);
        let free = near.pool.available();
        (0..8).for_each(|context| far.offer(0, 7, context, &[1; 8000]));
        near.wait_unexpected(8);
        for _ in 0..8 {
            near.post(7, ALL);
        }
        near.tags.remove_peer(near.peers[0]).unwrap();
        for _ in 0..8 {
            match near.tags.next() {
                Some(TagEvent::Received(_)) => {}
                Some(TagEvent::Failed { cause, .. }) => {
                    assert_matches!(cause, ReceiveFailure::PeerGone | ReceiveFailure::Read(_));
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((near.tags.outstanding(), near.pool.available()), (0, free));
    }
}

/// A peer in the place of a removed peer has another name.
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
        assert_matches!(near.tags.remove_peer(removed), Err(Error::Gone { .. }));
        near.post(7, ALL);
        assert_eq!(near.received().peer, removed);
        near.tags.remove_peer(next).unwrap();
    }
}
