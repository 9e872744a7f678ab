//! Goes through all states, on all processors.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hasher};
use std::println;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::vec::Vec;

use super::Extent;
use super::state::{ENTRIES, FAR_OFF, State};
use super::steps::{Call, Cqes, Open, Step, steps, take};
use crate::testing::{Rig, TestQueue};

/// States that a thread takes at once.
const SHARE: usize = 64;

/// States from one line that tells how many are known to the next.
const TELL: usize = 5_000_000;

/// Fingerprints of 128 bits of the states that are known, in parts that threads seldom contend for.
struct Seen {
    parts: Vec<Mutex<HashSet<u128, BuildHasherDefault<Folded>>>>,
    len: AtomicUsize,
}

/// A fingerprint is as good as a hash.
#[derive(Default)]
struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("fingerprints are numbers")
    }

    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = fingerprint as u64;
    }
}

impl Seen {
    fn new() -> Self {
        Self { parts: (0..64).map(|_| Mutex::default()).collect(), len: AtomicUsize::new(0) }
    }

    /// Whether the state is new.
    fn insert(&self, state: &State) -> bool {
        let hash = |salt: u8| {
            let hash =
                BuildHasherDefault::<DefaultHasher>::default().hash_one((salt, state.bytes()));
            u128::from(hash)
        };
        let fingerprint = hash(0) << 64 | hash(1);
        let part = (fingerprint >> 122) as usize;
        let new = self.parts[part].lock().unwrap().insert(fingerprint);
        self.len.fetch_add(new.into(), Ordering::Relaxed);
        new
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }
}

/// States of which is not known yet what follows.
#[derive(Default)]
struct Frontier {
    states: VecDeque<State>,
    /// Threads that may find more.
    busy: usize,
    /// The most that there were.
    longest: usize,
    /// States that were known when that was last told.
    told: usize,
}

/// What is known of a queue of one kind.
pub struct Search<'a> {
    extent: &'a Extent,
    limit: usize,
    seen: Seen,
    frontier: Mutex<Frontier>,
    more: Condvar,
    failed: AtomicBool,
    transitions: AtomicU64,
}

/// What a search has found.
pub struct Found {
    pub all: bool,
    pub states: usize,
    pub transitions: u64,
    /// The most that waited at once.
    pub frontier: usize,
}

impl<'a> Search<'a> {
    /// Of no more states than `limit`.
    pub fn new(extent: &'a Extent, limit: usize) -> Self {
        Self {
            extent,
            limit,
            seen: Seen::new(),
            frontier: Mutex::default(),
            more: Condvar::new(),
            failed: AtomicBool::new(false),
            transitions: AtomicU64::new(0),
        }
    }

    /// Goes on from a queue that is empty.
    pub fn run<Q: TestQueue>(self) -> Found {
        let mut explorer = Explorer::<Q>::new(&self);
        let first = State::of(&mut explorer.rig, self.extent.waits());
        explorer.arrive(first);
        self.frontier.lock().unwrap().states.extend(explorer.found);
        // With a limit it is the same states each time.
        let threads = match self.limit {
            usize::MAX => thread::available_parallelism().map_or(1, usize::from),
            _ => 1,
        };
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| Explorer::<Q>::new(&self).work());
            }
        });
        let states = self.seen.len();
        Found {
            all: states < self.limit,
            states,
            transitions: self.transitions.into_inner(),
            frontier: self.frontier.into_inner().unwrap().longest,
        }
    }

    /// The next states, of a thread that has found these; `None` when there are no more.
    fn exchange(&self, found: &mut Vec<State>, worked: bool) -> Option<Vec<State>> {
        let mut frontier = self.frontier.lock().unwrap_or_else(PoisonError::into_inner);
        frontier.busy -= usize::from(worked);
        frontier.states.extend(found.drain(..));
        frontier.longest = frontier.longest.max(frontier.states.len());
        loop {
            let over = self.seen.len() >= self.limit || self.failed.load(Ordering::Relaxed);
            if over || frontier.busy == 0 && frontier.states.is_empty() {
                self.more.notify_all();
                return None;
            }
            if !frontier.states.is_empty() {
                break;
            }
            frontier = self.more.wait(frontier).unwrap();
        }
        frontier.busy += 1;
        if self.seen.len() >= frontier.told + TELL {
            frontier.told = self.seen.len();
            println!("{} states, {} to be gone on from", frontier.told, frontier.states.len());
        }
        let share = SHARE.min(frontier.states.len());
        let share = frontier.states.drain(..share).collect();
        self.more.notify_all();
        Some(share)
    }
}

