//! Every state of small queues.
//!
//! The rings know no time: what happens next depends on the state alone. So from each state every step is taken, and
//! each new state is kept: a copy of the memory, of the rings and of the device. The work of a batch is cut into its
//! steps (take a CQE, give a slot back, publish, ring), so that batches of every length are among the paths, and
//! forgotten ones, too. A doorbell rings only after the consumer index was published, as the contract says.
//!
//! Two states are the same when everything goes on the same way from them. Running counters count from where they are;
//! before each step they are put where they wrap in the next lap. The buffer in each slot is checked, but is no part of
//! the state. With `Space::relative`, the state leaves out where in the CQ and in a queue the next entry is: the slots
//! are named by how far they are from there, or, in an SRQ, by where they are in its list.
//!
//! Fingerprints of 128 bits are kept: with 10^8 states two have the same one with a probability of 1.5 * 10^-23.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::time::Instant;
use std::vec;
use std::vec::Vec;

use mlx5_wire::opcode::CqeOpcode;

use crate::receive::{Completion, ReceiveRing};
use crate::slots::SlotState;
use crate::testing::{CqeSpec, Give, Kind, Kind::*, Rig, Setup, State, on, queue::Ring};

#[derive(Clone, Copy, Debug)]
enum Step {
    Post(usize),
    Load(usize),
    RingDoorbell(usize),
    Publish,
    /// Take the next CQE.
    Next,
    /// Take the next CQE, and lend its slot, or take its buffer.
    Lend(bool),
    Give(usize, Give),
    /// The device completes a WQE by its position, and whether it fails.
    Complete(usize, usize, bool),
    Strays(usize),
    Reset(usize),
}

/// Parameters of an exploration.
#[derive(Clone, Copy, Debug)]
struct Space {
    queues: &'static [(Kind, u32)],
    cqes: u32,
    /// Slots that are held at the same time. The safe layer holds one.
    max_held: usize,
    relative: bool,
    /// Receives fail, too, and CQEs come that mean nothing.
    faults: bool,
}

/// The way to a state.
struct Trail(Step, Option<Rc<Trail>>);

/// Prints the way to a state, should a check fail there.
struct Report<'a>(&'a Option<Rc<Trail>>, Step);

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (mut steps, mut at) = (vec![self.1], self.0);
            while let Some(trail) = at {
                steps.push(trail.0);
                at = &trail.1;
            }
            steps.reverse();
            std::eprintln!("steps: {steps:?}");
        }
    }
}

fn steps(rig: &Rig, space: &Space) -> Vec<Step> {
    let mut steps = Vec::new();
    let published = rig.cq.consumer_index() == rig.cq.published;
    for (i, queue) in rig.queues.iter().enumerate() {
        // Where there is no room, they change nothing.
        steps.extend([Step::Post(i), Step::Load(i)]);
        if published {
            steps.push(Step::RingDoorbell(i));
        }
        for position in 0..queue.device.queue.len() {
            steps.push(Step::Complete(i, position, false));
            if space.faults {
                steps.push(Step::Complete(i, position, true));
            }
        }
        if space.faults && rig.arrived.is_empty() && rig.producer.room() > rig.owed() {
            steps.push(Step::Strays(i));
        }
        steps.push(Step::Reset(i));
    }
    if !published {
        steps.push(Step::Publish);
    }
    let is_message = |cqe: &Completion| matches!(cqe, Completion::Message(_) | Completion::Failed(_));
    if rig.arrived.front().is_some_and(|cqe| rig.held.len() < space.max_held || !is_message(&cqe.completion)) {
        steps.push(Step::Next);
    }
    if matches!(rig.arrived.front(), Some(cqe) if matches!(cqe.completion, Completion::Message(_))) {
        steps.extend([Step::Lend(false), Step::Lend(true)]);
    }
    for at in 0..rig.held.len() {
        steps.extend([Give::Recycle, Give::Release, Give::Rewrite].map(|how| Step::Give(at, how)));
    }
    steps
}

