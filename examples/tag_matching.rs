//! One receiver, several senders, and messages that find their receives by tag.
//!
//! Each sender is a thread with queues of its own. A tag is the number of the sender and one of four
//! classes. The receiver posts receives for one class of one sender, for anything from one sender, and for
//! anything at all, in an order that has nothing to do with that of the messages; now and then it cancels
//! one, which may be too late. Long messages go by rendezvous.
//!
//! Messages of one tag must meet the receives that match it in the order in which both were posted: that is
//! checked for each pair.
//!
//! ```text
//! tag_matching --senders 3 --messages 5000 [--software]
//! ```

#[path = "common/device.rs"]
mod device;

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, value_parser};
use doorbell::tags::{
    CancelError, NotSentTagged, Offload, PeerId, ReceiveId, Received, TagEvent, TagFailure, TagMatchingConfig,
    TagMatchingSrq, TaggedBuffer,
};
use doorbell::{BufferPool, CqConfig, DataPath, NotSent, PoolConfig, ProtectionDomain, QpConfig};
use fastrand::Rng;
use xxhash_rust::xxh3::xxh3_64;

/// Classes of messages of one sender.
const CLASSES: u64 = 4;
/// One of `LONG` messages is long, and goes by rendezvous.
const LONG: u64 = 8;
/// Longest message, and longest eager one.
const MAX: u32 = 64 * 1024;
const MAX_EAGER: u32 = 4096;
/// Number, hash of the rest.
const PROLOGUE: usize = 16;
/// Receives in the list.
const TAGS: u16 = 48;
/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Receive messages by tag
#[derive(Parser)]
struct Args {
    /// Name of the RDMA device [default: the first]
    #[arg(long)]
    device: Option<String>,
    /// How the queues are driven: auto, direct or verbs
    #[arg(long, default_value_t = DataPath::Auto)]
    path: DataPath,
    /// Match in the library even where the device could
    #[arg(long)]
    software: bool,
    /// Senders
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u64).range(1..=64))]
    senders: u64,
    /// Messages of each sender
    #[arg(long, default_value_t = 5000)]
    messages: u64,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("demo-tags: FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let context = device::open(args.device.as_deref())?;
    let pd = context.alloc_pd()?;
    let mut receiver = Receiver::new(&pd, args)?;
    println!(
        "{} senders of {} messages each, on {}: path {}, offload: {}",
        args.senders,
        args.messages,
        device::describe(&context),
        receiver.tags.path(),
        matcher(&receiver.tags)
    );
    if let Some(reason) = receiver.tags.offload_refused() {
        println!("the device does not match: {reason}");
    }
    let mut senders = Vec::new();
    for number in 0..args.senders {
        let (mut here, there) = UnixStream::pair()?;
        let (pd, config, messages) = (pd.clone(), config(args), args.messages);
        senders.push(thread::spawn(move || send(&pd, &config, there, number, messages)));
        let peer = receiver.tags.add_peer(&QpConfig::rc().min_rnr_timer(1))?;
        receiver.tags.connect_over(peer, &mut here)?;
    }
    receiver.receive(args.senders, args.senders * args.messages)?;
    let mut rendezvous = 0;
    for sender in senders {
        // The last FINs are sent while the receiver is polled.
        while !sender.is_finished() {
            receiver.idle()?;
        }
        rendezvous += sender.join().map_err(|_| "a sender panicked")??;
    }
    receiver.report();
    let out_of_order = receiver.out_of_order();
    let matched = receiver.matched.len();
    let line = format!(
        "{matched} matched, {} unexpected, {rendezvous} rendezvous, offload: {}, {out_of_order} out of order",
        receiver.waited,
        matcher(&receiver.tags)
    );
    if out_of_order > 0 || matched as u64 != args.senders * args.messages {
        return Err(line.into());
    }
    println!("demo-tags: ok: {line}");
    Ok(())
}

fn matcher(tags: &TagMatchingSrq) -> &'static str {
    if tags.offload() { "device" } else { "library" }
}

fn config(args: &Args) -> TagMatchingConfig {
    let offload = if args.software { Offload::Never } else { Offload::Auto };
    TagMatchingConfig::new(TAGS).max_wr(128).cq(CqConfig::default().path(args.path)).offload(offload)
}

/// The messages that a receive was posted for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    OneClass,
    OneSender,
    Anything,
}

