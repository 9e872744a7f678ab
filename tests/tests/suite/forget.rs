//! `mem::forget` of anything leaks, and does nothing else.

use std::mem::forget;

use doorbell::{BufferPool, Completions, PoolConfig, QpConfig, QueuePair, Receiver, SrqConfig, SrqId};
use doorbell_tests::world::{Shared, Single, World, both, let_the_device_work};
use doorbell_tests::{Peers, device, message, receiving};

/// Takes `count` messages of a batch, which go back to their queue, and forgets the batch.
fn lend_and_forget(receiver: &mut Receiver, count: usize) {
    let mut batch = receiver.poll();
    for _ in 0..count {
        batch.next().unwrap().unwrap();
    }
    forget(batch);
}

/// An SRQ beside another one, with a connection.
fn beside_another(max_wr: u32) -> (Receiver, SrqId, Vec<QueuePair>, Peers, BufferPool) {
    let (pd, mut receiver) = device::start(64);
    let [srq, _other] = [(); 2].map(|()| receiver.create_srq(&SrqConfig::new(max_wr)).unwrap());
    let config = QpConfig::rc();
    let (near, peers) = Peers::connect(&pd, &mut receiver, &config, srq, 1, 64);
    (receiver, srq, near, peers, BufferPool::new(&pd, &PoolConfig::new(64, 64)).unwrap())
}

#[test]
fn a_forgotten_batch_costs_nothing() {
    for mut w in both(32, 64).map(World::filled) {
        let mut expected = (0..).map(|number| (0, number));
        for round in 0..40 {
            w.peers.arrive(6);
            let mut batch = w.receiver.poll();
            for _ in 0..round % 4 {
                let message = batch.next().unwrap().unwrap();
                assert_eq!(message::read(&message), expected.next().unwrap());
            }
            forget(batch);
            receiving::messages(&mut w.receiver, 6 - round % 4, |message| {
                assert_eq!(message::read(&message), expected.next().unwrap());
            });
            assert_eq!(w.free_slots(), 0);
        }
        w.exchange(200);
        // Each slot is the device's.
        w.peers.arrive(w.receiver.capacity(w.queue) as usize);
    }
}

#[test]
fn a_reset_after_a_forgotten_batch_posts_nothing() {
    let mut w = Single::new(8, 64).filled();
    w.peers.arrive(4);
    lend_and_forget(&mut w.receiver, 4);
    w.receiver.reset_qp(&mut w.near[0]).unwrap();
    let mut ours: Vec<_> = std::iter::from_fn(|| w.pool.take()).collect();
    assert_eq!(ours.len(), w.pool.count() as usize);
    for buffer in &mut ours {
        buffer.set_len(64);
        buffer.fill(0xaa);
    }
    w.reconnect(0);
    // There is no receive for them. A write of the device would be in the buffers at once.
    w.peers.burst(3);
    receiving::nothing(&mut w.receiver);
    let_the_device_work();
    assert!(ours.iter().all(|buffer| buffer.iter().all(|&byte| byte == 0xaa)));
}

#[test]
fn a_post_after_a_forgotten_batch_counts_what_it_posted() {
    let mut w = Shared::new(15, 1, 64);
    w.post(10);
    w.peers.arrive(4);
    lend_and_forget(&mut w.receiver, 4);
    assert_eq!(w.receiver.post(w.queue, w.pool.take()).unwrap(), 1);
    assert_eq!(w.free_slots(), 4);
}

#[test]
fn forgotten_batches_of_several_queues_give_their_cqes_back() {
    let (mut receiver, srq, _near, mut peers, pool) = beside_another(3);
    for number in 0..4 * u64::from(receiver.cq_capacity()) {
        receiver.post(srq, pool.take()).unwrap();
        peers.send(0, 40);
        let taken = receiving::wait_for("a message", || {
            let mut batch = receiver.poll();
            let taken = batch.next().map(|message| message.unwrap().take().unwrap());
            forget(batch);
            taken
        });
        assert_eq!(message::read(&taken), (0, number));
    }
}

#[test]
fn what_was_taken_from_a_forgotten_batch_is_not_given_out_again() {
    let mut w = Shared::new(31, 1, 64).filled();
    let mut taken = Vec::new();
    for round in 0..4 {
        w.peers.arrive(6);
        let mut batch = w.receiver.poll();
        for _ in 0..round {
            taken.push(batch.next().unwrap().unwrap().take().unwrap());
        }
        forget(batch);
        taken.extend(w.take(6 - round));
    }
    receiving::nothing(&mut w.receiver);
    // Two owners of one buffer would see the same message.
    let numbers: Vec<_> = taken.iter().map(|buffer| message::read(buffer).1).collect();
    assert!(numbers.iter().copied().eq(0..24), "{numbers:?}");
}

