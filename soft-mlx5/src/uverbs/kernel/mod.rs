//! The kernel side of a device: the uverbs device and the mlx5 driver.
//!
//! [`ioctl`] and [`write`] parse the two forms of a command, [`methods`] lists the methods of the ioctl
//! form. One module per object does the work that both forms share and keeps the limits and checks of the
//! driver. The rest goes to the [`Nic`] as a firmware command.

mod abi;
mod ah;
mod async_event;
mod attrs;
mod bound;
mod capability;
mod clock_pages;
mod context;
mod cq;
mod devx;
mod dm;
mod dmabuf;
mod errno;
mod events;
mod flow;
mod handles;
mod info;
mod ioctl;
mod management;
mod mapping;
pub mod mappings;
mod memlock;
mod methods;
mod mr;
mod multicast;
mod mw;
mod path;
mod pd;
mod port;
mod qp;
mod qp_create;
mod qp_modify;
mod qp_parts;
mod qp_query;
mod qp_rings;
mod qp_state;
mod query_device;
mod rdma_cm;
mod removal;
mod report;
mod resources;
mod rss;
mod srq;
mod teardown;
mod uar;
mod uar_object;
mod udata;
mod umad;
mod user;
mod wq;
mod write;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use self::async_event::Reported;
use self::bound::BoundCounters;
pub use self::bound::Counted;
pub use self::capability::has;
use self::clock_pages::ClockPages;
use self::context::Context;
use self::devx::events::Subscription;
use self::errno::{EAGAIN, EBADF, EBUSY, EINVAL, EIO, ENOMEM};
pub use self::events::is_any_closed;
use self::events::{Carries, EventFiles, FileId};
use self::handles::{Handles, Kind, Object};
use self::memlock::Memlock;
use self::rdma_cm::RdmaCm;
use self::removal::Removal;
use self::report::Routes;
use self::umad::UmadFiles;

use super::fd_table;
use crate::base::clock::Clock;
use crate::base::faults::Faults;
use crate::base::tally::{Fault, Tally};
use crate::commands::Commands;
use crate::commands::objects::{self as registry, Entry, Id};
use crate::engine::{Nic, NicConfig};
use crate::fabric::LinkLayer;
use crate::objects::{Cqn, Qpn, Result, Srqn, Wqn};

// Types of objects whose creation can fail on request.
const PD: u16 = 1;
const CQ: u16 = 3;
const QP: u16 = 4;
const SRQ: u16 = 5;
const AH: u16 = 6;
const MR: u16 = 7;

/// A device with everything that the kernel keeps about it.
#[derive(Debug)]
pub struct Core {
    nic: Nic,
    commands: Commands,
    link: LinkLayer,
    netdev: Option<String>,
    shared_registers: bool,
    // Contexts may have users of the firmware.
    devx: bool,
    real_time: bool,
    refuse_raw: bool,
    // Time 0 of the device, in nanoseconds since 1970.
    epoch: u64,
    faults: Faults,
    tally: Tally,
    // Commands to destroy an object so far, by type.
    destroys: [u64; 8],
    // Commands to create an object that would have succeeded, by type.
    creates: [u64; 8],
    removal: Removal,
    // State of the port that sysfs does not show yet.
    port_news: Option<bool>,
    // Time that the command that has just ended keeps its caller.
    command_time: Duration,
    clock: Arc<Clock>,
    clock_pages: ClockPages,
    // Time at which the device last waited for its peers.
    lingered: Option<u64>,
    slot: u8,
    vectors: u32,
    last_id: FileId,
    files: BTreeMap<FileId, File>,
    events: EventFiles,
    routes: Routes,
    subscriptions: Vec<Subscription>,
    memlock: Memlock,
    umad: UmadFiles,
    rdma_cm: RdmaCm,
    // Pages of device memory in use.
    dm_pages: u64,
    // Counters that `rdma statistic` has bound to queue pairs.
    bound: BoundCounters,
}

/// An open uverbs device, which one descriptor and its copies share.
#[derive(Debug, Default)]
struct File {
    descriptors: u32,
    context: Option<Context>,
    handles: Handles,
    // Objects that ended with the device, by handle: their type, and what their destruction answers.
    destroyed: BTreeMap<u32, (u16, Reported)>,
    // Event file for asynchronous events of objects that name no other file.
    async_file: Option<FileId>,
}