fn take(rig: &mut Rig, step: Step) {
    match step {
        Step::Post(queue) => drop(rig.post(queue)),
        Step::Load(queue) => drop(rig.load(queue)),
        Step::RingDoorbell(queue) => rig.ring_doorbell(queue),
        Step::Publish => rig.publish(),
        Step::Next => assert!(rig.next()),
        Step::Lend(takes) => assert!(rig.lend(takes)),
        Step::Give(at, how) => rig.give(at, how),
        Step::Complete(queue, position, fails) => {
            let opcode = if fails { CqeOpcode::ResponderError } else { CqeOpcode::ResponderSend };
            rig.complete(queue, position, CqeSpec::new(opcode, 0));
        }
        Step::Strays(queue) => rig.strays(queue),
        Step::Reset(queue) => rig.reset(queue),
    }
}

/// Returns what decides how a state goes on.
fn fingerprint(rig: &Rig, relative: bool) -> u128 {
    let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let mut add = |word: u32| {
        hash = (hash ^ u128::from(word)).wrapping_mul(0xda94_2042_e4dd_58b5_9e37_79b9_7f4a_7c15);
        hash ^= hash >> 61;
    };
    let index = rig.cq.consumer_index();
    add(if relative { 0 } else { index & (2 * rig.producer.count - 1) });
    add(index.wrapping_sub(rig.cq.published));
    let mut names = Vec::with_capacity(rig.queues.len());
    for (i, queue) in rig.queues.iter().enumerate() {
        let slots = on!(&queue.ring, ring => ring.slots());
        let mut order: Vec<u32> = queue.device.queue.iter().map(|&slot| slot.into()).collect();
        add(order.len() as u32);
        let new = |&slot: &u32| slots.state(slot) == SlotState::Posted && !queue.device.has(slot);
        add((0..queue.device.slots).filter(new).count() as u32);
        let mut name: Vec<u32> = (0..queue.device.slots).collect();
        if let Ring::Srq(srq) = &queue.ring {
            order.extend(rig.list(i));
            let completed = rig.arrived.iter().filter(|cqe| cqe.queue == i);
            order.extend(completed.filter_map(|cqe| match cqe.completion {
                Completion::Message(slot) | Completion::Failed(slot) => Some(slot),
                _ => None,
            }));
            order.extend(rig.held.iter().filter(|held| held.queue == i).map(|held| held.slot));
            order.extend(srq.lent());
            add(srq.lent().is_some().into());
            if relative {
                order.iter().enumerate().for_each(|(at, &slot)| name[slot as usize] = at as u32);
            }
            for &slot in &order {
                // SAFETY: a slot of the queue.
                add(name[unsafe { slots.get(slot).index } as usize]);
            }
        } else {
            // Where the queue goes on: slots that are neighbours stay neighbours.
            let head = rig.head(i);
            add(if relative { 0 } else { head });
            if relative {
                name.iter_mut().for_each(|name| *name = name.wrapping_sub(head) & (queue.device.slots - 1));
            }
        }
        if let Ring::Ordered(srq) = &queue.ring {
            let first = if relative { rig.head(i) } else { 0 };
            let [filled, grace] = srq.filling();
            [srq.next(), queue.device.next.into(), filled].into_iter().for_each(|slot| add(name[slot as usize]));
            add(grace);
            for slot in 0..queue.device.slots {
                let slot = (slot + first) & (queue.device.slots - 1);
                add(name[usize::from(queue.device.link(slot))]);
            }
        }
        order.iter().for_each(|&slot| add(name[slot as usize]));
        let mut states = vec![0; name.len()];
        name.iter().enumerate().for_each(|(slot, &name)| states[name as usize] = slots.state(slot as u32) as u32);
        states.into_iter().for_each(&mut add);
        names.push(name);
    }
    add(rig.arrived.len() as u32);
    for cqe in &rig.arrived {
        let (kind, slot) = match cqe.completion {
            Completion::Message(slot) => (0, slot),
            Completion::Failed(slot) => (1, slot),
            _ => unreachable!("taken at once"),
        };
        [kind, cqe.queue as u32, names[cqe.queue][slot as usize]].into_iter().for_each(&mut add);
    }
    for held in &rig.held {
        [held.queue as u32, names[held.queue][held.slot as usize]].into_iter().for_each(&mut add);
    }
    hash
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("numbers only")
    }

    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64 ^ (value >> 64) as u64;
    }
}

