//! A device that a test makes, and the device that a process gets from `soft-mlx5 run`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use crate::clock::Clock;
use crate::counters::Counters;
use crate::fabric::{Fabric, LinkLayer, Switch, pcap};
use crate::faults::Faults;
use crate::interpose;
use crate::kernel::Core;
use crate::nic::inspect::Queues;
use crate::nic::objects::Qpn;
use crate::nic::strict::Rule;
use crate::nic::{Nic, NicConfig, Timing, trace};
use crate::options::Options;
use crate::registry::{self, Registry, STAND_INS};
use crate::run_dir::RunDir;
use crate::shared::{News, Shared};
use crate::sysfs::{Names, Shown, Tree};
use crate::tally::Tally;

/// A software mlx5 device of this process. libibverbs lists the device until it is dropped; later commands
/// on open files fail with `EIO`.
#[derive(Debug)]
pub struct Device {
    shared: Arc<Shared>,
}

/// Options of a [`Device`].
#[derive(Debug, Clone, Default)]
pub struct Builder {
    name: Option<String>,
    config: NicConfig,
    stepped: bool,
}

impl From<&str> for Fabric {
    fn from(name: &str) -> Self {
        Self::Named(name.into())
    }
}

impl From<Switch> for Fabric {
    fn from(switch: Switch) -> Self {
        Self::Switch(switch)
    }
}

impl Builder {
    /// Sets the name in the device list; without a name, the device gets the first free `mlx5_N`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Joins a fabric: a name connects devices of all processes, a [`Switch`] devices of this process.
    /// Without a fabric the device reaches only itself.
    ///
    /// [`Switch`]: crate::Switch
    pub fn fabric(mut self, fabric: impl Into<Fabric>) -> Self {
        self.config.fabric = fabric.into();
        self
    }

    /// Sets the kind of link.
    pub fn link_layer(mut self, link: LinkLayer) -> Self {
        self.config.link_layer = link;
        self
    }

    /// Sets the faults of the device.
    pub fn faults(mut self, faults: Faults) -> Self {
        self.config.faults = faults;
        self
    }

    /// Sets the pace of the device.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.config.timing = timing;
        self
    }

    /// Sets the seed of all random choices.
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = seed;
        self
    }

    /// Writes a line for each WQE, doorbell and CQE to this file, and overwrites an existing file. With a stepped
    /// device the bytes follow from the seed and the steps, except for addresses.
    pub fn trace(mut self, path: impl Into<PathBuf>) -> Self {
        self.config.trace = Some(path.into());
        self
    }

    /// Writes the packets that leave the port to this file in the format of `tcpdump`, and overwrites an
    /// existing file.
    pub fn pcap(mut self, path: impl Into<PathBuf>) -> Self {
        self.config.pcap = Some(path.into());
        self
    }

    /// Offers UAR objects, as current kernels do: libmlx5 then lets most QPs share a few registers. Without
    /// this each QP of a context has a register of its own, up to 512.
    pub fn shared_registers(mut self, shared: bool) -> Self {
        self.config.shared_registers = shared;
        self
    }

    /// Lets QPs share registers as [`Self::shared_registers`] does, and executes WQEs as they stand in the
    /// register: for programs that copy each WQE whole. If two threads copy to one register without a lock, the
    /// device executes a mixture that stands there for two seconds.
    pub fn blue_flame(mut self, blue_flame: bool) -> Self {
        self.config.blue_flame = blue_flame;
        self
    }

    /// Never gives a queue pair a number that another one has had. Such a device makes nearly 2^24 queue pairs, of
    /// which 16,384 may exist at once. Without this option a number is used again after 64 others were freed.
    pub fn distinct_qp_numbers(mut self, distinct: bool) -> Self {
        self.config.distinct_qp_numbers = distinct;
        self
    }

    /// Counts registered memory and queues against `RLIMIT_MEMLOCK`, as the kernel does for a process
    /// without `CAP_IPC_LOCK`. Without this option nothing counts, because nothing is locked.
    pub fn memlock(mut self, memlock: bool) -> Self {
        self.config.memlock = memlock;
        self
    }

    /// Offers timestamps in real time, as an adapter does whose real-time clock is enabled in its firmware. Real
    /// time of a stepped device is the time since power-up.
    pub fn real_time(mut self, real_time: bool) -> Self {
        self.config.real_time = real_time;
        self
    }

    /// Lets the frames of a capture file (pcap) arrive at the port once there is a flow: at the times of the capture,
    /// or `rate` frames in a second.
    pub fn frames(mut self, path: impl Into<PathBuf>, rate: Option<f64>) -> Self {
        (self.config.frames, self.config.frames_rate) = (Some(path.into()), rate);
        self
    }

    /// Joins a network interface of the machine to the port: frames of raw packet queue pairs go to the interface, and
    /// frames from the interface go to the flows. Needs `CAP_NET_RAW`.
    pub fn netdev(mut self, name: impl Into<String>) -> Self {
        self.config.netdev = Some(name.into());
        self
    }

    /// Refuses raw packet queue pairs and flows with `EPERM`, as the kernel does without `CAP_NET_RAW`. Without this
    /// option the process needs the capability or must be root.
    pub fn refuse_raw(mut self, refuse: bool) -> Self {
        self.config.refuse_raw = refuse;
        self
    }

    /// Stops the program where an adapter would silently mangle something.
    pub fn strict(mut self, strict: bool) -> Self {
        self.config.strict = strict;
        self
    }

    /// Drives the device without thread and clock: it works when [`Device::step`] is called, at a time that
    /// [`Device::advance`] sets. Equal seeds and equal steps give equal runs.
    pub fn stepped(mut self) -> Self {
        self.stepped = true;
        self
    }

    /// Does the same as [`stepped`](Self::stepped), in small steps: each takes one packet, and lets one queue pair
    /// execute one WQE or send one packet. So a message can arrive between two WQEs of one doorbell.
    pub fn small_steps(mut self) -> Self {
        self.config.small_steps = true;
        self.stepped()
    }

    /// Powers the device up. Call this before the first verbs call of the process: libibverbs determines only
    /// once where devices are.
    pub fn build(self) -> io::Result<Device> {
        interpose::ensure_linked();
        self.config.trace.as_deref().map_or(Ok(()), trace::create)?;
        self.config.pcap.as_deref().map_or(Ok(()), pcap::create)?;
        let mut registry = registry::lock();
        interpose::real_paths::during(|| ensure_tree(&mut registry))?;
        let shared = power_up(&mut registry, self.name.as_deref(), self.config, self.stepped)?;
        Ok(Device { shared })
    }
}

