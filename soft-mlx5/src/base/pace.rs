//! How a thread that drives a device waits for work.
//!
//! Doorbells are plain stores to memory, so the thread polls. It polls often while there is work and
//! sleeps ever longer without work, because several devices share few cores.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Polls without work before the thread sleeps. Few are enough, and the thread never yields: a yielding thread waits
/// for the whole time slice of a program that spins on its completion queue, a sleeping thread preempts the program.
const SPINS: u32 = 3;

/// Shortest sleep.
pub const SHORTEST: Duration = Duration::from_micros(2);
/// Longest sleep of a device that was in use a moment ago.
const LONGEST: Duration = Duration::from_micros(50);
/// Longest sleep of a device that no program has used for [`DORMANT_AFTER`].
const DORMANT: Duration = Duration::from_micros(500);
const DORMANT_AFTER: Duration = Duration::from_millis(500);
/// Longest sleep of a device without queue pairs: a command comes before its first doorbell.
const UNUSED: Duration = Duration::from_millis(10);

/// Decides how long the thread of a device sleeps between two looks.
#[derive(Debug)]
pub struct Pace {
    in_vain: u32,
    last_work: Instant,
}

impl Pace {
    /// Begins now, with work.
    pub fn new() -> Self {
        Self { in_vain: 0, last_work: Instant::now() }
    }

    /// Returns the time since there was work.
    pub fn idle(&self) -> Duration {
        self.last_work.elapsed()
    }

    /// Returns how long to sleep after a look that found work or found none: a fraction of the idle time.
    pub fn nap(&mut self, busy: bool, used: bool) -> Option<Duration> {
        if busy {
            *self = Self::new();
        } else {
            self.in_vain += 1;
        }
        let idle = self.idle();
        let longest = match idle > DORMANT_AFTER {
            true if used => DORMANT,
            true => UNUSED,
            false => LONGEST,
        };
        (self.in_vain >= SPINS).then(|| (idle / 8).clamp(SHORTEST, longest))
    }
}

/// Sleeps until the time, which is below a second, is over or one of the descriptors is readable.
pub fn pause<const N: usize>(time: Duration, fds: [Option<RawFd>; N]) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    let poll = |fd: Option<RawFd>| libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 };
    let mut polls = fds.map(poll);
    // SAFETY: valid entries, of which those with a negative descriptor are ignored, and a valid time.
    unsafe { libc::ppoll(polls.as_mut_ptr(), N as libc::nfds_t, &time, std::ptr::null()) };
}

/// Tells the scheduler that this thread drives a device.
// The thread must get a core soon after a doorbell, although the program that rang may spin: a short time
// slice makes the scheduler prefer this thread when it wakes. Older kernels ignore the time slice.
pub fn prefer_latency() {
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let attributes = Attributes { size: size_of::<Attributes>() as u32, runtime: 100_000, ..Attributes::default() };
    // SAFETY: changes only the precision of this thread's sleeps.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000) };
    // SAFETY: the structure has the size it names and outlives the call, which changes this thread
    // alone.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}
