//! A queue pair that sends and receives, for times: the same on this host and on the peer.

use std::time::Instant;

use doorbell::{BufferPool, CqConfig, DataPath, NotSent, PoolConfig, QpAddress, QueuePair, Receiver, RqConfig, Sender};

use super::far::config;
use super::lab::{Lab, Patience};
use super::stop::{Stop, fail};

const RECEIVES: u32 = 256;
const BATCH: u32 = 32;
/// Bytes of each message.
const MESSAGE: &[u8; 8] = b"doorbell";

/// One end of a connection.
pub struct TwoWay {
    receiver: Receiver,
    sender: Sender,
    qp: QueuePair,
    _pool: BufferPool,
    /// Messages that were sent and have not completed.
    outstanding: u32,
}

impl TwoWay {
    /// Makes an end, with receives posted.
    pub fn new(lab: &Lab, path: DataPath) -> Result<Self, Stop> {
        let receiving = CqConfig::new(RECEIVES).path(path);
        let mut receiver = Receiver::new(&lab.pd, &receiving)?;
        let mut sender = Sender::new(&lab.pd, &CqConfig::new(256).path(path))?;
        let config = config(lab, false).max_send_wr(2 * BATCH).max_inline(32);
        let qp =
            QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(RECEIVES)).send(&mut sender).build()?;
        let pool = BufferPool::new(&lab.pd, &PoolConfig::new(RECEIVES, 64))?;
        receiver.fill(qp.receive_queue().ok_or("no receive queue")?, &pool)?;
        let mut witness = lab.witness.borrow_mut();
        witness.made("queue pairs", 1);
        witness.made("CQs", 2);
        Ok(Self { receiver, sender, qp, _pool: pool, outstanding: 0 })
    }

    /// Returns its address.
    pub fn address(&self) -> Result<QpAddress, Stop> {
        Ok(self.qp.address()?)
    }

    /// Connects it to the other end.
    pub fn connect(&mut self, other: &QpAddress) -> Result<(), Stop> {
        Ok(self.qp.connect(other)?)
    }

    /// Sends messages, with one doorbell.
    fn send(&mut self, count: u32) -> Result<(), Stop> {
        self.completed(2 * BATCH - count)?;
        let mut posting = self.sender.post_many(self.qp.send_queue().ok_or(NotSent::NoQueue)?)?;
        for _ in 0..count {
            posting.send(MESSAGE)?;
        }
        self.outstanding += count;
        Ok(())
    }

    /// Waits until at most `left` sends are outstanding.
    fn completed(&mut self, left: u32) -> Result<(), Stop> {
        let mut patience = Patience::new();
        while self.outstanding > left {
            let before = self.outstanding;
            let mut done = self.sender.poll();
            while let Some(send) = done.next() {
                self.outstanding -= 1;
                if let Err(failure) = send {
                    return fail(format!("a send completed with {}", failure.status));
                }
            }
            drop(done);
            match self.outstanding < before {
                true => patience.renew(),
                false => patience.wait(|| format!("{before} sends that have no completion"))?,
            }
        }
        Ok(())
    }

    /// Takes messages, as many as there are up to that number, and waits for the first.
    fn take(&mut self, most: u32) -> Result<u32, Stop> {
        let patience = Patience::new();
        loop {
            let (mut taken, mut batch) = (0, self.receiver.poll_up_to(most));
            while let Some(message) = batch.next() {
                if message?[..] != MESSAGE[..] {
                    return fail("a message of other bytes than were sent");
                }
                taken += 1;
            }
            drop(batch);
            if taken > 0 {
                return Ok(taken);
            }
            if self.outstanding > 0 {
                self.completed(self.outstanding - 1)?;
                continue;
            }
            patience.wait(|| "a message that does not arrive".into())?;
        }
    }

    /// Answers `count` messages, each with one.
    pub fn answer(&mut self, count: u32) -> Result<(), Stop> {
        for _ in 0..count {
            self.take(1)?;
            self.send(1)?;
        }
        self.completed(0)
    }

    /// Sends a message and waits for its answer, `count` times; returns half of each time, in microseconds.
    pub fn round_trips(&mut self, count: u32) -> Result<Vec<f64>, Stop> {
        let mut times = Vec::new();
        for _ in 0..count {
            let began = Instant::now();
            self.send(1)?;
            self.take(1)?;
            times.push(began.elapsed().as_nanos() as f64 / 2000.0);
        }
        self.completed(0)?;
        Ok(times)
    }

    /// Sends `count` messages as fast as it can.
    pub fn stream(&mut self, count: u32) -> Result<(), Stop> {
        let mut left = count;
        while left > 0 {
            let batch = left.min(BATCH);
            self.send(batch)?;
            left -= batch;
        }
        self.completed(0)
    }

    /// Takes `count` messages; returns how many came in a second, from the first on.
    pub fn rate(&mut self, count: u32) -> Result<f64, Stop> {
        let first = self.take(BATCH)?;
        let (began, mut taken) = (Instant::now(), first);
        while taken < count {
            taken += self.take(BATCH.min(count - taken))?;
        }
        Ok(f64::from(taken - first) / began.elapsed().as_secs_f64())
    }
}
