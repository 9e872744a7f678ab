//! The same seed gives the same run.

use std::time::Duration;

use mlx5_wire::data::DataSegment;

use super::program::*;
use crate::base::faults::Faults;
use crate::base::run_dir::{RunDir, fresh_path};
use crate::engine::NicConfig;
use crate::fabric::pcap;
use crate::objects::trace;

/// All output of a run with many kinds of faults: the bytes of its CQEs, of its trace and of its packets.
#[derive(PartialEq)]
struct Left {
    cqes: Vec<[u8; 64]>,
    trace: Vec<u8>,
    packets: Vec<u8>,
}

// The memory is an argument, because its address is in the trace.
fn run(seed: u64, memory: &Memory) -> Left {
    let dir = RunDir::create(fresh_path("test")).unwrap();
    let (trace, packets) = (dir.path().join("trace"), dir.path().join("packets"));
    trace::create(&trace).unwrap();
    pcap::create(&packets).unwrap();
    let faults = Faults {
        loss: 0.05,
        duplication: 0.05,
        reordering: 0.1,
        delay: Duration::from_micros(3),
        rnr: 0.05,
        shuffle_completions: true,
        ..Faults::default()
    };
    let mut device = Device::with(NicConfig {
        faults,
        seed,
        trace: Some(trace.clone()),
        pcap: Some(packets.clone()),
        ..NicConfig::default()
    });
    let (mut send, mut recv) = (device.cq(128), device.cq(128));
    let path = Path { mtu: 256, ..Path::default() };
    let mut pairs: Vec<_> = (0..4).map(|_| device.pair_with(|attr| attr, &send, &recv, path)).collect();
    let key = device.register(memory, ALL_ACCESS);
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
    let read = |path| std::fs::read(path).unwrap();
    Left { cqes, trace: read(&trace), packets: read(&packets) }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let memory = Memory::new(16384);
    let first = run(42, &memory);
    assert_eq!(first.cqes.len(), 50 * 4 * 2);
    assert!(first == run(42, &memory));
    assert!(first != run(43, &memory), "the seed decides something");
    // A line for each send WQE and receive WQE and the doorbell of each, and for each CQE.
    let trace = String::from_utf8(first.trace).unwrap();
    for (kind, count) in [("doorbell uar", 200), ("rcv_counter", 200), (" sq ", 200), (" rq ", 200), ("cqe", 400)] {
        assert_eq!(trace.lines().filter(|line| line.contains(kind)).count(), count, "{kind}");
    }
    assert!(first.packets.len() > 200 * 100);
}
