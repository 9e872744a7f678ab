//! Waiting in tasks of tokio.

use std::future::poll_fn;
use std::os::unix::net::UnixStream as Blocking;
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use doorbell::{Async, DeviceEvent, Error, EventStream, QpConfig, QpState, QueuePair, Receiver, RqConfig};
use doorbell_tests::receiving::PATIENCE;
use doorbell_tests::sending::Sending;
use doorbell_tests::world::Shared;
use doorbell_tests::{Peers, assert_matches, device, message, share};
use futures_core::Stream;
use tokio::io::{AsyncWriteExt, duplex};
use tokio::net::UnixStream;
use tokio::time::timeout;

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(PATIENCE, test).await.expect("nothing happens") });
}

/// Waits for one message of the only peer and returns its number.
async fn receive(receiver: &mut Async<Receiver>) -> u64 {
    loop {
        receiver.ready().await.unwrap();
        let mut batch = receiver.poll_up_to(1);
        if let Some(message) = batch.next() {
            return message::read(&message.unwrap()).1;
        }
    }
}

/// Sends a message for each request, from its own thread.
fn sending(mut peers: Peers) -> (mpsc::Sender<()>, JoinHandle<Peers>) {
    let (sender, requests) = mpsc::channel();
    let thread = thread::spawn(move || {
        while requests.recv().is_ok() {
            peers.send(0, 64);
        }
        peers
    });
    (sender, thread)
}

#[test]
fn a_task_is_woken_by_each_message() {
    run(async {
        let w = Shared::new(31, 1, 64).filled();
        let mut receiver = Async::new(w.receiver).unwrap();
        let (send, thread) = sending(w.peers);
        let task = tokio::spawn(async move {
            for number in 0..share(2000) {
                send.send(()).unwrap();
                assert_eq!(receive(&mut receiver).await, number);
            }
        });
        task.await.unwrap();
        drop(thread.join());
    });
}

/// Each request by itself: the task sleeps before it is over, or finds it over.
#[test]
fn a_task_is_woken_by_the_end_of_each_request() {
    run(async {
        let mut w = Sending::new(2, 8, 64);
        let queues = [w.queue(0), w.queue(1)];
        let remote = w.remote().slice(0, 5).unwrap();
        let mut sender = Async::new(w.sender).unwrap();
        for number in 0..share(1000) {
            let request = sender.post(queues[number as usize % 2]).unwrap();
            request.token(number).write(w.pool.take().unwrap(), &remote).unwrap();
            let mut over = None;
            while over.is_none() {
                sender.ready().await.unwrap();
                over = sender.poll().next().map(|done| done.unwrap().token);
            }
            assert_eq!(over, Some(number));
        }
        // Nothing is outstanding, and the task sleeps on.
        let asleep = timeout(Duration::from_millis(20), sender.ready()).await;
        assert!(asleep.is_err());
        w.sender = sender.into_inner();
        assert_eq!(w.pool.available(), 256);
    });
}

#[test]
fn a_wait_that_is_given_up_loses_nothing() {
    run(async {
        let mut w = Shared::new(31, 1, 64).filled();
        let mut receiver = Async::new(w.receiver).unwrap();
        for number in 0..5 {
            let mut polls = 0;
            let given_up = {
                let mut waiting = pin!(receiver.ready());
                let counted = poll_fn(|task| {
                    polls += 1;
                    waiting.as_mut().poll(task)
                });
                timeout(Duration::from_millis(5), counted).await
            };
            assert!(given_up.is_err(), "nothing was sent");
            assert!(polls < 8, "a task that sleeps was polled {polls} times");
            // The task sleeps when the message comes.
            let sleeping = async {
                let mut waiting = pin!(receive(&mut receiver));
                let early = poll_fn(|task| Poll::Ready(waiting.as_mut().poll(task))).await;
                assert!(early.is_pending());
                let mut peers = w.peers;
                let thread = thread::spawn(move || {
                    peers.send(0, 64);
                    peers
                });
                (waiting.await, thread.join().unwrap())
            };
            let (received, peers) = sleeping.await;
            assert_eq!(received, number);
            w.peers = peers;
        }
        // A task does not sleep when a message has arrived already.
        w.peers.send(0, 64);
        receiver.ready().await.unwrap();
        receiver.ready().await.unwrap();
        assert_eq!(receive(&mut receiver).await, 5);
        w.peers.exchange(&mut receiver.into_inner(), 0, 1);
    });
}

