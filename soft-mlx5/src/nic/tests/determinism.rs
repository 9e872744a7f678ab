//! The same seed gives the same run.

use std::time::Duration;

use mlx5_wire::data::DataSegment;

use super::program::*;
use crate::faults::Faults;
use crate::nic::NicConfig;

/// Bytes of every CQE of a run in which everything goes wrong that can.
fn run(seed: u64) -> Vec<[u8; 64]> {
    let faults = Faults {
        loss: 0.05,
        duplication: 0.05,
        reordering: 0.1,
        delay: Duration::from_micros(3),
        rnr: 0.05,
        shuffle_completions: true,
        ..Faults::default()
    };
    let mut device = Device::with(NicConfig { faults, seed, ..NicConfig::default() });
    let (mut send, mut recv) = (device.cq(128), device.cq(128));
    let path = Path { mtu: 256, ..Path::default() };
    let mut pairs: Vec<_> =
        (0..4).map(|_| device.pair_with(|attr| attr, &send, &recv, path)).collect();
    let memory = Memory::new(16384);
    let key = device.register(&memory, ALL_ACCESS);
    let mut cqes = Vec::new();
    for round in 0..50u32 {
        for (a, b) in &mut pairs {
            b.post_receive(&[DataSegment::new(memory.addr(), 8192, key)]);
            let len = 1 + round * 41 % 5000;
            device.post(a, &Work::send().data(memory.addr() + 8192, len, key));
        }
        device.finish();
        cqes.extend(send.drain().iter().chain(&recv.drain()).map(|cqe| cqe.to_bytes()));
    }
    cqes
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let first = run(42);
    assert_eq!(first.len(), 50 * 4 * 2);
    assert!(first == run(42));
    assert!(first != run(43), "the seed decides something");
}
