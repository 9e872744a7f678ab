//! Sleeping until an event comes: no wake-up is lost, for any kind of event.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use doorbell::tags::{TagEvent, TagMatchingSrq};
use doorbell::{Async, BufferPool, CompletionChannel, Completions, PoolConfig};
use doorbell_tests::device;
use doorbell_tests::receiving::PATIENCE;
use doorbell_tests::{
    assert_matches,
    descriptor::is_readable,
    tags::{ALL, SHAPE, Shape, Side, join, pair, spin, tagged, ways},
};
use futures_core::Stream;

/// Sleeps for the next event.
#[track_caller]
fn slept(side: &mut Side) -> TagEvent {
    assert!(side.tags.wait(PATIENCE).unwrap(), "the sleeper was not woken");
    side.tags.next().expect("wait returned true")
}

fn channel(side: &Side) -> &CompletionChannel {
    side.tags.channel().expect("its CQ was made with one")
}

/// Waits in a task for the next event.
async fn next(tags: &mut Async<TagMatchingSrq>) -> TagEvent {
    let event = poll_fn(|cx| Pin::new(&mut *tags).poll_next(cx)).await;
    event.expect("the stream does not end").unwrap()
}

/// Sleeps on the descriptor, as a program with a loop of its own does, until there is an event.
#[track_caller]
fn woken(side: &mut Side) -> TagEvent {
    while !side.tags.arm().unwrap() {
        assert!(is_readable(channel(side), PATIENCE), "the sleeper was not woken");
    }
    side.tags.next().expect("arm returned true")
}

#[test]
fn nothing_happens_and_the_time_runs_out() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        near.post(1, ALL);
        for _ in 0..3 {
            let began = Instant::now();
            assert!(!near.tags.wait(Duration::from_millis(30)).unwrap());
            assert!(began.elapsed() >= Duration::from_millis(30), "{:?}", began.elapsed());
        }
        // The completion of an append is no reason to wake up once it was taken.
        assert!(!near.tags.arm().unwrap());
        assert!(!is_readable(channel(&near), Duration::from_millis(20)));
        far.send(0, 1, 0, b"hello");
        assert!(is_readable(channel(&near), PATIENCE));
        assert_eq!(*near.received().buffer, *b"hello");
    }
}

/// Each event that a program waits for wakes the sleeper. Only the sleeper polls.
#[test]
fn a_match_an_unexpected_message_a_send_and_a_rendezvous_wake_a_sleeper() {
    for way in ways() {
        for wait in [slept, woken] {
            let (mut near, mut far) = pair(way, &Shape { peers: 3, ..SHAPE });
            for round in 0..20 {
                let peer = round as usize % 3;
                // A match.
                near.post(round, ALL);
                assert!(!near.tags.arm().unwrap());
                far.send(peer, round, 0, b"match");
                assert_matches!(wait(&mut near), TagEvent::Received(got) if got.tag == round);
                // The end of a send.
                let event = wait(&mut far);
                assert_matches!(event, TagEvent::Sent(sent) if sent.status.is_success());

                // An unexpected message makes the descriptor readable; it is no event.
                assert!(!near.tags.arm().unwrap());
                far.send(peer, round, 0, b"unexpected");
                assert!(is_readable(channel(&near), PATIENCE), "{way:?}");
                near.wait_unexpected(1);
                near.post(round, ALL);
                assert_matches!(wait(&mut near), TagEvent::Received(got) if got.tag == round);
                assert_matches!(wait(&mut far), TagEvent::Sent(_));

                // A rendezvous that comes before its receive: the library reads, and the sender sleeps until the FIN.
                far.offer(peer, round, 0, &[7; 3000]);
                near.wait_unexpected(1);
                near.post(round, ALL);
                let event = wait(&mut near);
                assert_matches!(event, TagEvent::Received(got) if *got.buffer == [7; 3000]);
                assert!(!near.tags.wait(Duration::ZERO).unwrap());
                assert_matches!(wait(&mut far), TagEvent::Sent(sent) if sent.rendezvous);
            }
        }
    }
}

/// The CQs of receives and of sends share the channel: each arming takes the events of both.
#[test]
fn events_of_both_queues_do_not_pile_up() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        for tag in 0..4 {
            near.post(tag, ALL);
            far.post(tag, ALL);
            while near.tags.arm().unwrap() {
                near.tags.next();
            }
            far.send(0, tag, 0, b"to the near side");
            near.send(0, tag, 0, b"to the far side");
            let mut seen = 0;
            while seen < 2 {
                seen += usize::from(near.tags.next().is_some());
                far.tags.next();
                spin(1);
            }
        }
        // The event of a completion that was polled before its interrupt comes late, one of each queue.
        let mut armings = 0;
        while armings == 0 || is_readable(channel(&near), Duration::from_millis(20)) {
            armings += 1;
            assert!(armings <= 3, "{way:?}: events stay");
            while near.tags.arm().unwrap() {
                near.tags.next();
            }
        }
    }
}

