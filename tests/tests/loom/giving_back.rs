//! Every order in which the owner of a receiver can fall asleep, or leave, while other threads give buffers back.

use std::sync::Arc as Shared;
use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed as Counting};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// The primitives that the files use here.
mod sync {
    use std::collections::VecDeque;

    use loom::sync::Mutex;
    use loom::sync::atomic::AtomicUsize;
    pub use loom::sync::atomic::{AtomicU8, Ordering, fence};

    /// Must not order anything by itself: its length is relaxed, and the lock protects the values only.
    pub struct ArrayQueue<T> {
        values: Mutex<VecDeque<T>>,
        len: AtomicUsize,
        capacity: usize,
    }

    impl<T> ArrayQueue<T> {
        pub fn new(capacity: usize) -> Self {
            Self { values: Mutex::new(VecDeque::new()), len: AtomicUsize::new(0), capacity }
        }

        pub fn push(&self, value: T) -> Result<(), T> {
            let mut values = self.values.lock().unwrap();
            if values.len() == self.capacity {
                return Err(value);
            }
            values.push_back(value);
            drop(values);
            self.len.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        pub fn pop(&self) -> Option<T> {
            if self.is_empty() {
                return None;
            }
            let value = self.values.lock().unwrap().pop_front()?;
            self.len.fetch_sub(1, Ordering::Relaxed);
            Some(value)
        }

        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        pub fn len(&self) -> usize {
            self.len.load(Ordering::Relaxed)
        }
    }
}

#[path = "../../../src/receiver/maintain/handover.rs"]
mod handover;
#[path = "../../../src/receiver/maintain/wake_state.rs"]
mod wake_state;

use handover::Handover;
use wake_state::WakeState;

/// A buffer. Dropping it returns it to its pool.
struct Buffer(Shared<Count>);

impl Drop for Buffer {
    fn drop(&mut self) {
        self.0.fetch_add(1, Counting);
    }
}

/// The fields of a `SharedPoster`. `signals` stands for the event descriptor.
struct Poster {
    wake_state: WakeState,
    buffers: Handover<Buffer>,
    signals: AtomicUsize,
    pool: Shared<Count>,
}

impl Poster {
    fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            wake_state: WakeState::new(),
            buffers: Handover::new(capacity),
            signals: AtomicUsize::new(0),
            pool: Shared::default(),
        })
    }

    fn give(&self) {
        if self.buffers.give(&self.wake_state, Buffer(Shared::clone(&self.pool))) {
            self.signals.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn in_pool(&self) -> usize {
        self.pool.load(Counting)
    }
}

/// A thread for each that gives a buffer.
fn givers(poster: &Arc<Poster>, count: usize) -> Vec<thread::JoinHandle<()>> {
    let spawn = |_| {
        let poster = poster.clone();
        thread::spawn(move || poster.give())
    };
    (0..count).map(spawn).collect()
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Runs a model in every order with at most `preemptions` preemptions. The model must return `true` in some orders and
/// `false` in others, or it would prove nothing.
fn explore(preemptions: Option<usize>, model: impl Fn() -> bool + Send + Sync + 'static) {
    let seen: Shared<[Count; 2]> = Shared::default();
    let inside = Shared::clone(&seen);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        inside[usize::from(model())].fetch_add(1, Counting);
    });
    assert!(seen.iter().all(|count| count.load(Counting) > 0), "{seen:?}");
}

fn sleeps(count: usize) -> bool {
    let poster = Poster::new(count);
    let threads = givers(&poster, count);
    poster.wake_state.park();
    let asleep = poster.buffers.is_empty();
    join(threads);
    let signals = poster.signals.load(Ordering::Relaxed);
    assert!(signals <= 1, "one wakes");
    assert!(!asleep || signals == 1, "it sleeps on, with something in its queue");
    poster.wake_state.unpark();
    asleep
}

#[test]
fn buffers_returned_while_the_owner_falls_asleep_wake_it() {
    [1, 2].into_iter().for_each(|count| explore(None, move || sleeps(count)));
}

/// The owner closes, awake or after it slept. Afterwards no thread touches its queue.
fn leaves(count: usize, capacity: usize, slept: bool) -> bool {
    let poster = Poster::new(capacity);
    let threads = givers(&poster, count);
    if slept {
        poster.wake_state.park();
        poster.wake_state.unpark();
    }
    poster.wake_state.close();
    poster.buffers.clear();
    let before = poster.in_pool();
    join(threads);
    assert_eq!((poster.in_pool(), poster.buffers.len()), (count, 0), "a buffer is never taken");
    assert!(poster.signals.load(Ordering::Relaxed) <= 1, "one wakes");
    before == count
}

#[test]
fn buffers_returned_while_the_owner_closes_go_to_the_pool() {
    for (preemptions, count, capacity, slept) in [
        (None, 1, 1, false),
        (Some(2), 2, 2, false),
        // More than there is room for.
        (Some(2), 2, 1, false),
        (None, 1, 1, true),
    ] {
        println!("{count} give, room for {capacity}, slept: {slept}");
        explore(preemptions, move || leaves(count, capacity, slept));
    }
}

/// A buffer that the owner takes is the owner's; any other buffer goes back to the pool.
#[test]
fn a_buffer_returned_while_the_owner_takes_and_closes_is_in_one_place() {
    explore(None, || {
        let poster = Poster::new(1);
        let threads = givers(&poster, 1);
        let taken = poster.buffers.take();
        poster.wake_state.close();
        poster.buffers.clear();
        join(threads);
        assert_eq!(poster.in_pool() + usize::from(taken.is_some()), 1, "it is in one place");
        taken.is_some()
    });
}
