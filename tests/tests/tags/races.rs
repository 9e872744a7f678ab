//! Events at the same time.

use doorbell::tags::{Offload, ReceiveId, TagEvent, TagFailure, TaggedBuffer};
use doorbell::{BufferPool, DeviceEvent, PoolConfig};

use doorbell_tests::{
    device,
    receiving::{wait, wait_for},
    tags::{ALL, SHAPE, Shape, Side, join, pair, spin, ways},
};

/// Every receive is cancelled while its message arrives: each gets one event, and no message is lost.
#[test]
fn each_receive_is_cancelled_while_its_message_arrives() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        let (free, rounds) = (near.pool.available(), device::share(1500));
        let (mut cancelled, mut received) = (0, 0);
        for round in 0..rounds {
            let receive = near.post(round, ALL);
            // Long and short ones; in one part and in two.
            far.send(0, round, 0, &vec![1; [8, 5000][round as usize % 2]]);
            spin(round % 50);
            let late = near.tags.cancel(receive).is_err();
            let event = near.event();
            assert!(!far.sent());
            match event {
                TagEvent::Cancelled { receive: id, .. } => {
                    assert!(id == receive && !late);
                    cancelled += 1;
                    // The message is there either way.
                    near.wait_unexpected(1);
                    near.post(round, ALL);
                    assert_eq!(near.received().tag, round);
                }
                TagEvent::Received(got) => {
                    assert_eq!((got.receive, got.tag), (receive, round));
                    received += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        println!("{way:?}: {cancelled} cancelled, {received} received");
        assert_eq!((cancelled + received, near.tags.outstanding()), (rounds, 0));
        assert_eq!((near.tags.unexpected(), near.pool.available()), (0, free));
    }
}

/// Posts a receive as soon as the list has room: an entry is free when the completion of its remove, too, has
/// been taken.
fn post_when_free(near: &mut Side, tag: u64) -> ReceiveId {
    wait_for("room in the list", || {
        near.tags.probe(0, 0);
        let posted = near.tags.post(tag, ALL, near.pool.take().expect("a buffer"));
        posted.inspect_err(|error| assert_eq!(error.reason, TagFailure::ListFull)).ok()
    })
}

/// The whole list is removed while a message for each of its receives arrives, without a poll meanwhile:
/// the most that can complete at once. No completion is lost.
#[test]
fn a_whole_list_is_cancelled_while_its_messages_arrive() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        let free = near.pool.available();
        let tags = u64::from(SHAPE.tags);
        for round in 0..device::share(60) {
            let mut open: Vec<ReceiveId> = (0..tags).map(|tag| post_when_free(&mut near, tag)).collect();
            let ids = open.clone();
            // In one part and in two.
            (0..tags).for_each(|tag| far.send(0, tag, 0, &vec![1; [8, 5000][tag as usize % 2]]));
            spin(round % 7 * 40);
            ids.iter().for_each(|id| near.tags.cancel(*id).unwrap());
            let mut again = Vec::new();
            while !open.is_empty() {
                let (id, taken) = match near.event() {
                    TagEvent::Cancelled { receive, .. } => (receive, false),
                    TagEvent::Received(got) => (got.receive, true),
                    other => panic!("{other:?}"),
                };
                let at = open.iter().position(|open| *open == id).expect("one event for each");
                open.remove(at);
                if !taken {
                    again.extend(ids.iter().position(|known| *known == id));
                }
            }
            // The messages of receives that were cancelled in time are there.
            near.wait_unexpected(again.len());
            for tag in again {
                post_when_free(&mut near, tag as u64);
                assert_eq!(near.received().tag, tag as u64);
            }
            (0..tags).for_each(|_| assert!(!far.sent()));
            assert_eq!((near.tags.outstanding(), near.pool.available()), (0, free));
        }
    }
}

/// Unexpected messages while receives are appended: the first message goes to the first receive.
#[test]
fn receives_are_posted_while_messages_for_them_arrive() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        let mut number = 0u32;
        for round in 0..device::share(400) {
            let burst = 1 + round as u32 % 7;
            let mut receives: Vec<ReceiveId> = Vec::new();
            for i in 0..burst {
                far.send(0, 3, number + i, &[]);
                spin(round % 13);
                receives.push(near.post(3, ALL));
            }
            let got = (0..burst).map(|_| near.received());
            let mut got: Vec<_> = got.map(|got| (got.context, got.receive)).collect();
            got.sort_by_key(|(context, _)| *context);
            let expected: Vec<_> = (number..).zip(receives).collect();
            assert_eq!(got, expected, "round {round}");
            number += burst;
            (0..burst).for_each(|_| assert!(!far.sent()));
        }
    }
}

/// Messages wait without buffers for them, and none is lost.
#[test]
fn senders_wait_for_room() {
    for way in ways() {
        let shape = Shape { slots: 33, spare: 1, ..SHAPE };
        let (mut near, mut far) = pair(way, &shape);
        let total = 120;
        let (mut sent, mut got) = (0, 0);
        wait("all messages", || {
            while sent < total && sent < got + 20 + 32 {
                let Some(buffer) = far.pool.take() else { break };
                let message = TaggedBuffer::new(buffer).unwrap();
                if far.tags.send(far.peers[0], 1, sent, message).is_err() {
                    break;
                }
                sent += 1;
            }
            let _ = far.tags.next();
            // Nothing is taken before no more comes.
            near.tags.probe(0, 0);
            if near.tags.unexpected() >= 30 || sent == total {
                near.post(1, ALL);
                assert_eq!(near.received().context, got);
                got += 1;
            }
            got == total
        });
    }
}

