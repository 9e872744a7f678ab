//! The file of the connection manager, `/dev/infiniband/rdma_cm`: what the kernel's `rdma_ucm` and `rdma_cm` do.
//!
//! [`commands`] reads what a program writes, [`identifier`] is what the program gives names to, [`address`] says which
//! addresses lead where. The protocol itself is in [`crate::uverbs::cm`]; [`deliver`] turns its events into events of
//! the program.

mod accept;
mod address;
mod commands;
mod connect;
mod deliver;
mod events;
mod identifier;
mod multicast;
mod options;
mod query;
mod resolve;
mod service;
mod user_event;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::RawFd;

use self::events::{File, Queued};
use self::identifier::{Identifier, Numbers, Ports};
use self::multicast::Group;
use super::Core;
use super::errno::{EBADF, EINVAL, ENOENT};
use super::events::FileId;
use crate::fabric::LinkLayer;
use crate::objects::{AddressVector, Errno, Grh, Result};
use crate::uverbs::cm::{self, Cm, Path};

/// Events of `enum rdma_cm_event_type`.
pub(super) mod event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const DEVICE_REMOVAL: u32 = 11;
    pub const MULTICAST_JOIN: u32 = 12;
    pub const TIMEWAIT_EXIT: u32 = 15;
    pub const USER: u32 = 18;
    pub const INTERNAL: u32 = 19;
}

/// Identifiers and events of all programs that have the file open, which is one process.
#[derive(Debug)]
pub struct RdmaCm {
    cm: Cm,
    files: BTreeMap<FileId, File>,
    ids: BTreeMap<u32, Identifier>,
    // Identifiers by the numbers that the protocol knows them by.
    by_cm: HashMap<cm::Id, u32>,
    groups: BTreeMap<u32, Group>,
    ports: Ports,
    numbers: Numbers,
    // Identifiers that wait for a port to appear.
    waiting: BTreeSet<u32>,
    // GUID by which libraries know the device.
    shown_guid: u64,
    // Time at which ports of the fabric are looked for.
    look_at: Option<u64>,
}

// Interval of looking for ports that programs wait for, and for ports that have left.
const LOOK_NS: u64 = 100_000_000;

impl RdmaCm {
    /// Starts without identifiers. `guid` is that of the adapter, `lid` that of its port.
    pub fn new(guid: u64, lid: u16, seed: u64) -> Self {
        Self {
            cm: Cm::new(guid, seed),
            files: BTreeMap::new(),
            ids: BTreeMap::new(),
            by_cm: HashMap::new(),
            groups: BTreeMap::new(),
            ports: Ports::new(lid),
            numbers: Numbers::default(),
            waiting: BTreeSet::new(),
            shown_guid: guid,
            look_at: None,
        }
    }

    /// Returns the time of the next timer.
    pub fn next_deadline(&self) -> Option<u64> {
        let look = self.look_at.filter(|_| !self.waiting.is_empty());
        [self.cm.next_deadline(), look].into_iter().flatten().min()
    }

    fn id(&mut self, file: FileId, id: u32) -> Result<&mut Identifier> {
        let identifier = self.ids.get_mut(&id).ok_or(ENOENT)?;
        if identifier.file == file { Ok(identifier) } else { Err(EINVAL) }
    }

    fn push(&mut self, queued: Queued) {
        if let Some(id) = self.ids.get(&queued.of) {
            if let Some(file) = self.files.get_mut(&id.file) {
                file.push(queued);
            }
        }
    }
}

/// A running command, and the file that it came through.
struct Call<'a> {
    core: &'a mut Core,
    file: FileId,
}

impl Core {
    /// Sets the GUID that sysfs shows for the device: libraries compare it with that of an identifier.
    pub fn show_guid(&mut self, guid: u64) {
        self.rdma_cm.shown_guid = guid;
    }

    /// Opens the connection manager's file; returns its number and the program's descriptor.
    pub fn open_rdma_cm(&mut self) -> Result<(FileId, RawFd)> {
        let id = self.next_id();
        let (file, fd) = File::open()?;
        self.rdma_cm.files.insert(id, file);
        Ok((id, fd))
    }

    /// Counts a copied descriptor of the file.
    pub(super) fn duplicate_rdma_cm(&mut self, file: FileId) {
        if let Some(file) = self.rdma_cm.files.get_mut(&file) {
            file.descriptors += 1;
        }
    }

    /// Counts a closed descriptor of the file. The last one ends its identifiers.
    pub(super) fn close_rdma_cm(&mut self, file: FileId) {
        let Some(open) = self.rdma_cm.files.get_mut(&file) else { return };
        open.descriptors -= 1;
        if open.descriptors == 0 {
            Call { core: self, file }.destroy_all();
            self.exchange();
            // A thread that waits for an event holds the file open, and waits on: the kernel does the same.
            if self.rdma_cm.files.get(&file).is_some_and(File::is_over) {
                self.rdma_cm.files.remove(&file);
            }
        }
    }

    /// Ends all identifiers, so that peers learn that the process ends.
    pub(super) fn end_rdma_cm(&mut self) {
        let files: Vec<_> = self.rdma_cm.files.keys().copied().collect();
        for file in files {
            Call { core: self, file }.destroy_all();
        }
        self.exchange();
    }

