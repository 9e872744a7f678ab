//! The devices of a process: where libibverbs looks for them, and the device that `soft-mlx5 run` gives to each
//! process.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::kernel::Core;
use super::registry::{self, Registry, STAND_INS};
use super::shared::Shared;
use super::sysfs::{Names, Shown, Tree};
use super::{real_paths, thread};
use crate::base::clock::Clock;
use crate::base::run_dir::RunDir;
use crate::base::tally::Tally;
use crate::engine::options::Options;
use crate::engine::{Nic, NicConfig};

/// The place where libibverbs of this process looks for devices, decided before main.
#[derive(Debug)]
pub struct Environment {
    /// Root of the tree.
    pub root: PathBuf,
    /// Options of the run, when the process is part of one.
    pub options: Option<Options>,
    /// Root of the tree that the environment named before: a shell may have expanded it in its arguments.
    pub inherited: Option<PathBuf>,
    /// Root of the tree of the nearest ancestor process that had a tree by then.
    pub ancestor: Option<PathBuf>,
}

static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();

/// Sets the environment, once.
pub fn set_environment(environment: Environment) {
    let _ = ENVIRONMENT.set(environment);
}

/// Returns the environment, once it was decided.
pub fn environment() -> Option<&'static Environment> {
    ENVIRONMENT.get()
}

/// Makes the tree, and in a run a device in it, when the process looks for its devices.
pub fn prepare() {
    let Some(environment) = ENVIRONMENT.get() else { return };
    let mut registry = registry::lock();
    if registry.prepared {
        return;
    }
    registry.prepared = true;
    let outcome = real_paths::during(|| match &environment.options {
        Some(options) => ambient(&mut registry, &environment.root, options),
        None => ensure_tree(&mut registry),
    });
    if let Err(error) = outcome {
        eprintln!("soft-mlx5: no device: {error}");
    }
}

/// Shows the present counters of all devices of this process in sysfs.
pub fn show_counters() {
    if registry::is_ours() {
        let devices = registry::lock().devices();
        devices.iter().for_each(|device| thread::show_counters(device));
    }
}

/// Lets the devices finish their work when the process ends.
pub fn finish() {
    if !registry::is_ours() {
        return;
    }
    // A thread that ends the process from inside a command or a signal handler holds the locks.
    let Some(mut registry) = registry::try_lock() else { return };
    for device in registry.devices() {
        if let Some(mut core) = device.try_command() {
            core.settle_at_exit();
        }
    }
    registry.dir = None;
}

fn root() -> io::Result<&'static Path> {
    let missing = || io::Error::other("the process was started in an unknown way");
    ENVIRONMENT.get().map(|environment| environment.root.as_path()).ok_or_else(missing)
}

/// Makes the tree, unless there is one.
pub fn ensure_tree(registry: &mut Registry) -> io::Result<()> {
    if registry.tree.is_none() {
        let root = root()?;
        if ENVIRONMENT.get().is_some_and(|environment| environment.options.is_none()) {
            registry.dir = Some(RunDir::create(root.into())?);
        }
        registry.tree = Some(Tree::create(root)?);
    }
    Ok(())
}

// Powers up the device that every process of a run has. The tree appears at once, by a rename: a forked child
// uses the tree of its parent, and finds its own device under the same names.
fn ambient(registry: &mut Registry, root: &Path, options: &Options) -> io::Result<()> {
    let mut config = options.config.clone();
    config.tally = Tally::in_run(&options.dir);
    if registry.tree.is_some() {
        return power_up(registry, None, config, false).map(drop);
    }
    let draft = options.dir.join(format!("draft-{}", std::process::id()));
    registry.tree = Some(Tree::create(&draft)?);
    let powered = power_up(registry, None, config, false);
    let placed = std::fs::rename(&draft, root);
    if placed.is_err() {
        let _ = std::fs::remove_dir_all(&draft);
        if !root.exists() {
            return placed;
        }
    }
    let tree = Tree::at(root);
    if let Ok(device) = &powered {
        // A forked child has another port than its parent, whose tree it shares.
        if let Some(guid) = tree.node_guid(&device.names) {
            device.command().show_guid(guid);
        }
    }
    registry.tree = Some(tree);
    powered.map(drop)
}

/// Powers a device up, and shows it in the tree.
pub fn power_up(
    registry: &mut Registry,
    name: Option<&str>,
    mut config: NicConfig,
    stepped: bool,
) -> io::Result<Arc<Shared>> {
    let slot = registry.free_slot()?;
    let no_tree = || io::Error::other("there is no tree to show the device");
    let names: Names = registry.tree.as_ref().ok_or_else(no_tree)?.free_names(name)?;
    let clock = Arc::new(Clock::start(stepped));
    config.epoch = clock.started_at();
    // SAFETY: objects on the device are made only by commands of the program. The kernel side checks
    // that their memory is mapped with the rights needed. The unsafe verbs calls that issue these commands
    // require that the memory stays mapped until the object is destroyed.
    let nic = unsafe { Nic::new(config.clone()) }?;
    let port = nic.port();
    let core = Core::new(nic, &config, clock.clone(), slot as u8)?;
    let shared = Arc::new(Shared::new(slot, names.clone(), core, clock));
    if let Some(tree) = &registry.tree {
        let (dev, link) = (STAND_INS[slot].1, config.link_layer);
        let shown = Shown { dev, port: &port, link, joined: config.netdev.as_deref() };
        real_paths::during(|| tree.add(&names, shown))?;
    }
    registry.add(shared.clone());
    Ok(shared)
}
