//! The publisher.

use std::path::Path;

use doorbell::frames::{FrameConfig, FrameReceiver};
use doorbell::{Buffer, BufferPool, CqConfig, PoolConfig, Sender, SqId};

use crate::capture::Capture;
use crate::feed::{self, Gaps, SIZES, WINDOW};
use crate::{Args, Result, device, stream};

/// Frames on their way at most.
const SENDS: u32 = 256;
/// Frames with one doorbell.
const BATCH: u32 = 32;

/// xorshift64.
pub struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The updates in the order of sending: of each number first the copy of feed A, then that of feed B.
pub struct Updates {
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
            // The first and the last update are always sent: a subscriber cannot see a gap before or after them.
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

/// Where frames come from.
pub enum Source {
    Feed(Updates),
    /// A capture, how far each feed goes in it, and its missing updates.
    Capture(Capture, [u64; 2], Gaps),
}

impl Source {
    pub fn of_feed(frames: u64, drop_one_in: u64, seed: u64) -> Self {
        Self::Feed(Updates {
            random: Random(seed.max(1)),
            drop_one_in,
            next: 0,
            last: frames.max(4),
            gaps: Gaps::new(),
            skipped: [false; 2],
        })
    }

    pub fn of_capture(file: &Path) -> Result<Self> {
        let (end, gaps) = Capture::open(file)?.survey()?;
        Ok(Self::Capture(Capture::open(file)?, end, gaps))
    }

    /// Returns how many updates each feed has, with those that are left out.
    fn end(&self) -> [u64; 2] {
        match self {
            Self::Feed(updates) => [updates.last.div_ceil(2), updates.last / 2],
            Self::Capture(_, end, _) => *end,
        }
    }

    fn gaps(&self) -> &Gaps {
        match self {
            Self::Feed(updates) => &updates.gaps,
            Self::Capture(.., gaps) => gaps,
        }
    }

    /// Writes the next frame to a buffer. Returns `false` when there is none.
    fn next(&mut self, buffer: &mut Buffer) -> Result<bool> {
        match self {
            Self::Feed(updates) => {
                let Some((feed, sequence)) = updates.next() else { return Ok(false) };
                let spread = (SIZES.end() - SIZES.start() + 1) as u64;
                buffer.set_len(SIZES.start() + (updates.random.next() % spread) as usize);
                feed::write(buffer, feed, sequence);
                Ok(true)
            }
            Self::Capture(capture, ..) => {
                // `survey` has looked at the lengths.
                capture.next(|_, _, frame| buffer.extend_from_slice(frame))
            }
        }
    }
}

pub fn run(args: &Args, host: &str, mut source: Source) -> Result<()> {
    let pd = device::open(args.device.as_deref())?.alloc_pd()?;
    // It receives nothing: no rule leads to it.
    let config = FrameConfig::new().plain(4, 64).max_send_wr(SENDS).cq(CqConfig::default().path(args.path));
    let mut sender = Sender::new(&pd, &CqConfig::for_frame_sends(&config, 1).path(args.path))?;
    let queue_pair = FrameReceiver::with_sender(&pd, &config, &mut sender)?;
    let queue = queue_pair.send_queue().ok_or("made without a send queue")?;
    let pool = BufferPool::new(&pd, &PoolConfig::new(SENDS, *SIZES.end() as u32))?;

    let mut stream = stream::connect(host, args.port)?;
    for end in source.end() {
        stream::write_u64(&mut stream, end)?;
    }
    let (mut sent, mut taken, mut left) = (0, 0, true);
    while left {
        while sent >= taken + WINDOW {
            taken = stream::read_u64(&mut stream)?;
        }
        let posted;
        (posted, left) = post(&mut sender, queue, &pool, &mut source)?;
        sent += posted;
        finish(&mut sender)?;
    }
    while sender.is_busy(queue) {
        finish(&mut sender)?;
    }
    // Frames that are left out count as sent: the subscriber looks for them.
    while taken < sent {
        taken = stream::read_u64(&mut stream)?;
    }
    feed::write_gaps(&mut stream, source.gaps())?;
    // The subscriber says by leaving that it has all.
    let _ = stream::read_u64(&mut stream);
    println!("published {sent} frames, left out {}", source.gaps().len());
    Ok(())
}

/// Posts up to a batch of frames with one doorbell; returns how many, and `false` if there are no more.
fn post(sender: &mut Sender, queue: SqId, pool: &BufferPool, source: &mut Source) -> Result<(u64, bool)> {
    // Captured frames have their checksums.
    let checksums = matches!(source, Source::Feed(_));
    let mut posting = sender.post_many(queue)?;
    for posted in 0..u64::from(BATCH) {
        let Some(mut buffer) = pool.take() else { return Ok((posted, true)) };
        if !source.next(&mut buffer)? {
            return Ok((posted, false));
        }
        posting.send_frame(buffer, checksums)?;
    }
    Ok((BATCH.into(), true))
}

/// Takes completions. Their buffers go back to the pool.
fn finish(sender: &mut Sender) -> Result<()> {
    let mut batch = sender.poll();
    while let Some(sent) = batch.next() {
        sent?;
    }
    Ok(())
}
