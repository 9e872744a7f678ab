//! Peers that break off in the middle of a message: the receive of the message comes back.

use doorbell::QpEnd;
use doorbell::tags::{Offload, ReceiveFailure, TagEvent, TagHeader};

use doorbell_tests::cut::{self, Cut};
use doorbell_tests::{
    assert_matches,
    tags::{ALL, SHAPE, Shape, Side, join, pair, ways},
};

use crate::raw::Raw;

/// More peers than the queue has buffers.
const PEERS: u32 = 40;
/// The least that the queue works with.
const SLOTS: u32 = 33;

/// Sides of which the first has as many buffers for messages as slots, and no other.
fn tight(way: Offload) -> (Side, Side) {
    let size = cut::LEN as u32;
    pair(way, &Shape { slots: SLOTS, spare: 0, buffer_size: size, tags: 2, sends: 64, ..SHAPE })
}

/// A new peer begins a message for `tag`; both of its messages have come when this returns.
fn cut(near: &mut Side, cut: &mut Cut, way: Offload, tag: u64) {
    let mut raw = Raw::connect(near);
    raw.send(&TagHeader::NoTag, &[]);
    assert_matches!(near.event(), TagEvent::NoTag { .. });
    cut.begin(&raw.qp, &TagHeader::Eager { tag, context: 0 }.to_bytes());
    // A message of another peer comes after it.
    let mut other = Raw::connect(near);
    let [begun, after] = [raw.peer, other.peer];
    other.send(&TagHeader::NoTag, &[]);
    assert_matches!(near.event(), TagEvent::NoTag { peer, .. } if peer == after);
    for peer in [begun, after] {
        assert_eq!(near.tags.remove_peer(peer).unwrap(), QpEnd::Complete, "{way:?}");
    }
}

/// Checks that every buffer is with the device: as many messages arrive without a poll.
fn is_whole(near: &mut Side, far: &mut Side) {
    join(near, far, 0);
    for number in 0..SLOTS {
        far.send(0, 7, number, &[]);
    }
    for _ in 0..SLOTS {
        assert!(!far.sent());
    }
    for number in 0..SLOTS {
        near.post(7, ALL);
        assert_eq!(near.received().context, number);
    }
}

#[test]
fn the_buffer_of_a_half_message_that_nothing_waits_for_comes_back() {
    for way in ways() {
        let (mut near, mut far) = tight(way);
        let mut half = Cut::new(near.tags.pd());
        for _ in 0..PEERS {
            cut(&mut near, &mut half, way, 7);
        }
        assert!(near.tags.next().is_none(), "{way:?}");
        is_whole(&mut near, &mut far);
    }
}

/// A message has matched a receive before it breaks off. If the device matches, the receive fails. The library matches
/// whole messages only, so its receive goes on waiting.
#[test]
fn a_receive_that_a_half_message_has_matched_comes_back() {
    for way in ways() {
        let (mut near, mut far) = tight(way);
        let mut half = Cut::new(near.tags.pd());
        let free = near.pool.available();
        for _ in 0..PEERS {
            let receive = near.post(7, ALL);
            cut(&mut near, &mut half, way, 7);
            match (way, near.tags.next()) {
                (Offload::Never, None) => {
                    near.tags.cancel(receive).unwrap();
                    near.cancelled(receive);
                }
                (_, Some(TagEvent::Failed { receive: failed, cause, .. })) => {
                    assert_eq!((failed, cause), (receive, ReceiveFailure::Dropped));
                }
                (way, other) => panic!("{way:?}: {other:?}"),
            }
            assert_eq!((near.tags.outstanding(), near.pool.available()), (0, free), "{way:?}");
        }
        is_whole(&mut near, &mut far);
    }
}
