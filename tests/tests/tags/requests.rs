//! Waiting for chosen requests, and the end on which both sides agree.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use doorbell::tags::{RequestId, SendId, TagEvent, TagHeader};
use doorbell::{BufferPool, Error, PoolConfig};
use doorbell_tests::{
    assert_matches,
    tags::{ALL, SHAPE, Shape, join, pair, tagged, ways},
};

use crate::raw::Raw;

/// Longest wait of a test for what must come.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_request_is_waited_for_beside_others() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &Shape { peers: 2, ..SHAPE });
        let receives = [1, 2, 3].map(|tag| near.post(tag, ALL));
        assert!(!near.tags.is_done(receives[0]));
        assert_matches!(near.tags.wait_for(receives[0], Duration::ZERO), Ok(None));
        for tag in [1, 2, 3] {
            far.send(tag as usize % 2, tag, 0, &[tag as u8]);
            assert!(!far.sent());
        }
        let got = near.tags.wait_for(receives[2], LONG).unwrap();
        assert_matches!(got, Some(TagEvent::Received(got)) => {
            assert_eq!((got.receive, got.peer, got.peer.index(), &*got.buffer), (receives[2], near.peers[1], 1, &[3][..]));
        });
        let rest: [RequestId; 2] = [receives[1].into(), receives[0].into()];
        assert!(near.tags.wait_all(&rest, LONG).unwrap());
        for (request, byte) in rest.into_iter().zip([2, 1]) {
            assert!(near.tags.is_done(request));
            assert_matches!(near.tags.take(request), Some(TagEvent::Received(got)) if *got.buffer == [byte]);
            assert!(!near.tags.is_done(request) && near.tags.take(request).is_none());
        }
        assert!(near.tags.next().is_none());
    }
}

#[test]
fn a_send_is_waited_for_like_a_receive() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &Shape { peers: 2, ..SHAPE });
        let mut send = |peer: usize| -> SendId {
            let message = tagged(&near.pool, &[1]);
            near.tags.send(near.peers[peer], 7, 0, message).unwrap()
        };
        let sends = [send(0), send(1), send(0)];
        let requests = sends.map(RequestId::from);
        assert!(near.tags.wait_all(&requests, LONG).unwrap());
        for send in sends.iter().rev() {
            assert_matches!(near.tags.take(*send), Some(TagEvent::Sent(sent)) if sent.send == *send);
        }
        let late = far.post(8, ALL);
        assert!(!far.tags.wait_all(&[late.into()], Duration::from_millis(1)).unwrap());
    }
}

/// An event of no request ends the sleep: the request may never be done.
#[test]
fn a_notice_ends_the_wait() {
    for way in ways() {
        let (mut near, _far) = pair(way, &SHAPE);
        let mut liar = Raw::connect(&mut near);
        let receive = near.post(1, ALL);
        liar.send(&TagHeader::NoTag, b"a");
        assert_matches!(near.tags.wait_for(receive, None), Ok(None));
        assert!(!near.tags.wait_all(&[receive.into()], None).unwrap());
        assert_matches!(near.tags.next_notice(), Some(TagEvent::NoTag { peer, .. }) if peer == liar.peer);
        assert!(near.tags.next_notice().is_none() && !near.tags.is_done(receive));
    }
}

/// Both sides call it with messages and rendezvous under way in both directions; nothing is lost or fails. What is
/// offered to another peer does not count.
#[test]
fn a_connection_ends_when_both_sides_have_all() {
    for way in ways() {
        let shape = Shape { sends: 4, peers: 2, ..SHAPE };
        let (mut near, mut far) = pair(way, &shape);
        let (here, there) = UnixStream::pair().unwrap();
        for side in [&mut near, &mut far] {
            (0..6).for_each(|_| _ = side.post(1, ALL));
            side.send(0, 1, 0, &[1]);
            side.offer(1, 2, 0, &[2; 100]);
        }
        let mut ends = [(near, here), (far, there)].map(|(mut side, mut stream)| {
            thread::spawn(move || {
                let (mut sent, mut offered) = (0, 0);
                while offered < 5 {
                    let mut buffer = side.readable.take().unwrap();
                    buffer.set_len(5000);
                    offered += usize::from(side.tags.send_rendezvous(side.peers[0], 1, 0, buffer).is_ok());
                    // Events that came in between: the others are there after the end.
                    let request = side.tags.next().map(|event| assert_ended_well(&event));
                    sent += usize::from(request.is_some());
                }
                side.tags.end_over(side.peers[0], &mut stream, LONG).unwrap();
                while let Some(event) = side.tags.next() {
                    assert_ended_well(&event);
                    sent += 1;
                }
                // Six receives, and as many sends.
                assert_eq!((sent, side.tags.offered()), (12, 1));
                assert_matches!(side.tags.end_over(side.peers[0], &mut stream, LONG), Err(Error::Gone { .. }));
            })
        });
        ends.reverse();
        ends.into_iter().for_each(|end| end.join().unwrap());
    }
}

fn assert_ended_well(event: &TagEvent) {
    match event {
        TagEvent::Received(_) => {}
        TagEvent::Sent(sent) => assert!(sent.status.is_success(), "{}", sent.status),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_that_does_not_agree_can_be_removed() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        let (mut here, there) = UnixStream::pair().unwrap();
        let silent = near.tags.end_over(near.peers[0], &mut here, Duration::from_millis(1));
        assert_matches!(silent, Err(Error::TimedOut { operation: "end_over", .. }));
        near.offer(0, 1, 0, &[0; 100]);
        drop(there);
        let gone = near.tags.end_over(near.peers[0], &mut here, LONG);
        assert_matches!(gone, Err(Error::Handshake(_)));
        near.tags.remove_peer(near.peers[0]).unwrap();
        assert_matches!(near.tags.next(), Some(TagEvent::Sent(sent)) if !sent.status.is_success());
        // The other connection of the same queue is as it was.
        join(&mut near, &mut far, 1);
        let pool = BufferPool::new(near.tags.pd(), &PoolConfig::new(1, 64)).unwrap();
        let again = near.tags.post(9, ALL, pool.take().unwrap()).unwrap();
        far.send(1, 9, 0, &[9]);
        assert_matches!(near.tags.wait_for(again, LONG), Ok(Some(TagEvent::Received(_))));
    }
}
