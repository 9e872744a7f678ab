//! Devices of this process, and the process that may use them.
//!
//! Everything here belongs to one process. A forked child has no engine threads, and peers do not know it:
//! the devices of its parent do not exist for it, and it may get new devices of its own.

use std::ffi::CStr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::{io, ptr};

use super::shared::Shared;
use super::sysfs::Tree;
use super::{fd_table, real_paths};
use crate::base::counters::Counters;
use crate::base::run_dir::RunDir;

/// Character devices of every system. A uverbs descriptor is really one of these: so its type and number are
/// those in sysfs, and fstat needs no change. Each device of a process has another one.
pub const STAND_INS: [(&CStr, &str); 5] = [
    (c"/dev/null", "1:3"),
    (c"/dev/zero", "1:5"),
    (c"/dev/full", "1:7"),
    (c"/dev/random", "1:8"),
    (c"/dev/urandom", "1:9"),
];

/// Devices that a process can have.
pub const SLOTS: usize = STAND_INS.len();

/// Devices and the tree that shows them.
#[derive(Debug, Default)]
pub struct Registry {
    /// The process has listed its devices: the tree is there.
    pub prepared: bool,
    /// Tree in which libibverbs looks, made at the first need.
    pub tree: Option<Tree>,
    /// Directory that holds the tree, unless a run provides one.
    pub dir: Option<RunDir>,
    devices: [Option<Arc<Shared>>; SLOTS],
}

impl Registry {
    /// Returns a free slot.
    pub fn free_slot(&self) -> io::Result<usize> {
        let free = self.devices.iter().position(Option::is_none);
        free.ok_or_else(|| io::Error::other(format!("a process can have {SLOTS} devices")))
    }

    /// Adds a device to its slot.
    pub fn add(&mut self, device: Arc<Shared>) {
        let slot = device.slot;
        self.devices[slot] = Some(device);
    }

    /// Takes a device out.
    pub fn remove(&mut self, device: &Shared) {
        self.devices[device.slot] = None;
        self.unlist(device);
        if self.devices.iter().all(Option::is_none) && self.dir.take().is_some() {
            (self.tree, self.prepared) = (None, false);
        }
    }

    /// Takes a device out of the list; it stays in its slot.
    pub fn unlist(&self, device: &Shared) {
        // The caller holds the lock of the registry, and a replaced path would take the lock again.
        if let Some(tree) = &self.tree {
            real_paths::during(|| tree.remove(&device.names));
        }
    }

    /// Shows that the port of a device came up or went down.
    pub fn show_port(&self, device: &Shared, up: bool) {
        if let Some(tree) = &self.tree {
            real_paths::during(|| tree.show_port(&device.names, up));
        }
    }

    /// Shows the counters of a device that have changed since `before`.
    pub fn show_counters(&self, device: &Shared, before: &Counters, now: &Counters) {
        if let Some(tree) = &self.tree {
            real_paths::during(|| tree.show_counters(&device.names, before, now));
        }
    }

    /// Returns the device in this slot.
    pub fn device(&self, slot: usize) -> Option<Arc<Shared>> {
        self.devices.get(slot)?.clone()
    }

    /// Returns all devices.
    pub fn devices(&self) -> Vec<Arc<Shared>> {
        self.devices.iter().flatten().cloned().collect()
    }

    /// Returns the device with this uverbs number.
    pub fn by_uverbs(&self, number: u32) -> Option<Arc<Shared>> {
        self.devices.iter().flatten().find(|device| device.names.uverbs == number).cloned()
    }
}

static OWNER: AtomicI32 = AtomicI32::new(0);
static REGISTRY: AtomicPtr<Mutex<Registry>> = AtomicPtr::new(ptr::null_mut());

fn pid() -> i32 {
    // SAFETY: no arguments, no memory.
    unsafe { libc::getpid() }
}

/// Returns `true` if the devices, if there are any, belong to this process. One system call, no lock.
pub fn is_ours() -> bool {
    OWNER.load(Ordering::Acquire) == pid()
}

/// Returns `true` if this is a child made by fork, which has its own memory: as opposed to one made by vfork,
/// which shares ours until it starts another program.
pub fn is_forked_child() -> bool {
    OWNER.load(Ordering::Acquire) == 0
}

/// Locks the registry of this process.
pub fn lock() -> MutexGuard<'static, Registry> {
    claim();
    let mut registry = REGISTRY.load(Ordering::Acquire);
    if registry.is_null() {
        let fresh = Box::into_raw(Box::default());
        match REGISTRY.compare_exchange(registry, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => registry = fresh,
            Err(other) => {
                // SAFETY: `fresh` was made above and no other thread has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                registry = other;
            }
        }
    }
    // SAFETY: registries are never freed: a child leaks the one of its parent.
    let registry = unsafe { &*registry };
    registry.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the registry, if there is one and no thread holds its lock.
pub fn try_lock() -> Option<MutexGuard<'static, Registry>> {
    let registry = REGISTRY.load(Ordering::Acquire);
    // SAFETY: null, or a registry that is never freed.
    unsafe { registry.as_ref() }?.try_lock().ok()
}

fn claim() {
    static HANDLER: OnceLock<()> = OnceLock::new();
    // SAFETY: `forget` is a function that stays, and it does only what is allowed after fork.
    HANDLER.get_or_init(|| unsafe {
        libc::pthread_atfork(None, None, Some(forget));
    });
    match OWNER.compare_exchange(0, pid(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        Err(owner) if owner == pid() => {}
        // A child that was made without the handlers of fork.
        Err(_) => {
            forget_all();
            OWNER.store(pid(), Ordering::Release);
        }
    }
}

// Runs in a forked child: the parent's locks may be held by threads that do not exist here.
extern "C" fn forget() {
    forget_all();
    OWNER.store(0, Ordering::Release);
}

fn forget_all() {
    REGISTRY.store(ptr::null_mut(), Ordering::Release);
    fd_table::mark_all_inherited();
}
