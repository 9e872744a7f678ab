//! Queues that are full, and queues that run dry.

use doorbell::{Buffer, BufferPool, PoolConfig, PostFailure, SrqConfig};
use doorbell_tests::by_hand::no_memory;
use doorbell_tests::world::{Shared, Single, both};
use doorbell_tests::{device, message, receiving, skip};

/// Buffers with different contents.
fn numbered(pool: &BufferPool, count: usize) -> Vec<Buffer> {
    let buffer = |number: usize| {
        let mut buffer = pool.take().unwrap();
        buffer.extend_from_slice(&number.to_le_bytes());
        buffer
    };
    (0..count).map(buffer).collect()
}

fn number(buffer: &Buffer) -> usize {
    usize::from_le_bytes(buffer[..8].try_into().unwrap())
}

/// Two posts have more buffers than the queue has room. One message more than it has receives waits for a receive.
#[test]
fn a_full_queue_says_how_many_were_posted_and_gives_the_rest_back() {
    for mut w in both(16, 64) {
        let (queue, capacity) = (w.queue, w.capacity());
        assert_eq!(w.receiver.post(queue, []).unwrap(), 0);
        assert_eq!(w.free_slots(), capacity);
        let mut buffers = numbered(&w.pool, capacity + 3).into_iter();
        assert_eq!(w.receiver.post(queue, buffers.by_ref().take(3)).unwrap(), 3);
        assert_eq!(w.free_slots(), capacity - 3);

        let error = w.receiver.post(queue, buffers).unwrap_err();
        assert_eq!((error.posted, error.reason), (capacity - 3, PostFailure::Full));
        let back: Vec<usize> = error.buffers.iter().map(number).collect();
        assert_eq!(back, [capacity, capacity + 1, capacity + 2], "what was not posted, in order");
        assert_eq!(w.free_slots(), 0);
        assert_eq!(w.pool.available(), w.pool.count() as usize - capacity - back.len());
        drop(error);

        let error = w.receiver.post(queue, numbered(&w.pool, 1)).unwrap_err();
        assert_eq!((error.posted, error.reason), (0, PostFailure::Full));
        drop(error);
        let error = w.receiver.post_scatter(queue, numbered(&w.pool, 1)).unwrap_err();
        assert_eq!((error.buffers.len(), error.reason), (1, PostFailure::Full));

        w.peers.burst(capacity + 1);
        let mut taken = w.take(capacity);
        let numbers = taken.iter().map(|buffer| message::read(buffer).1);
        assert!(numbers.eq(0..capacity as u64));
        receiving::nothing(&mut w.receiver);
        assert_eq!(w.free_slots(), capacity);
        assert_eq!(w.receiver.post(queue, taken.pop()).unwrap(), 1);
        assert_eq!(message::read(&w.take(1)[0]), (0, capacity as u64));
    }
}

#[test]
fn a_buffer_of_another_domain_ends_the_post_before_it() {
    let mut w = Shared::new(15, 1, 64);
    let foreign = BufferPool::new(&device::pd(), &PoolConfig::new(2, 64)).unwrap();
    let mut buffers = numbered(&w.pool, 4);
    buffers.insert(2, foreign.take().unwrap());
    let error = w.receiver.post(w.queue, buffers).unwrap_err();
    assert_eq!((error.posted, error.reason), (2, PostFailure::WrongDomain));
    assert_eq!(error.buffers.len(), 3);
    assert!(error.buffers[1..].iter().map(number).eq([2, 3]));
    drop(error);
    assert_eq!(foreign.available(), 2);

    // Two are there, not more and not fewer.
    w.peers.burst(3);
    drop(w.take(2));
    receiving::nothing(&mut w.receiver);
}

