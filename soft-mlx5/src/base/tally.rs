//! Counts of injected faults, of a device and of all processes of a run.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, ptr};

use super::counters::Injected;

/// A fault that is counted, or what it could have happened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A packet that a fault could happen to.
    Packet,
    /// A packet was lost.
    Lost,
    /// A packet was sent twice.
    Doubled,
    /// A packet was held back.
    Overtaken,
    /// A message was answered with `receiver not ready`.
    Rnr,
    /// A send WQE failed.
    Send,
    /// A received message failed.
    Receive,
    /// A QP was taken to error.
    Qp,
    /// The destruction of an object failed.
    Destroy,
    /// An object could not be created, or its memory could not be kept from a fork.
    Create,
    /// The port went down.
    PortDown,
    /// The device was removed.
    Removal,
    /// The firmware stopped.
    Firmware,
}

/// Number of kinds of [`Fault`].
pub const FAULTS: usize = Fault::Firmware as usize + 1;

/// Counts of a device, or of a run.
pub type Cells = [AtomicU64; FAULTS];

/// Counts the faults of a device, and those of its run. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    own: Arc<Cells>,
    run: Option<&'static Cells>,
}

impl Tally {
    /// Makes a tally that also adds to that of the run in this directory, if the run has one.
    pub fn in_run(dir: &Path) -> Self {
        Self { own: Arc::default(), run: map(&path(dir)).ok() }
    }

    /// Counts a fault.
    pub fn count(&self, fault: Fault) {
        self.own[fault as usize].fetch_add(1, Ordering::Relaxed);
        if let Some(run) = self.run {
            run[fault as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a fault if `happens`; returns `happens`.
    pub fn count_if(&self, happens: bool, fault: Fault) -> bool {
        if happens {
            self.count(fault);
        }
        happens
    }

    /// Returns the counts of this device.
    pub fn own(&self) -> Injected {
        read(&self.own)
    }
}

fn read(cells: &Cells) -> Injected {
    let count = |fault: Fault| cells[fault as usize].load(Ordering::Relaxed);
    Injected {
        packets: count(Fault::Packet),
        lost: count(Fault::Lost),
        doubled: count(Fault::Doubled),
        overtaken: count(Fault::Overtaken),
        rnr: count(Fault::Rnr),
        sends: count(Fault::Send),
        receives: count(Fault::Receive),
        qps: count(Fault::Qp),
        destroys: count(Fault::Destroy),
        creates: count(Fault::Create),
        port_downs: count(Fault::PortDown),
        removals: count(Fault::Removal),
        firmware: count(Fault::Firmware),
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join("injected")
}

/// The counts of a run, which all its processes share.
#[derive(Debug)]
pub struct OfRun(&'static Cells);

impl OfRun {
    /// Makes the counts of the run in this directory.
    pub fn create(dir: &Path) -> io::Result<Self> {
        let path = path(dir);
        File::create_new(&path)?.set_len(size_of::<Cells>() as u64)?;
        map(&path).map(Self)
    }

    /// Returns the counts so far.
    pub fn read(&self) -> Injected {
        read(self.0)
    }
}

// The mapping stays until the process ends: a device may count to its end.
fn map(path: &Path) -> io::Result<&'static Cells> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let size = size_of::<Cells>();
    if file.metadata()?.len() < size as u64 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (shared, fd) = (libc::MAP_SHARED, file.as_raw_fd());
    // SAFETY: a fresh mapping of an open file.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), size, access, shared, fd, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is aligned, as large as the cells, never unmapped, and no process makes the file shorter; any
    // bytes are valid atomics.
    Ok(unsafe { &*mapped.cast::<Cells>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::run_dir::{RunDir, fresh_path};

    #[test]
    fn devices_of_a_run_count_together_and_each_for_itself() {
        let dir = RunDir::create(fresh_path("test")).unwrap();
        assert!(Tally::in_run(dir.path()).run.is_none(), "a run without faults counts none");
        let run = OfRun::create(dir.path()).unwrap();
        let devices = [Tally::in_run(dir.path()), Tally::in_run(dir.path())];
        devices[0].count(Fault::Lost);
        devices[1].clone().count(Fault::Lost);
        assert!(devices[1].count_if(true, Fault::Rnr) && !devices[1].count_if(false, Fault::Rnr));
        let counts = |injected: Injected| (injected.lost, injected.rnr);
        assert_eq!(devices.each_ref().map(|device| counts(device.own())), [(1, 0), (1, 1)]);
        assert_eq!(counts(run.read()), (2, 1));
    }
}
