//! Receive queues against a model of the device, under random sequences of steps.

mod device;
mod steps;

use mlx5_ring::rq::ReceiveQueue;
use proptest::prelude::*;

use device::random::{Random, config, seed};
use device::subject::Data;
use steps::{Setup, long_run, run, step};

type Rq = ReceiveQueue<Data>;

proptest! {
    #![proptest_config(config(1500))]

    #[test]
    fn random_steps(
        size in 0u32..=6,
        wide in any::<bool>(),
        cqes in 0u32..=7,
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let setup = Setup { slots: 1 << size, stride: 16 << (size % 3), cqes: 1 << cqes, cqe_size: 64 << u32::from(wide) };
        run::<Rq>(setup, seed, &steps);
    }
}

#[test]
fn counters_wrap() {
    let mut random = Random::new(seed());
    for (slots, cqes) in [(1, 1), (2, 1), (4, 4), (64, 128), (1024, 512)] {
        let setup = Setup { slots, stride: 32, cqes, cqe_size: 64 };
        long_run::<Rq>(setup, 70_000, &mut random);
    }
}

#[test]
fn the_largest() {
    let mut random = Random::new(seed());
    let setup = Setup { slots: 1 << 15, stride: 16, cqes: 1 << 10, cqe_size: 64 };
    long_run::<Rq>(setup, 150_000, &mut random);
}