#[test]
fn what_a_forgotten_batch_of_several_queues_posted_is_rung_for_before_sleeping() {
    let (mut receiver, srq, _near, mut peers, pool) = beside_another(1);
    receiver.fill(srq, &pool).unwrap();
    let waiting = 64 - pool.available() - receiver.capacity(srq) as usize;
    let mut taken = Vec::new();
    for _ in 0..receiver.capacity(srq) {
        peers.send(0, 40);
        peers.settle();
        let mut batch = receiver.poll();
        taken.push(batch.next().unwrap().unwrap().take().unwrap());
        forget(batch);
    }
    for _ in 0..waiting {
        peers.send(0, 40);
        assert!(receiver.wait(receiving::PATIENCE).unwrap());
        taken.extend(receiving::take(&mut receiver, 1));
    }
    assert!(taken.iter().map(|buffer| message::read(buffer).1).eq(0..taken.len() as u64));
}

#[test]
fn a_receive_posted_after_a_forgotten_batch_works() {
    let mut w = Single::new(8, 64);
    for taken in 1..4 {
        w.fill();
        w.peers.arrive(taken);
        let mut batch = w.receiver.poll();
        let buffers: Vec<_> = (0..taken).map(|_| batch.next().unwrap().unwrap().take().unwrap()).collect();
        forget(batch);
        // They go to the slots from which buffers were just taken.
        assert!(w.receiver.post(w.queue, buffers).is_ok());
        w.exchange(3 * w.capacity());
        assert_eq!(w.free_slots(), 0);
    }
}

#[test]
fn the_device_never_writes_to_what_was_taken_after_a_batch_was_forgotten() {
    let mut w = Shared::new(31, 1, 64).filled();
    w.peers.arrive(6);
    // Two of these are given back to the queue before the third is taken.
    lend_and_forget(&mut w.receiver, 3);
    let taken = w.take(3);
    let before: Vec<Vec<u8>> = taken.iter().map(|buffer| buffer.to_vec()).collect();
    // All slots of the queue come round.
    for _ in 0..100 {
        w.peers.send(0, 40);
        receiving::messages(&mut w.receiver, 1, |message| {
            let own = taken.iter().any(|buffer| buffer.as_ptr() == message.as_ptr());
            assert!(!own, "a buffer has two owners");
        });
    }
    assert!(taken.iter().zip(&before).all(|(buffer, before)| **buffer == before[..]));
}

#[test]
fn a_forgotten_buffer_is_missing_from_its_pool() {
    let mut w = Single::new(8, 64).filled();
    w.peers.send(0, 40);
    receiving::messages(&mut w.receiver, 1, |message| forget(message.take().unwrap()));
    w.receiver.reset_qp(&mut w.near[0]).unwrap();
    assert_eq!(w.pool.available(), w.pool.count() as usize - 1);
}

#[test]
fn a_forgotten_receiver_keeps_receiving_into_memory_that_stays() {
    let mut w = Shared::new(7, 1, 64);
    let posted = w.fill();
    let missing = w.pool.count() as usize - w.pool.available();
    assert!(missing >= posted);
    forget(w.receiver);
    // The device goes on as if nothing had happened.
    w.peers.arrive(posted);
    drop(w.near);
    assert_eq!(w.pool.available(), w.pool.count() as usize - missing);
    drop((w.pool, w.pd, w.peers));
    other_objects_work();
}

#[test]
fn a_forgotten_queue_pair_is_not_destroyed() {
    let mut w = Single::new(8, 64).filled();
    let near = w.near[0].qp_num();
    forget(w.near.remove(0));
    w.peers.send(0, 64);
    receiving::messages(&mut w.receiver, 1, |message| assert_eq!(message.qp_num(), near));
    drop((w.receiver, w.pool, w.pd, w.peers));
    other_objects_work();
}

#[test]
fn forgotten_parents_stay_for_their_children() {
    let context = device::open();
    let pd = context.alloc_pd().unwrap();
    let pool = doorbell::BufferPool::new(&pd, &PoolConfig::new(4, 64)).unwrap();
    let buffer = pool.take().unwrap();
    forget(context);
    forget(pd);
    forget(pool);
    drop(buffer);
    other_objects_work();
}

fn other_objects_work() {
    Single::new(8, 64).filled().exchange(20);
}
