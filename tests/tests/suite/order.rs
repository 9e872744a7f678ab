//! Many messages: in any order of completion, and beside a buffer that never comes back.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use doorbell::{Mtu, QpConfig, Receiver};
use doorbell_tests::world::Shared;
use doorbell_tests::{message, receiving, share};
use fastrand::Rng;

/// Messages of each test: several laps of a counter of 16 bits.
fn messages() -> u64 {
    share(250_000)
}

/// Prints a rate for the runner to show.
fn note(what: &str, messages: u64, took: Duration) {
    println!("note: {what}: {messages} messages in {took:.1?}, {:.0}/s", messages as f64 / took.as_secs_f64());
}

#[test]
fn many_messages_over_64_queue_pairs_complete_in_any_order() {
    const QPS: u64 = 64;
    const LONGEST: u32 = 1024;
    // Messages of up to four packets: those of one queue pair finish amid those of others.
    let config = QpConfig::rc().mtu(Mtu::Mtu256);
    let messages = messages();
    let mut w = Shared::with(511, 1, QPS as u32, LONGEST, config).filled();

    let mut peers = w.peers;
    let sender = thread::spawn(move || {
        let mut random = Rng::with_seed(2);
        for _ in 0..messages {
            let longest = if random.u64(..16) == 0 { u64::from(LONGEST) } else { 64 };
            let len = 12 + random.u64(..longest - 11) as usize;
            let from = random.u64(..QPS) as usize;
            peers.send(from, len);
        }
        peers.settle();
        peers
    });

    let began = Instant::now();
    let mut random = Rng::with_seed(3);
    let mut expected = [0; QPS as usize];
    let mut held = Vec::new();
    let mut left = messages as usize;
    while left > 0 {
        let some = left.min(1000);
        receiving::messages(&mut w.receiver, some, |message| {
            let (from, number) = message::read(&message);
            assert_eq!(number, expected[from as usize], "far end {from}");
            expected[from as usize] += 1;
            // One of eight is kept for a while.
            if random.u64(..8) == 0 {
                held.push(message.take().unwrap());
            }
        });
        left -= some;
        while held.len() > 100 {
            let any = random.u64(..held.len() as u64) as usize;
            w.receiver.post(w.queue, [held.swap_remove(any)]).unwrap();
        }
    }
    note("64 queue pairs", messages, began.elapsed());

    let peers = sender.join().unwrap();
    for (from, &received) in expected.iter().enumerate() {
        assert_eq!(received, peers.sent(from), "far end {from}");
    }
    receiving::nothing(&mut w.receiver);
}

/// Processor time of this thread: other programs on a busy machine do not count.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that every thread has, and room for its time.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

#[test]
fn many_messages_pass_a_buffer_that_is_held_all_the_time() {
    const WINDOWS: u64 = 20;
    let messages = messages();
    let mut w = Shared::new(1023, 4, 64).filled();

    let window = messages / WINDOWS;
    let mut peers = w.peers;
    let sender = thread::spawn(move || {
        for i in 0..=messages + 5 * window {
            peers.send(i as usize % 4, 32);
        }
        peers.settle();
    });

    let expected = [const { Cell::new(0) }; 4];
    let cost = |receiver: &mut Receiver| {
        let mut samples = Vec::new();
        for _ in 0..window {
            receiving::wait("a message", || {
                let began = processor_time();
                let mut batch = receiver.poll_up_to(1);
                let Some(message) = batch.next() else {
                    return false;
                };
                let (from, number) = message::read(&message.unwrap());
                drop(batch);
                let ended = processor_time();
                // The clock takes time itself, which changes with the load of the machine.
                let clock = processor_time() - ended;
                samples.push((ended - began).saturating_sub(clock));
                assert_eq!(number, expected[from as usize].get(), "far end {from}");
                expected[from as usize].set(number + 1);
                true
            });
        }
        median(samples)
    };
    let before: Vec<Duration> = (0..5).map(|_| cost(&mut w.receiver)).collect();

    let mut held = None;
    receiving::messages(&mut w.receiver, 1, |message| held = Some(message.take().unwrap()));
    let held = held.unwrap();
    let first = message::read(&held);
    expected[first.0 as usize].set(first.1 + 1);
    let began = Instant::now();
    let beside = |_| {
        let cost = cost(&mut w.receiver);
        assert_eq!(w.receiver.free_slots(w.queue), 1, "only the slot of the buffer that is held");
        cost
    };
    let costs: Vec<Duration> = (0..WINDOWS).map(beside).collect();
    note("one buffer held", messages, began.elapsed());
    sender.join().unwrap();

    // Other programs on the machine only add to it.
    let least = |costs: &[Duration]| *costs.iter().min().expect("windows");
    let (none, start, end) = (least(&before), least(&costs[..5]), least(&costs[15..]));
    println!("note: a message took {none:?} while none was held, {start:?} beside one at first, {end:?} at last");
    // A walk along the queue's thousand slots takes longer.
    let bound = 2 * none + Duration::from_nanos(100);
    assert!(start.max(end) < bound, "{before:?}, then {costs:?}");

    assert_eq!(message::read(&held), first);
    w.receiver.post(w.queue, [held]).unwrap();
    assert_eq!(w.receiver.free_slots(w.queue), 0);
}
