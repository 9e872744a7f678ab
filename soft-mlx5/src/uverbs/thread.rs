//! The thread that drives a device.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use super::registry;
use super::shared::{News, Shared};
use crate::base::guard::signals;
use crate::base::pace::{Pace, SHORTEST, pause, prefer_latency};

/// Idle time after which sysfs shows the counters, and the longest time that a busy device lets pass: other processes
/// read the files. A look of the process itself sees the present counters.
const SHOW_IDLE: Duration = Duration::from_millis(20);
const SHOW_BUSY: Duration = Duration::from_millis(500);

/// Result of a step: whether there was work, and when there is more.
#[derive(Debug, Clone, Copy)]
pub struct Pass {
    /// There was something to do.
    pub busy: bool,
    /// There are queue pairs.
    pub used: bool,
    /// Time at which there is something to do again.
    pub deadline: Option<u64>,
    /// Descriptor that becomes readable when there is something to do again.
    pub wait_fd: Option<RawFd>,
}

/// Starts the thread of a device, unless the device is stepped or has one.
pub fn start(device: &Arc<Shared>) -> io::Result<()> {
    device.start(|device| {
        let builder = thread::Builder::new().name("soft-mlx5".into());
        with_signals_blocked(|| builder.spawn(move || drive(&device)))
    })
}

/// Lets a device work once, and takes it out of the list if it was removed.
pub fn run(device: &Shared) -> Pass {
    let (pass, news) = {
        let mut core = device.work();
        let busy = core.work();
        let news = News::take(&mut core);
        let nic = core.nic();
        let (used, wait_fd) = (nic.has_queue_pairs(), nic.wait_fd());
        (Pass { busy, used, deadline: core.next_deadline(), wait_fd }, news)
    };
    tell(device, news);
    pass
}

/// Shows changes in sysfs. The registry is locked before a device, never after it.
pub fn tell(device: &Shared, news: News) {
    if news.removed {
        registry::lock().unlist(device);
    } else if let Some(up) = news.port {
        registry::lock().show_port(device, up);
    }
}

/// Shows the counters of a device in sysfs.
pub fn show_counters(device: &Shared) {
    // Held until the files are written: the last writer has read the counters last.
    let registry = registry::lock();
    let now = device.command().nic().counters();
    let mut shown = device.shown();
    if *shown != now {
        registry.show_counters(device, &shown, &now);
        *shown = now;
    }
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

fn drive(device: &Shared) {
    signals::unblock();
    prefer_latency();
    let mut pace = Pace::new();
    let (mut shown, mut changed) = (Instant::now(), false);
    while !device.is_stopped() {
        let now = device.clock().now();
        let Pass { busy, used, deadline, wait_fd } = run(device);
        let nap = pace.nap(busy, used);
        changed |= busy;
        let is_quiet = nap.is_some() && pace.idle() > SHOW_IDLE;
        if changed && (is_quiet || shown.elapsed() > SHOW_BUSY) {
            show_counters(device);
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
