//! Completion queues that have as many entries as receives can complete, and not one more.

use std::mem::forget;

use doorbell::{AsyncEvent, BufferPool, ProtectionDomain, QpConfig, QueuePair, Receiver};
use doorbell::{SrqConfig, SrqId};
use doorbell_tests::peers::Peers;
use doorbell_tests::{device, message, receiving};

/// Receives of each of the two SRQs.
const RECEIVES: u32 = 63;
/// Messages to each: more than twice what its SRQ holds.
const MESSAGES: u64 = 127;

/// Two SRQs on one CQ, and a client of each.
struct World {
    receiver: Receiver,
    srqs: [SrqId; 2],
    clients: [(Vec<QueuePair>, Peers); 2],
    _pool: BufferPool,
    pd: ProtectionDomain,
}

impl World {
    fn new() -> Self {
        let (pd, mut receiver) = device::start(2 * RECEIVES);
        let srqs = [(); 2].map(|()| receiver.create_srq(&SrqConfig::new(RECEIVES)).unwrap());
        let pool = BufferPool::new(&pd, 2 * RECEIVES, 64).unwrap();
        let clients = srqs.map(|srq| {
            let buffers = std::iter::from_fn(|| pool.take()).take(RECEIVES as usize);
            assert_eq!(receiver.post(srq, buffers).unwrap(), RECEIVES as usize);
            let config = QpConfig::rc().srq(srq).min_rnr_timer(1);
            Peers::connect(&pd, &mut receiver, &config, 1, 64)
        });
        Self { receiver, srqs, clients, _pool: pool, pd }
    }

    /// Sends `count` messages to each SRQ by turns.
    fn send(&mut self, count: u64) {
        for _ in 0..count {
            self.clients.iter_mut().for_each(|(_, peers)| _ = peers.send(0, 40));
        }
    }

    /// Fills the CQ, and has all other messages wait for receives.
    fn fill(&mut self) {
        self.send(RECEIVES.into());
        self.clients.iter_mut().for_each(|(_, peers)| peers.settle());
        self.send(MESSAGES - u64::from(RECEIVES));
    }

    /// Takes what is left after `seen` messages of each, in order, and asks the device whether all went well.
    fn finish(mut self, mut seen: [u64; 2]) {
        let numbers = [0, 1].map(|at| self.clients[at].0[0].qp_num());
        let mut events = self.pd.context().events().unwrap();
        let left = (2 * MESSAGES - seen[0] - seen[1]) as usize;
        receiving::messages(&mut self.receiver, left, |message| {
            let at = numbers.iter().position(|&number| number == message.qp_num()).unwrap();
            assert_eq!(message::read(&message).1, seen[at]);
            seen[at] += 1;
        });
        assert_eq!(seen, [MESSAGES; 2]);
        self.clients.iter_mut().for_each(|(_, peers)| peers.settle());
        while let Some(event) = events.try_next().unwrap() {
            assert!(!matches!(event, AsyncEvent::CqError { .. }), "{event:?}");
        }
    }
}

/// Messages of the two SRQs by turns, each recycled before the next is looked at; in the middle of the batch the
/// device delivers whatever it may.
#[test]
fn messages_of_two_queues_by_turns_do_not_overrun_their_cq() {
    let mut world = World::new();
    world.fill();
    let numbers = [0, 1].map(|at| world.clients[at].0[0].qp_num());
    let mut seen = [0; 2];
    let mut batch = world.receiver.poll();
    while let Some(next) = batch.next() {
        let message = next.unwrap();
        let at = numbers.iter().position(|&number| number == message.qp_num()).unwrap();
        assert_eq!(message::read(&message).1, seen[at]);
        seen[at] += 1;
        if seen == [RECEIVES as u64 / 2; 2] {
            receiving::let_the_device_work();
        }
    }
    drop(batch);
    world.finish(seen);
}

/// A batch of both SRQs is forgotten, and what was taken out of it is posted again.
#[test]
fn a_post_after_a_forgotten_batch_of_two_queues_does_not_overrun_their_cq() {
    let mut world = World::new();
    world.fill();
    let mut seen = [0; 2];
    let mut taken = [Vec::new(), Vec::new()];
    let numbers = [0, 1].map(|at| world.clients[at].0[0].qp_num());
    let mut batch = world.receiver.poll();
    for _ in 0..RECEIVES {
        let message = batch.next().expect("a message").unwrap();
        let at = numbers.iter().position(|&number| number == message.qp_num()).unwrap();
        assert_eq!(message::read(&message).1, seen[at]);
        seen[at] += 1;
        taken[at].push(message.take());
    }
    forget(batch);
    for (srq, buffers) in world.srqs.into_iter().zip(taken) {
        world.receiver.post(srq, buffers).unwrap();
    }
    receiving::let_the_device_work();
    world.finish(seen);
}