impl Core {
    /// Makes a kernel for this device, made from `config`; `slot` is the number of the device in its process.
    pub fn new(nic: Nic, config: &NicConfig, clock: Arc<Clock>, slot: u8) -> io::Result<Self> {
        mappings::limit(config.faults.max_map_count, &config.tally);
        let vectors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let clock_pages = ClockPages::new(config.epoch)?;
        let port = nic.port();
        // The next process with this port must not repeat the identifiers of this one.
        let rdma_cm = RdmaCm::new(port.guid, port.lid, config.seed ^ config.epoch);
        Ok(Self {
            commands: Commands::of_process(config.link_layer, &port, vectors),
            nic,
            link: config.link_layer,
            netdev: config.netdev.clone(),
            shared_registers: config.shared_registers || config.blue_flame,
            devx: !config.without_devx,
            real_time: config.real_time,
            refuse_raw: config.refuse_raw,
            epoch: config.epoch,
            faults: config.faults,
            tally: config.tally.clone(),
            destroys: [0; 8],
            creates: [0; 8],
            removal: Removal::default(),
            port_news: None,
            command_time: Duration::ZERO,
            clock,
            clock_pages,
            lingered: None,
            slot,
            vectors,
            last_id: 0,
            files: BTreeMap::new(),
            events: EventFiles::new(slot),
            routes: Routes::default(),
            subscriptions: Vec::new(),
            memlock: Memlock::new(config.memlock),
            umad: UmadFiles::new(slot),
            rdma_cm,
            dm_pages: 0,
            bound: BoundCounters::default(),
        })
    }

    /// Returns the device itself.
    pub fn nic(&mut self) -> &mut Nic {
        &mut self.nic
    }

    /// Returns the time of the next timer of the device, of the connection manager or of a management datagram.
    pub fn next_deadline(&self) -> Option<u64> {
        let all = [self.nic.next_deadline(), self.rdma_cm.next_deadline(), self.umad.next_deadline()];
        all.into_iter().flatten().min()
    }

    /// Changes the faults from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        (self.faults, self.destroys, self.creates) = (faults, [0; 8], [0; 8]);
        mappings::limit(faults.max_map_count, &self.tally);
        self.nic.set_faults(faults);
    }

    /// Returns the state of the port, if it has changed since the last call.
    pub fn take_port_news(&mut self) -> Option<bool> {
        self.port_news.take()
    }

    /// Returns how long the command that has just ended keeps its caller. A stepped device has no such time.
    pub fn take_command_time(&mut self) -> Duration {
        let time = std::mem::take(&mut self.command_time);
        if self.clock.is_real() { time } else { Duration::ZERO }
    }

    /// Returns the number of objects of a type.
    fn count(&self, type_id: u16) -> u64 {
        self.files.values().map(|file| file.handles.of_type(type_id).len() as u64).sum()
    }

    fn next_id(&mut self) -> FileId {
        self.last_id += 1;
        self.last_id
    }

    /// Opens a file of the device.
    pub fn open(&mut self) -> Result<FileId> {
        if self.is_removed() {
            return Err(EIO);
        }
        let id = self.next_id();
        self.files.insert(id, File { descriptors: 1, ..File::default() });
        Ok(id)
    }

    /// Opens the file for management datagrams; returns the program's descriptor.
    pub fn open_umad(&mut self, flags: i32) -> Result<RawFd> {
        if self.is_removed() {
            return Err(EIO);
        }
        let id = self.next_id();
        self.umad.open(id, flags)
    }

    /// Counts a copied descriptor.
    pub fn duplicate(&mut self, entry: fd_table::Entry) {
        match entry.kind {
            fd_table::Kind::Uverbs => {
                if let Some(file) = self.files.get_mut(&entry.id) {
                    file.descriptors += 1;
                }
            }
            fd_table::Kind::Events => self.events.duplicate(entry.id),
            fd_table::Kind::RdmaCm => self.duplicate_rdma_cm(entry.id),
            fd_table::Kind::Umad => self.umad.duplicate(entry.id),
            fd_table::Kind::Inherited | fd_table::Kind::Netlink => {}
        }
    }

    /// Counts a closed descriptor. The last descriptor of an open device destroys all objects made through
    /// it.
    pub fn close(&mut self, entry: fd_table::Entry) {
        match entry.kind {
            fd_table::Kind::Uverbs => {
                let Some(file) = self.files.get_mut(&entry.id) else { return };
                file.descriptors -= 1;
                if file.descriptors == 0 {
                    if self.nic.has_queue_pairs() {
                        self.settle();
                    }
                    let mut call = Call { core: self, file: entry.id };
                    call.destroy_all();
                    let context = call.file().context.take();
                    self.files.remove(&entry.id);
                    if let Some(context) = context {
                        self.end_context(context);
                    }
                }
            }
            fd_table::Kind::Events => {
                self.events.close(entry.id);
                self.end_subscriptions_of_closed_files();
            }
            fd_table::Kind::RdmaCm => self.close_rdma_cm(entry.id),
            fd_table::Kind::Umad => self.umad.close(entry.id),
            fd_table::Kind::Inherited | fd_table::Kind::Netlink => {}
        }
        self.deliver_events();
    }

    /// Runs the `RDMA_VERBS_IOCTL` of an open device.
    pub fn ioctl(&mut self, file: FileId, argument: u64) -> Result<()> {
        let result = self.call(file).and_then(|mut call| ioctl::run(&mut call, argument));
        self.deliver_events();
        result
    }

    /// Runs a command in the form of a write; returns the bytes taken, which are all.
    pub fn write(&mut self, file: FileId, addr: u64, count: usize) -> Result<usize> {
        let result = self.call(file).and_then(|mut call| write::run(&mut call, addr, count));
        self.deliver_events();
        result.map(|()| count)
    }

    /// Returns the memory of a mapping of the device at this offset: a descriptor and an offset in it.
    pub fn map(&mut self, file: FileId, request: MapRequest) -> Result<(RawFd, u64)> {
        let mut call = self.call(file)?;
        call.check_present(false)?;
        uar::map(&mut call, request)
    }

    // Gives back what a context without objects had.
    fn end_context(&mut self, context: Context) {
        let uid = context.uid;
        context.release(&mut self.commands.objects);
        self.destroy_user(uid);
    }

    fn call(&mut self, file: FileId) -> Result<Call<'_>> {
        if !self.files.contains_key(&file) {
            return Err(EBADF);
        }
        Ok(Call { core: self, file })
    }
}

