//! Queues that are full, and queues that run dry.

use std::ffi::c_int;

use doorbell::{Buffer, BufferPool, PostFailure, QueueId, Receiver, SrqConfig};
use doorbell_tests::world::{Shared, Single};
use doorbell_tests::{Peers, device, message, receiving, skip};
use rdma_core_sys as sys;

/// Buffers with different contents.
fn numbered(pool: &BufferPool, count: usize) -> Vec<Buffer> {
    let buffer = |number: usize| {
        let mut buffer = pool.take().unwrap();
        buffer.set_len(8);
        buffer.copy_from_slice(&number.to_le_bytes());
        buffer
    };
    (0..count).map(buffer).collect()
}

fn number(buffer: &Buffer) -> usize {
    usize::from_le_bytes(buffer[..8].try_into().unwrap())
}

/// Fills a queue over its brim in two posts.
fn overfill(receiver: &mut Receiver, queue: QueueId, pool: &BufferPool) -> usize {
    let capacity = receiver.capacity(queue) as usize;
    assert!(capacity >= 4);
    let mut buffers = numbered(pool, capacity + 3).into_iter();
    assert_eq!(receiver.post(queue, buffers.by_ref().take(3)).unwrap(), 3);
    assert_eq!(receiver.free_slots(queue) as usize, capacity - 3);

    let error = receiver.post(queue, buffers).unwrap_err();
    assert_eq!(error.reason, PostFailure::Full);
    assert_eq!(error.posted, capacity - 3);
    let back: Vec<usize> = error.buffers.iter().map(number).collect();
    assert_eq!(back, [capacity, capacity + 1, capacity + 2], "what was not posted, in order");
    assert_eq!(receiver.free_slots(queue), 0);
    assert_eq!(pool.available(), pool.count() as usize - capacity - error.buffers.len());
    drop(error);

    let error = receiver.post(queue, numbered(pool, 1)).unwrap_err();
    assert_eq!((error.posted, error.reason), (0, PostFailure::Full));
    drop(error);
    let error = receiver.post_scatter(queue, numbered(pool, 1)).unwrap_err();
    assert_eq!((error.buffers.len(), error.reason), (1, PostFailure::Full));
    capacity
}

/// Sends one message more than the queue has receives: the last one waits for a receive.
fn drain(receiver: &mut Receiver, queue: QueueId, peers: &mut Peers, capacity: usize) {
    let mut taken = Vec::new();
    peers.burst(capacity + 1);
    receiving::messages(receiver, capacity, |message| taken.push(message.take()));
    for (number, buffer) in taken.iter().enumerate() {
        assert_eq!(message::read(buffer), (0, number as u64));
    }
    receiving::nothing(receiver);
    assert_eq!(receiver.free_slots(queue) as usize, capacity);

    assert_eq!(receiver.post(queue, taken.pop()).unwrap(), 1);
    receiving::messages(receiver, 1, |message| {
        assert_eq!(message::read(&message), (0, capacity as u64));
    });
}

#[test]
fn a_full_srq_says_how_many_were_posted_and_gives_the_rest_back() {
    let mut w = Shared::new(15, 1, 64);
    let queue = w.queue.into();
    let capacity = overfill(&mut w.receiver, queue, &w.pool);
    drain(&mut w.receiver, queue, &mut w.peers, capacity);
}

#[test]
fn a_full_receive_queue_says_how_many_were_posted_and_gives_the_rest_back() {
    let mut w = Single::new(16, 64);
    let queue = w.queue.into();
    let capacity = overfill(&mut w.receiver, queue, &w.pool);
    drain(&mut w.receiver, queue, &mut w.peers, capacity);
}

#[test]
fn a_buffer_of_another_domain_ends_the_post_before_it() {
    let mut w = Shared::new(15, 1, 64);
    let foreign = BufferPool::new(&device::pd(), 2, 64).unwrap();
    let mut buffers = numbered(&w.pool, 4);
    buffers.insert(2, foreign.take().unwrap());
    let error = w.receiver.post(w.queue, buffers).unwrap_err();
    assert_eq!((error.posted, error.reason), (2, PostFailure::WrongDomain));
    let back: Vec<Buffer> = error.buffers;
    assert_eq!(back.len(), 3);
    assert_eq!((number(&back[1]), number(&back[2])), (2, 3));
    drop(back);
    assert_eq!(foreign.available(), 2);

    // Two are there, not more and not fewer.
    w.peers.burst(3);
    receiving::messages(&mut w.receiver, 2, |message| drop(message.take()));
    receiving::nothing(&mut w.receiver);
}

