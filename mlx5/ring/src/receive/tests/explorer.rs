//! Every state that a small queue can reach, in every order of posting, completing, polling and giving back.
//!
//! Steps are as small as the queue knows them: most states are inside a batch, and each call on it is a step of
//! its own. A state is what decides the future: the states and links of the slots, the fields of the queue and
//! of the batch, what the device has, what is held and by whom, and where the CQ stands. Left out of it is what
//! the future does not depend on:
//!
//! - which buffer is which: the rig compares each with its slot in every state;
//! - the order in which the device has WQEs, and in which messages were held: any of them may be next;
//! - CQEs that wait: nothing but polling looks at the CQ, so the queue cannot tell a CQE that came long ago
//!   from one that is written just before it is asked for. Small queues are explored with CQEs that wait all
//!   the same.

use std::collections::{HashSet, VecDeque};
use std::fmt::{self, Display, Formatter};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::Instant;
use std::vec::Vec;
use std::{println, vec};

use mlx5_wire::opcode::CqeOpcode;

use crate::receive::{Completion, Receiving};
use crate::rq::ReceiveQueue;
use crate::slots;
use crate::srq::SharedReceiveQueue;
use crate::testing::{Beside, CqeSpec, Device, Place, Rig, Saved, TestQueue};

/// A step between batches.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Posts so many with one doorbell.
    Post(usize),
    Load,
    /// The device completes the WQE in a slot, whose CQE waits.
    Complete(u32, Kind),
    GiveBack(u32, bool),
    /// Starts a batch with this budget, so many CQEs before the end of the CQ's buffer, or where the CQ stands.
    Begin(u32, Option<u32>),
}

/// A step in a batch.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// Asks for a completion, which the device writes now, or has written.
    Next(Option<(u32, Kind)>),
    /// Asks for a completion, which is one that cannot be true.
    Stray(u16),
    /// Gives the message in a slot back, with its buffer or without.
    GiveBack(u32, bool),
    End,
    /// Forgets the batch, and posts so many before it is found.
    Forget(usize),
}

/// What completes a WQE.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    /// Out of the ordinary.
    Immediate,
    Error,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Send, Self::Immediate, Self::Error];

    const fn opcode(self) -> CqeOpcode {
        match self {
            Self::Send => CqeOpcode::ResponderSend,
            Self::Immediate => CqeOpcode::ResponderSendImm,
            Self::Error => CqeOpcode::ResponderError,
        }
    }
}

/// When CQEs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cqes {
    /// At any time; where the CQ stands is part of the state.
    Wait,
    /// When they are asked for. A batch starts so many CQEs before the end of the buffer.
    Asked(&'static [u32]),
}

/// Farther from the end of the CQ's buffer than a batch comes.
const FAR: u32 = 32;

/// No limit to a batch.
const ANY: u32 = u32::MAX;

/// How a state is reached: what there was between batches, and the calls of the batch that is open since.
struct Node<Q> {
    base: Rc<Saved<Q>>,
    budget: u32,
    before_end: Option<u32>,
    calls: Vec<Call>,
}

/// A batch, and how many completions it may still take.
struct Open<'a, 'b, Q: TestQueue> {
    receiving: Receiving<'a, Q>,
    beside: Beside<'b>,
    left: u32,
}

impl<Q: TestQueue> Open<'_, '_, Q> {
    fn apply(&mut self, call: Call) {
        let Self { receiving, beside, left } = self;
        match call {
            Call::Next(written) => {
                if let Some((slot, kind)) = written {
                    beside.complete_as(beside.device.position(slot), kind.opcode(), false);
                }
                let due = beside.arrived() > 0 && *left > 0;
                match receiving.next() {
                    Some(completion) => drop(beside.received(receiving, completion)),
                    None => return assert!(!due, "a completion is not seen"),
                }
                assert!(due, "a completion of nothing");
                *left -= 1;
            }
            Call::Stray(counter) => {
                beside.cq_device.write(&CqeSpec::send(counter, 1));
                let found = receiving.next();
                assert!(matches!(found, Some(Completion::Stray(_))), "{found:?}");
                *left -= 1;
            }
            Call::GiveBack(slot, recycle) => {
                let index = beside.held.iter().position(|held| held.slot == slot).unwrap();
                beside.give_back(receiving, index, None, recycle);
            }
            Call::End | Call::Forget(_) => unreachable!("it ends the batch"),
        }
        beside.device.check();
        assert_eq!(beside.device.look(), 0, "the doorbell rang in the middle");
    }

