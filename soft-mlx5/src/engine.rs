//! The thread that drives a device.
//!
//! Doorbells are plain stores to memory, so it must look. It looks often while there is work and
//! sleeps ever longer when there is none, for several devices share few cores.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::shared::Shared;

/// Looks in vain before it yields, and before it sleeps.
const SPINS: u32 = 50;
const YIELDS: u32 = 100;

const SHORTEST: Duration = Duration::from_micros(2);
/// Longest sleep of a device that was in use a moment ago.
const LONGEST: Duration = Duration::from_micros(50);
/// Longest sleep of a device that nobody has used for [`DORMANT_AFTER`].
const DORMANT: Duration = Duration::from_micros(500);
const DORMANT_AFTER: Duration = Duration::from_millis(500);

/// Starts the thread.
pub fn spawn(device: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let builder = thread::Builder::new().name("soft-mlx5".into());
    with_signals_blocked(|| builder.spawn(move || run(&device)))
}

// The program's signal handlers must not run on a thread that it does not know of.
fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: an all-zero set is a valid value to be filled.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
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
    // SAFETY: changes only how exactly this thread's sleeps are kept.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000) };
    let mut idle = 0u32;
    let mut sleep = SHORTEST;
    let mut last_work = Instant::now();
    while !device.is_stopped() {
        let now = device.now();
        let (busy, deadline, wait_fd) = {
            let mut core = device.work();
            let busy = core.nic().step(now);
            core.deliver_events();
            (busy, core.nic().next_deadline(), core.nic().wait_fd())
        };
        if busy {
            (idle, sleep) = (0, SHORTEST);
            last_work = Instant::now();
            if device.command_waits() {
                thread::yield_now();
            }
            continue;
        }
        idle += 1;
        if idle < SPINS && !device.command_waits() {
            std::hint::spin_loop();
        } else if idle < SPINS + YIELDS {
            thread::yield_now();
        } else {
            let until = deadline.map(|at| Duration::from_nanos(at.saturating_sub(now)));
            pause(sleep.min(until.unwrap_or(sleep)), wait_fd);
            let dormant = last_work.elapsed() > DORMANT_AFTER;
            sleep = (sleep * 3 / 2).min(if dormant { DORMANT } else { LONGEST });
        }
    }
}

// Sleeps, but not through a packet.
fn pause(time: Duration, wait_fd: Option<RawFd>) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    let fd = wait_fd.unwrap_or(-1);
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd, whose negative descriptor would be ignored, and a valid time.
    unsafe { libc::ppoll(&mut poll, 1, &time, std::ptr::null()) };
}