#[test]
fn the_failure_of_a_peer_wakes_a_sleeper_and_the_others_go_on() {
    for way in ways() {
        for wait in [slept, woken] {
            let (mut near, mut far) = pair(way, &Shape { peers: 2, ..SHAPE });
            assert!(!near.tags.arm().unwrap());
            // A message longer than any buffer ends the connection at both sides.
            let pool = BufferPool::new(far.tags.pd(), &PoolConfig::new(1, 20_000)).unwrap();
            far.tags.send(far.peers[0], 5, 0, tagged(&pool, &[0; 19_000])).unwrap();
            let event = wait(&mut near);
            assert_matches!(event, TagEvent::PeerFailed { peer, .. } if peer == near.peers[0]);
            let mut failed = false;
            for _ in 0..2 {
                match wait(&mut far) {
                    TagEvent::Sent(sent) => assert!(!sent.status.is_success()),
                    TagEvent::PeerFailed { peer, .. } => failed = peer == far.peers[0],
                    other => panic!("{other:?}"),
                }
            }
            assert!(failed);
            near.post(9, ALL);
            far.send(1, 9, 0, b"still there");
            assert_matches!(wait(&mut near), TagEvent::Received(_));
            // A peer in the place of an armed peer is armed, too.
            assert_matches!(wait(&mut far), TagEvent::Sent(_));
            assert!(!far.tags.arm().unwrap());
            near.tags.remove_peer(near.peers[0]).unwrap();
            far.tags.remove_peer(far.peers[0]).unwrap();
            join(&mut near, &mut far, 0);
            near.post(10, ALL);
            far.send(0, 10, 0, b"again");
            assert_matches!(wait(&mut near), TagEvent::Received(_));
            assert_matches!(wait(&mut far), TagEvent::Sent(_));
        }
    }
}

/// A message for each sleep, sent at any time from before the arming until after the sleep begins.
#[test]
fn a_message_at_any_time_ends_the_sleep() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        let rounds = device::share(3000);
        let (go, start) = mpsc::channel();
        let sender = thread::spawn(move || {
            for round in start {
                spin(round * 7919 % 3000);
                far.send(0, round, 0, &[1; 40]);
                assert!(!far.sent());
            }
        });
        for round in 0..rounds {
            // Each second one is unexpected when it comes.
            if round % 2 == 0 {
                near.post(round, ALL);
                go.send(round).unwrap();
            } else {
                go.send(round).unwrap();
                spin(round * 104_729 % 3000);
                near.post(round, ALL);
            }
            assert_matches!(slept(&mut near), TagEvent::Received(got) if got.tag == round);
        }
        drop(go);
        sender.join().unwrap();
    }
}

#[test]
fn a_task_is_woken_by_each_event() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for way in ways() {
        let (mut near, mut far) = pair(way, &SHAPE);
        near.post(0, ALL);
        let Side { tags, pool, peers, .. } = near;
        let task = runtime.block_on(async move {
            let mut tags = Async::new(tags).unwrap();
            let (go, start) = mpsc::channel();
            let sender = thread::spawn(move || {
                for round in start {
                    far.send(0, round, 0, &[1; 40]);
                    assert!(!far.sent());
                }
            });
            let received = async {
                for round in 0..200 {
                    go.send(round).unwrap();
                    let event = next(&mut tags).await;
                    assert_matches!(event, TagEvent::Received(got) if got.tag == round);
                    tags.post(round + 1, ALL, pool.take().unwrap()).unwrap();
                }
                // A wait that is given up loses nothing.
                let given_up = tokio::time::timeout(Duration::from_millis(5), next(&mut tags)).await;
                assert!(given_up.is_err());
                go.send(200).unwrap();
                assert_matches!(next(&mut tags).await, TagEvent::Received(_));
                let mut tags = tags.into_inner();
                tags.remove_peer(peers[0]).unwrap();
                drop(go);
                sender
            };
            tokio::time::timeout(PATIENCE, received).await.expect("nothing happens")
        });
        task.join().unwrap();
    }
}

/// 80 messages without a receive take all of 64 buffers. The message that a receive waits for comes after them.
#[test]
fn unexpected_messages_that_hold_all_buffers_are_reported() {
    for way in ways() {
        let shape = Shape { spare: 0, sends: 100, ..SHAPE };
        let (mut near, mut far) = pair(way, &shape);
        let receive = near.post(1, ALL);
        for _ in 0..80 {
            far.send(0, 2, 0, &[2; 40]);
        }
        far.send(0, 1, 0, b"wanted");
        let event = slept(&mut near);
        assert_matches!(event, TagEvent::BuffersLow { posted: ..33, unexpected: 1.. });
        // The event comes once.
        near.wait_unexpected_at_least(64 - 32);
        assert!(!near.tags.wait(Duration::from_millis(30)).unwrap());
        // Receives for the waiting messages give buffers back, and the message arrives; another pool does, too.
        let before = near.tags.unexpected();
        if way == doorbell::tags::Offload::Never {
            let more = BufferPool::new(near.tags.pd(), &PoolConfig::new(64, SHAPE.buffer_size + 64)).unwrap();
            near.tags.keep_filled(&more).unwrap();
            assert_matches!(slept(&mut near), TagEvent::Received(got) if got.receive == receive);
            assert!(near.tags.unexpected() > before);
            continue;
        }
        let mut wanted = 0;
        for _ in 0..80 {
            near.post(2, ALL);
            loop {
                match slept(&mut near) {
                    TagEvent::Received(got) if got.receive == receive => wanted += 1,
                    TagEvent::Received(got) => {
                        assert_eq!(got.tag, 2);
                        break;
                    }
                    TagEvent::BuffersLow { .. } => {}
                    other => panic!("{way:?}: {other:?}"),
                }
            }
        }
        if wanted == 0 {
            assert_eq!(near.received().receive, receive);
        }
    }
}
