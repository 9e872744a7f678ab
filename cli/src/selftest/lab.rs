//! The device under test, and the other state that all checks share.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell::{Context, DataPath, ProtectionDomain};

use super::peer::Peer;
use super::prerequisites;
use super::stop::Stop;
use super::witness::{Rule, Witness};
use crate::args::SelftestArgs;
use crate::doctor::counters::Counters;
use crate::sysfs;

/// The device under test.
pub struct Lab {
    /// The device.
    pub context: Context,
    /// The domain of all that is made.
    pub pd: ProtectionDomain,
    /// doorbell can drive the rings of the device.
    pub direct: bool,
    /// The device is a model: its speed has no meaning.
    pub model: bool,
    /// Port that messages go through, to itself.
    pub port: u8,
    /// Entry of the GID table that is used, instead of the one that doorbell takes.
    pub gid_index: Option<u8>,
    /// Prerequisites that the machine lacks, by the check that says so. Checks that send nothing run without them.
    pub missing: BTreeMap<&'static str, String>,
    /// Differences from the expected values on which nothing depends, by the check that found them.
    pub notes: BTreeMap<&'static str, String>,
    /// Fewer messages.
    pub quick: bool,
    /// Time for which messages are checked for memory order, instead of some seconds.
    pub soak: Option<Duration>,
    /// The host that sends, instead of this one.
    pub peer: Option<Rc<RefCell<Peer>>>,
    /// All CQEs that were seen.
    pub witness: Rc<RefCell<Witness>>,
    /// Descriptors that were open before anything was made.
    pub descriptors: usize,
    /// Counters of the port before anything was sent.
    pub counters: Counters,
    /// Whether signatures of CQEs say anything, once that is known.
    pub rule: Option<Rule>,
    /// State of the generator of random numbers.
    seed: u64,
}

impl Lab {
    /// Reads the properties of an open device.
    pub fn new(context: Context, model: bool, args: &SelftestArgs, descriptors: usize) -> doorbell::Result<Self> {
        let pd = context.alloc_pd()?;
        let direct = context.auto_path().0 == DataPath::Direct;
        let witness = Rc::default();
        let mut lab = Self {
            context,
            pd,
            direct,
            model,
            port: 1,
            gid_index: args.gid_index,
            missing: BTreeMap::new(),
            notes: BTreeMap::new(),
            quick: args.quick,
            soak: args.soak,
            peer: None,
            witness,
            descriptors,
            counters: Counters::default(),
            rule: None,
            seed: 0x9e37_79b9_7f4a_7c15,
        };
        lab.port = prerequisites::active_port(&lab.context).unwrap_or(1);
        lab.counters = lab.read_counters();
        let of_port = prerequisites::of_port(&lab.context, lab.port, lab.gid_index)?;
        let missing = [("A3", prerequisites::of_memory(&lab.pd)), ("A4", of_port)];
        lab.missing = missing.into_iter().filter_map(|(check, why)| Some((check, why?))).collect();
        Ok(lab)
    }

    /// Returns the identifier that the vendor gave to the board; `unknown` where there is none.
    pub fn board(&self) -> String {
        sysfs::read(&self.context.sysfs_path().join("board_id")).unwrap_or("unknown".into())
    }

    /// Notes a difference on which nothing depends.
    pub fn note(&mut self, check: &'static str, what: impl Into<String>) {
        self.notes.entry(check).and_modify(|note| *note += "; ").or_default().push_str(&what.into());
    }

    /// Returns the counters of the port as they are now.
    pub fn read_counters(&self) -> Counters {
        Counters::read(&self.context.sysfs_path().join("ports").join(self.port.to_string()))
    }

    /// The path that doorbell would take.
    pub fn path(&self) -> DataPath {
        if self.direct { DataPath::Direct } else { DataPath::Verbs }
    }

    /// `count` rounds; fewer in a quick run, or when they take long.
    pub fn rounds(&self, count: u32) -> Rounds {
        let (count, seconds) = if self.quick { (count / 10, 0.4) } else { (count, 2.0) };
        Rounds { next: 0, count, end: Instant::now() + Duration::from_secs_f64(seconds) }
    }

    /// A random number below `end`.
    pub fn random(&mut self, end: u32) -> u32 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 33) as u32 % end
    }
}

/// Numbers of rounds, until there were enough of them or the time is over. At least two come.
pub struct Rounds {
    next: u32,
    count: u32,
    end: Instant,
}

impl Iterator for Rounds {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.next >= 2 && (self.next >= self.count || Instant::now() >= self.end) {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }
}

/// Ends a wait in which nothing happens any more.
///
/// Time must pass, and this process must have worked while it waited: on a busy machine time passes without any work.
pub struct Patience {
    since: Instant,
    worked: Duration,
    of_acknowledgements: bool,
}

/// Longest time without progress, and the processor time in it. Both are shorter after the first stall: such a device
/// stalls again, and the run must end.
const LONGEST: [(Duration, Duration); 2] =
    [(Duration::from_secs(3), Duration::from_millis(600)), (Duration::from_secs(1), Duration::from_millis(150))];
static STALLED: AtomicBool = AtomicBool::new(false);
/// The factor for both where another host takes part.
const FARTHER: u32 = 5;
static FAR_AWAY: AtomicBool = AtomicBool::new(false);
/// Longest time for acknowledgements that never come. Firmware takes short timeouts as code 16 or 17, and may wait four
/// times as long: a try takes 2.1 s at most.
const TIMEOUTS: Duration = Duration::from_secs(15);

/// Says that another host takes part.
pub fn another_host() {
    FAR_AWAY.store(true, Ordering::Relaxed);
}

impl Patience {
    /// Waits from now on.
    pub fn new() -> Self {
        Self { since: Instant::now(), worked: processor_time(), of_acknowledgements: false }
    }

    /// Waits from now on until a sender gives up on a peer that does not answer.
    pub fn of_acknowledgements() -> Self {
        Self { of_acknowledgements: true, ..Self::new() }
    }

    /// Something has happened.
    pub fn renew(&mut self) {
        (self.since, self.worked) = (Instant::now(), processor_time());
    }

    /// Lets others work; fails when nothing has happened for too long.
    pub fn wait(&self, what: impl FnOnce() -> String) -> Result<(), Stop> {
        std::thread::yield_now();
        let (mut longest, mut work) = LONGEST[usize::from(STALLED.load(Ordering::Relaxed))];
        if FAR_AWAY.load(Ordering::Relaxed) {
            (longest, work) = (longest * FARTHER, work * FARTHER);
        }
        if self.of_acknowledgements {
            longest = longest.max(TIMEOUTS);
        }
        if self.since.elapsed() < longest || processor_time().saturating_sub(self.worked) < work {
            return Ok(());
        }
        STALLED.store(true, Ordering::Relaxed);
        Err(Stop::Fail(format!("nothing happens any more: {}", what())))
    }
}

fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a writable structure.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