    /// What can be done now.
    fn calls(&self, cqes: Cqes, first: bool) -> Vec<Call> {
        let Self { beside, left, .. } = self;
        let mut calls = vec![Call::Next(None), Call::End, Call::Forget(0)];
        let pool = beside.buffers.iter().filter(|&&place| place == Place::Pool).count();
        if pool > 0 {
            calls.extend([Call::Forget(1), Call::Forget(pool)]);
        }
        for held in beside.held.iter() {
            calls.extend([true, false].map(|recycle| Call::GiveBack(held.slot, recycle)));
        }
        // With the other kind of arrival, no batch comes so far that the CQ is full.
        let room = cqes != Cqes::Wait || beside.cq_device.has_room();
        if beside.arrived() == 0 && *left > 0 && room {
            if cqes != Cqes::Wait {
                let next = completions(beside.device).map(|next| Call::Next(Some(next)));
                calls.extend(next);
            }
            // What is posted and not rung for yet could complete, for all that the queue knows.
            if first || beside.none_waits() {
                calls.extend(beside.device.not_posted().into_iter().map(Call::Stray));
            }
        }
        calls
    }

    fn key(&mut self, cqes: Cqes) -> Vec<u8> {
        let Self { receiving, beside, left } = self;
        let mut key = key(receiving.parts().0, beside, cqes);
        // No stretch is longer than the queue.
        let to_end = beside.next_cqe().0.min(receiving.queue.book().count() + 1);
        key.extend([to_end as u8, (*left).min(u8::MAX.into()) as u8]);
        receiving.fingerprint(&mut key);
        key
    }
}

/// Every way in which one of the device's WQEs can complete.
fn completions(device: &Device) -> impl Iterator<Item = (u32, Kind)> + '_ {
    device.queue.iter().flat_map(|taken| Kind::ALL.map(|kind| (taken.slot, kind)))
}

/// What decides the future, but for an open batch.
fn key<Q: TestQueue>(queue: &Q, beside: &Beside<'_>, cqes: Cqes) -> Vec<u8> {
    let mut key = Vec::with_capacity(64);
    let (book, device) = (queue.book(), &beside.device);
    let posted = device.posted();
    for slot in 0..book.count() {
        let state = book.state(slot);
        // Of a slot that nothing was ever posted into there is no buffer.
        let place = if state == slots::EMPTY && !posted.contains(&slot) {
            Place::Pool
        } else {
            // SAFETY: it was posted.
            beside.buffers[unsafe { book.data(slot) } as usize]
        };
        let with_device = u8::from(posted.contains(&slot));
        key.push(state | (place as u8) << 4 | with_device << 6);
        key.push(u8::from(beside.held.iter().any(|held| held.slot == slot)));
    }
    queue.fingerprint(&mut key);
    if cqes == Cqes::Wait {
        let (to_end, lap) = beside.next_cqe();
        key.extend([to_end as u8, u8::from(lap)]);
        beside.fingerprint(&mut key);
    }
    key
}

struct Explorer<Q> {
    rig: Rig<Q>,
    cqes: Cqes,
    budgets: &'static [u32],
    longest: usize,
    /// States that end it.
    limit: usize,
    seen: HashSet<u128>,
    transitions: u64,
}

impl<Q: TestQueue> Explorer<Q> {
    fn new(&Extent { slots, cqes, budgets, longest }: &Extent, limit: usize) -> Self {
        let entries = if cqes == Cqes::Wait { slots.max(2) } else { FAR };
        let rig = Rig::new(slots, slots as usize + 1, entries);
        Self { rig, cqes, budgets, longest, limit, seen: HashSet::new(), transitions: 0 }
    }

    /// What can be done between batches.
    fn steps(&mut self) -> Vec<Step> {
        let Self { rig, cqes, budgets, .. } = self;
        let pool = rig.free_buffers(usize::MAX).len();
        let mut steps: Vec<_> = (1..=pool).map(Step::Post).collect();
        if pool > 0 && rig.device.is_srq() {
            steps.push(Step::Load);
        }
        for held in &rig.held {
            steps.extend([true, false].map(|recycle| Step::GiveBack(held.slot, recycle)));
        }
        let begin = |at: Option<u32>| budgets.iter().map(move |&budget| Step::Begin(budget, at));
        match *cqes {
            Cqes::Wait => {
                if rig.cq_device.has_room() {
                    let all = completions(&rig.device);
                    steps.extend(all.map(|(slot, kind)| Step::Complete(slot, kind)));
                }
                steps.extend(begin(None));
            }
            Cqes::Asked(before_end) => {
                steps.extend(before_end.iter().flat_map(|&at| begin(Some(at))));
            }
        }
        steps
    }

