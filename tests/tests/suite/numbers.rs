//! A queue pair gets the number that another one had.

use std::mem::forget;

use doorbell::{ProtectionDomain, QpConfig, QueuePair, ReceiveFrom, Receiver, RqConfig};
use doorbell_tests::world::{Shared, Single};
use doorbell_tests::{device, message, receiving};

/// More numbers than a device hands out before one comes again.
const MANY: usize = 1000;

/// Creates a queue pair that has this number, by making others take all that come before it.
fn create_with(number: u32, pd: &ProtectionDomain, receiver: &mut Receiver, from: impl Into<ReceiveFrom>) -> QueuePair {
    let mut others = device::receiver(pd, 1024);
    let mut next = || {
        let qp =
            QueuePair::builder(&QpConfig::rc().max_send_wr(1)).receive(&mut others, RqConfig::new(1)).build().unwrap();
        let number = qp.qp_num();
        others.destroy_qp(qp).unwrap();
        number
    };
    let mut rounds = (0..MANY).filter(|_| next() == number);
    let first = rounds.next().expect("the number does not come again");
    let period = rounds.next().expect("the number does not come again") - first;
    for _ in 1..period {
        next();
    }
    let qp = QueuePair::builder(&QpConfig::rc()).receive(receiver, from).build().unwrap();
    assert_eq!(qp.qp_num(), number);
    qp
}

#[test]
fn what_a_forgotten_batch_left_of_a_dropped_queue_pair_is_not_the_next_ones() {
    let Single { mut receiver, queue: rq, pool, near, mut peers, pd } = Single::beside(8, 64, 16);
    receiver.post(rq, std::iter::from_fn(|| pool.take()).take(4)).unwrap();
    peers.arrive(4);
    let mut batch = receiver.poll();
    let taken: Vec<_> = (0..4).map(|_| batch.next().unwrap().unwrap().take().unwrap()).collect();
    forget(batch);
    let number = near[0].qp_num();
    drop(near);
    // Ends the dropped one.
    let config = QpConfig::rc();
    let _between = QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(8)).build().unwrap();
    let again = create_with(number, &pd, &mut receiver, RqConfig::new(8));
    assert!(receiver.fill(again.receive_queue().unwrap(), &pool).unwrap() > 0);
    receiving::nothing(&mut receiver);
    assert!(taken.iter().map(|buffer| message::read(buffer).1).eq(0..4));
}

#[test]
fn messages_of_a_dropped_queue_pair_are_not_the_next_ones() {
    let mut w = Shared::new(63, 1, 64).filled();
    w.peers.arrive(20);
    // With the first one a driver may have handed out others.
    receiving::messages(&mut w.receiver, 1, |_| {});
    let qp = w.near.remove(0);
    let number = qp.qp_num();
    drop(qp);
    // Ends the dropped one.
    let config = QpConfig::rc();
    let _between = QueuePair::builder(&config).receive(&mut w.receiver, w.queue).build().unwrap();
    let _again = create_with(number, &w.pd, &mut w.receiver, w.queue);
    receiving::nothing(&mut w.receiver);
}
