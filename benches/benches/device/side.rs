//! Interface of a library to the measurements: two queue pairs of one thread, connected to each other.

use std::time::{Duration, Instant};

/// Messages up to this long are copied into the WQE.
pub const INLINE: usize = 64;
/// Longest message.
pub const LONGEST: usize = 4096;
/// Receives of a queue, and twice the messages on their way in a burst.
pub const RECEIVES: u32 = 256;

/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two connected ends, 0 and 1, driven by one library.
pub trait Side {
    /// Sends a message.
    fn send(&mut self, from: usize, len: usize);
    /// Receives at most `most` messages and posts their receives again; returns how many.
    fn receive(&mut self, at: usize, most: u32) -> u32;
    /// Writes into the memory of the other end; the last byte is `last`.
    fn write(&mut self, from: usize, len: usize, last: u8);
    /// The byte of the own memory that a write of `len` bytes writes last.
    fn last_byte(&self, at: usize, len: usize) -> u8;
    /// Reads from the memory of the other end.
    fn read(&mut self, len: usize);
    /// Returns `true` if the read has completed.
    fn has_read(&mut self) -> bool;
    /// Sends `count` messages with one doorbell.
    fn burst(&mut self, count: u32, len: usize);
    /// Takes the completions of sends that are there.
    fn reap(&mut self);
}

/// Repeats `done` until it returns `true`.
#[inline(always)]
pub fn until(mut done: impl FnMut() -> bool) {
    let mut began = None;
    loop {
        for _ in 0..10_000 {
            if done() {
                return;
            }
        }
        let began: &Instant = began.get_or_insert_with(Instant::now);
        assert!(began.elapsed() < PATIENCE, "the device did nothing for {PATIENCE:?}");
    }
}

/// Half of the time of a message there and one back.
pub fn send_and_answer(side: &mut impl Side, len: usize) -> Duration {
    let began = Instant::now();
    for from in [0, 1] {
        side.send(from, len);
        until(|| side.receive(1 - from, 1) == 1);
    }
    let time = began.elapsed() / 2;
    side.reap();
    time
}

/// Half of the time of a write there and one back, each seen in the memory that it writes.
pub fn write_and_answer(side: &mut impl Side, len: usize, last: &mut u8) -> Duration {
    *last = last.wrapping_add(1);
    let began = Instant::now();
    for from in [0, 1] {
        side.write(from, len, *last);
        until(|| side.last_byte(1 - from, len) == *last);
    }
    let time = began.elapsed() / 2;
    side.reap();
    time
}

/// A read, to its completion.
pub fn read(side: &mut impl Side, len: usize) -> Duration {
    let began = Instant::now();
    side.read(len);
    until(|| side.has_read());
    began.elapsed()
}

/// `count` messages of 32 bytes, of which `batch` are posted with one doorbell, and half of the receives are used.
pub fn stream(side: &mut impl Side, count: u32, batch: u32) -> Duration {
    let (mut sent, mut received) = (0, 0);
    let began = Instant::now();
    until(|| {
        if sent < count && sent - received + batch <= RECEIVES / 2 {
            side.burst(batch, 32);
            sent += batch;
        }
        side.reap();
        received += side.receive(1, batch);
        received == count
    });
    began.elapsed()
}

/// `count` messages of 4 KiB, which the queue pairs of an end send in turn, and half of the receives are used.
pub fn stream_in_turn(side: &mut impl Side, count: u32) -> Duration {
    let (mut sent, mut received) = (0, 0);
    let began = Instant::now();
    until(|| {
        if sent < count && sent - received < RECEIVES / 2 {
            side.send(0, LONGEST);
            sent += 1;
        }
        side.reap();
        received += side.receive(1, 32);
        received == count
    });
    began.elapsed()
}