    /// Takes a step between batches.
    fn step(&mut self, step: Step) {
        let rig = &mut self.rig;
        match step {
            Step::Post(count) => {
                let buffers = rig.free_buffers(count);
                rig.post(&buffers);
            }
            Step::Load => {
                let buffer = rig.free_buffer().expect("there is one");
                rig.load(buffer);
            }
            Step::Complete(slot, kind) => {
                let position = rig.device.position(slot);
                rig.complete_as(position, kind.opcode(), false);
            }
            Step::GiveBack(slot, recycle) => {
                let index = rig.held.iter().position(|held| held.slot == slot).unwrap();
                rig.give_back(index, recycle);
            }
            Step::Begin(..) => unreachable!("it opens a batch"),
        }
    }

    /// Opens the batch of a state again.
    fn open(&mut self, node: &Node<Q>) -> Open<'_, '_, Q> {
        self.rig.restore(&node.base);
        if let Some(before_end) = node.before_end {
            self.rig.start_cq_at(FAR - before_end);
        }
        let (receiving, beside) = self.rig.batch(node.budget);
        let mut open = Open { receiving, beside, left: node.budget };
        node.calls.iter().for_each(|&call| open.apply(call));
        open
    }

    /// Opens the batch of a state again, and ends it.
    fn close(&mut self, node: &Node<Q>, call: Call) {
        let Open { mut receiving, .. } = self.open(node);
        match call {
            Call::Forget(count) => {
                receiving.note();
                forget(receiving);
                let buffers = self.rig.free_buffers(count);
                self.rig.recover(&buffers);
            }
            _ => {
                drop(receiving);
                self.rig.finish();
            }
        }
    }

    fn is_new(&mut self, key: &[u8]) -> bool {
        self.transitions += 1;
        let hash = |salt: u8| {
            u128::from(BuildHasherDefault::<DefaultHasher>::default().hash_one((salt, key)))
        };
        self.seen.insert(hash(0) << 64 | hash(1))
    }

    /// The state between batches, if it is new.
    fn arrive(&mut self) -> Option<Rc<Saved<Q>>> {
        let cqes = self.cqes;
        let (queue, _, beside) = self.rig.parts();
        let key = key(queue, &beside, cqes);
        self.is_new(&key).then(|| Rc::new(self.rig.save()))
    }

    /// The state in a batch, if it is new.
    fn arrive_in(&mut self, node: Node<Q>) -> Option<Node<Q>> {
        let cqes = self.cqes;
        let mut open = self.open(&node);
        let key = open.key(cqes);
        forget(open);
        self.is_new(&key).then_some(node)
    }

    /// Does all that can be done in a batch. Returns new states between batches.
    fn expand_batch(&mut self, first: Node<Q>) -> Vec<Rc<Saved<Q>>> {
        let mut found = Vec::new();
        let mut nodes = VecDeque::from_iter(self.arrive_in(first));
        while let (true, Some(node)) = (self.seen.len() < self.limit, nodes.pop_front()) {
            let cqes = self.cqes;
            let open = self.open(&node);
            let calls = open.calls(cqes, node.calls.is_empty());
            forget(open);
            for call in calls {
                let longer = || [&node.calls[..], &[call]].concat();
                let _tell = OnPanic(|| println!("budget {}: {:?}", node.budget, longer()));
                if matches!(call, Call::End | Call::Forget(_)) {
                    self.close(&node, call);
                    found.extend(self.arrive());
                } else if node.calls.len() < self.longest {
                    let node = Node { base: node.base.clone(), calls: longer(), ..node };
                    nodes.extend(self.arrive_in(node));
                }
            }
        }
        found
    }

    /// Does all that can be done between batches and in the batch that may start now. Returns new states
    /// between batches.
    fn expand(&mut self, base: &Rc<Saved<Q>>) -> Vec<Rc<Saved<Q>>> {
        self.rig.restore(base);
        let mut found = Vec::new();
        for step in self.steps() {
            let _tell = OnPanic(|| println!("{step:?}"));
            if let Step::Begin(budget, before_end) = step {
                let base = base.clone();
                let first = Node { base, budget, before_end, calls: Vec::new() };
                found.extend(self.expand_batch(first));
            } else {
                self.rig.restore(base);
                self.step(step);
                found.extend(self.arrive());
            }
        }
        found
    }