/// Goes through a space; `limit` states at most. Returns how many there are.
fn explore(space: Space, limit: usize) -> usize {
    let began = Instant::now();
    let stride = |kind| if kind == Rq { 32 } else { 64 };
    let setup = Setup {
        queues: space.queues.iter().map(|&(kind, slots)| (kind, slots, stride(kind))).collect(),
        cqes: space.cqes,
        cqe_size: 64,
        compression: None,
        wrap: 32,
    };
    let mut rig = Rig::new(&setup);
    let mut known = HashSet::<u128, BuildHasherDefault<AsItIs>>::default();
    known.insert(fingerprint(&rig, space.relative));
    let mut to_do = VecDeque::from([(rig.state.clone(), rig.memory.save(), None)]);
    let mut transitions = 0u64;
    while let Some((state, memory, trail)) = to_do.pop_front() {
        let load = |rig: &mut Rig| {
            rig.state = State::clone(&state);
            rig.memory.load(&memory);
        };
        load(&mut rig);
        for step in steps(&rig, &space) {
            let _report = Report(&trail, step);
            load(&mut rig);
            take(&mut rig, step);
            transitions += 1;
            if matches!(step, Step::Reset(queue) if rig.queues[queue].device.is_srq()) {
                // An SRQ is drained before its end.
                continue;
            }
            rig.check();
            if known.insert(fingerprint(&rig, space.relative)) && known.len() <= limit {
                rig.wrap_soon(32);
                let trail = Some(Rc::new(Trail(step, trail.clone())));
                to_do.push_back((rig.state.clone(), rig.memory.save(), trail));
            }
        }
    }
    let end = if known.len() > limit { "not to the end" } else { "to the end" };
    std::println!("{space:?}: {} states, {transitions} transitions, {end}, {:.1?}", known.len(), began.elapsed());
    known.len()
}

/// Queues, entries of the CQ, and how many states they have.
type Case = (&'static [(Kind, u32)], u32, usize);

fn explore_all(max_held: usize, relative: bool, cases: &[Case]) {
    for &(queues, cqes, states) in cases {
        let space = Space { queues, cqes, max_held, relative, faults: true };
        assert_eq!(explore(space, usize::MAX), states, "states of {space:?}");
    }
}

#[test]
fn one_queue() {
    let smallest: &[Case] =
        &[(&[(Srq, 2)], 2, 264), (&[(Ordered, 2)], 2, 336), (&[(Rq, 1)], 1, 22), (&[(Rq, 2)], 2, 776)];
    explore_all(9, false, smallest);
    explore_all(9, true, &[(&[(Srq, 4)], 4, 12_982), (&[(Rq, 4)], 4, 8_785)]);
}

#[test]
fn two_queues() {
    let cases: &[Case] = &[
        (&[(Srq, 2), (Ordered, 2)], 2, 478),
        (&[(Ordered, 2), (Ordered, 2)], 2, 604),
        (&[(Srq, 2), (Rq, 2)], 4, 2_687),
        (&[(Ordered, 2), (Rq, 2)], 4, 3_266),
        (&[(Rq, 2), (Rq, 2)], 4, 10_193),
    ];
    explore_all(9, true, cases);
}

/// The states that are nearest to the first.
#[test]
fn four_slots() {
    explore(Space { queues: &[(Ordered, 4)], cqes: 4, max_held: 9, relative: true, faults: true }, 10_000);
}

/// The states of [`one_queue`] where the place in the CQ and the number of a slot count: more by just as many times.
#[test]
#[ignore = "takes minutes: make explore"]
fn states_with_absolute_indices() {
    explore_all(9, false, &[(&[(Rq, 4)], 4, 8_785 * 4 * 8)]);
}

/// As many states as `RING_STATES` says.
#[test]
#[ignore = "takes minutes: make explore"]
fn states_of_larger_queues() {
    explore_all(9, true, &[(&[(Ordered, 4)], 4, 283_077)]);
    explore_all(9, true, &[(&[(Srq, 4), (Rq, 1)], 4, 107_306)]);
    let limit = std::env::var("RING_STATES").ok().and_then(|limit| limit.parse().ok());
    let larger: &[(&[_], _)] = &[
        (&[(Ordered, 8)], 8),
        (&[(Srq, 8)], 8),
        (&[(Rq, 8)], 8),
        (&[(Ordered, 4), (Ordered, 2)], 4),
        (&[(Ordered, 4), (Rq, 1)], 4),
        (&[(Ordered, 4), (Rq, 4)], 8),
    ];
    for &(queues, cqes) in larger {
        let space = Space { queues, cqes, max_held: 1, relative: true, faults: false };
        explore(space, limit.unwrap_or(200_000));
    }
}
