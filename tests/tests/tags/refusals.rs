//! Bad input: typed errors, and nothing lost.

use doorbell::tags::{
    CancelError, NotSentTagged, Offers, Offload, ReceiveFailure, TagEvent, TagFailure, TagHeader, TagMatchingConfig,
    TagMatchingSrq, TaggedBuffer,
};
use doorbell::{BufferPool, Error, NotSent, PoolConfig, QpConfig};
use doorbell_tests::{
    assert_matches, device,
    tags::{ALL, SHAPE, Shape, cq, pair, ways},
};

use crate::raw::Raw;

#[test]
fn receives_that_cannot_be_give_the_buffer_back() {
    for way in ways() {
        let (mut near, _far) = pair(way, &Shape { tags: 2, ..SHAPE });
        let free = near.pool.available();
        let pd = near.tags.pd().clone();
        let mut refused = |tag, mask, buffer| match near.tags.post(tag, mask, buffer) {
            Err(error) => error.reason,
            Ok(_) => panic!("{tag:#x} {mask:#x} was posted"),
        };
        let wide = refused(0x11, 0x0f, near.pool.take().unwrap());
        assert_eq!(wide, TagFailure::Mask { tag: 0x11, mask: 0x0f });
        let other = BufferPool::new(&device::pd(), &PoolConfig::new(1, 64)).unwrap();
        assert_eq!(refused(1, ALL, other.take().unwrap()), TagFailure::WrongDomain);
        // The last buffer of such a pool ends where the memory does.
        let tight = BufferPool::from_memory(&pd, vec![0; 256], &PoolConfig::new(u32::MAX, 10)).unwrap();
        let small = refused(1, ALL, tight.take().unwrap());
        assert_eq!(small, TagFailure::TooSmall { min: 32 });
        assert_eq!((other.available(), near.tags.outstanding()), (1, 0));

        let held = [near.post(1, ALL), near.post(2, ALL)];
        let buffer = near.pool.take().unwrap();
        let full = near.tags.post(3, ALL, buffer).unwrap_err();
        assert_eq!(full.reason, TagFailure::ListFull);
        drop(full);
        for receive in held {
            near.tags.cancel(receive).unwrap();
            near.cancelled(receive);
        }
        assert_eq!(near.pool.available(), free);
    }
}

#[test]
fn a_receive_is_cancelled_once_and_by_its_own_queue() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        let receive = near.post(1, ALL);
        assert_eq!(far.tags.cancel(receive), Err(CancelError::WrongQueue));
        near.tags.cancel(receive).unwrap();
        let refused = near.tags.cancel(receive);
        assert_matches!(refused, Err(CancelError::Cancelling | CancelError::Over));
        near.cancelled(receive);
        assert_eq!(near.tags.cancel(receive), Err(CancelError::Over));
        // The place of the receive is taken by another one, which the old name does not mean.
        let next = near.post(1, ALL);
        assert_eq!(near.tags.cancel(receive), Err(CancelError::Over));
        far.send(0, 1, 0, &[]);
        assert_eq!(near.received().receive, next);
    }
}

#[test]
fn sends_that_cannot_be_give_the_buffer_back() {
    for way in ways() {
        let (near, mut far) = pair(way, &SHAPE);
        let (peer, foreign) = (far.peers[0], near.peers[0]);
        let buffer = far.pool.take().unwrap();
        let error = far.tags.send_rendezvous(peer, 1, 0, buffer).unwrap_err();
        assert_matches!(error.reason, NotSentTagged::NotReadable);
        let error = far.tags.send_rendezvous(foreign, 1, 0, error.payload).unwrap_err();
        assert_matches!(error.reason, NotSentTagged::NoPeer);
        let message = TaggedBuffer::new(error.payload).unwrap();
        assert!(far.tags.send(foreign, 1, 0, message).is_err());
        assert_eq!(far.tags.offered(), 0);
        let small = BufferPool::new(far.tags.pd(), &PoolConfig::new(1, 15)).unwrap();
        assert!(TaggedBuffer::new(small.take().unwrap()).is_err());
    }
}

