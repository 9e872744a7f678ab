//! Connections that end on purpose, with everything that has arrived, and are made again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use doorbell::{
    BufferPool, DeviceEvent, DeviceEvents, Error, PoolConfig, QpConfig, QpEnd, QpState, QueuePair, RqConfig,
};
use doorbell_tests::descriptor::is_readable;
use doorbell_tests::receiving::PATIENCE;
use doorbell_tests::world::{Shared, Single};
use doorbell_tests::{Peers, assert_matches, device, message, receiving};

#[test]
fn a_queue_pair_on_an_srq_ends_with_all_that_has_arrived_and_connects_again() {
    let mut w = Shared::new(31, 2, 64).filled();
    let mut events = w.pd.context().events().unwrap();
    let mut expected = [0; 2];
    for round in 0..10 {
        (0..14).for_each(|i| _ = w.peers.send(i % 2, 40));
        w.peers.settle();
        w.receiver.drain_qp(&w.near[0], &mut events, PATIENCE).unwrap();
        receiving::messages(&mut w.receiver, 14, |message| {
            let (from, number) = message::read(&message);
            assert_eq!(number, expected[from as usize]);
            expected[from as usize] += 1;
        });
        receiving::nothing(&mut w.receiver);
        assert_eq!(w.near[0].state().unwrap(), QpState::Error, "round {round}");
        w.receiver.reset_qp(&mut w.near[0]).unwrap();
        w.reconnect(0);
        assert_eq!(w.free_slots(), 0);
    }
    for qp in w.near {
        w.receiver.drain_qp(&qp, &mut events, PATIENCE).unwrap();
        w.receiver.destroy_qp(qp).unwrap();
    }
    w.receiver.destroy_srq(w.queue).unwrap();
    assert_eq!(w.pool.available(), w.pool.count() as usize);
}

#[test]
fn a_queue_pair_that_is_drained_stays_drained() {
    let mut w = Shared::new(7, 1, 64);
    let mut events = w.pd.context().events().unwrap();
    for _ in 0..2 {
        w.receiver.drain_qp(&w.near[0], &mut events, PATIENCE).unwrap();
    }
    w.receiver.drain_qp(&w.near[0], &mut events, Duration::ZERO).unwrap();
    assert_eq!(w.receiver.destroy_qp(w.near.remove(0)).unwrap(), QpEnd::Complete);
}

/// Another thread reads the events, among them that of the queue pair that is drained.
#[test]
fn a_queue_pair_is_drained_whoever_reads_its_event() {
    let mut w = Shared::new(7, 1, 64).filled();
    let (mut others, over) = (w.pd.context().events().unwrap(), AtomicBool::new(false));
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut read = Vec::new();
            while !over.load(Ordering::Relaxed) {
                read.extend(others.next_within(Duration::from_millis(1)).unwrap());
            }
            read
        });
        for _ in 0..100 {
            assert_eq!(w.receiver.reset_qp(&mut w.near[0]).unwrap(), QpEnd::Complete);
            w.reconnect(0);
        }
        over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}

/// Takes a queue pair on an SRQ to ERROR, and waits for the last event and completion of the device.
fn fail(w: &mut Shared, events: &DeviceEvents, at: usize) {
    w.near[at].to_error().unwrap();
    assert!(is_readable(events, PATIENCE));
}

fn reconnect(w: &mut Shared, at: usize) {
    w.receiver.reset_qp(&mut w.near[at]).unwrap();
    w.reconnect(at);
}

#[test]
fn an_event_of_before_a_reset_does_not_end_the_wait_for_the_next() {
    let mut w = Shared::new(31, 2, 64).filled();
    let mut events = w.pd.context().events().unwrap();
    fail(&mut w, &events, 0);
    reconnect(&mut w, 0);
    w.near[1].to_error().unwrap();
    let number = w.peers.send(0, 40);
    w.peers.settle();
    w.receiver.drain_qp(&w.near[0], &mut events, PATIENCE).unwrap();
    receiving::messages(&mut w.receiver, 1, |message| {
        assert_eq!(message::read(&message), (0, number));
    });
    // The event of the other queue pair is there, and none of this queue pair.
    let qp_num = w.near[1].qp_num();
    assert_eq!(events.next_within(PATIENCE).unwrap(), Some(DeviceEvent::LastWqeReached { qp_num }));
    assert_eq!(events.next_within(Duration::from_millis(100)).unwrap(), None);
}

#[test]
fn a_queue_pair_that_has_failed_already_is_drained_with_the_event_of_that() {
    let mut w = Shared::new(31, 1, 64).filled();
    let mut events = w.pd.context().events().unwrap();
    for round in 0..3 {
        fail(&mut w, &events, 0);
        w.receiver.drain_qp(&w.near[0], &mut events, PATIENCE).unwrap();
        assert_eq!(events.try_next().unwrap(), None, "round {round}");
        reconnect(&mut w, 0);
    }
}

#[test]
fn a_queue_pair_with_a_receive_queue_owes_no_event() {
    let mut w = Single::new(8, 64).filled();
    let mut events = w.pd.context().events().unwrap();
    w.peers.send(0, 64);
    w.peers.settle();
    w.receiver.drain_qp(&w.near[0], &mut events, PATIENCE).unwrap();
    drop(w.take(1));
    let flushed = w.capacity() - 1;
    assert_eq!(receiving::failures(&mut w.receiver, flushed).len(), flushed);
    w.receiver.destroy_qp(w.near.remove(0)).unwrap();
}

#[test]
fn strangers_are_refused() {
    let mut w = Single::new(8, 64);
    let mut events = w.pd.context().events().unwrap();
    let mut other = device::receiver(&w.pd, 64);
    let refused = other.drain_qp(&w.near[0], &mut events, PATIENCE).unwrap_err();
    assert_matches!(refused, Error::Foreign { .. });
    let mut elsewhere = device::open().events().unwrap();
    let refused = w.receiver.drain_qp(&w.near[0], &mut elsewhere, PATIENCE).unwrap_err();
    assert_matches!(refused, Error::Foreign { .. });
    assert_eq!(w.near[0].state().unwrap(), QpState::Rts);
}

#[test]
fn a_queue_pair_that_is_dropped_has_its_room_until_its_receives_have_come_back() {
    let (pd, mut receiver) = device::start(16);
    let config = QpConfig::rc();
    let pool = BufferPool::new(&pd, &PoolConfig::new(16, 64)).unwrap();
    for round in 0..20 {
        let (mut near, _peers) = Peers::connect(&pd, &mut receiver, &config, RqConfig::new(16), 1, 64);
        let qp = near.remove(0);
        let rq = qp.receive_queue().unwrap();
        assert_eq!(receiver.fill(rq, &pool).unwrap(), 16, "round {round}");
        drop(qp);
        assert_matches!(
            QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(16)).build().unwrap_err(),
            Error::CqTooSmall { .. }
        );
        let flushed = receiving::failures(&mut receiver, 16);
        assert!(flushed.iter().all(|failure| failure.buffers.len() == 1));
        drop(flushed);
        assert_eq!(pool.available(), 16);
    }
    // Handles that exist keep their queues, empty or not.
    let kept = QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(16)).build().unwrap();
    assert_matches!(
        QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(16)).build().unwrap_err(),
        Error::CqTooSmall { .. }
    );
    assert_eq!(receiver.capacity(kept.receive_queue().unwrap()), 16);
}
