use crate::rq::ReceiveQueue;
use crate::srq::SharedReceiveQueue;
use crate::testing::rng::Rng;
use crate::testing::{Give, Rig, TestQueue};

fn random<Q: TestQueue>(slots: u32, seed: u64) {
    let mut rng = Rng(seed);
    let mut rig = Rig::<Q>::new(slots, slots as usize + 1, 2 * slots);
    for _ in 0..2000 {
            let st: std::vec::Vec<u8> = (0..slots).map(|i| rig.queue.book().state(i)).collect();
            std::println!(
                "states {st:?} queue {:?} completed {:?} held {:?}",
                rig.device.queue.iter().map(|t| t.slot).collect::<std::vec::Vec<_>>(),
                rig.device.completed.iter().map(|t| t.slot).collect::<std::vec::Vec<_>>(),
                rig.held
            );
        }
        match rng.below(6) {
            0 => {
                let count = rng.below(slots as usize) + 1;
                let buffers = rig.free_buffers(count);
                rig.post(&buffers);
            }
            1 => {
                if let Some(buffer) = rig.free_buffer() {
                    rig.load(buffer);
                }
            }
            2 | 3 => {
                for _ in 0..rng.below(slots as usize) {
                    if !rig.device.queue.is_empty() {
                        let position =
                            if rng.once_in(3) { rng.below(rig.device.queue.len()) } else { 0 };
                        rig.complete(position);
                    }
                }
            }
            4 => {
                let script: std::vec::Vec<Give> = (0..rng.below(slots as usize * 2))
                    .map(|_| match rng.below(9) {
                        0 | 1 | 2 | 3 => Give::Recycle,
                        4 | 5 => Give::Take,
                        6 => Give::Hold,
                        7 => Give::RecycleHeld,
                        _ => Give::TakeHeld,
                    })
                    .collect();
                let budget = rng.below(2 * slots as usize) as u32 + 1;
                    std::println!("poll {budget} {script:?}");
                }
                rig.poll(budget, &script);
            }
            _ => {
                if !rig.held.is_empty() {
                    let index = rng.below(rig.held.len());
                    rig.give_back(index, rng.once_in(2));
                }
            }
        }
    }
}

#[test]
fn srq_random() {
    for slots in [2, 4, 8, 16, 64] {
        for seed in 0..50 {
            std::println!("slots {slots} seed {seed}");
            random::<SharedReceiveQueue<u32>>(slots, seed);
        }
    }
}

#[test]
fn rq_random() {
    for slots in [1, 2, 4, 8, 16, 64] {
        for seed in 0..50 {
            std::println!("slots {slots} seed {seed}");
            random::<ReceiveQueue<u32>>(slots, seed);
        }
    }
}