/// A rendezvous that finds the send queue full leaves no offer behind.
#[test]
fn an_offer_that_is_not_sent_gives_the_buffer_back() {
    for way in ways() {
        let (_near, mut far) = pair(way, &Shape { sends: 1, ..SHAPE });
        let (free, mut ids) = (far.readable.available(), Vec::new());
        let refused = loop {
            let mut buffer = far.readable.take().unwrap();
            buffer.extend_from_slice(b"offered");
            match far.tags.send_rendezvous(far.peers[0], 1, 0, buffer) {
                Ok(id) => ids.push(id),
                Err(refused) => break refused,
            }
        };
        assert!(ids.len() == far.tags.offered() && ids.is_sorted_by(|one, next| one < next), "{ids:?}");
        assert_matches!(refused.reason, NotSentTagged::Queue(NotSent::Full { .. }));
        assert_eq!(*refused.payload, *b"offered");
        drop(refused);
        assert_eq!(far.tags.offered() + far.readable.available(), free);
    }
}

#[test]
fn a_message_longer_than_its_receive_fails_it() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        let small = BufferPool::new(near.tags.pd(), &PoolConfig::new(4, 10)).unwrap();
        // By rendezvous: the connection lives on, and the sender gets its buffer.
        for early in [true, false] {
            let before = early.then(|| near.tags.post(7, ALL, small.take().unwrap()).unwrap());
            far.offer(0, 7, 0, &[1; 500]);
            let receive = before.unwrap_or_else(|| {
                near.wait_unexpected(1);
                near.tags.post(7, ALL, small.take().unwrap()).unwrap()
            });
            near.too_long(receive, 500);
            far.wait_read(&mut near);
            assert!(far.sent());
        }
        assert_eq!(small.available(), 4);
        // Eagerly, and the message came first: the library finds out.
        far.send(0, 8, 0, &[2; 500]);
        near.wait_unexpected(1);
        near.tags.post(8, ALL, small.take().unwrap()).unwrap();
        assert_matches!(near.event(), TagEvent::Failed { .. });
        assert!(!far.sent());
        // Eagerly to a receive that waits: a device ends the connection.
        near.tags.post(9, ALL, small.take().unwrap()).unwrap();
        far.send(0, 9, 0, &[3; 500]);
        let too_long = ReceiveFailure::TooLong { len: 500 };
        let ends = if way == Offload::Never { too_long } else { ReceiveFailure::Dropped };
        assert_matches!(near.event(), TagEvent::Failed { cause, .. } if cause == ends);
        assert_eq!(small.available(), 4);
    }
}

#[test]
fn malformed_messages_are_reported_and_do_no_harm() {
    for way in ways() {
        let (mut near, _far) = pair(way, &SHAPE);
        let mut raw = Raw::connect(&mut near);
        near.post(0, 0);
        let memory = doorbell::tags::OfferedMemory { addr: 0x1000, rkey: 1, len: 64 };
        // A FIN that ends nothing, and an offer without its second header.
        let fin = TagHeader::Fin { tag: 1, context: 2, memory };
        let offer = TagHeader::Rendezvous { tag: 1, context: 2, memory };
        let rvh = [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 1, 0, 0, 0, 64];
        for (header, behind) in [(&fin, &rvh[..]), (&fin, &[]), (&offer, &rvh[..15])] {
            raw.send(header, behind);
            let event = near.event();
            assert_matches!(event, TagEvent::Malformed { peer, buffer } => {
                assert_eq!((peer, buffer.len()), (raw.peer, 16 + behind.len()));
            });
        }
        // Half a header, none at all, an opcode that does not exist.
        for bytes in [&[3; 8][..], &[], &[9; 16], &[0xff; 64]] {
            raw.send_bytes(bytes);
            let event = near.event();
            assert_matches!(event, TagEvent::Malformed { buffer, .. } if buffer[..] == *bytes);
        }
        assert_eq!((near.tags.outstanding(), near.tags.unexpected()), (1, 0));
        raw.send(&TagHeader::Eager { tag: 5, context: 0 }, &[1]);
        assert_eq!(near.received().tag, 5);
    }
}

/// Messages that offer invalid memory: of no region, beyond the end of a region, before its start.
fn wild_offers(readable: &BufferPool) -> [[u8; 32]; 3] {
    let mut buffer = readable.take().unwrap();
    buffer.set_len(64);
    let good = Offers::new().offer(buffer, 1, 2, ()).unwrap();
    let (va, rkey, len) = (16..24, 24..28, 28..32);
    let mut offers = [good; 3];
    offers[0][rkey].copy_from_slice(&[0, 0, 0, 0x77]);
    offers[1][len].copy_from_slice(&4097u32.to_be_bytes());
    let start = u64::from_be_bytes(good[va.clone()].try_into().unwrap());
    offers[2][va].copy_from_slice(&(start - 1).to_be_bytes());
    offers
}

