//! Other work of a receiver: refilling, taking buffers from other threads, counting.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use doorbell::{
    Buffer, BufferPool, Completions, Error, PoolConfig, PostFailure, QpConfig, QueuePair, RqConfig, Statistics,
};
use doorbell_tests::world::{Shared, Single};
use doorbell_tests::{assert_matches, device, message, receiving, share};

#[test]
fn a_queue_is_refilled_when_it_is_less_than_half_full_and_not_before() {
    let mut w = Shared::new(15, 1, 64);
    // On the direct path one more buffer waits in a spare slot.
    let direct = device::drives_directly(w.pd.context());
    let capacity = w.receiver.capacity(w.queue) + u32::from(direct);
    assert_eq!(w.receiver.keep_filled(w.queue, &w.pool).unwrap(), w.receiver.capacity(w.queue));
    assert_eq!(w.free_slots(), 0);

    let mut held = Vec::new();
    for number in 0..200 {
        w.peers.send(0, 40);
        let free_slots = w.receiver.free_slots(w.queue);
        held.extend(w.take(1));
        assert_eq!(message::read(held.last().unwrap()), (0, number));
        let refilled = w.receiver.free_slots(w.queue) <= free_slots;
        assert_eq!(refilled, capacity - free_slots < 8, "{free_slots} free before message {number}");
        held.truncate(4);
    }
}

#[test]
fn a_receive_queue_is_refilled_as_far_as_the_pool_goes() {
    let mut w = Single::new(16, 64);
    let pool = BufferPool::new(&w.pd, &PoolConfig::new(5, 64)).unwrap();
    assert_eq!(w.receiver.keep_filled(w.queue, &pool).unwrap(), 5);
    assert_eq!(w.receiver.capacity(w.queue) - w.receiver.free_slots(w.queue), 5);
    let mut held = Vec::new();
    w.peers.burst(8);
    held.extend(w.take(5));
    receiving::nothing(&mut w.receiver);
    held.truncate(2);
    held.extend(w.take(3));
}

#[test]
fn a_queue_of_another_receiver_is_not_fed() {
    let w = Shared::new(15, 1, 64);
    let mut other = device::receiver(&w.pd, 64);
    assert_matches!(other.keep_filled(w.queue, &w.pool), Err(Error::Gone { .. }));
    assert_matches!(other.shared_poster(w.queue), Err(Error::Gone { .. }));
}

#[test]
fn a_pool_of_another_domain_keeps_and_fills_nothing() {
    let mut w = Shared::new(15, 1, 64);
    let foreign = BufferPool::new(&device::pd(), &PoolConfig::new(64, 64)).unwrap();
    let refused = w.receiver.keep_filled(w.queue, &foreign).unwrap_err();
    assert_matches!(refused, Error::Foreign { .. });
    w.receiver.refill();
    let capacity = w.receiver.capacity(w.queue);
    let refused = w.receiver.fill(w.queue, &foreign).unwrap_err();
    assert_eq!((refused.posted, refused.reason), (0, PostFailure::WrongDomain));
    // A pool that has no buffer left is one of another domain still.
    let taken: Vec<_> = std::iter::from_fn(|| foreign.take()).collect();
    assert_eq!(w.receiver.fill(w.queue, &foreign).unwrap_err().reason, PostFailure::WrongDomain);
    drop(taken);
    assert_eq!((w.receiver.free_slots(w.queue), foreign.available()), (capacity, 64));
    // `fill` leaves a buffer in the spare slot when the queue is full, and only then.
    let two = BufferPool::new(&w.pd, &PoolConfig::new(2, 64)).unwrap();
    assert_eq!(w.receiver.fill(w.queue, &two).unwrap(), 2);
    assert_eq!(w.receiver.fill(w.queue, &two).unwrap(), 0);
    assert_eq!((w.fill(), w.fill()), (capacity as usize - 2, 0));
    let direct = device::drives_directly(w.pd.context());
    let away = capacity as usize - 2 + usize::from(direct);
    assert_eq!(w.pool.available(), w.pool.count() as usize - away);
}

/// Times that this thread has gone to sleep.
fn sleeps() -> u64 {
    // SAFETY: a system call without arguments.
    sleeps_of(unsafe { libc::gettid() })
}

/// Times that a thread of this process has gone to sleep.
fn sleeps_of(thread: libc::pid_t) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

