//! The publisher.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use doorbell::{Buffer, BufferPool, FrameConfig, FrameReceiver, Sender, SenderConfig, SqId};

use crate::feed::{self, Gaps, SIZES, WINDOW};
use crate::{Args, Result};

/// Frames on their way at most.
const SENDS: u32 = 256;
/// Frames with one doorbell.
const BATCH: u32 = 32;
/// How long to wait for the subscriber to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The updates in the order of sending: of each number first the copy of feed A, then that of feed B.
struct Updates {
    random: Random,
    drop_one_in: u64,
    next: u64,
    last: u64,
    gaps: Gaps,
    /// For each feed, whether its last frame was left out: two in a row would be one gap.
    skipped: [bool; 2],
}

impl Updates {
    /// Returns feed and number of the next frame.
    fn next(&mut self) -> Option<(usize, u64)> {
        while self.next < self.last {
            let (feed, sequence) = ((self.next & 1) as usize, self.next >> 1);
            self.next += 1;
            // Both ends of a feed are sent, else nobody could tell what is missing.
            let inside = sequence > 0 && self.next + 2 < self.last;
            let chosen = self.drop_one_in > 0 && self.random.next() % self.drop_one_in == 0;
            let skip = inside && chosen && !self.skipped[feed];
            self.skipped[feed] = skip;
            if !skip {
                return Some((feed, sequence));
            }
            self.gaps.push((feed, sequence));
        }
        None
    }
}

pub fn run(args: &Args, host: &str, frames: u64, drop_one_in: u64, seed: u64) -> Result<()> {
    let pd = args.pd()?;
    let config = SenderConfig::new().cq_capacity(SENDS).path(args.path);
    let mut sender = Sender::new(&pd, &config)?;
    // It receives nothing: no rule leads to it.
    let config = FrameConfig::new().plain(4, 64).sends(SENDS).path(args.path);
    let queue_pair = FrameReceiver::with_sender(&pd, &config, &mut sender)?;
    let queue = queue_pair.send_queue().ok_or("made without a send queue")?;
    let pool = BufferPool::new(&pd, SENDS, *SIZES.end() as u32)?;

    let mut stream = connect(host, args.port)?;
    feed::write_u64(&mut stream, frames.max(4))?;
    let mut updates = Updates {
        random: Random(seed.max(1)),
        drop_one_in,
        next: 0,
        last: frames.max(4),
        gaps: Gaps::new(),
        skipped: [false; 2],
    };
    let (mut sent, mut taken) = (0, 0);
    let mut next = updates.next();
    while next.is_some() {
        while sent >= taken + WINDOW {
            taken = feed::read_u64(&mut stream)?;
        }
        sent += post(&mut sender, queue, &pool, &mut updates, &mut next)?;
        finish(&mut sender)?;
    }
    while sender.is_busy(queue) {
        finish(&mut sender)?;
    }
    // What is left out counts as sent: the subscriber looks for it.
    while taken < sent {
        taken = feed::read_u64(&mut stream)?;
    }
    feed::write_gaps(&mut stream, &updates.gaps)?;
    // The subscriber says by leaving that it has all.
    let _ = feed::read_u64(&mut stream);
    println!("published {sent} frames, left out {}", updates.gaps.len());
    Ok(())
}

/// Posts up to a batch of frames with one doorbell; returns how many.
fn post(
    sender: &mut Sender,
    queue: SqId,
    pool: &BufferPool,
    updates: &mut Updates,
    next: &mut Option<(usize, u64)>,
) -> Result<u64> {
    let mut posted = 0;
    let mut posting = sender.post(queue)?;
    while posted < u64::from(BATCH) {
        let (Some((feed, sequence)), Some(buffer)) = (*next, pool.take()) else { break };
        let spread = (SIZES.end() - SIZES.start() + 1) as u64;
        let len = SIZES.start() + (updates.random.next() % spread) as usize;
        posting.send_frame(update(buffer, len, feed, sequence), true)?;
        *next = updates.next();
        posted += 1;
    }
    Ok(posted)
}

fn update(mut buffer: Buffer, len: usize, feed: usize, sequence: u64) -> Buffer {
    buffer.set_len(len);
    feed::write(&mut buffer, feed, sequence);
    buffer
}

/// Takes completions, whose buffers go back to the pool.
fn finish(sender: &mut Sender) -> Result<()> {
    let mut batch = sender.poll();
    while let Some(sent) = batch.next() {
        if !sent.status.is_success() {
            return Err(format!("a frame was not sent: {}", sent.status).into());
        }
    }
    Ok(())
}

fn connect(host: &str, port: u16) -> Result<TcpStream> {
    let began = Instant::now();
    loop {
        match TcpStream::connect((host, port)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(_) if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(format!("connection to {host}:{port}: {error}").into()),
        }
    }
}
