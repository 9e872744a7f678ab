//! A device as its threads share it: the kernel side with its lock, a clock and the engine.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::clock::Clock;
use crate::counters::Counters;
use crate::engine;
use crate::kernel::Core;
use crate::registry;
use crate::sysfs::Names;

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

/// Changes that the device list does not show yet.
#[derive(Debug, Clone, Copy)]
pub struct News {
    removed: bool,
    port: Option<bool>,
}

impl News {
    /// Takes all changes.
    pub fn take(core: &mut Core) -> Self {
        Self { removed: core.take_removal(), port: core.take_port_news() }
    }
}

/// One device of this process.
#[derive(Debug)]
pub struct Shared {
    /// Place in the registry.
    pub slot: usize,
    /// Names in the tree.
    pub names: Names,
    core: Mutex<Core>,
    // Commands that wait for the lock: the engine lets them in first.
    waiting: AtomicU32,
    clock: Arc<Clock>,
    stopped: AtomicBool,
    engine: Mutex<Option<JoinHandle<()>>>,
    // Counters as sysfs shows them.
    shown: Mutex<Counters>,
}

impl Shared {
    /// Makes a device that an engine thread drives from the first time it is opened, or one whose owner
    /// steps it.
    pub fn new(slot: usize, names: Names, core: Core, clock: Arc<Clock>) -> Self {
        Self {
            slot,
            names,
            core: Mutex::new(core),
            waiting: AtomicU32::new(0),
            clock,
            stopped: AtomicBool::new(false),
            engine: Mutex::new(None),
            shown: Mutex::default(),
        }
    }

    /// Returns its clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Locks the kernel side, for a command.
    pub fn command(&self) -> MutexGuard<'_, Core> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let core = self.work();
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        core
    }

    /// Locks the kernel side, unless it is locked.
    pub fn try_command(&self) -> Option<MutexGuard<'_, Core>> {
        self.core.try_lock().ok()
    }

    /// Locks the kernel side, for the engine.
    pub fn work(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the device work once, and takes it out of the list if it was removed.
    pub fn run(&self) -> Pass {
        let (pass, news) = {
            let mut core = self.work();
            let busy = core.work();
            let news = News::take(&mut core);
            let nic = core.nic();
            let (used, wait_fd) = (nic.has_queue_pairs(), nic.wait_fd());
            (Pass { busy, used, deadline: core.next_deadline(), wait_fd }, news)
        };
        self.tell(news);
        pass
    }

    /// Shows changes in sysfs. The registry is locked before a device, never after it.
    pub fn tell(&self, news: News) {
        if news.removed {
            registry::lock().unlist(self);
        } else if let Some(up) = news.port {
            registry::lock().show_port(self, up);
        }
    }

    /// Shows the counters in sysfs.
    pub fn show_counters(&self) {
        // Held until the files are written: the last writer has read the counters last.
        let registry = registry::lock();
        let now = self.command().nic().counters();
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if *shown != now {
            registry.show_counters(self, &shown, &now);
            *shown = now;
        }
    }

    /// Returns `true` if a command waits for the lock.
    pub fn command_waits(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Returns `true` if the engine must end.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Starts the engine, unless the device is stepped or has one.
    pub fn start(self: &Arc<Self>) -> std::io::Result<()> {
        if !self.clock.is_real() {
            return Ok(());
        }
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if engine.is_none() {
            *engine = Some(engine::spawn(self.clone())?);
        }
        Ok(())
    }

    /// Ends the engine.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(engine) = engine {
            if engine.thread().id() != thread::current().id() {
                let _ = engine.join();
            }
        }
    }
}