    /// Explores from an empty queue, until the limit. Returns whether that is all.
    fn run(&mut self) -> bool {
        let mut frontier = VecDeque::from_iter(self.arrive());
        while let (true, Some(base)) = (self.seen.len() < self.limit, frontier.pop_front()) {
            match catch_unwind(AssertUnwindSafe(|| self.expand(&base))) {
                Ok(found) => frontier.extend(found),
                Err(panic) => {
                    self.rig.restore(&base);
                    println!("in {}", self.rig.describe());
                    resume_unwind(panic);
                }
            }
        }
        self.seen.len() < self.limit
    }
}

/// Says what was being done when a test panics.
struct OnPanic<F: Fn()>(F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

/// What is explored.
struct Extent {
    slots: u32,
    cqes: Cqes,
    budgets: &'static [u32],
    /// Calls of a batch at most, but for its end.
    longest: usize,
}

const ALL: usize = usize::MAX;

impl Extent {
    /// Until so many states are known.
    fn explore<Q: TestQueue>(&self, limit: usize) {
        let began = Instant::now();
        let mut explorer = Explorer::<Q>::new(self, limit);
        let all = explorer.run();
        let (states, seconds) = (explorer.seen.len(), began.elapsed().as_secs_f64());
        println!(
            "{}, {self}: {states} states{}, {} transitions, {seconds:.1} s",
            if explorer.rig.device.is_srq() { "SRQ" } else { "RQ" },
            if all { ", which are all" } else { "" },
            explorer.transitions,
        );
        assert_eq!(all, limit == ALL);
    }

    fn both(&self, limit: usize) {
        self.explore::<SharedReceiveQueue<u32>>(limit);
        self.explore::<ReceiveQueue<u32>>(limit);
    }
}

impl Display for Extent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { slots, cqes, longest, .. } = self;
        write!(f, "{slots} slots, ")?;
        match cqes {
            Cqes::Wait => write!(f, "CQEs that wait")?,
            Cqes::Asked(places) => write!(f, "{} places of the CQ", places.len())?,
        }
        write!(f, ", {} budgets, batches of ", self.budgets.len())?;
        if *longest == ALL { write!(f, "any length") } else { write!(f, "{longest} calls") }
    }
}

const TWO: Extent = Extent { slots: 2, cqes: Cqes::Wait, budgets: &[1, 2, ANY], longest: ALL };
const FOUR: Extent =
    Extent { slots: 4, cqes: Cqes::Asked(&[1, 2, 3, FAR]), budgets: &[1, 2, 3, ANY], longest: ALL };
/// Batches of one completion, which is given back or not.
const EIGHT: Extent = Extent { slots: 8, cqes: Cqes::Asked(&[FAR]), budgets: &[ANY], longest: 2 };

#[test]
fn all_states_of_an_srq_of_2() {
    TWO.explore::<SharedReceiveQueue<u32>>(ALL);
}

#[test]
fn all_states_of_an_rq_of_1_and_2() {
    Extent { slots: 1, ..TWO }.explore::<ReceiveQueue<u32>>(ALL);
    TWO.explore::<ReceiveQueue<u32>>(ALL);
}

#[test]
fn all_states_of_queues_of_4() {
    // Where the CPU is likely to be emulated, one place of the CQ must do.
    let one = Extent { cqes: Cqes::Asked(&[2]), budgets: &[ANY], ..FOUR };
    if cfg!(target_arch = "aarch64") { &one } else { &FOUR }.both(ALL);
}

#[test]
fn states_of_queues_of_8() {
    let limit = if cfg!(target_arch = "aarch64") { 4_000 } else { 40_000 };
    EIGHT.both(limit);
    Extent { longest: ALL, ..EIGHT }.both(limit);
}

#[test]
#[ignore = "takes long: make explore"]
fn all_states_of_queues_of_4_with_cqes_that_wait() {
    Extent { cqes: Cqes::Wait, ..FOUR }.both(ALL);
}

#[test]
#[ignore = "takes long: make explore"]
fn all_states_of_an_srq_of_8() {
    EIGHT.explore::<SharedReceiveQueue<u32>>(ALL);
}
