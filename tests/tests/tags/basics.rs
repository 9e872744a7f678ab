//! One message, one receive, in every order.

use doorbell::tags::{Offload, TagEvent};
use doorbell_tests::{
    assert_matches,
    tags::{ALL, SHAPE, pair, tagged, ways},
};

#[test]
fn a_message_meets_its_receive() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        assert_eq!(near.tags.offload(), way == Offload::Required);
        for len in [0, 1, 16, 1000, 8000] {
            let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let receive = near.post(0x11, ALL);
            far.send(0, 0x11, 9, &payload);
            let got = near.received();
            assert_eq!((got.receive, got.peer), (receive, near.peers[0]));
            assert_eq!((got.tag, got.context), (0x11, 9));
            assert_eq!(got.buffer[..], payload);
            assert!(!far.sent());
        }
    }
}

#[test]
fn a_message_that_comes_first_is_taken() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        for (tag, context) in [(1, 10), (2, 20), (1, 30)] {
            far.send(0, tag, context, &[context as u8; 100]);
        }
        near.wait_unexpected(3);
        let probe = near.tags.probe(2, ALL).unwrap();
        assert_eq!((probe.tag, probe.context, probe.len), (2, 20, 100));
        // The oldest receive that matches.
        for (tag, mask, context) in [(1, ALL, 10), (0, 0, 20), (0, 0, 30)] {
            let receive = near.post(tag, mask);
            let got = near.received();
            assert_eq!((got.receive, got.context), (receive, context));
            assert_eq!(got.buffer[..], [context as u8; 100]);
            assert!(got.by_library);
        }
        assert_eq!(near.tags.unexpected(), 0);
        // The device matches again.
        near.post(7, ALL);
        far.send(0, 7, 1, &[1]);
        assert_eq!(near.received().by_library, way == Offload::Never);
    }
}

#[test]
fn a_rendezvous_is_read_and_ended() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        for (round, len) in [8192, 1, 0, 5000].into_iter().enumerate() {
            let payload: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let early = round % 2 == 0;
            if early {
                near.post(5, ALL);
            }
            far.offer(0, 5, 77, &payload);
            if !early {
                near.wait_unexpected(1);
                assert_eq!(near.tags.probe(5, ALL).unwrap().len, len);
                near.post(5, ALL);
            }
            let got = near.received();
            assert_eq!((got.tag, got.context, &got.buffer[..]), (5, 77, &payload[..]));
            assert_eq!(got.by_library, !early || way == Offload::Never);
            far.wait_read(&mut near);
            assert!(far.sent());
        }
        let (count, free) = (far.readable.count() as usize, far.readable.available());
        assert_eq!(free, count);
    }
}

#[test]
fn a_message_without_a_tag_is_reported() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        near.post(0, 0);
        far.tags.send_no_tag(far.peers[0], tagged(&far.pool, &[1, 2, 3])).unwrap();
        assert_matches!(near.event(), TagEvent::NoTag { peer, message } => {
            assert_eq!((peer, &message[..]), (near.peers[0], &[1, 2, 3][..]));
        });
        assert_eq!(near.tags.outstanding(), 1);
    }
}

#[test]
fn a_cancelled_receive_gives_its_buffer_back() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        let free = near.pool.available();
        for _ in 0..100 {
            let receive = near.post(1, ALL);
            near.tags.cancel(receive).unwrap();
            near.cancelled(receive);
        }
        assert_eq!(near.pool.available(), free);
        // A cancelled receive matches nothing.
        far.send(0, 1, 0, &[]);
        near.wait_unexpected(1);
        let receive = near.post(1, ALL);
        assert_eq!(near.received().receive, receive);
    }
}
