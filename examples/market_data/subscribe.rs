//! The subscriber.

use std::collections::HashSet;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use doorbell::frames::{Flow, FrameConfig, FrameReceiver};
use doorbell::{Clock, CqConfig, Timestamps};
use hdrhistogram::Histogram;

use crate::device::{self, describe};
use crate::feed::{self, GROUPS, Gaps, PORT, REPORT, WINDOW};
use crate::plot::{self, Curve};
use crate::{Result, stream};

/// How long no frame may come.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the device's clock is read.
const CLOCK: u32 = 4096;

#[derive(Args)]
pub struct Options {
    /// One buffer for each frame instead of buffers of strides
    #[arg(long)]
    plain: bool,
    /// Frames may be lost on the way: count them, instead of failing
    #[arg(long)]
    lossy: bool,
    /// Join the groups on the network interface with this address, for the switch to know
    #[arg(long)]
    join_on: Option<Ipv4Addr>,
    /// Write a plot of the time from the adapter to the program
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// State of both feeds.
struct Feeds {
    /// Number that each feed has next.
    next: [u64; 2],
    /// Numbers that a feed left out.
    gaps: Gaps,
    /// The next number, which no feed has brought yet.
    delivered: u64,
    /// Updates that neither feed brought.
    lost: u64,
    /// Copies that came second.
    duplicates: u64,
}

impl Feeds {
    /// Takes an update of a feed. Returns `false` if the feed has repeated its last one.
    fn take(&mut self, feed: usize, sequence: u64) -> Result<bool> {
        if sequence + 1 == self.next[feed] {
            return Ok(false);
        }
        if sequence < self.next[feed] {
            return Err(format!("feed {feed}: {sequence} after {}", self.next[feed]).into());
        }
        self.gaps.extend((self.next[feed]..sequence).map(|missing| (feed, missing)));
        self.next[feed] = sequence + 1;
        if sequence < self.delivered {
            self.duplicates += 1;
            return Ok(true);
        }
        // A number that both feeds have passed does not come any more.
        self.lost += sequence - self.delivered;
        self.delivered = sequence + 1;
        Ok(true)
    }
}

pub fn run(args: &crate::Args, options: &Options) -> Result<()> {
    let pd = device::open(args.device.as_deref())?.alloc_pd()?;
    let config = if options.plain {
        FrameConfig::new().plain(2 * WINDOW as u32, 2048)
    } else {
        // 24 strides hold the longest frame: a buffer of 4,096 strides at least 170 of them.
        FrameConfig::new().striding(32, 4096, 64).spare(4)
    };
    let config = config.cq(CqConfig::default().timestamps(Timestamps::Ticks).path(args.path));
    let mut receiver = FrameReceiver::new(&pd, &config)?;
    let tagged = receiver.path() == doorbell::DataPath::Direct;
    let mut rules = Vec::new();
    for (feed, group) in GROUPS.into_iter().enumerate() {
        let mut flow = Flow::udp(group, PORT);
        if tagged {
            flow = flow.tag(feed as u32 + 1);
        }
        if let Some(interface) = options.join_on {
            flow = flow.join_on(interface);
        }
        rules.push(receiver.attach(&flow)?);
    }

    let mut stream = stream::accept(args.port, "a publisher")?;
    let end = [stream::read_u64(&mut stream)?, stream::read_u64(&mut stream)?];

    let mut feeds = Feeds { next: [0; 2], gaps: Gaps::new(), delivered: 0, lost: 0, duplicates: 0 };
    let mut latency = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
    let (mut frames, mut dropped, mut bad) = (0, 0, 0);
    let mut clock = receiver.clock()?;
    let (mut polls, mut last) = (0u32, Instant::now());
    while feeds.next != end {
        polls = polls.wrapping_add(1);
        if polls % CLOCK == 0 {
            clock = receiver.clock()?;
        }
        let before = frames;
        let mut batch = receiver.poll();
        while let Some(frame) = batch.next() {
            let frame = frame?;
            dropped += u64::from(frame.dropped_before().unwrap_or(0));
            bad += u64::from(!frame.checksum_ok());
            latency.record(age(&clock, &frame).max(1))?;
            let sequence = feed::read(&frame).ok_or("a frame with other bytes than were sent")?;
            // The tag of the rule is the number of the feed; the headers need not be read.
            let feed = match frame.tag() {
                Some(tag) => tag as usize - 1,
                None => usize::from(frame[30..34] == GROUPS[1].octets()),
            };
            frames += u64::from(feeds.take(feed, sequence)?);
        }
        drop(batch);
        if frames / REPORT != before / REPORT || feeds.next == end {
            stream::write_u64(&mut stream, feeds.next.iter().sum())?;
        }
        if frames > before {
            last = Instant::now();
        } else if last.elapsed() > PATIENCE {
            return Err(format!("nothing came for {PATIENCE:?} after {frames} frames").into());
        } else if polls % 64 == 0 {
            // A software device needs a processor, too.
            std::thread::yield_now();
        }
    }
    let sent = stream::read_u64(&mut stream)?;
    let made = feed::read_gaps(&mut stream)?;
    report(&receiver, &feeds, &latency, options.svg.as_deref())?;
    verdict([sent, frames], &made, &feeds.gaps, options.lossy, dropped + bad)
}

/// Returns how long ago the adapter completed a frame, in nanoseconds: its clock follows the time of day.
fn age(clock: &Clock, frame: &doorbell::frames::Frame<'_>) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    let then = frame.timestamp().and_then(|time| clock.nanoseconds(time).ok());
    then.map_or(0, |then| now.saturating_sub(then))
}

fn report(receiver: &FrameReceiver, feeds: &Feeds, latency: &Histogram<u64>, svg: Option<&Path>) -> Result<()> {
    let title = format!("{} frames on {}, path {}", latency.len(), describe(receiver.pd().context()), receiver.path());
    println!("{title}: from the adapter to the program, in µs");
    for (name, quantile) in plot::quantiles(latency.len()) {
        println!("{name} {:.3}", latency.value_at_quantile(quantile) as f64 / 1000.0);
    }
    println!(
        "{} updates, {} of them twice, {} that neither feed brought",
        feeds.delivered - feeds.lost,
        feeds.duplicates,
        feeds.lost
    );
    if let Some(file) = svg {
        let curve = Curve { name: String::new(), histogram: latency };
        let svg = plot::svg(&[curve], &title, "from the adapter to the program");
        fs::write(file, svg).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}

/// Compares the missing frames with the frames that the publisher left out. `wrong` counts the frames that the device
/// dropped, and those with wrong checksums.
fn verdict([sent, frames]: [u64; 2], made: &Gaps, found: &Gaps, lossy: bool, wrong: u64) -> Result<()> {
    let made: HashSet<_> = made.iter().collect();
    let right = found.iter().filter(|gap| made.contains(gap)).count();
    // Each frame that was sent has come or is a gap.
    let (lost, others) = (sent - frames, (found.len() - right) as u64);
    let counts = format!("{frames} frames on 2 groups, {} gaps made, {right} gaps found", made.len());
    let is_right = right == made.len() && others == lost && wrong == 0 && (lossy || lost == 0);
    if !is_right {
        println!("demo-frames: FAILED: {counts}, {others} false, {lost} frames lost, {wrong} dropped or wrong");
        return Err("not every gap was found, or one was invented".into());
    }
    let others = if lossy { format!("{others} lost on the way") } else { "0 false".to_owned() };
    println!("demo-frames: ok: {counts}, {others}");
    Ok(())
}