#[test]
fn a_queue_that_takes_no_receives_is_not_refilled_before_it_is_connected_again() {
    let mut w = Single::new(8, 64);
    let all = w.pool.count() as usize;
    w.receiver.keep_filled(w.queue, &w.pool).unwrap();
    for round in 0..3 {
        w.receiver.refill();
        assert_eq!(w.free_slots(), 0);
        w.near[0].to_error().unwrap();
        // Only the posted buffers come back, however often the receiver is polled.
        let flushed = receiving::failures(&mut w.receiver, 8);
        assert_eq!(flushed.len(), 8, "round {round}");
        drop(flushed);
        receiving::nothing(&mut w.receiver);
        w.receiver.refill();
        assert_eq!(w.pool.available(), all);
        // A waiting thread does not wake up all the time.
        let before = sleeps();
        assert!(!w.receiver.wait(Duration::from_millis(200)).unwrap());
        assert!(sleeps() - before < 20, "{} sleeps in 200 ms", sleeps() - before);

        w.receiver.reset_qp(&mut w.near[0]).unwrap();
        w.reconnect(0);
        w.receiver.poll();
        for number in w.peers.sent(0)..w.peers.sent(0) + 20 {
            w.peers.send(0, 40);
            assert_eq!(message::read(&w.take(1)[0]), (0, number));
        }
        w.peers.settle();
    }
}

#[test]
fn a_queue_that_was_kept_filled_ends_when_its_queue_pair_is_dropped() {
    let Single { mut receiver, queue: rq, pool, near, peers, .. } = Single::new(8, 64);
    receiver.keep_filled(rq, &pool).unwrap();
    receiver.refill();
    drop(near);
    drop(receiving::failures(&mut receiver, 8));
    receiving::nothing(&mut receiver);
    assert_eq!(pool.available(), pool.count() as usize);
    // The CQ is free again: with fewer entries left than that queue had, others have all of it.
    let mut left = receiver.cq_capacity();
    let mut made = Vec::new();
    while left >= 8 {
        let count = 1 << left.ilog2();
        made.push(QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(count)).build().unwrap());
        left -= count;
    }
    drop(peers);
}

#[test]
fn every_buffer_that_many_threads_give_back_is_posted_again() {
    const WORKERS: usize = 4;
    let messages = share(40_000);
    let mut w = Shared::new(31, 2, 64);
    // No buffer is anywhere but in this queue and with the threads.
    let capacity = w.capacity();
    let buffers: Vec<_> = (0..capacity).map(|_| w.pool.take().unwrap()).collect();
    let outside = w.pool.available();
    w.receiver.post(w.queue, buffers).unwrap();
    let poster = w.receiver.shared_poster(w.queue).unwrap();

    let (workers, threads): (Vec<_>, Vec<_>) = (0..WORKERS)
        .map(|_| {
            let (sender, given) = mpsc::channel::<Buffer>();
            let poster = poster.clone();
            let thread = thread::spawn(move || {
                let mut read = 0u64;
                for buffer in given {
                    message::read(&buffer);
                    poster.post(buffer).unwrap();
                    read += 1;
                }
                read
            });
            (sender, thread)
        })
        .unzip();
    let mut peers = w.peers;
    let sender = thread::spawn(move || {
        for number in 0..messages {
            peers.send(number as usize % 2, 40);
        }
        peers.settle();
        peers
    });

    let mut expected = [0u64; 2];
    for number in 0..messages {
        // All buffers may be taken: then only a buffer that is given back can wake this thread.
        let arrived = w.receiver.wait(receiving::PATIENCE).unwrap();
        assert!(arrived, "message {number} never came");
        receiving::messages(&mut w.receiver, 1, |message| {
            let (from, seen) = message::read(&message);
            assert_eq!(seen, expected[from as usize]);
            expected[from as usize] += 1;
            workers[number as usize % WORKERS].send(message.take().unwrap()).unwrap();
        });
    }
    drop(workers);
    let read: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(read, messages);
    let _peers = sender.join().unwrap();
    w.receiver.refill();
    assert_eq!(w.receiver.free_slots(w.queue), 0, "a buffer was lost");
    assert_eq!(w.pool.available(), outside, "a buffer went astray");
}

/// Messages that `next` takes one after the other do not keep it from the work that a poster adds.
#[test]
fn next_posts_what_a_poster_was_given() {
    let mut w = Shared::new(127, 1, 64);
    w.post(64);
    w.peers.arrive(3);
    assert!(w.receiver.next().unwrap().is_ok());
    let poster = w.receiver.shared_poster(w.queue).unwrap();
    let free = w.free_slots();
    poster.post(w.pool.take().unwrap()).unwrap();
    for _ in 0..2 {
        assert!(w.receiver.next().unwrap().is_ok());
    }
    assert_eq!(w.free_slots(), free - 1);
}

