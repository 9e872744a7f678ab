//! Receives without a buffer, and many posted at once.

use doorbell::tags::{TagFailure, TaggedReceive};
use doorbell::{BufferPool, PoolConfig};
use doorbell_tests::tags::{ALL, SHAPE, Shape, pair, ways};

#[test]
fn an_empty_receive_takes_an_empty_message() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &Shape { tags: 2, ..SHAPE });
        let free = near.pool.available();
        for round in 0..20 {
            let early = round % 2 == 0;
            let before = early.then(|| near.tags.post_empty(4, ALL).unwrap());
            // Eagerly, and by rendezvous.
            if round % 4 < 2 {
                far.send(0, 4, round, &[]);
            } else {
                far.offer(0, 4, round, &[]);
            }
            if !early {
                near.wait_unexpected(1);
            }
            let receive = before.unwrap_or_else(|| near.tags.post_empty(4, ALL).unwrap());
            let got = near.received();
            assert_eq!((got.receive, got.tag, got.context), (receive, 4, round), "{way:?}");
            assert!(got.buffer.is_empty());
            if round % 4 >= 2 {
                far.wait_read(&mut near);
            }
            far.sent();
        }
        // A receive that is cancelled, and some that are never over.
        let receive = near.tags.post_empty(5, ALL).unwrap();
        near.tags.cancel(receive).unwrap();
        near.cancelled(receive);
        near.tags.post_empty(6, ALL).unwrap();
        near.tags.post_empty(7, ALL).unwrap();
        assert_eq!(near.tags.post_empty(8, ALL), Err(TagFailure::ListFull));
        assert_eq!(near.pool.available(), free, "no buffer of the program was used");
    }
}

#[test]
fn a_message_with_payload_fails_an_empty_receive() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        for len in [1, 20, 3000] {
            // By rendezvous, before the message and after it.
            for early in [true, false] {
                let before = early.then(|| near.tags.post_empty(1, ALL).unwrap());
                far.offer(0, 1, 0, &vec![7; len]);
                if !early {
                    near.wait_unexpected(1);
                }
                let receive = before.unwrap_or_else(|| near.tags.post_empty(1, ALL).unwrap());
                near.too_long(receive, len);
                far.wait_read(&mut near);
                assert!(far.sent());
            }
            // Eagerly.
            far.send(0, 2, 0, &vec![7; len]);
            near.wait_unexpected(1);
            let receive = near.tags.post_empty(2, ALL).unwrap();
            near.too_long(receive, len);
            assert!(!far.sent());
        }
    }
}

#[test]
fn the_buffers_of_empty_receives_go_back_to_the_library() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &Shape { tags: 2, ..SHAPE });
        let held = [0, 1].map(|context| {
            near.tags.post_empty(4, ALL).unwrap();
            far.send(0, 4, context, &[]);
            near.received().buffer
        });
        assert_eq!(near.tags.post_empty(4, ALL), Err(TagFailure::Held));
        drop(held);
        near.tags.post_empty(4, ALL).unwrap();
    }
}

#[test]
fn a_batch_is_posted_in_order() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        // One of the messages is there already.
        far.send(0, 3, 30, &[3]);
        near.wait_unexpected(1);
        let take = || near.pool.take().unwrap();
        let receives = [
            TaggedReceive::new(1, ALL, take()),
            TaggedReceive::empty(2, ALL),
            TaggedReceive::new(3, ALL, take()),
            TaggedReceive::new(0, 0, take()),
            TaggedReceive::new(1, ALL, take()),
        ];
        let ids = near.tags.post_all(receives).unwrap();
        let got = near.received();
        assert_eq!((got.receive, got.context, got.waited), (ids[2], 30, true));
        assert_eq!(near.tags.outstanding(), 4);
        for (tag, context, at) in [(1, 10, 0), (1, 11, 3), (1, 12, 4), (2, 20, 1)] {
            far.send(0, tag, context, &[]);
            let got = near.received();
            assert_eq!((got.receive, got.context), (ids[at], context), "{way:?}");
        }
        assert!(near.tags.post_all([]).unwrap().is_empty());
    }
}

#[test]
fn a_batch_that_fails_says_what_was_posted_and_gives_back_the_rest() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &Shape { tags: 3, ..SHAPE });
        let free = near.pool.available();
        let pool = near.pool.clone();
        let receives = || {
            let pool = pool.clone();
            (0..6u32).map(move |tag| TaggedReceive::new(tag.into(), ALL, pool.take().unwrap()))
        };
        let error = near.tags.post_all(receives()).unwrap_err();
        assert_eq!(error.reason, TagFailure::ListFull);
        assert!(error.to_string().contains("(3 receives were posted before)"), "{error}");
        assert_eq!((error.posted.len(), error.refused.len(), error.rest.len()), (3, 1, 2));
        assert_eq!(error.refused[0].tag, 3);
        let posted = error.posted;
        drop((error.refused, error.rest));
        assert_eq!(near.pool.available(), free - 3);
        for (tag, id) in posted.into_iter().enumerate() {
            far.send(0, tag as u64, 0, &[]);
            assert_eq!(near.received().receive, id);
        }
        // A receive that is refused, in the middle.
        let foreign = BufferPool::new(&doorbell_tests::device::pd(), &PoolConfig::new(1, 64)).unwrap();
        let wrong = [
            TaggedReceive::empty(1, ALL),
            TaggedReceive::new(1, ALL, foreign.take().unwrap()),
            TaggedReceive::new(1, 0, near.pool.take().unwrap()),
        ];
        let error = near.tags.post_all(wrong).unwrap_err();
        assert_eq!((error.reason, error.posted.len()), (TagFailure::WrongDomain, 1));
        assert_eq!(error.rest.len(), 1);
        drop(error);
        assert_eq!((foreign.available(), near.tags.outstanding()), (1, 1));
        assert_eq!(near.pool.available(), free);
    }
}
