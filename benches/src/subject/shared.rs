//! Buffers that threads give back one by one: through a `SharedPoster`, or with a mutex around the receiver.
//!
//! The thread of the receiver and the other thread run on two cores. They wait for each other busily, so that no
//! measurement includes the wakeup of a thread.

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver as Jobs, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use doorbell::{Buffer, QueueId, QueuePair, Receiver, SharedPoster};

use super::safe::{self, pool};
use super::{Subject, unexpected};
use crate::name::Givers;
use crate::pin::pin;
use crate::sum::Sum;
use crate::world::{Objects, World};

/// Where a round is.
const IDLE: u32 = 0;
const READY: u32 = 1;
const GO: u32 = 2;
const DONE: u32 = 3;

/// How a thread gives a buffer back.
#[derive(Clone)]
enum Way {
    Poster(SharedPoster),
    Mutex(Arc<Mutex<Receiver>>, QueueId),
}

impl Way {
    #[inline(always)]
    fn give_back(&self, buffer: Buffer) {
        let refused = match self {
            Self::Poster(poster) => poster.post(buffer).is_err(),
            Self::Mutex(receiver, queue) => lock(receiver).post(*queue, [buffer]).is_err(),
        };
        if refused {
            unexpected();
        }
    }
}

fn lock(receiver: &Mutex<Receiver>) -> impl std::ops::DerefMut<Target = Receiver> {
    receiver.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The other thread.
struct Other {
    /// The buffers that it gives back next.
    jobs: Sender<Vec<Buffer>>,
    state: Arc<AtomicU32>,
    thread: JoinHandle<()>,
}

/// `wr_id` of a buffer is its address.
struct Shared {
    receiver: Arc<Mutex<Receiver>>,
    way: Way,
    /// Buffers of messages that were taken, and buffers that this thread gives back.
    buffers: Vec<Buffer>,
    givers: Givers,
    other: Option<Other>,
    _qps: Vec<QueuePair>,
}

pub(super) fn make(world: &World, objects: &Objects, givers: Givers, poster: bool) -> Box<dyn Subject> {
    let (mut receiver, queues, qps) = safe::receiver(world, objects);
    let queue = queues[0];
    let pool = pool(world, objects.shape);
    assert_eq!(receiver.fill(queue, &pool).unwrap(), objects.shape.receives() as usize);
    let poster = poster.then(|| receiver.shared_poster(queue).expect("a poster"));
    let receiver = Arc::new(Mutex::new(receiver));
    let way = match poster {
        Some(poster) => Way::Poster(poster),
        None => Way::Mutex(Arc::clone(&receiver), queue),
    };
    let other = (givers != Givers::Own).then(|| {
        let (sender, jobs) = mpsc::channel();
        let state = Arc::new(AtomicU32::new(IDLE));
        let (theirs, way) = (Arc::clone(&state), way.clone());
        let thread = thread::spawn(move || work(&jobs, &theirs, &way));
        Other { jobs: sender, state, thread }
    });
    Box::new(Shared { receiver, way, buffers: Vec::new(), givers, other, _qps: qps })
}

/// The other thread, until its subject is dropped.
fn work(jobs: &Jobs<Vec<Buffer>>, state: &AtomicU32, way: &Way) {
    pin(1);
    for buffers in jobs {
        state.store(READY, Ordering::Release);
        wait_for(state, GO);
        for buffer in buffers {
            way.give_back(buffer);
        }
        state.store(DONE, Ordering::Release);
    }
}

fn wait_for(state: &AtomicU32, wanted: u32) {
    while state.load(Ordering::Acquire) != wanted {
        hint::spin_loop();
    }
}

impl Subject for Shared {
    fn poll(&mut self, count: u32, batch: u32) -> Sum {
        let mut sum = Sum::default();
        let mut receiver = lock(&self.receiver);
        let mut left = count;
        while left > 0 {
            let mut lent = receiver.poll_up_to(batch);
            while let Some(message) = lent.next() {
                let Ok(message) = message else { unexpected() };
                let Ok(buffer) = message.take() else { unexpected() };
                sum.add(buffer.as_ptr() as u64, buffer.len() as u64);
                self.buffers.push(buffer);
                left -= 1;
            }
        }
        sum
    }

    fn cycle(&mut self, count: u32, batch: u32) -> Sum {
        let sum = self.poll(count, batch);
        self.prepare(batch);
        self.post(batch);
        sum
    }

    fn prepare(&mut self, _batch: u32) {
        let Some(other) = &self.other else { return };
        let own = if self.givers == Givers::Both { self.buffers.len() / 2 } else { 0 };
        if other.jobs.send(self.buffers.split_off(own)).is_err() {
            unexpected();
        }
        wait_for(&other.state, READY);
    }

    fn post(&mut self, _batch: u32) {
        if let Some(other) = &self.other {
            other.state.store(GO, Ordering::Release);
        }
        for buffer in self.buffers.drain(..) {
            self.way.give_back(buffer);
        }
        if let Some(Other { state, .. }) = &self.other {
            while self.givers == Givers::Other && state.load(Ordering::Acquire) != DONE {
                if lock(&self.receiver).poll().next().is_some() {
                    unexpected();
                }
            }
            wait_for(state, DONE);
        }
        // Buffers from a poster are posted here; with a mutex they were posted already.
        if matches!(self.way, Way::Poster(_)) {
            lock(&self.receiver).refill();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(Other { jobs, thread, .. }) = self.other.take() else { return };
        drop(jobs);
        // The thread has the receiver, too, which must not outlive the device.
        drop(thread.join());
    }
}
