//! The share of links of an SRQ that lead to the next slot, with several queue pairs.

use std::vec::Vec;

use super::{SEND, full};
use crate::receive::ReceiveRing;
use crate::testing::queue::Ring;
use crate::testing::{Give, Kind, Random, Rig};

/// Messages between the halves of a run, of which the second is counted.
const HALF: u32 = 15_000;

/// Queue pairs that send messages of four packets each to an SRQ.
struct Senders {
    /// Packets left of the message of each queue pair, and the slot that it goes to.
    under_way: Vec<Option<(u32, u16)>>,
    random: Random,
}

impl Senders {
    /// Delivers packets until so many messages have arrived, or nothing more can.
    fn deliver(&mut self, rig: &mut Rig, messages: u32) -> u32 {
        let mut arrived = 0;
        let mut idle = 0;
        while arrived < messages && idle < 1000 {
            let qp = self.random.below(self.under_way.len() as u32) as usize;
            let queue = &rig.queues[0].device.queue;
            match self.under_way[qp] {
                None => {
                    let taken = self.under_way.iter().flatten().count();
                    let Some(&slot) = queue.get(taken) else {
                        idle += 1;
                        continue;
                    };
                    self.under_way[qp] = Some((3, slot));
                }
                Some((1, slot)) => {
                    let position = queue.iter().position(|&queued| queued == slot).unwrap();
                    rig.complete(0, position, SEND);
                    self.under_way[qp] = None;
                    arrived += 1;
                }
                Some((left, slot)) => self.under_way[qp] = Some((left - 1, slot)),
            }
            idle = 0;
        }
        arrived
    }
}

/// How a user treats messages.
#[derive(Clone, Copy, PartialEq)]
enum User {
    /// Lends each.
    Lend,
    /// Keeps 1 % for 500 messages.
    Keep,
    /// Takes 10 % of the buffers out, and posts others after the batch.
    Take,
}

/// Returns the share of links to the next slot, and the most receives that waited.
fn run(slots: u32, qps: usize, batch: u32, user: User) -> (f64, u32) {
    let mut rig = full(Kind::Ordered, slots);
    let mut senders = Senders { under_way: std::vec![None; qps], random: Random::new(7) };
    let (mut start, mut most, mut messages) = ((0, 0), 0, 0);
    let mut kept = Vec::new();
    while messages < 2 * HALF {
        let arrived = senders.deliver(&mut rig, batch);
        assert!(arrived > 0, "the device starves");
        for _ in 0..arrived {
            messages += 1;
            if user == User::Keep && senders.random.once_in(100) {
                assert!(rig.next());
                kept.push(messages);
            } else {
                let takes = user == User::Take && senders.random.once_in(10);
                assert!(rig.lend(takes));
            }
        }
        while kept.first().is_some_and(|&at| messages - at >= 500) {
            kept.remove(0);
            rig.give(0, Give::Recycle);
        }
        rig.end();
        while user == User::Take && (rig.post(0) || rig.load(0)) {}
        if user == User::Take {
            rig.end();
        }
        let Ring::Ordered(srq) = &rig.queues[0].ring else { unreachable!() };
        most = most.max(srq.waiting());
        if start == (0, 0) && messages >= HALF {
            start = (srq.posted(), srq.jumps());
        }
    }
    let Ring::Ordered(srq) = &rig.queues[0].ring else { unreachable!() };
    let (posted, jumps) = (srq.posted().wrapping_sub(start.0), srq.jumps().wrapping_sub(start.1));
    (1.0 - f64::from(jumps) / f64::from(posted), most)
}

/// As a table of `docs/performance.md` says.
#[test]
fn neighbours_stay_neighbours() {
    for user in [User::Lend, User::Keep, User::Take] {
        for qps in [1, 3, 10] {
            for batch in [1, 8, 32, 64] {
                let (share, most) = run(256, qps, batch, user);
                std::println!("{qps} queue pairs, batches of {batch}: {share:.3}, at most {most} waited");
                assert!(share >= 0.95, "{qps} queue pairs, batches of {batch}: {share}");
            }
        }
    }
}
