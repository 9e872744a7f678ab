//! Frames that come from a capture file.

use std::io::Write;
use std::path::Path;

use super::*;
use crate::base::faults::Faults;
use crate::base::run_dir::{RunDir, fresh_path};
use crate::engine::Nic;

const FRAMES: usize = 1000;
const GAP_NS: u64 = 1000;

/// Writes a capture of consecutive frames, with records between them that are no frames.
fn capture(path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    file.write_all(&words(&[0xa1b2_3c4d, 2 | 4 << 16, 0, 0, 65_535, 1])).unwrap();
    for index in 0..FRAMES as u32 {
        let frame = feed(&index.to_be_bytes()).build();
        // As captured at the sender, before the frame was padded.
        for bytes in [&frame[..46], &frame[..13]] {
            let len = bytes.len() as u32;
            file.write_all(&words(&[0, index * GAP_NS as u32, len, len])).unwrap();
            file.write_all(bytes).unwrap();
        }
    }
}

fn receiving(config: NicConfig) -> (Device, Cq, Queue) {
    let mut device = Device::with(config);
    let cq = device.cq(64);
    let mut queue = Queue::new(&mut device, &cq, 64, |attr| attr);
    queue.post_many(64);
    device.settle();
    let tir = TirAttr { domain: 1, loopback: Loopback::default(), hash: None, queues: vec![queue.number] };
    let tir = device.nic.create_tir(tir).unwrap();
    device.nic.create_flow(&[rule(Target::Tir(tir), Some(4))]).unwrap();
    (device, cq, queue)
}

fn config() -> NicConfig {
    NicConfig { link_layer: LinkLayer::Ethernet, strict: true, ..NicConfig::default() }
}

#[test]
fn a_capture_is_played_from_the_first_flow_on_and_may_lose_frames() {
    let dir = RunDir::create(fresh_path("frames")).unwrap();
    let path = dir.path().join("capture");
    capture(&path);
    for loss in [0.0, 0.1] {
        let faults = Faults { loss, ..Faults::default() };
        let (mut device, mut cq, mut queue) = receiving(NicConfig { frames: Some(path.clone()), faults, ..config() });
        let (mut numbers, mut times) = (Vec::new(), Vec::new());
        loop {
            device.settle();
            for cqe in cq.drain() {
                assert_eq!((cqe.byte_cnt.get(), cqe.flow_tag(), cqe.dropped()), (60, 4, 0));
                let payload = queue.received(cqe.wqe_counter.get(), 46).split_off(42);
                numbers.push(u32::from_be_bytes(*payload.first_chunk().unwrap()));
                times.push(cqe.timestamp.get());
                queue.post();
            }
            let Some(deadline) = device.nic.next_deadline() else { break };
            device.now = device.now.max(deadline);
        }
        let drops = device.nic.drops();
        assert_eq!(numbers.len() as u64 + drops.injected, FRAMES as u64);
        assert_eq!(drops.malformed, FRAMES as u64);
        assert!(numbers.is_sorted_by(|a, b| a < b));
        assert_eq!(drops.injected > 50, loss > 0.0);
        let first = times[0] - u64::from(numbers[0]) * GAP_NS;
        for (number, time) in numbers.iter().zip(&times) {
            let late = time - first - u64::from(*number) * GAP_NS;
            assert!(late <= GAP_NS, "frame {number} is {late} ns late");
        }
    }
    let nothing = NicConfig { frames: Some(dir.path().join("nothing")), ..config() };
    // SAFETY: no object is created.
    assert!(unsafe { Nic::new(nothing) }.is_err());
}
