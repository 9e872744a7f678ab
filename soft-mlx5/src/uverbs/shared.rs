//! A device as its threads share it: the kernel side with its lock, a clock and the engine.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::kernel::Core;
use super::sysfs::Names;
use crate::base::clock::Clock;
use crate::base::counters::Counters;

/// Changes that the device list does not show yet.
#[derive(Debug, Clone, Copy)]
pub struct News {
    /// The device was removed.
    pub removed: bool,
    /// The port came up or went down.
    pub port: Option<bool>,
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

    /// Returns `true` if a command waits for the lock.
    pub fn command_waits(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Returns `true` if the engine must end.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Keeps the thread that `spawn` starts, unless the device is stepped or has one.
    pub fn start(self: &Arc<Self>, spawn: impl FnOnce(Arc<Self>) -> io::Result<JoinHandle<()>>) -> io::Result<()> {
        if !self.clock.is_real() {
            return Ok(());
        }
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if engine.is_none() {
            *engine = Some(spawn(self.clone())?);
        }
        Ok(())
    }

    /// Returns the counters as sysfs shows them.
    pub fn shown(&self) -> MutexGuard<'_, Counters> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
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
