//! Waiting for messages, never for ever.

use std::thread;
use std::time::{Duration, Instant};

use doorbell::{Buffer, Failure, Message, Receiver, WcStatus};

use crate::sending_qp::SendingQp;

/// Longest time without progress. Even a very busy machine runs each thread within this time.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Calls `done` until it returns true.
pub fn wait(what: &str, mut done: impl FnMut() -> bool) {
    wait_for(what, || done().then_some(()));
}

/// Calls `attempt` until it returns something.
pub fn wait_for<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    let mut rounds = 0u32;
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        rounds += 1;
        if rounds % 64 == 0 {
            assert!(began.elapsed() < PATIENCE, "waiting for {what}: nothing for {PATIENCE:?}");
            // The device may need this core.
            thread::yield_now();
        }
    }
}

impl SendingQp {
    /// Waits for the end of the next request, and returns how it ended.
    pub fn ended(&mut self) -> WcStatus {
        wait_for("the end of a send", || self.poll_send()).status
    }
}

/// Polls until `count` messages have come, and calls `each` for each of them.
pub fn messages(receiver: &mut Receiver, count: usize, mut each: impl FnMut(Message<'_>)) {
    let mut seen = 0;
    while seen < count {
        wait("a message", || {
            let before = seen;
            let mut batch = receiver.poll();
            while seen < count {
                match batch.next() {
                    Some(Ok(message)) => each(message),
                    Some(Err(failure)) => panic!("{failure}"),
                    None => break,
                }
                seen += 1;
            }
            seen > before
        });
    }
}

/// The next `count` messages, each taken.
pub fn take(receiver: &mut Receiver, count: usize) -> Vec<Buffer> {
    let mut taken = Vec::new();
    messages(receiver, count, |message| taken.push(message.take().unwrap()));
    taken
}

/// Polls until `count` receives have failed.
pub fn failures(receiver: &mut Receiver, count: usize) -> Vec<Failure> {
    let mut failures = Vec::new();
    wait("a failed receive", || {
        let mut batch = receiver.poll();
        while let Some(next) = batch.next() {
            match next {
                Ok(message) => panic!("{message:?} arrived"),
                Err(failure) => failures.push(failure),
            }
        }
        failures.len() >= count
    });
    failures
}

/// Asserts that nothing arrives for a while.
pub fn nothing(receiver: &mut Receiver) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(50) {
        if let Some(found) = receiver.poll().next() {
            panic!("nothing should arrive, but {found:?} did");
        }
        thread::yield_now();
    }
}
