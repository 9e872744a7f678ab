//! Many messages: in any order of completion, and beside a buffer that never comes back.

use std::thread;
use std::time::{Duration, Instant};

use doorbell::{Mtu, QpConfig};
use doorbell_tests::message::{self, Random};
use doorbell_tests::receiving;
use doorbell_tests::world::Shared;

const MESSAGES: u64 = 1_000_000;

/// Prints a rate for the runner to show.
fn note(what: &str, messages: u64, took: Duration) {
    println!(
        "note: {what}: {messages} messages in {took:.1?}, {:.0}/s",
        messages as f64 / took.as_secs_f64()
    );
}

#[test]
fn a_million_messages_over_64_queue_pairs_complete_in_any_order() {
    const QPS: u64 = 64;
    const LONGEST: u32 = 1024;
    // Messages of up to four packets: those of one queue pair finish amid those of others.
    let config = QpConfig::rc().mtu(Mtu::Mtu256);
    let mut w = Shared::with(511, QPS as u32, LONGEST, config);
    w.receiver.fill(w.srq, &w.pool);

    let mut peers = w.peers;
    let sender = thread::spawn(move || {
        let mut random = Random::new(2);
        for _ in 0..MESSAGES {
            let longest = if random.below(16) == 0 { u64::from(LONGEST) } else { 64 };
            let len = 12 + random.below(longest - 11) as usize;
            let from = random.below(QPS) as usize;
            peers.send(from, len);
        }
        peers.settle();
        peers
    });

    let began = Instant::now();
    let mut random = Random::new(3);
    let mut expected = [0; QPS as usize];
    let mut held = Vec::new();
    let mut left = MESSAGES as usize;
    while left > 0 {
        let some = left.min(1000);
        receiving::messages(&mut w.receiver, some, |message| {
            let (from, number) = message::read(&message);
            assert_eq!(number, expected[from as usize], "far end {from}");
            expected[from as usize] += 1;
            // Of eight, one is kept for a while.
            if random.below(8) == 0 {
                held.push(message.take());
            }
        });
        left -= some;
        while held.len() > 100 {
            let any = random.below(held.len() as u64) as usize;
            w.receiver.post(w.srq, [held.swap_remove(any)]).unwrap();
        }
    }
    note("64 queue pairs", MESSAGES, began.elapsed());

    let peers = sender.join().unwrap();
    for (from, &received) in expected.iter().enumerate() {
        assert_eq!(received, peers.sent(from), "far end {from}");
    }
    receiving::nothing(&mut w.receiver);
}

#[test]
fn a_million_messages_pass_a_buffer_that_is_held_all_the_time() {
    const WINDOWS: usize = 20;
    let mut w = Shared::new(255, 4, 64);
    let capacity = w.receiver.fill(w.srq, &w.pool);

    let mut peers = w.peers;
    let sender = thread::spawn(move || {
        for i in 0..=MESSAGES {
            peers.send(i as usize % 4, 32);
        }
        peers.settle();
    });

    let mut held = None;
    receiving::messages(&mut w.receiver, 1, |message| held = Some(message.take()));
    let held = held.unwrap();
    let first = message::read(&held);
    assert_eq!(w.receiver.vacant(w.srq), 1);

    let began = Instant::now();
    let mut expected = [0; 4];
    expected[first.0 as usize] = 1;
    let mut windows = [Duration::ZERO; WINDOWS];
    for window in &mut windows {
        let began = Instant::now();
        receiving::messages(&mut w.receiver, MESSAGES as usize / WINDOWS, |message| {
            let (from, number) = message::read(&message);
            assert_eq!(number, expected[from as usize], "far end {from}");
            expected[from as usize] += 1;
        });
        *window = began.elapsed();
    }
    note("one buffer held", MESSAGES, began.elapsed());
    sender.join().unwrap();

    // Twice as slow would be far outside what a busy machine does to the median of five.
    let median = |windows: &[Duration]| {
        let mut windows = windows.to_vec();
        windows.sort();
        windows[windows.len() / 2]
    };
    let (start, end) = (median(&windows[..5]), median(&windows[WINDOWS - 5..]));
    assert!(end < 2 * start, "the last windows took {end:?}, the first {start:?}");

    // No slot was lost to it.
    assert_eq!(message::read(&held), first);
    w.receiver.post(w.srq, [held]).unwrap();
    assert_eq!(w.receiver.vacant(w.srq), 0);
    assert_eq!(w.receiver.capacity(w.srq) as usize, capacity);
}
