//! Bounds that stop only a command that makes no progress, however busy the machine is.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::Result;

/// A process that gets a hundredth of a processor, on average over this time, waits for something.
const STALLED: Duration = Duration::from_secs(240);
/// Pause between two checks of the processes of a group.
const LOOK: Duration = Duration::from_secs(2);

/// How a command ended.
pub enum Ended {
    Itself(ExitStatus),
    /// The command was stopped, and why.
    Stopped(String),
}

/// Starts the command in a process group of its own, which ends when this process does.
pub fn spawn(command: &mut Command) -> Result<Child> {
    command.process_group(0);
    // SAFETY: prctl is a system call, which may be made between fork and exec.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command.spawn().map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))
}

/// Waits for a command that [`spawn`] started, and ends the rest of its group.
///
/// The group is stopped after `limit` of processor time, or when it hardly used any for [`STALLED`].
pub fn wait(child: &mut Child, limit: Option<Duration>) -> Result<Ended> {
    let group = child.id() as libc::pid_t;
    let mut pause = Duration::from_micros(200);
    let mut looked = Instant::now();
    let mut stretch = (Instant::now(), Duration::ZERO);
    let ended = loop {
        if let Some(status) = child.try_wait().map_err(|e| format!("waitpid: {e}"))? {
            break Ended::Itself(status);
        }
        if looked.elapsed() > LOOK {
            looked = Instant::now();
            let used = processor_time(group);
            if let Some(limit) = limit.filter(|limit| used > *limit) {
                break Ended::Stopped(format!("not done after {} s of processor time", limit.as_secs()));
            }
            let (since, before) = stretch;
            if used.saturating_sub(before) > STALLED / 100 {
                stretch = (Instant::now(), used);
            } else if since.elapsed() > STALLED {
                break Ended::Stopped(format!("stalled for {} s", STALLED.as_secs()));
            }
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    // SAFETY: kill sends a signal and touches no memory.
    unsafe { libc::kill(-group, libc::SIGKILL) };
    if matches!(ended, Ended::Stopped(_)) {
        child.wait().map_err(|e| format!("waitpid: {e}"))?;
    }
    Ok(ended)
}

/// Returns the processor time of the processes of a group, and of the children that they waited for.
fn processor_time(group: libc::pid_t) -> Duration {
    // SAFETY: sysconf reads a constant of the system.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    let mut ticks = 0;
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // PID (NAME) STATE PPID PGRP ...; the name may contain anything.
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        let fields: Vec<&str> = rest.split_whitespace().collect();
        if fields.get(2).and_then(|pgrp| pgrp.parse().ok()) == Some(group) {
            // utime, stime, cutime, cstime.
            let times = fields.iter().skip(11).take(4);
            ticks += times.filter_map(|time| time.parse::<u64>().ok()).sum::<u64>();
        }
    }
    Duration::from_millis(ticks * 1000 / per_second)
}

/// Returns the processor time of all processes that this one has waited for.
pub fn children_time() -> Duration {
    // SAFETY: all zeroes are a value of rusage, which consists of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for writes.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, (time.tv_usec as u32).saturating_mul(1000));
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Starts threads that do nothing but use processors, until this process ends. Their niceness is higher by `niceness`
/// than the niceness of the tests.
pub fn keep_busy(threads: usize, niceness: u8) {
    for _ in 0..threads {
        thread::spawn(move || {
            // SAFETY: nice is a system call. On Linux it concerns the calling thread only, and may always rise.
            unsafe { libc::nice(niceness.into()) };
            loop {
                std::hint::spin_loop();
            }
        });
    }
}