#[test]
fn an_object_moves_to_the_runtime_of_the_task_that_waits() {
    let mut w = Shared::new(31, 1, 64).filled();
    // The first runtime lives on, but runs no tasks any more; later it has ended.
    let mut first = Some(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
    let mut receiver = first.as_ref().unwrap().block_on(async { Async::new(w.receiver).unwrap() });
    for number in 0..3 {
        run(async {
            let mut waiting = pin!(receive(&mut receiver));
            let early = poll_fn(|task| Poll::Ready(waiting.as_mut().poll(task))).await;
            assert!(early.is_pending());
            w.peers.send(0, 64);
            assert_eq!(waiting.await, number);
        });
        drop(first.take());
    }
}

#[test]
fn a_buffer_from_another_thread_wakes_a_task_whose_queue_is_dry() {
    run(async {
        let mut w = Shared::new(3, 1, 64);
        let poster = w.receiver.shared_poster(w.queue).unwrap();
        let buffer = w.pool.take().unwrap();
        let mut receiver = Async::new(w.receiver).unwrap();
        w.peers.send(0, 64);
        let mut waiting = pin!(receive(&mut receiver));
        let early = poll_fn(|task| Poll::Ready(waiting.as_mut().poll(task))).await;
        assert!(early.is_pending(), "a message without a receive");
        let thread = thread::spawn(move || poster.post(buffer).unwrap());
        assert_eq!(waiting.await, 0);
        thread.join().unwrap();
    });
}

#[test]
fn the_limit_of_an_srq_arrives_in_a_stream_of_events() {
    run(async {
        let mut w = Shared::new(15, 1, 64).filled();
        let mut events = EventStream::new(w.pd.context().events().unwrap()).unwrap();
        let mut next = async || poll_fn(|cx| Pin::new(&mut events).poll_next(cx)).await;
        let nothing = timeout(Duration::from_millis(5), next()).await;
        assert!(nothing.is_err(), "{nothing:?}");

        w.receiver.arm_srq_limit(w.queue, 15).unwrap();
        w.peers.send(0, 64);
        drop(w.take(1));
        let event = next().await.unwrap().unwrap();
        assert_matches!(event, DeviceEvent::SrqLimitReached { .. });
        assert!(w.receiver.handle_event(&event).unwrap());
    });
}

fn unconnected(receiver: &mut Receiver) -> QueuePair {
    QueuePair::builder(&QpConfig::rc()).receive(receiver, RqConfig::new(4)).build().unwrap()
}

#[test]
fn tasks_connect_over_a_stream_that_holds_one_exchange() {
    run(async {
        let (_, mut receiver) = device::start(64);
        let mut qps = [unconnected(&mut receiver), unconnected(&mut receiver)];
        let [near, far] = &mut qps;
        // An address and the byte at the end.
        let (mut here, mut there) = duplex(41);
        let (one, other) = tokio::join!(near.connect_over_async(&mut here), far.connect_over_async(&mut there));
        assert_eq!((one.unwrap(), other.unwrap()), ((), ()));
        assert!(qps.iter().all(|qp| qp.state().unwrap() == QpState::Rts));
        let refused = qps[0].connect_over_async(&mut here).await.unwrap_err();
        assert_matches!(refused, Error::WrongState { operation: "connect_over_async", .. });
    });
}

#[test]
fn a_task_connects_to_a_thread() {
    run(async {
        let (_, mut receiver) = device::start(64);
        let (mut near, mut far) = (unconnected(&mut receiver), unconnected(&mut receiver));
        let (mut there, here) = Blocking::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        let mut here = UnixStream::from_std(here).unwrap();
        let side = thread::spawn(move || far.connect_over(&mut there).map(|()| far));
        near.connect_over_async(&mut here).await.unwrap();
        let far = side.join().unwrap().unwrap();
        assert_eq!([near.state().unwrap(), far.state().unwrap()], [QpState::Rts; 2]);
    });
}

#[test]
fn an_exchange_that_is_given_up_leaves_the_queue_pair_as_it_was() {
    run(async {
        let (_, mut receiver) = device::start(64);
        let mut qp = unconnected(&mut receiver);
        let (mut here, mut there) = duplex(41);
        there.write_all(b"door").await.unwrap();
        let given_up = timeout(Duration::from_millis(5), qp.connect_over_async(&mut here)).await;
        assert!(given_up.is_err(), "{given_up:?}");
        assert_eq!(qp.state().unwrap(), QpState::Init);
        // A peer that leaves, over another stream.
        let (mut here, there) = duplex(41);
        drop(there);
        assert_matches!(qp.connect_over_async(&mut here).await, Err(Error::Handshake(_)));
        let mut datagrams =
            QueuePair::builder(&QpConfig::ud(1)).receive(&mut receiver, RqConfig::new(4)).build().unwrap();
        let refused = datagrams.connect_over_async(&mut duplex(41).0).await.unwrap_err();
        assert!(refused.to_string().contains("address_handle_over"), "{refused}");
    });
}