impl Device {
    /// Returns the default options: its own fabric, InfiniBand, no faults, driven by a thread.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the name in the device list.
    pub fn name(&self) -> &str {
        &self.shared.names.ibdev
    }

    /// Works for a bounded while at the present time; returns `false` if there was nothing to do.
    pub fn step(&self) -> bool {
        self.shared.run().busy
    }

    /// Steps until there is nothing to do at the present time; returns the number of steps that did
    /// something.
    pub fn settle(&self) -> usize {
        std::iter::from_fn(|| self.step().then_some(())).count()
    }

    /// Moves the clock of a stepped device forward.
    pub fn advance(&self, time: Duration) {
        self.shared.clock().advance(time.as_nanos() as u64);
    }

    /// Returns the time of the device since power-up.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.shared.clock().now())
    }

    /// Takes the link down or up: programs get an asynchronous event.
    pub fn set_link(&self, up: bool) {
        let news = {
            let mut core = self.shared.command();
            core.nic().set_link(up);
            core.deliver_events();
            News::take(&mut core)
        };
        self.shared.tell(news);
    }

    /// Removes the device as if it was pulled out: programs get `IBV_EVENT_DEVICE_FATAL`, everything made
    /// on the device ends, and all commands fail with `EIO`, also those that destroy. Completion channels
    /// and asynchronous event files come to their end. The device touches no memory any more when this
    /// returns.
    pub fn remove(&self) {
        let news = {
            let mut core = self.shared.command();
            core.remove();
            News::take(&mut core)
        };
        self.shared.tell(news);
    }

    /// Moves a QP to error without a cause in its WQEs: programs get `IBV_EVENT_QP_FATAL`, and posted WQEs are
    /// flushed. Returns `false` if there is no such QP or it has failed before.
    pub fn fail_qp(&self, qp_num: u32) -> bool {
        let mut core = self.shared.command();
        let failed = core.nic().fail_qp(Qpn(qp_num));
        core.deliver_events();
        failed
    }

    /// Changes the faults from now on. Counts begin at zero; times still count from power-up.
    pub fn set_faults(&self, faults: Faults) {
        self.shared.command().set_faults(faults);
    }

    /// Returns the counters of the port and of the transport, and the faults that were injected.
    pub fn counters(&self) -> Counters {
        self.shared.command().nic().counters()
    }

    /// Returns how often this rule was broken. An adapter would not report it.
    pub fn violations(&self, rule: Rule) -> u64 {
        self.shared.command().nic().violations(rule)
    }

    /// Returns the places of the queues of programs, and how far the device has come in them.
    pub fn queues(&self) -> Queues {
        self.shared.command().nic().queues()
    }

    /// Returns the two halves of the register of a queue pair, as a program has written them; the device clears the
    /// first eight bytes of a half when it takes a doorbell from there. `None` for a queue pair that may ring at any
    /// register of its page.
    pub fn register(&self, qp_num: u32) -> Option<[[u8; 64]; 2]> {
        self.shared.command().nic().register(qp_num)
    }

    /// Returns the doorbell that arms CQ `number`, as a program has written it; zero when the device has taken it.
    pub fn cq_doorbell(&self, number: u32) -> Option<[u8; 8]> {
        self.shared.command().nic().cq_doorbell(number)
    }

    /// Returns when the next timer of the device expires, if one runs.
    pub fn next_timer(&self) -> Option<Duration> {
        let core = self.shared.command();
        let all = [core.next_deadline(), core.removal_time()];
        all.into_iter().flatten().min().map(Duration::from_nanos)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // In a forked child the device is the parent's.
        if registry::is_ours() {
            registry::lock().remove(&self.shared);
            self.shared.stop();
        }
    }
}

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
    let outcome = interpose::real_paths::during(|| match &environment.options {
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
        devices.iter().for_each(|device| device.show_counters());
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

fn ensure_tree(registry: &mut Registry) -> io::Result<()> {
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

fn power_up(
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
        interpose::real_paths::during(|| tree.add(&names, shown))?;
    }
    registry.add(shared.clone());
    Ok(shared)
}