struct Receiver {
    tags: TagMatchingSrq,
    pool: BufferPool,
    random: Rng,
    /// Receives that are not over, in the order of posting, which is their number.
    open: VecDeque<(u64, ReceiveId, Kind)>,
    posted: u64,
    /// Tag and number of the message that each receive has got.
    matched: BTreeMap<u64, (u64, u64)>,
    /// Number of messages by the kind of their receive, whether the device matched, and whether the message
    /// was long.
    table: BTreeMap<(Kind, bool, bool), u64>,
    waited: u64,
    cancelled: u64,
    last: Instant,
}

impl Receiver {
    fn new(pd: &ProtectionDomain, args: &Args) -> Result<Self> {
        let mut tags = TagMatchingSrq::new(pd, &config(args))?;
        tags.keep_filled(&BufferPool::new(pd, &PoolConfig::new(1024, MAX_EAGER))?)?;
        Ok(Self {
            tags,
            pool: BufferPool::new(pd, &PoolConfig::new(2 * u32::from(TAGS), MAX))?,
            random: Rng::with_seed(1),
            open: VecDeque::new(),
            posted: 0,
            matched: BTreeMap::new(),
            table: BTreeMap::new(),
            waited: 0,
            cancelled: 0,
            last: Instant::now(),
        })
    }

    /// Posts receives and takes messages, until all have come.
    fn receive(&mut self, senders: u64, messages: u64) -> Result<()> {
        while (self.matched.len() as u64) < messages {
            while self.post(senders)? {}
            if !self.poll()? || self.random.u64(..64) == 0 {
                // Some receives wait for messages that others have taken.
                self.cancel()?;
            }
        }
        while !self.open.is_empty() {
            self.cancel()?;
            self.poll()?;
        }
        Ok(())
    }

