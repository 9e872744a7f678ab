//! No wake-up is lost: a device completes at any moment between the steps of a program that arms, polls and
//! sleeps.

use std::time::Duration;

use doorbell::{Completions, DataPath};
use doorbell_stepped_tests::{Stepped, is_readable};
use fastrand::Rng;

/// Rounds of arm and sleep, with messages sent and the device stepped at any place between.
fn rounds(path: DataPath, count: u64) {
    let mut world = Stepped::new(path, 64);
    let mut random = Rng::with_seed(0x5eed);
    let (mut sent, mut taken) = (0, 0);
    let (mut slept, mut busy) = (0u64, 0u64);
    let mut meddle = |world: &mut Stepped, sent: &mut u64, taken: u64| {
        if random.u64(..3) == 0 && *sent - taken < 32 {
            world.send();
            *sent += 1;
        }
        for _ in 0..random.u64(..4) {
            world.device.step();
        }
        random.u64(..8)
    };
    for round in 0..count {
        meddle(&mut world, &mut sent, taken);
        if meddle(&mut world, &mut sent, taken) < 4 {
            taken += world.take();
        }
        meddle(&mut world, &mut sent, taken);
        if world.receiver.arm().unwrap() {
            // The program must not sleep now. Sometimes it does not poll either, and arms again.
            busy += 1;
            if meddle(&mut world, &mut sent, taken) < 6 {
                let got = world.take();
                assert!(got > 0, "round {round}: nothing to take");
                taken += got;
            }
            continue;
        }
        meddle(&mut world, &mut sent, taken);
        // The program sleeps. The messages under way arrive now.
        if sent == taken {
            world.send();
            sent += 1;
        }
        world.device.settle();
        assert!(
            is_readable(world.receiver.channel().unwrap()),
            "round {round}: asleep, with {} messages there",
            sent - taken
        );
        slept += 1;
        if meddle(&mut world, &mut sent, taken) < 7 {
            assert!(world.receiver.wait(Duration::ZERO).unwrap());
        }
        if meddle(&mut world, &mut sent, taken) < 6 {
            world.device.settle();
            taken += world.take();
        }
    }
    world.device.settle();
    taken += world.take();
    assert_eq!(sent, taken, "messages sent and received");
    assert!(slept > count / 3 && busy > count / 10, "{slept} {busy}");
    println!("{count} rounds: slept {slept} times");
}

#[test]
fn many_rounds_of_the_direct_path() {
    rounds(DataPath::Direct, 250_000);
}

#[test]
fn rounds_through_verbs() {
    rounds(DataPath::Verbs, 100_000);
}
