//! Running indices wrap: the 16 bits of an SRQ's count, of a receive queue's index and of a send queue's.

use doorbell_tests::world::{Shared, Single, World};
use doorbell_tests::{message, receiving};

/// Two wraps of 16 bits and a bit more.
const MESSAGES: u64 = 2 * 65_536 + 10_000;

#[test]
fn an_srq_and_a_receive_queue_wrap() {
    let worlds = [Shared::new(63, 3, 64).any(), Single::new(32, 64).any()];
    for mut w in worlds.map(World::filled) {
        let (senders, longest) = (w.near.len(), w.capacity() as u64 / 2);
        let mut expected = vec![0; senders];
        let mut sent = 0_u64;
        let mut kept = Vec::new();
        while sent < MESSAGES {
            let burst = 1 + sent % longest;
            for i in 0..burst {
                w.peers.send((sent + i) as usize % senders, 16);
            }
            sent += burst;
            receiving::messages(&mut w.receiver, burst as usize, |message| {
                let (sender, number) = message::read(&message);
                assert_eq!(number, expected[sender as usize]);
                expected[sender as usize] += 1;
                // Half of the slots are recycled, the other half released and posted to.
                if number % 2 == 0 {
                    kept.push(message.take().unwrap());
                }
            });
            let returned = kept.len();
            assert_eq!(w.receiver.post(w.queue, kept.drain(..)).unwrap(), returned);
        }
        assert_eq!(expected.iter().sum::<u64>(), sent);
    }
}

#[test]
fn the_smallest_queues_wrap() {
    let mut w = Shared::new(1, 1, 64).filled();
    w.exchange(70_000);
}