/// One thread.
struct Explorer<'a, Q> {
    search: &'a Search<'a>,
    rig: Rig<Q>,
    found: Vec<State>,
    transitions: u64,
}

impl<'a, Q: TestQueue> Explorer<'a, Q> {
    fn new(search: &'a Search<'a>) -> Self {
        let Extent { slots, cqes, .. } = *search.extent;
        let entries = if let Cqes::Wait(entries) = cqes { entries } else { ENTRIES };
        let rig = Rig::new(slots, slots as usize + 1, entries);
        Self { search, rig, found: Vec::new(), transitions: 0 }
    }

    fn work(mut self) {
        let _failed = OnPanic(|| {
            self.search.failed.store(true, Ordering::Relaxed);
            self.search.more.notify_all();
        });
        let mut share = self.search.exchange(&mut self.found, false);
        while let Some(states) = share {
            states.iter().for_each(|state| self.expand(state));
            share = self.search.exchange(&mut self.found, true);
        }
        self.search.transitions.fetch_add(self.transitions, Ordering::Relaxed);
    }

    fn arrive(&mut self, state: State) {
        self.transitions += 1;
        if self.search.seen.insert(&state) {
            self.found.push(state);
        }
    }

    /// Does all that can be done in a state.
    fn expand(&mut self, state: &State) {
        let extent = self.search.extent;
        let waits = extent.waits();
        state.restore(&mut self.rig, waits);
        let calls = state.open(&mut self.rig).map(|mut open| {
            assert_eq!(State::in_batch(&mut open, waits), *state);
            open.calls(extent)
        });
        for call in calls.into_iter().flatten() {
            let _tell = OnPanic(|| println!("{call:?} in {state:?}"));
            state.restore(&mut self.rig, waits);
            let next = self.call(state, call);
            self.arrive(next);
        }
        if state.is_in_batch() {
            return;
        }
        assert_eq!(State::of(&mut self.rig, waits), *state);
        for step in steps(&self.rig, extent) {
            let _tell = OnPanic(|| println!("{step:?} in {state:?}"));
            state.restore(&mut self.rig, waits);
            let next = self.step(step);
            self.arrive(next);
        }
    }

    fn step(&mut self, step: Step) -> State {
        let waits = self.search.extent.waits();
        if let Step::Begin(by, budget, before_end) = step {
            if let Some(before_end) = before_end {
                let index = self.rig.cq_device.index_at(before_end.min(FAR_OFF), true);
                self.rig.start_cq_at(index);
            }
            return State::in_batch(&mut Open::new(&mut self.rig, by, budget), waits);
        }
        take(&mut self.rig, step);
        State::of(&mut self.rig, waits)
    }

    fn call(&mut self, state: &State, call: Call) -> State {
        let waits = self.search.extent.waits();
        let mut open = state.open(&mut self.rig).expect("it is in a batch");
        match call {
            Call::End => {
                open.end();
                self.rig.finish();
            }
            Call::Forget(count) => {
                let unsure = open.forget();
                let buffers = self.rig.free_buffers(count);
                self.rig.recover_with(&buffers, unsure);
            }
            call => {
                open.apply(call);
                return State::in_batch(&mut open, waits);
            }
        }
        State::of(&mut self.rig, waits)
    }
}

/// Says what was being done when a test panics.
struct OnPanic<F: Fn()>(F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)();
        }
    }
}
