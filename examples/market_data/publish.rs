//! The publisher.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use doorbell::frames::{FrameConfig, FrameReceiver};
use doorbell::{Buffer, BufferPool, CqConfig, PoolConfig, Sender, SqId};

use crate::capture::Capture;
use crate::feed::{self, Gaps, SIZES, WINDOW};
use crate::{Args, Result, device, stream};

/// Frames on their way at most.
const SENDS: u32 = 256;
/// Frames with one doorbell.
const BATCH: u32 = 32;
/// How long after the last update of each feed it is sent again, while the subscriber lacks it.
const REPEAT: Duration = Duration::from_millis(10);

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
enum Frames {
    Feed(Updates),
    /// A capture, and its missing updates.
    Capture(Capture, Gaps),
}

/// The frames of both feeds.
pub struct Source {
    frames: Frames,
    /// Updates of each feed, with those that are left out.
    end: [u64; 2],
    /// Number that each feed has next.
    next: [u64; 2],
    /// The last frame of each feed, once it was sent.
    last: [Vec<u8>; 2],
}

impl Source {
    pub fn of_feed(frames: u64, drop_one_in: u64, seed: u64) -> Self {
        let last = frames.max(4);
        let updates =
            Updates { random: Random(seed.max(1)), drop_one_in, next: 0, last, gaps: Gaps::new(), skipped: [false; 2] };
        Self::new(Frames::Feed(updates), [last.div_ceil(2), last / 2])
    }

    pub fn of_capture(file: &Path) -> Result<Self> {
        let (end, gaps) = Capture::open(file)?.survey()?;
        Ok(Self::new(Frames::Capture(Capture::open(file)?, gaps), end))
    }

    fn new(frames: Frames, end: [u64; 2]) -> Self {
        Self { frames, end, next: [0; 2], last: [Vec::new(), Vec::new()] }
    }

    /// Returns `true` unless the frames have their checksums, as captured ones do.
    const fn has_no_checksums(&self) -> bool {
        matches!(self.frames, Frames::Feed(_))
    }

    fn gaps(&self) -> &Gaps {
        match &self.frames {
            Frames::Feed(updates) => &updates.gaps,
            Frames::Capture(_, gaps) => gaps,
        }
    }

    /// Writes the next frame to a buffer. Returns `false` when there is none.
    fn next(&mut self, buffer: &mut Buffer) -> Result<bool> {
        let mut update = None;
        match &mut self.frames {
            Frames::Feed(updates) => {
                update = updates.next();
                if let Some((feed, sequence)) = update {
                    let spread = (SIZES.end() - SIZES.start() + 1) as u64;
                    buffer.set_len(SIZES.start() + (updates.random.next() % spread) as usize);
                    feed::write(buffer, feed, sequence);
                }
            }
            Frames::Capture(capture, _) => {
                // `survey` has looked at the lengths.
                capture.next(|feed, sequence, frame| {
                    update = Some((feed, sequence));
                    buffer.extend_from_slice(frame);
                })?;
            }
        }
        let Some((feed, sequence)) = update else { return Ok(false) };
        self.next[feed] = sequence + 1;
        if self.next[feed] == self.end[feed] {
            self.last[feed] = buffer.to_vec();
        }
        Ok(true)
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
    for end in source.end {
        stream::write_u64(&mut stream, end)?;
    }
    // Updates that the subscriber has or knows to be missing.
    let (mut sent, mut taken, mut left) = (0, 0, true);
    while left {
        while source.next.iter().sum::<u64>() >= taken + WINDOW {
            taken = stream::read_u64(&mut stream)?;
        }
        let posted;
        (posted, left) = post(&mut sender, queue, &pool, &mut source)?;
        sent += posted;
        finish(&mut sender)?;
    }
    stream.set_read_timeout(Some(REPEAT))?;
    while taken < source.end.iter().sum() {
        match stream::read_u64(&mut stream) {
            Ok(position) => taken = position,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                // The end of a feed may be lost. Feeds say while nothing happens how far they are.
                let mut posting = sender.post_many(queue)?;
                for frame in source.last.iter().filter(|frame| !frame.is_empty()) {
                    let Some(mut buffer) = pool.take() else { break };
                    buffer.extend_from_slice(frame);
                    posting.send_frame(buffer, source.has_no_checksums())?;
                }
            }
            Err(error) => return Err(error.into()),
        }
        finish(&mut sender)?;
    }
    stream.set_read_timeout(None)?;
    while sender.is_busy(queue) {
        finish(&mut sender)?;
    }
    stream::write_u64(&mut stream, sent)?;
    feed::write_gaps(&mut stream, source.gaps())?;
    // The subscriber says by leaving that it has all.
    let _ = stream::read_u64(&mut stream);
    println!("published {sent} frames, left out {}", source.gaps().len());
    Ok(())
}

/// Posts up to a batch of frames with one doorbell; returns how many, and `false` if there are no more.
fn post(sender: &mut Sender, queue: SqId, pool: &BufferPool, source: &mut Source) -> Result<(u64, bool)> {
    let checksums = source.has_no_checksums();
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