#[test]
fn an_empty_cq_has_nothing_before_the_first_message_and_after_the_last() {
    let mut w = Single::new(16, 64);
    receiving::nothing(&mut w.receiver);
    w.fill();
    receiving::nothing(&mut w.receiver);
    // Several laps of the CQ, in which old CQEs lie about.
    for _ in 0..10 * w.receiver.cq_capacity() {
        w.exchange(1);
        assert!(w.receiver.poll().next().is_none());
    }
    receiving::nothing(&mut w.receiver);
}

#[test]
fn a_queue_is_emptied_and_refilled_time_and_again() {
    for mut w in [Shared::new(15, 3, 64).any(), Single::new(16, 64).any()] {
        let (senders, capacity) = (w.near.len(), w.capacity());
        // Exactly as many as can be posted, and none that waits in a spare slot.
        w.post(capacity);
        let mut expected = [0; 3];
        let mut held = Vec::new();
        for round in 0..60 {
            for i in 0..capacity + 2 {
                w.peers.send((round + i) % senders, 40);
            }
            let mut check = |message: &[u8]| {
                let (sender, number) = message::read(message);
                assert_eq!(number, expected[sender as usize], "sender {sender}");
                expected[sender as usize] += 1;
            };
            receiving::messages(&mut w.receiver, capacity, |message| {
                check(&message);
                held.push(message.take().unwrap());
            });
            assert_eq!(w.free_slots(), capacity);
            assert!(w.receiver.poll().next().is_none());

            // Refilled in another order, in pieces.
            held.rotate_left(round % capacity);
            let rest = held.split_off(held.len() / 2);
            assert_eq!(w.receiver.post(w.queue, held.drain(..)).unwrap(), capacity / 2);
            w.receiver.post(w.queue, rest).unwrap();
            receiving::messages(&mut w.receiver, 2, |message| check(&message));
        }
    }
}

/// A queue that `fill` has filled takes one buffer more where it keeps a spare; `posted` counts the spare, too.
#[test]
fn what_a_filled_queue_takes_and_what_comes_back_are_all_buffers() {
    let mut w = Shared::new(7, 1, 64);
    let capacity = w.fill();
    let holds = w.pool.count() as usize - w.pool.available();
    w.peers.burst(holds);
    let mut taken = Vec::new();
    for _ in 0..holds {
        taken.extend(w.take(1));
        assert!(w.free_slots() <= capacity);
    }
    assert_eq!(w.free_slots(), capacity);
    drop(taken);

    let error = w.receiver.post(w.queue, numbered(&w.pool, holds + 2)).unwrap_err();
    assert_eq!((error.posted, error.reason), (holds, PostFailure::Full));
    let back: Vec<usize> = error.buffers.iter().map(number).collect();
    assert_eq!(back, [holds, holds + 1]);
    assert_eq!(w.free_slots(), 0);
    // The device has all of them but the spare.
    w.receiver.enable_statistics();
    let with_device = w.receiver.statistics().unwrap().posted;
    assert_eq!(with_device, capacity as u64);
    w.exchange(2 * holds);
}

#[test]
fn buffers_of_a_scatter_list_that_the_driver_refuses_keep_their_lengths() {
    let context = device::open_unpoisoned();
    if device::drives_directly(&context) {
        skip!("receives are posted without the driver");
    }
    let pd = context.alloc_pd().unwrap();
    let mut receiver = device::receiver(&pd, 7);
    let srq = receiver.create_srq(&SrqConfig::new(7).max_sge(3)).unwrap();
    let pool = BufferPool::new(&pd, &PoolConfig::new(3, 64)).unwrap();
    let mut buffers = numbered(&pool, 3);
    buffers[1].set_len(40);
    // SAFETY: an open context, which no other thread uses now.
    unsafe { (*context.as_raw()).ops.post_srq_recv = Some(no_memory) };
    let error = receiver.post_scatter(srq, buffers).unwrap_err();
    assert_eq!(error.buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [8, 40, 8]);
    assert!(error.buffers.iter().map(number).eq(0..3));
    assert_eq!(receiver.free_slots(srq), receiver.capacity(srq));
}
