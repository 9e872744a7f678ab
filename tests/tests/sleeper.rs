//! Every order in which the owner of a receiver can fall asleep while other threads give buffers back.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize as Count;

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// What the file is built on here.
mod sync {
    pub use loom::sync::atomic::{AtomicBool, Ordering, fence};
}

#[path = "../../src/receiver/upkeep/sleeper.rs"]
mod sleeper;

use sleeper::Sleeper;

/// Stands for the queue and the event descriptor. The queue must not order anything by itself: its length is
/// relaxed, and the lock protects the values only.
struct World {
    sleeper: Sleeper,
    values: Mutex<VecDeque<usize>>,
    len: AtomicUsize,
    signals: AtomicUsize,
}

impl World {
    fn put(&self, value: usize) {
        self.values.lock().unwrap().push_back(value);
        self.len.fetch_add(1, Ordering::Relaxed);
        if self.sleeper.must_be_woken() {
            self.signals.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn explore(givers: usize) {
    let (slept, saw) = (std::sync::Arc::new(Count::new(0)), std::sync::Arc::new(Count::new(0)));
    let (slept_inside, saw_inside) = (slept.clone(), saw.clone());
    loom::model(move || {
        let world = Arc::new(World {
            sleeper: Sleeper::new(),
            values: Mutex::new(VecDeque::new()),
            len: AtomicUsize::new(0),
            signals: AtomicUsize::new(0),
        });
        let threads: Vec<_> = (0..givers)
            .map(|value| {
                let world = world.clone();
                thread::spawn(move || world.put(value))
            })
            .collect();
        world.sleeper.doze();
        let asleep = world.len.load(Ordering::Relaxed) == 0;
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let signals = world.signals.load(Ordering::Relaxed);
        assert!(signals <= 1, "one wakes");
        assert!(!asleep || signals == 1, "it sleeps on, with something in its queue");
        let what = if asleep { &slept_inside } else { &saw_inside };
        what.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        world.sleeper.rise();
    });
    // Both happen, or the model proves nothing.
    assert!(slept.load(std::sync::atomic::Ordering::Relaxed) > 0);
    assert!(saw.load(std::sync::atomic::Ordering::Relaxed) > 0);
}

#[test]
fn one_that_gives() {
    explore(1);
}

#[test]
fn two_that_give() {
    explore(2);
}