    /// Posts one receive; `false` when the list is full.
    fn post(&mut self, senders: u64) -> Result<bool> {
        let Some(buffer) = self.pool.take() else { return Ok(false) };
        let sender = self.random.u64(..senders) << 32;
        let (kind, tag, mask) = match self.random.u64(..8) {
            0..=4 => (Kind::OneClass, sender | self.random.u64(..CLASSES), u64::MAX),
            5..=6 => (Kind::OneSender, sender, u64::MAX << 32),
            _ => (Kind::Anything, 0, 0),
        };
        match self.tags.post(tag, mask, buffer) {
            Ok(receive) => {
                self.open.push_back((self.posted, receive, kind));
                self.posted += 1;
                Ok(true)
            }
            Err(error) if error.reason == TagFailure::ListFull => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Cancels the oldest receive that can be.
    fn cancel(&mut self) -> Result<()> {
        for (_, receive, _) in &self.open {
            match self.tags.cancel(*receive) {
                Ok(()) => break,
                Err(CancelError::Over | CancelError::Cancelling | CancelError::Matched) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes events; `false` when there are none.
    fn poll(&mut self) -> Result<bool> {
        let mut any = false;
        while let Some(event) = self.tags.next() {
            any = true;
            match event {
                TagEvent::Received(received) => self.take(&received)?,
                TagEvent::Cancelled { receive, .. } => {
                    self.close(receive)?;
                    self.cancelled += 1;
                }
                other => return Err(format!("{other:?}").into()),
            }
        }
        if any {
            self.last = Instant::now();
        } else if self.last.elapsed() > PATIENCE {
            return Err(format!("nothing for {PATIENCE:?}").into());
        }
        Ok(any)
    }

    fn idle(&mut self) -> Result<()> {
        self.poll()?;
        thread::yield_now();
        Ok(())
    }

    fn close(&mut self, receive: ReceiveId) -> Result<(u64, Kind)> {
        let at = self.open.iter().position(|(_, open, _)| *open == receive);
        let (number, _, kind) = at.and_then(|at| self.open.remove(at)).ok_or("a receive ended twice")?;
        Ok((number, kind))
    }

    fn take(&mut self, received: &Received) -> Result<()> {
        if self.tags.cancel(received.receive) != Err(CancelError::Over) {
            return Err("a receive that is over could be cancelled".into());
        }
        let (receive, kind) = self.close(received.receive)?;
        let (prologue, body) = received.buffer.split_at_checked(PROLOGUE).ok_or("too short")?;
        let word = |at: usize| prologue[at..at + 8].iter().fold(0, |word, b| word << 8 | u64::from(*b));
        if word(8) != xxh3_64(body) {
            return Err(format!("message {} of tag {:#x} is corrupted", word(0), received.tag).into());
        }
        self.matched.insert(receive, (received.tag, word(0)));
        let long = received.buffer.len() > MAX_EAGER as usize;
        *self.table.entry((kind, received.by_library, long)).or_default() += 1;
        self.waited += u64::from(received.waited);
        Ok(())
    }

    /// Messages that another message of the same tag overtook: the receives are walked in the order of posting.
    fn out_of_order(&self) -> usize {
        let mut last = BTreeMap::new();
        let mut count = 0;
        for (tag, number) in self.matched.values() {
            let before = last.insert(tag, number);
            count += usize::from(before.is_some_and(|before| before > number));
        }
        count
    }

    fn report(&self) {
        println!("receive for     matched by   message   messages");
        for ((kind, by_library, long), count) in &self.table {
            let kind = match kind {
                Kind::OneClass => "one class",
                Kind::OneSender => "one sender",
                Kind::Anything => "anything",
            };
            let by = if *by_library { "library" } else { "device" };
            let message = if *long { "long" } else { "short" };
            println!("{kind:<15} {by:<12} {message:<9} {count:>8}");
        }
        println!("{} receives posted, {} cancelled", self.posted, self.cancelled);
    }
}

/// Sends all messages of one sender; returns how many went by rendezvous.
fn send(
    pd: &ProtectionDomain,
    config: &TagMatchingConfig,
    mut stream: UnixStream,
    sender: u64,
    messages: u64,
) -> Result<u64> {
    let mut tags = TagMatchingSrq::new(pd, config)?;
    // For FINs.
    tags.keep_filled(&BufferPool::new(pd, &PoolConfig::new(256, 64))?)?;
    let peer = tags.add_peer(&QpConfig::rc().max_send_wr(32).min_rnr_timer(1))?;
    tags.connect_over(peer, &mut stream)?;
    let (eager, long) = (
        BufferPool::new(pd, &PoolConfig::new(32, MAX_EAGER))?,
        BufferPool::new(pd, &PoolConfig::new(32, MAX).readable(true))?,
    );
    let mut random = Rng::with_seed(sender);
    let (mut outstanding, mut rendezvous) = (0, 0);
    let mut number = 0;
    let began = Instant::now();
    let mut last = began;
    while number < messages || outstanding > 0 {
        while let Some(event) = tags.next() {
            match event {
                TagEvent::Sent(sent) if sent.status.is_success() => {
                    outstanding -= 1;
                    rendezvous += u64::from(sent.rendezvous);
                    last = Instant::now();
                }
                other => return Err(format!("sender {sender}: {other:?}").into()),
            }
        }
        if last.elapsed() > PATIENCE {
            return Err(format!("sender {sender}: nothing for {PATIENCE:?}").into());
        }
        let tag = sender << 32 | random.u64(..CLASSES);
        if number == messages || !post_one(&mut tags, peer, (&eager, &long), tag, number, &mut random)? {
            thread::yield_now();
            continue;
        }
        number += 1;
        outstanding += 1;
    }
    Ok(rendezvous)
}

/// Sends one message; `false` when there is no room for it.
fn post_one(
    tags: &mut TagMatchingSrq,
    peer: PeerId,
    (eager, long): (&BufferPool, &BufferPool),
    tag: u64,
    number: u64,
    random: &mut Rng,
) -> Result<bool> {
    let context = number as u32;
    let reason = if number % LONG == LONG - 1 {
        let Some(mut buffer) = long.take() else { return Ok(false) };
        buffer.set_len((MAX_EAGER + 1) as usize + random.u32(..MAX - MAX_EAGER) as usize);
        write(&mut buffer, number);
        match tags.send_rendezvous(peer, tag, context, buffer) {
            Ok(_) => return Ok(true),
            Err(error) => error.reason,
        }
    } else {
        let Some(buffer) = eager.take() else { return Ok(false) };
        let mut message = TaggedBuffer::new(buffer)?;
        let room = (message.capacity() - PROLOGUE) as u64;
        message.set_len(PROLOGUE + random.u64(..room + 1) as usize);
        write(&mut message, number);
        match tags.send(peer, tag, context, message) {
            Ok(_) => return Ok(true),
            Err(error) => error.reason,
        }
    };
    match reason {
        NotSentTagged::Queue(NotSent::Full { .. }) => Ok(false),
        reason => Err(reason.into()),
    }
}

fn write(payload: &mut [u8], number: u64) {
    let (prologue, body) = payload.split_at_mut(PROLOGUE);
    for (i, byte) in body.iter_mut().enumerate() {
        *byte = (i as u64 ^ number) as u8;
    }
    prologue[..8].copy_from_slice(&number.to_be_bytes());
    prologue[8..].copy_from_slice(&xxh3_64(body).to_be_bytes());
}