#[test]
fn an_offer_of_memory_that_is_not_the_senders_fails_the_receive() {
    for way in ways() {
        for (at, early) in (0..3).flat_map(|at| [(at, true), (at, false)]) {
            let (mut near, _far) = pair(way, &SHAPE);
            let mut raw = Raw::connect(&mut near);
            let free = near.pool.available();
            // One buffer, so that the region ends with it.
            let readable = BufferPool::new(near.tags.pd(), &PoolConfig::new(1, 4096).readable(true)).unwrap();
            let offer = wild_offers(&readable)[at];
            if early {
                near.post(1, ALL);
            }
            raw.send_bytes(&offer);
            if !early {
                near.wait_unexpected(1);
                near.post(1, ALL);
            }
            let cause = loop {
                match near.event() {
                    TagEvent::Failed { cause, .. } => break cause,
                    other => assert_matches!(other, TagEvent::PeerFailed { .. }),
                }
            };
            assert_matches!(cause, ReceiveFailure::Dropped | ReceiveFailure::Read(_));
            assert_eq!(near.pool.available(), free, "{way:?}, offer {at}");
        }
    }
}

#[test]
fn a_queue_that_cannot_be_is_refused_in_words() {
    let pd = device::pd();
    let make = |config: TagMatchingConfig| TagMatchingSrq::new(&pd, &config.cq(cq()));
    let refused = make(TagMatchingConfig::new(4).max_wr(32)).unwrap_err();
    assert_matches!(refused, Error::OutOfRange { what: "max_wr", min: 33, .. });
    assert_matches!(make(TagMatchingConfig::new(0)), Err(Error::OutOfRange { .. }));
    let refused = make(TagMatchingConfig::new(4).send_cqe(0)).unwrap_err();
    assert_matches!(refused, Error::OutOfRange { what: "send_cqe", value: 0, min: 1, .. });
    if ways().contains(&Offload::Required) {
        let refused = make(TagMatchingConfig::new(60_000).offload(Offload::Required)).unwrap_err();
        assert_matches!(refused, Error::OutOfRange { value: 60_000, min: 1, .. });
        assert!(refused.to_string().contains("Offload::Never"), "{refused}");
    }
    let mut tags = make(TagMatchingConfig::new(4)).unwrap();
    let refused = tags.add_peer(&QpConfig::ud(7)).unwrap_err();
    assert_matches!(refused, Error::Unsupported { operation: "add_peer", .. });
    assert!(refused.to_string().contains("QpConfig::rc()"), "{refused}");
    // Without buffers nothing could arrive.
    let peer = tags.add_peer(&QpConfig::rc()).unwrap();
    let itself = tags.address(peer).unwrap();
    assert_matches!(tags.connect(peer, &itself), Err(Error::Unsupported { .. }));
    let other = BufferPool::new(&device::pd(), &PoolConfig::new(64, 64)).unwrap();
    assert_matches!(tags.keep_filled(&other), Err(Error::Foreign { .. }));
    let buffers = |count| BufferPool::new(&pd, &PoolConfig::new(count, 64)).unwrap();
    assert_eq!(tags.keep_filled(&buffers(32)).unwrap(), 32);
    assert_matches!(tags.connect(peer, &itself), Err(Error::Unsupported { .. }));
    assert_eq!(tags.keep_filled(&buffers(1)).unwrap(), 33);
    tags.connect(peer, &itself).unwrap();
}

/// The sends of all peers complete on one CQ, which must have room for them.
#[test]
fn a_peer_more_than_the_sends_have_room_for_is_refused() {
    let pd = device::pd();
    for way in ways() {
        let config = TagMatchingConfig::new(1).offload(way).cq(cq());
        let mut tags = TagMatchingSrq::new(&pd, &config.send_cqe(64)).unwrap();
        let mut peers = Vec::new();
        let refused = loop {
            match tags.add_peer(&QpConfig::rc().max_send_wr(8)) {
                Ok(peer) => peers.push(peer),
                Err(error) => break error,
            }
        };
        assert_matches!(refused, Error::CqTooSmall { .. });
        // Soft-RoCE makes a CQ of twice the size.
        assert!((2..16).contains(&peers.len()), "{} peers", peers.len());
        // The room of a removed peer is free again.
        tags.remove_peer(peers[0]).unwrap();
        tags.add_peer(&QpConfig::rc().max_send_wr(8)).unwrap();
    }
}
