//! Running indices wrap: the 16 bits of an SRQ's count, of a receive queue's index and of a send queue's.

use doorbell_tests::message;
use doorbell_tests::receiving;
use doorbell_tests::world::{Shared, Single};

/// Two wraps of 16 bits and a bit more.
const MESSAGES: u64 = 2 * 65_536 + 10_000;

#[test]
fn an_srq_wraps() {
    let mut w = Shared::new(63, 3, 64).filled();
    let mut expected = [0; 3];
    let mut sent = 0_u64;
    let mut kept = Vec::new();
    while sent < MESSAGES {
        let burst = 1 + sent % 40;
        for i in 0..burst {
            w.peers.send(((sent + i) % 3) as usize, 16);
        }
        sent += burst;
        receiving::messages(&mut w.receiver, burst as usize, |message| {
            let (sender, number) = message::read(&message);
            assert_eq!(number, expected[sender as usize]);
            expected[sender as usize] += 1;
            // Half of the slots are recycled, the other half released and posted to.
            if number % 2 == 0 {
                kept.push(message.take());
            }
        });
        let returned = kept.len();
        assert_eq!(w.receiver.post(w.queue, kept.drain(..)).unwrap(), returned);
    }
    assert_eq!(expected.iter().sum::<u64>(), sent);
}

#[test]
fn a_receive_queue_wraps() {
    let mut w = Single::new(32, 64).filled();
    let mut expected = 0;
    let mut kept = Vec::new();
    while expected < MESSAGES {
        let burst = 1 + expected % 30;
        for _ in 0..burst {
            w.peers.send(0, 16);
        }
        receiving::messages(&mut w.receiver, burst as usize, |message| {
            assert_eq!(message::read(&message), (0, expected));
            expected += 1;
            if expected % 3 == 0 {
                kept.push(message.take());
            }
        });
        let returned = kept.len();
        assert_eq!(w.receiver.post(w.queue, kept.drain(..)).unwrap(), returned);
    }
}

#[test]
fn the_smallest_queues_wrap() {
    let mut w = Shared::new(1, 1, 64).filled();
    w.exchange(70_000);
}