#[test]
fn buffers_for_a_full_or_closed_queue_return_to_their_pool() {
    let mut w = Shared::new(7, 1, 64);
    let poster = w.receiver.shared_poster(w.queue).unwrap();
    let all = w.pool.count() as usize;
    for _ in 0..3 * w.receiver.capacity(w.queue) {
        poster.post(w.pool.take().unwrap()).unwrap();
    }
    w.receiver.refill();
    assert_eq!(w.free_slots(), 0);
    w.receiver.destroy_qp(w.near.remove(0)).unwrap();
    // Given while there is a receiver, and not yet posted.
    poster.post(w.pool.take().unwrap()).unwrap();
    drop(w.receiver);
    assert_eq!(w.pool.available(), all);
    poster.post(w.pool.take().unwrap()).unwrap();
    assert_eq!(w.pool.available(), all, "a buffer waits with the handle");
}

#[test]
fn buffers_for_a_closed_queue_return_while_its_receiver_lives() {
    let Single { mut receiver, queue: rq, pool, mut near, peers, .. } = Single::new(8, 64);
    receiver.fill(rq, &pool).unwrap();
    let poster = receiver.shared_poster(rq).unwrap();
    receiver.poll();
    let all = pool.count() as usize;
    poster.post(pool.take().unwrap()).unwrap();
    receiver.destroy_qp(near.remove(0)).unwrap();
    assert_eq!(pool.available(), all, "given before the queue was destroyed");
    let other = poster.clone();
    for poster in [poster, other] {
        poster.post(pool.take().unwrap()).unwrap();
        receiver.poll();
        assert_eq!(pool.available(), all, "given to no queue");
        poster.post(pool.take().unwrap()).unwrap();
        drop(poster);
        receiver.poll();
        assert_eq!(pool.available(), all, "given last");
    }
    drop(peers);
}

#[test]
fn a_buffer_of_another_domain_is_refused_to_the_thread_that_gives_it() {
    let mut w = Shared::new(7, 1, 64);
    let poster = w.receiver.shared_poster(w.queue).unwrap();
    let foreign = BufferPool::new(&device::pd(), &PoolConfig::new(1, 64)).unwrap();
    let refused = poster.post(foreign.take().unwrap()).unwrap_err();
    assert_eq!(refused.payload.capacity(), 64);
}

#[test]
fn counts_are_those_of_the_messages() {
    let mut w = Shared::new(15, 1, 64);
    assert_eq!(w.receiver.statistics(), None);
    w.receiver.enable_statistics();
    let posted = w.fill() as u64;
    receiving::messages(&mut w.receiver, 0, |_| ());
    w.peers.arrive(10);
    let mut seen = 0;
    let mut polls = 0;
    while seen < 10 {
        let mut batch = w.receiver.poll_up_to(4);
        polls += 1;
        while let Some(message) = batch.next() {
            message.unwrap();
            seen += 1;
        }
    }
    let before = w.receiver.statistics().unwrap();
    drop(w.receiver.poll());
    drop(w.receiver.poll());
    let after = w.receiver.statistics().unwrap();
    let Statistics { posted: handed, received, .. } = after;
    assert_eq!((handed, received), (posted + 10, 10));
    assert_eq!((before.polls, after.polls), (polls, polls + 2));
    assert_eq!(after.empty_polls, before.empty_polls + 2);
    assert_eq!(after.refills, 0);
}

#[test]
fn refills_and_the_low_water_mark_are_counted() {
    let mut w = Shared::new(15, 1, 64);
    w.receiver.keep_filled(w.queue, &w.pool).unwrap();
    w.receiver.refill();
    let capacity = w.receiver.capacity(w.queue);
    let mut held = Vec::new();
    w.peers.arrive(capacity as usize - 3);
    held.extend(w.take(9));
    drop(w.receiver.poll_up_to(0));
    let counted = w.receiver.statistics().unwrap();
    // The first refill filled the new queue, which does not count as low; the second replaced the nine.
    assert_eq!((counted.refills, counted.low_water), (2, Some(3)));
    assert_eq!(counted.received, 9);
}

#[test]
fn a_sleeper_is_woken_by_buffers_that_another_thread_drops_into_the_pool() {
    let mut w = Shared::new(7, 1, 64);
    let pool = BufferPool::new(&w.pd, &PoolConfig::new(2, 64)).unwrap();
    let away: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    w.receiver.keep_filled(w.queue, &pool).unwrap();
    let began = std::time::Instant::now();
    // No buffer is given back: the timeout ends the wait.
    assert!(!w.receiver.wait(Duration::from_millis(30)).unwrap());
    assert!(began.elapsed() >= Duration::from_millis(30));
    w.peers.send(0, 40);
    // SAFETY: a system call without arguments.
    let sleeper = unsafe { libc::gettid() };
    let before = sleeps_of(sleeper);
    let other = thread::spawn(move || {
        while sleeps_of(sleeper) == before {
            thread::yield_now();
        }
        drop(away);
    });
    assert!(w.receiver.wait(receiving::PATIENCE).unwrap(), "it slept on");
    assert_eq!(message::read(&w.take(1)[0]), (0, 0));
    other.join().unwrap();
}
