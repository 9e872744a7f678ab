//! Prefetching: what it counts, and that it changes nothing else.

use doorbell::{Compression, Path, ReceiverConfig};
use doorbell_stepped_tests::Stepped;

const RECEIVES: u32 = 16;

/// Sends `count` messages that say their number from `first` on.
fn send(world: &mut Stepped, first: u32, count: u32) {
    for number in first..first + count {
        world.send_bytes(&number.to_le_bytes());
    }
    world.device.settle();
}

/// Takes what a batch of at most `budget` lends, and checks its numbers from `first` on.
fn take(world: &mut Stepped, first: u32, budget: u32) -> u32 {
    let mut batch = world.receiver.poll_up_to(budget);
    let mut taken = 0;
    while let Some(message) = batch.next() {
        assert_eq!(message.unwrap()[..], (first + taken).to_le_bytes());
        taken += 1;
    }
    taken
}

fn prefetched(world: &Stepped) -> u64 {
    world.receiver.statistics().map_or(0, |counted| counted.prefetched)
}

#[test]
fn what_has_arrived_is_prefetched_once_for_each_batch_that_may_take_it() {
    for path in [Path::Direct, Path::Verbs] {
        let config = ReceiverConfig::new().cq_capacity(2 * RECEIVES).path(path).prefetch(2);
        let mut world = Stepped::with(config, RECEIVES);
        assert_eq!(take(&mut world, 0, 64), 0);
        assert_eq!(prefetched(&world), 0, "{path}: nothing has arrived");
        let mut expected = 0;
        for round in 0..50 {
            let first = 10 * round;
            send(&mut world, first, 10);
            assert_eq!(take(&mut world, first, 4), 4);
            expected += 4;
            assert_eq!(prefetched(&world), expected, "{path}, round {round}: the budget");
            assert_eq!(take(&mut world, first + 4, 64), 6);
            expected += 6;
            assert_eq!(prefetched(&world), expected, "{path}, round {round}: what is left");
        }
    }
}

#[test]
fn it_is_off_unless_asked_for() {
    for path in [Path::Direct, Path::Verbs] {
        let config = ReceiverConfig::new().cq_capacity(2 * RECEIVES).path(path);
        let mut world = Stepped::with(config, RECEIVES);
        world.receiver.enable_statistics();
        send(&mut world, 0, 10);
        assert_eq!(take(&mut world, 0, 64), 10);
        assert_eq!(prefetched(&world), 0);
    }
}

#[test]
fn a_compressed_block_is_taken_as_ever() {
    let config = ReceiverConfig::new().cq_capacity(127).path(Path::Direct).prefetch(1);
    let mut world = Stepped::with(config.compression(Compression::Hash), RECEIVES);
    for round in 0..50 {
        send(&mut world, 10 * round, 10);
        assert_eq!(take(&mut world, 10 * round, 64), 10);
    }
}