pub use self::ioctl::REQUEST as VERBS_IOCTL;
pub use self::mapping::MapRequest;
pub use self::query_device::DEVICE_CAPS;
pub use self::resources::{Description, Resource};

/// A running command: the device and the open file that it came through.
struct Call<'a> {
    core: &'a mut Core,
    file: FileId,
}

impl Call<'_> {
    fn nic(&mut self) -> &mut Nic {
        &mut self.core.nic
    }

    fn file(&mut self) -> &mut File {
        self.core.files.get_mut(&self.file).expect("a call holds an open file")
    }

    fn handles(&mut self) -> &mut Handles {
        &mut self.file().handles
    }

    fn get<K: Kind>(&self, handle: u32) -> Result<&K> {
        self.core.files.get(&self.file).ok_or(EINVAL)?.handles.get(handle)
    }

    fn get_mut<K: Kind>(&mut self, handle: u32) -> Result<&mut K> {
        self.handles().get_mut(handle)
    }

    /// Returns the context; commands before GET_CONTEXT have none.
    fn context(&mut self) -> Result<&mut Context> {
        self.file().context.as_mut().ok_or(EINVAL)
    }

    /// Returns the user of the objects of this file: 0 without DEVX.
    fn uid(&mut self) -> u16 {
        self.file().context.as_ref().map_or(0, |context| context.uid)
    }

    /// Returns the event file of a descriptor of the program.
    fn event_file(&self, fd: RawFd, carries: Carries) -> Result<FileId> {
        let entry = fd_table::get(fd).ok_or(EBADF)?;
        let file = self.core.events.get(entry.id).ok_or(EBADF)?;
        let ours = entry.kind == fd_table::Kind::Events
            && entry.slot == self.core.slot
            && file.carries == carries
            && file.owner == self.file;
        if ours { Ok(entry.id) } else { Err(EBADF) }
    }

    fn open_events(&mut self, carries: Carries) -> Result<RawFd> {
        self.context()?;
        let id = self.core.next_id();
        let owner = self.file;
        let fd = self.core.events.open(id, carries, owner)?;
        if carries == Carries::Asynchronous && self.file().async_file.is_none() {
            self.file().async_file = Some(id);
        }
        Ok(fd)
    }

    /// Undoes [`Self::open_events`] when its descriptor could not be handed out.
    fn close_events(&mut self, fd: RawFd) {
        if let Some(entry) = fd_table::clear(fd) {
            self.core.events.close(entry.id);
            // SAFETY: the program never got this descriptor.
            unsafe { libc::close(fd) };
        }
    }

    /// Counts a command that is about to create an object. Fails on request, and when the device has no room: with the
    /// kernel's error for the status of the firmware (no resources for a memory key, limit for other objects).
    fn admit(&mut self, type_id: u16) -> Result<()> {
        let Core { faults, creates, .. } = &mut *self.core;
        creates[usize::from(type_id)] += 1;
        let limit = match type_id {
            QP => faults.max_qps,
            MR => faults.max_mkeys,
            _ => None,
        };
        let fails = faults.fail_create.of_type(type_id).is(creates[usize::from(type_id)]);
        let is_full = limit.is_some_and(|limit| self.core.count(type_id) >= limit);
        if !self.core.tally.count_if(fails || is_full, Fault::Create) {
            return Ok(());
        }
        Err(if type_id == MR { EAGAIN } else { ENOMEM })
    }

    /// Runs a command to destroy one object. Returns `EBUSY` while another object needs it, and on request.
    fn destroy(&mut self, handle: u32, type_id: u16) -> Result<Reported> {
        if self.core.is_removed() {
            return self.take_destroyed(handle, type_id);
        }
        if self.handles().type_id(handle)? != type_id {
            return Err(EINVAL);
        }
        let count = self.core.destroys.get_mut(usize::from(type_id));
        let number = count.map_or(0, |count| {
            *count += 1;
            *count
        });
        let which = self.core.faults.fail_destroy.of_type(type_id);
        if self.core.tally.count_if(which.is(number), Fault::Destroy) {
            return Err(EBUSY);
        }
        self.destroy_object(handle, type_id)
    }

    fn destroy_object(&mut self, handle: u32, type_id: u16) -> Result<Reported> {
        let ids = self.ids(&[handle]);
        if ids.iter().any(|id| self.core.commands.objects.check_unused(*id, 0).is_err()) {
            return Err(EBUSY);
        }
        let reported = match type_id {
            1 => self.destroy_pd(handle)?,
            3 => self.destroy_cq(handle)?,
            4 if self.get::<rss::RssQp>(handle).is_ok() => self.destroy_rss_qp(handle)?,
            4 => self.destroy_qp(handle)?,
            5 => self.destroy_srq(handle)?,
            6 | rss::TABLE_TYPE => Reported::default(),
            flow::TYPE_ID => self.destroy_flow(handle)?,
            wq::TYPE_ID => self.destroy_wq(handle)?,
            dm::TYPE => self.free_dm(handle)?,
            mw::TYPE => self.destroy_mw(handle)?,
            uar_object::TYPE => self.destroy_uar(handle)?,
            devx::object::TYPE => self.destroy_devx_object(handle)?,
            devx::umem::TYPE => self.destroy_umem(handle)?,
            _ => self.destroy_mr(handle)?,
        };
        self.forget(handle);
        Ok(reported)
    }

    // Destroys users first: objects of commands, flows, QPs, indirection tables, WQs, AHs, memory windows, MRs, device
    // memory, SRQs, CQs, PDs, UAR pages.
    fn destroy_all(&mut self) {
        self.destroy_all_devx();
        self.detach_all_multicast();
        let of_frames = [flow::TYPE_ID, 4, rss::TABLE_TYPE, wq::TYPE_ID];
        for type_id in of_frames.into_iter().chain([6, mw::TYPE, 7, dm::TYPE, 5, 3, 1, uar_object::TYPE]) {
            for handle in self.handles().of_type(type_id) {
                let reported = self.destroy_object(handle, type_id).unwrap_or_else(|_| {
                    self.forget(handle);
                    Reported::default()
                });
                self.file().destroyed.insert(handle, (type_id, reported));
            }
        }
    }

    /// Returns the places of objects in the registry.
    fn ids(&mut self, handles: &[u32]) -> Vec<Id> {
        handles.iter().flat_map(|handle| self.handles().ids(*handle).to_vec()).collect()
    }

    /// Keeps an object that the device numbers, and uses the objects with these handles; returns its handle.
    fn enter(&mut self, id: Id, uses: &[u32], object: impl Into<Object>) -> u32 {
        let uses = self.ids(uses);
        let uid = self.uid();
        self.core.commands.objects.insert(id, Entry { uid, uses, ..Entry::default() });
        self.handles().insert(vec![id], object)
    }

    /// Does the same for an object that the firmware numbers.
    fn enter_new(&mut self, kind: registry::Kind, uses: &[u32], object: impl Into<Object>) -> Result<u32> {
        let entry = Entry { uid: self.uid(), uses: self.ids(uses), ..Entry::default() };
        let number = self.core.commands.objects.insert_new(kind, entry).map_err(|_| ENOMEM)?;
        Ok(self.handles().insert(vec![Id(kind, number)], object))
    }

    /// Takes an object out, with its references.
    fn forget(&mut self, handle: u32) {
        for id in self.handles().remove(handle).unwrap_or_default() {
            self.core.commands.objects.remove(id);
        }
    }
}

/// Number under which the device knows an object that has a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Number {
    Cq(Cqn),
    Qp(Qpn),
    Srq(Srqn),
    Wq(Wqn),
}

type Places = HashMap<Number, (FileId, u32)>;
