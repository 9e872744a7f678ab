//! The thread that drives a device.
//!
//! Doorbells are plain stores to memory, so the thread polls. It polls often while there is work and
//! sleeps ever longer without work, because several devices share few cores.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::guard::signals;
use crate::shared::{Pass, Shared};

/// Polls without work before the thread sleeps. Few are enough, and the thread never yields: a yielding thread waits
/// for the whole time slice of a program that spins on its completion queue, a sleeping thread preempts the program.
const SPINS: u32 = 3;

const SHORTEST: Duration = Duration::from_micros(2);
/// Longest sleep of a device that was in use a moment ago.
const LONGEST: Duration = Duration::from_micros(50);
/// Longest sleep of a device that no program has used for [`DORMANT_AFTER`].
const DORMANT: Duration = Duration::from_micros(500);
const DORMANT_AFTER: Duration = Duration::from_millis(500);
/// Longest sleep of a device without queue pairs: a command comes before its first doorbell.
const UNUSED: Duration = Duration::from_millis(10);
/// Idle time after which sysfs shows the counters, and the longest time that a busy device lets pass: other processes
/// read the files. A look of the process itself sees the present counters.
const SHOW_IDLE: Duration = Duration::from_millis(20);
const SHOW_BUSY: Duration = Duration::from_millis(500);

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

    /// Returns how long to sleep after a look that found work or found none: a fraction of the idle time.
    pub fn nap(&mut self, busy: bool, used: bool) -> Option<Duration> {
        if busy {
            *self = Self::new();
        } else {
            self.in_vain += 1;
        }
        let idle = self.last_work.elapsed();
        let longest = match idle > DORMANT_AFTER {
            true if used => DORMANT,
            true => UNUSED,
            false => LONGEST,
        };
        (self.in_vain >= SPINS).then(|| (idle / 8).clamp(SHORTEST, longest))
    }
}

/// Starts the thread.
pub fn spawn(device: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let builder = thread::Builder::new().name("soft-mlx5".into());
    with_signals_blocked(|| builder.spawn(move || run(&device)))
}

// The program's signal handlers must not run on a thread that the program does not know. The thread itself
// unblocks the faults that the device handles.
fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: an all-zero set is a valid value to be filled.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: both sets are valid and outlive the calls.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
    }
    let result = work();
    // SAFETY: `before` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    result
}

fn run(device: &Shared) {
    signals::unblock();
    prefer_latency();
    let mut pace = Pace::new();
    let (mut shown, mut changed) = (Instant::now(), false);
    while !device.is_stopped() {
        let now = device.clock().now();
        let Pass { busy, used, deadline, wait_fd } = device.run();
        let nap = pace.nap(busy, used);
        changed |= busy;
        let is_quiet = nap.is_some() && pace.last_work.elapsed() > SHOW_IDLE;
        if changed && (is_quiet || shown.elapsed() > SHOW_BUSY) {
            device.show_counters();
            (shown, changed) = (Instant::now(), false);
        }
        if device.command_waits() {
            // The lock is not fair: a command that waits for it must get the time to wake up.
            pause(SHORTEST, [None]);
        } else if let Some(nap) = nap {
            let until = deadline.map(|at| Duration::from_nanos(at.saturating_sub(now)));
            pause(nap.min(until.unwrap_or(nap)), [wait_fd]);
        } else {
            std::hint::spin_loop();
        }
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
