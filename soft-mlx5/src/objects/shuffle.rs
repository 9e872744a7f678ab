//! Completions in random order, on request. Completions of one work queue keep their order.

use mlx5_wire::opcode::CqeOpcode;

use super::Cqn;
use super::completion::Completion;
use crate::base::rng::Rng;

// A CQE is held back for less than this. Completions that are close in time come out of order, a completion
// that is much later does not.
const LONGEST_HOLD_NS: u64 = 20_000;
const STREAM: u64 = 0x5348_5546;

// Places in a CQE, success or error.
const QPN: usize = 57;
const OP_OWN: usize = 63;

#[derive(Debug)]
struct Held {
    cqn: Cqn,
    // Work queue that completed: number of the queue pair, and whether it is the sending side.
    queue: (u32, bool),
    until: u64,
    completion: Completion,
}

/// Holds completions back.
#[derive(Debug)]
pub struct Shuffler {
    on: bool,
    rng: Rng,
    // In the order in which they came.
    held: Vec<Held>,
}

fn queue_of(completion: &Completion) -> (u32, bool) {
    let cqe = &completion.cqe;
    let qpn = u32::from_be_bytes([0, cqe[QPN], cqe[QPN + 1], cqe[QPN + 2]]);
    let opcode = CqeOpcode::from_bits(cqe[OP_OWN] >> 4);
    (qpn, matches!(opcode, CqeOpcode::Requester | CqeOpcode::RequesterError))
}

impl Shuffler {
    /// Makes an order that follows from `seed`.
    pub fn new(on: bool, seed: u64) -> Self {
        Self { on, rng: Rng::new(seed ^ STREAM), held: Vec::new() }
    }

    /// Starts or stops holding completions back; held completions come out at their time.
    pub fn set(&mut self, on: bool) {
        self.on = on;
    }

    /// Returns `true` if a completion must wait for its turn.
    pub fn is_on(&self) -> bool {
        self.on || !self.held.is_empty()
    }

    /// Holds a completion back from time `now` on.
    pub fn hold(&mut self, cqn: Cqn, completion: &Completion, now: u64) {
        let queue = queue_of(completion);
        let random = if self.on { now + self.rng.below(LONGEST_HOLD_NS) } else { now };
        let same = self.held.iter().rev().find(|held| (held.cqn, held.queue) == (cqn, queue));
        let until = same.map_or(random, |before| random.max(before.until));
        self.held.push(Held { cqn, queue, until, completion: completion.clone() });
    }

    /// Takes the completion that is due first at time `now`.
    pub fn release(&mut self, now: u64) -> Option<(Cqn, Completion)> {
        // The first of equals, so that a work queue keeps its order.
        let first = self.held.iter().enumerate().min_by_key(|(_, held)| held.until);
        let (index, _) = first.filter(|(_, held)| held.until <= now)?;
        let held = self.held.remove(index);
        Some((held.cqn, held.completion))
    }

    /// Takes the next completion of a queue pair, whether it is due or not.
    pub fn release_of_qp(&mut self, qpn: u32) -> Option<(Cqn, Completion)> {
        self.release_where(|held| held.queue.0 == qpn)
    }

    /// Takes the next completion for a CQ, whether it is due or not.
    pub fn release_of_cq(&mut self, cqn: Cqn) -> Option<(Cqn, Completion)> {
        self.release_where(|held| held.cqn == cqn)
    }

    fn release_where(&mut self, wanted: impl Fn(&Held) -> bool) -> Option<(Cqn, Completion)> {
        let index = self.held.iter().position(wanted)?;
        let held = self.held.remove(index);
        Some((held.cqn, held.completion))
    }

    /// Returns when the next completion is due.
    pub fn next_deadline(&self) -> Option<u64> {
        self.held.iter().map(|held| held.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(qpn: u32, counter: u16, opcode: u8) -> Completion {
        let mut cqe = [0; 64];
        cqe[QPN..QPN + 3].copy_from_slice(&qpn.to_be_bytes()[1..]);
        cqe[60..62].copy_from_slice(&counter.to_be_bytes());
        cqe[OP_OWN] = opcode << 4;
        Completion { cqe, front: None }
    }

    fn key(completion: &Completion) -> ((u32, bool), u16) {
        let counter = u16::from_be_bytes([completion.cqe[60], completion.cqe[61]]);
        (queue_of(completion), counter)
    }

    #[test]
    fn each_work_queue_keeps_its_order_and_the_others_do_not() {
        let mut shuffler = Shuffler::new(true, 3);
        for counter in 0..50 {
            for qpn in 1..4 {
                // Requests and responses of one queue pair are two queues.
                shuffler.hold(Cqn(1), &completion(qpn, counter, 0), counter.into());
                shuffler.hold(Cqn(1), &completion(qpn, counter, 2), counter.into());
            }
        }
        let order: Vec<_> = std::iter::from_fn(|| shuffler.release(LONGEST_HOLD_NS + 50))
            .map(|(_, completion)| key(&completion))
            .collect();
        assert_eq!(order.len(), 300);
        for queue in (1..4).flat_map(|qpn| [(qpn, true), (qpn, false)]) {
            let counters = order.iter().filter(|(of, _)| *of == queue).map(|(_, counter)| *counter);
            assert!(counters.eq(0..50), "{queue:?}");
        }
        assert!(!order.is_sorted_by_key(|(_, counter)| *counter), "shuffled");
    }

    #[test]
    fn what_is_held_when_it_is_switched_off_still_goes_first() {
        let mut shuffler = Shuffler::new(true, 3);
        shuffler.hold(Cqn(1), &completion(7, 0, 2), 100);
        let due = shuffler.next_deadline().unwrap();
        shuffler.set(false);
        assert!(shuffler.is_on());
        shuffler.hold(Cqn(1), &completion(7, 1, 2), 101);
        assert!(shuffler.release(due - 1).is_none());
        let counters = std::iter::from_fn(|| shuffler.release(due)).map(|(_, c)| key(&c).1);
        assert!(counters.eq([0, 1]));
        assert!(!shuffler.is_on());
    }

    #[test]
    fn the_end_of_a_queue_pair_waits_for_nothing() {
        let mut shuffler = Shuffler::new(true, 3);
        for counter in 0..3 {
            shuffler.hold(Cqn(1), &completion(7, counter, 2), 0);
            shuffler.hold(Cqn(2), &completion(8, counter, 2), 0);
        }
        let counters = std::iter::from_fn(|| shuffler.release_of_qp(7)).map(|(_, c)| key(&c).1);
        assert!(counters.eq(0..3));
        assert!(shuffler.release_of_cq(Cqn(1)).is_none());
        assert!(shuffler.release_of_cq(Cqn(2)).is_some());
    }
}