    /// Returns `true` if what the program writes asks for an event. A thread of the program then waits for a token,
    /// until
    /// [`Self::end_rdma_cm_wait`].
    pub fn begin_rdma_cm_wait(&mut self, file: FileId, addr: u64, count: usize) -> Result<bool> {
        let asks = commands::asks_for_event(addr, count)?;
        if asks {
            self.rdma_cm.files.get_mut(&file).ok_or(EBADF)?.waiting += 1;
        }
        Ok(asks)
    }

    /// Takes note that a thread waits no longer.
    pub fn end_rdma_cm_wait(&mut self, file: FileId) {
        if let Some(open) = self.rdma_cm.files.get_mut(&file) {
            open.waiting -= 1;
            if open.is_over() {
                self.rdma_cm.files.remove(&file);
            }
        }
    }

    /// Runs a command; returns the bytes taken, which are all. `None` if it asks for an event and there is none.
    pub fn write_rdma_cm(&mut self, file: FileId, addr: u64, count: usize) -> Result<Option<usize>> {
        let result = commands::run(&mut Call { core: self, file }, addr, count);
        self.exchange();
        self.deliver_events();
        // A datagram to this very device is answered at once.
        self.work_off();
        result.map(|done| done.then_some(count))
    }

    /// Lets timers expire and looks for ports; returns `true` if anything happened.
    pub(super) fn work_rdma_cm(&mut self) -> bool {
        let now = self.clock.now();
        let due = self.rdma_cm.cm.next_deadline().is_some_and(|at| at <= now);
        self.rdma_cm.cm.advance(now);
        let looked = self.look_for_ports(now);
        let delivered = self.exchange();
        due || looked || delivered
    }

    fn look_for_ports(&mut self, now: u64) -> bool {
        if self.rdma_cm.look_at.is_none_or(|at| now < at) {
            return false;
        }
        let own = self.nic.port().lid;
        let waits = !self.rdma_cm.waiting.is_empty();
        let mut known = self.rdma_cm.cm.remote_lids();
        known.retain(|lid| *lid != own);
        if !waits && known.is_empty() {
            self.rdma_cm.look_at = None;
            return false;
        }
        self.rdma_cm.look_at = Some(now + LOOK_NS);
        let peers = self.nic.peers(now);
        for lost in known.into_iter().filter(|lid| !peers.contains(lid)) {
            self.rdma_cm.cm.peer_lost(lost);
        }
        if waits { self.resolve_waiting(now, &peers) } else { false }
    }

    /// Sends what the protocol wants to send, and delivers its events; returns `true` if there was anything.
    fn exchange(&mut self) -> bool {
        let mut any = false;
        loop {
            if let Some((path, mad)) = self.rdma_cm.cm.next_outgoing() {
                let to = vector(&path, self.link);
                self.nic.send_management(&to, crate::fabric::mad::GSI_QPN, &mad);
            } else if let Some((id, event)) = self.rdma_cm.cm.next_event() {
                self.deliver_cm(id, event);
            } else {
                break;
            }
            any = true;
        }
        if any {
            let next = self.clock.now() + LOOK_NS;
            self.rdma_cm.look_at.get_or_insert(next);
        }
        any
    }

    /// Takes a datagram of communication management.
    pub(super) fn receive_cm(&mut self, arrived: &crate::fabric::mad::Arrived) {
        let lid = self.nic.port().lid;
        let path = path_of(arrived, lid, self.link);
        self.rdma_cm.cm.advance(self.clock.now());
        self.rdma_cm.cm.receive(&path, &arrived.mad);
        self.exchange();
    }
}

// Returns the path back to the sender of a datagram.
fn path_of(arrived: &crate::fabric::mad::Arrived, lid: u16, link: LinkLayer) -> Path {
    let gid = |lid| address::gid_of(lid, link, 0);
    let mut path = Path {
        local_lid: lid,
        remote_lid: arrived.slid,
        local_gid: gid(lid),
        remote_gid: gid(arrived.slid),
        sl: arrived.sl,
        ..Path::default()
    };
    if let Some(grh) = &arrived.grh {
        let sixteen = |at: usize| grh[at..].first_chunk().copied().unwrap_or_default();
        (path.remote_gid, path.local_gid) = (sixteen(8), sixteen(24));
        let word = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
        (path.traffic_class, path.flow_label) = ((word >> 20) as u8, word & 0xf_ffff);
        path.hop_limit = HOP_LIMIT;
    }
    path
}

// Hop limit of a path with a GRH.
const HOP_LIMIT: u8 = 64;

fn vector(path: &Path, link: LinkLayer) -> AddressVector {
    let global = link == LinkLayer::Ethernet;
    AddressVector {
        dlid: path.remote_lid,
        sl: path.sl,
        src_path_bits: 0,
        grh: global.then(|| Grh {
            dgid: path.remote_gid,
            sgid_index: address::gid_index(&path.local_gid, link),
            flow_label: path.flow_label,
            hop_limit: path.hop_limit.max(1),
            traffic_class: path.traffic_class,
        }),
    }
}

fn status_of(error: Errno) -> u32 {
    (-error.0) as u32
}