#[test]
fn posting_nothing_succeeds() {
    let mut w = Shared::new(15, 1, 64);
    assert_eq!(w.receiver.post(w.queue, []).unwrap(), 0);
    assert_eq!(w.receiver.free_slots(w.queue), w.receiver.capacity(w.queue));
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
        w.peers.send(0, 16);
        receiving::messages(&mut w.receiver, 1, |_| ());
        assert!(w.receiver.poll().next().is_none());
    }
    receiving::nothing(&mut w.receiver);
}

#[test]
fn an_srq_is_emptied_and_refilled_time_and_again() {
    let mut w = Shared::new(15, 3, 64);
    let capacity = w.receiver.capacity(w.queue) as usize;
    // Exactly as many as can be posted, and none that waits in a spare slot.
    let buffers: Vec<_> = (0..capacity).map(|_| w.pool.take().unwrap()).collect();
    assert_eq!(w.receiver.post(w.queue, buffers).unwrap(), capacity);
    let mut expected = [0; 3];
    let mut held = Vec::new();
    for round in 0..60 {
        let sent = capacity + 2;
        for i in 0..sent {
            w.peers.send((round + i) % 3, 40);
        }
        let mut check = |message: &[u8]| {
            let (sender, number) = message::read(message);
            assert_eq!(number, expected[sender as usize], "sender {sender}");
            expected[sender as usize] += 1;
        };
        receiving::messages(&mut w.receiver, capacity, |message| {
            check(&message);
            held.push(message.take());
        });
        assert_eq!(w.receiver.free_slots(w.queue) as usize, capacity);
        assert!(w.receiver.poll().next().is_none());

        // Refilled in another order, in pieces.
        held.rotate_left(round % capacity);
        let rest = held.split_off(held.len() / 2);
        assert_eq!(w.receiver.post(w.queue, held.drain(..)).unwrap(), capacity / 2);
        w.receiver.post(w.queue, rest).unwrap();
        receiving::messages(&mut w.receiver, 2, |message| check(&message));
    }
}

#[test]
fn a_receive_queue_is_emptied_and_refilled_time_and_again() {
    let mut w = Single::new(16, 64);
    let capacity = w.fill();
    let mut held = Vec::new();
    let mut expected = 0;
    for _ in 0..60 {
        w.peers.burst(capacity + 1);
        receiving::messages(&mut w.receiver, capacity, |message| {
            assert_eq!(message::read(&message), (0, expected));
            expected += 1;
            held.push(message.take());
        });
        assert!(w.receiver.poll().next().is_none());
        assert_eq!(w.receiver.post(w.queue, held.drain(..)).unwrap(), capacity);
        receiving::messages(&mut w.receiver, 1, |message| {
            assert_eq!(message::read(&message), (0, expected));
            expected += 1;
        });
    }
}

/// A queue that `fill` has filled takes one buffer more where it keeps a spare; `posted` counts that one, too.
#[test]
fn what_a_filled_queue_takes_and_what_comes_back_are_all_buffers() {
    let mut w = Shared::new(7, 1, 64);
    let capacity = w.fill();
    let holds = w.pool.count() as usize - w.pool.available();
    w.peers.burst(holds);
    let taken = w.take(holds);
    assert_eq!(w.receiver.free_slots(w.queue) as usize, capacity);
    drop(taken);

    let error = w.receiver.post(w.queue, numbered(&w.pool, holds + 2)).unwrap_err();
    assert_eq!((error.posted, error.reason), (holds, PostFailure::Full));
    let back: Vec<usize> = error.buffers.iter().map(number).collect();
    assert_eq!(back, [holds, holds + 1]);
    assert_eq!(w.receiver.free_slots(w.queue), 0);
    // The device has all of them but the spare.
    w.receiver.enable_statistics();
    let with_device = w.receiver.statistics().unwrap().posted;
    assert_eq!(with_device, capacity as u64);
    for number in 0..2 * holds as u64 {
        w.peers.send(0, 40);
        receiving::messages(&mut w.receiver, 1, |message| {
            assert_eq!(message::read(&message), (0, holds as u64 + number));
        });
    }
}

unsafe extern "C" fn no_memory(
    _: *mut sys::ibv_srq,
    first: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: the contract of the entry.
    unsafe { *bad = first };
    libc::ENOMEM
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
    let pool = BufferPool::new(&pd, 3, 64).unwrap();
    let mut buffers = numbered(&pool, 3);
    buffers[1].set_len(40);
    // SAFETY: an open context, which nobody uses at the moment.
    unsafe { (*context.as_raw()).ops.post_srq_recv = Some(no_memory) };
    let error = receiver.post_scatter(srq, buffers).unwrap_err();
    assert_eq!(error.buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [8, 40, 8]);
    assert!(error.buffers.iter().map(number).eq(0..3));
    assert_eq!(receiver.free_slots(srq), receiver.capacity(srq));
}