/// Every receive and every operation completes without a poll: the CQ has room for all of them.
#[test]
fn as_much_completes_at_once_as_there_is() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &Shape { tags: 8, ..SHAPE });
        let mut events = near.tags.pd().context().events().unwrap();
        let more = BufferPool::new(near.tags.pd(), &PoolConfig::new(256, 64)).unwrap();
        let posted = near.tags.keep_filled(&more).unwrap();
        let receives: Vec<_> = (0..8).map(|tag| near.post(1000 + tag, ALL)).collect();
        for number in 0..posted {
            far.deliver(7, number, &[]);
        }
        while let Some(event) = events.try_next().unwrap() {
            assert!(!matches!(event, DeviceEvent::CqError { .. }), "{way:?}: {event:?}");
        }
        near.wait_unexpected(posted as usize);
        for (tag, receive) in (1000..).zip(receives) {
            far.send(0, tag, 0, &[]);
            assert_eq!(near.received().receive, receive);
            assert!(!far.sent());
        }
    }
}

/// A peer is removed with messages that were not polled yet. They arrive, in order with those of another peer, and
/// their slots are free for the next ones.
#[test]
fn unpolled_messages_outlive_the_removal_of_their_peer() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &Shape { slots: 127, peers: 2, ..SHAPE });
        let slots = BufferPool::new(near.tags.pd(), &PoolConfig::new(256, 256)).unwrap();
        let full = near.tags.keep_filled(&slots).unwrap();
        for round in 0..6 {
            // More messages than are taken at once.
            for number in 0..100 {
                far.send(number as usize % 2, 7, number, &[number as u8; 64]);
                assert!(!far.sent());
            }
            near.tags.remove_peer(near.peers[0]).unwrap();
            far.tags.remove_peer(far.peers[0]).unwrap();
            for number in 0..100 {
                near.post(7, ALL);
                let got = near.received();
                let expected = (near.peers[number as usize % 2], number);
                assert_eq!((got.peer, got.context), expected, "{way:?}, round {round}");
                assert_eq!(got.buffer[..], [number as u8; 64]);
            }
            assert!(near.tags.next().is_none());
            assert_eq!(near.tags.keep_filled(&slots).unwrap(), full, "{way:?}, round {round}");
            join(&mut near, &mut far, 0);
        }
    }
}

fn in_flight(way: Offload) -> (Side, Side, usize) {
    let (mut near, mut far) = pair(way, &SHAPE);
    let free = near.pool.available();
    let receives: Vec<_> = (0..10).map(|tag| near.post(tag, ALL)).collect();
    (0..6).for_each(|tag| far.send(0, tag, 0, &[1; 6000]));
    (6..9).for_each(|tag| far.offer(0, tag, 0, &[1; 6000]));
    (20..24).for_each(|tag| far.offer(0, tag, 0, &[1; 6000]));
    near.tags.cancel(receives[9]).unwrap();
    let _ = near.tags.next();
    (near, far, free)
}

#[test]
fn queues_are_dropped_with_everything_in_flight() {
    for way in ways() {
        for far_first in [false, true] {
            let (near, far, free) = in_flight(way);
            let (pool, readable) = (near.pool.clone(), far.readable.clone());
            let (first, last) = if far_first { (far, near) } else { (near, far) };
            drop(first);
            drop(last);
            assert_eq!(pool.available(), free, "{way:?}");
            assert_eq!(readable.available(), readable.count() as usize, "{way:?}");
        }
    }
}

#[test]
fn a_removed_peer_gives_everything_back() {
    for way in ways() {
        let (mut near, mut far, free) = in_flight(way);
        far.tags.remove_peer(far.peers[0]).unwrap();
        assert!(far.tags.remove_peer(far.peers[0]).is_err());
        while far.tags.next().is_some() {}
        assert_eq!((far.tags.offered(), far.readable.available()), (0, far.readable.count() as usize));
        near.tags.remove_peer(near.peers[0]).unwrap();
        wait("all receives that had matched", || {
            let _ = near.tags.next();
            // Receives that have not matched go on waiting.
            near.pool.available() + near.tags.outstanding() as usize == free
        });
        // Another peer finds the queue as it was.
        drop(near);
        let pool = far.pool.clone();
        drop(far);
        assert_eq!(pool.available(), pool.count() as usize);
    }
}

/// READs wait for room in the send queue. They are posted in the order of their messages, each time that the queue is
/// full again.
#[test]
fn reads_that_wait_for_room_keep_their_order() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &Shape { sends: 1, ..SHAPE });
        far.config = far.config.max_send_wr(32);
        join(&mut near, &mut far, 0);
        for round in 0..4 {
            (0..12).for_each(|context| far.offer(0, 7, context, &[round; 8000]));
            near.wait_unexpected(12);
            (0..12).for_each(|_| _ = near.post(7, ALL));
            let contexts: Vec<_> = (0..12).map(|_| near.received().context).collect();
            assert!(contexts.iter().copied().eq(0..12), "{way:?}: {contexts:?}");
            // The FINs wait for room, too.
            far.wait_read(&mut near);
            (0..12).for_each(|_| assert!(far.sent()));
        }
    }
}
