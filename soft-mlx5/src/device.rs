//! A device that a test makes.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::base::counters::Counters;
use crate::base::faults::Faults;
use crate::engine::inspect::Queues;
use crate::engine::{NicConfig, Timing};
use crate::fabric::{Fabric, LinkLayer, Switch, pcap};
use crate::interpose;
use crate::objects::strict::Rule;
use crate::objects::{Qpn, trace};
use crate::uverbs::shared::{News, Shared};
use crate::uverbs::{process, real_paths, registry, thread};

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

    /// Lets programs send firmware commands (`mlx5dv_devx_*`): a context that asks for it gets a user of the firmware.
    pub fn devx(mut self, devx: bool) -> Self {
        self.config.without_devx = !devx;
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
        real_paths::during(|| process::ensure_tree(&mut registry))?;
        let shared = process::power_up(&mut registry, self.name.as_deref(), self.config, self.stepped)?;
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
        thread::run(&self.shared).busy
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
        thread::tell(&self.shared, news);
    }

    /// Removes the device as if it was pulled out: everything made on the device ends, completion channels fail, and
    /// programs get `IBV_EVENT_DEVICE_FATAL`. Commands fail with `EIO`, but for those that destroy an object. The
    /// device touches no memory any more when this returns.
    pub fn remove(&self) {
        let news = {
            let mut core = self.shared.command();
            core.remove();
            News::take(&mut core)
        };
        thread::tell(&self.shared, news);
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
