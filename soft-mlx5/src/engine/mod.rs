//! The adapter: executes WQEs that the program wrote, moves bytes, writes CQEs.
//!
//! [`Nic`] is a state machine without thread and without clock: its user calls [`Nic::step`] with the
//! time, real or virtual. The device finds work only as an adapter does: in doorbell records, UAR
//! registers and packets.

mod blue_flame;
mod completion;
mod config;
mod control;
mod core;
pub(crate) mod counting;
mod dc;
mod execute;
mod faults;
pub(crate) mod frames;
pub mod inspect;
mod management;
pub(crate) mod options;
mod receive;
pub mod replay;
mod requester;
mod responder;
mod response;
mod state;
mod step;
mod timing;
mod tm;
mod transmit;
mod turn;
mod umr;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use mlx5_wire::data::DataSegment;

use self::blue_flame::Copies;
use self::core::Core;
use self::faults::Schedule;
use self::frames::Frames;
use self::management::Management;
use self::step::Echoes;
use crate::base::counters::{Counters, Port};
use crate::base::faults::Faults;
use crate::base::guard;
use crate::base::tally::Tally;
use crate::fabric::address;
use crate::fabric::groups::{Member, Membership};
use crate::fabric::link::Drops;
use crate::objects::completion::Failure;
use crate::objects::defects::Defects;
use crate::objects::gid_table::GidTable;
use crate::objects::qp::Qp;
use crate::objects::scatter::ScatterList;
use crate::objects::strict::{Object, Rule, Strict};
use crate::objects::table::Table;
use crate::objects::uar::{Ring, Uar};
use crate::objects::{Event, Qpn, Result};

pub use self::config::{NicConfig, PortAddress};
pub use self::timing::Timing;
pub use crate::objects::uar::UarPage;

/// Frequency of the clock of CQE timestamps, in kHz (`hca_core_clock`): one tick per nanosecond.
pub const CORE_CLOCK_KHZ: u32 = 1_000_000;

const FIRST_QPN: u32 = 0x40;
const MAX_QPS: u32 = 1 << 18;
const MAX_PDS: u32 = 1 << 16;

/// A software mlx5 adapter.
#[derive(Debug)]
pub struct Nic {
    core: Core,
    pds: Table<()>,
    // Boxed: a queue pair is large, and the table moves when it grows.
    qps: Table<Box<Qp>>,
    frames: Frames,
    uar: Uar,
    groups: Vec<([u8; 16], Qpn)>,
    management: Management,
    // Queue pairs that stand for queue pairs 0 and 1.
    management_qps: [Option<Qpn>; 2],
    schedule: Schedule,
    tally: Tally,
    small_steps: bool,
    // Queue pairs that wait for the link, that have more to do, and that are in error.
    blocked: Vec<u32>,
    unfinished: Vec<u32>,
    failed: Vec<u32>,
    rings: Vec<Ring>,
    copies: Copies,
    echoes: Echoes,
    steps: u32,
    // The SRQ and the queue pair whose records were looked at last.
    srq_cursor: u32,
    qp_cursor: u32,
}

impl Nic {
    /// Powers up a device and joins its fabric.
    ///
    /// # Safety
    /// A device accesses registered memory without asking the program again. The creator of an object promises
    /// for the memory that the attributes name: until the object is destroyed, the device may write there (CQEs,
    /// CQ records, registered memory with a write access), and no other owner's memory is mapped there.
    pub unsafe fn new(config: NicConfig) -> io::Result<Self> {
        guard::signals::install();
        Ok(Self {
            core: Core::new(&config)?,
            pds: Table::new(1, MAX_PDS),
            qps: if config.distinct_qp_numbers { Table::distinct(FIRST_QPN) } else { Table::new(FIRST_QPN, MAX_QPS) },
            frames: Frames::default(),
            uar: Uar::new()?,
            groups: Vec::new(),
            management: Management::default(),
            management_qps: [None; 2],
            schedule: Schedule::new(&config.faults),
            tally: config.tally,
            small_steps: config.small_steps,
            blocked: Vec::new(),
            unfinished: Vec::new(),
            failed: Vec::new(),
            rings: Vec::new(),
            copies: Copies::new(config.blue_flame),
            echoes: Echoes::default(),
            steps: 0,
            srq_cursor: 0,
            qp_cursor: 0,
        })
    }

    /// Returns the UAR page with this index, made at its first use.
    pub fn uar_page(&mut self, index: u32) -> Result<UarPage> {
        self.uar.page(index).map_err(control::errno)
    }

    /// Makes the memory file of the UAR pages this long, for a bus that maps it whole.
    pub(crate) fn reserve_uar_pages(&mut self, pages: u32) -> io::Result<()> {
        self.uar.reserve(pages)
    }

    /// Returns the memory file of the UAR pages.
    pub(crate) fn uar_file(&self) -> RawFd {
        self.uar.file()
    }

    /// Takes a doorbell of eight bytes from a page that drivers do not map. No later doorbell overwrites it.
    pub(crate) fn ring_register(&mut self, page: u32, offset: usize, doorbell: [u8; 8]) {
        if self.uar.store(page, offset, doorbell) {
            self.take_doorbells(true);
        }
    }

    /// Returns the source addresses that a driver sets.
    pub(crate) fn gids(&mut self) -> &mut GidTable {
        &mut self.core.gids
    }

    /// Returns the addresses and state of the port.
    pub fn port(&self) -> PortAddress {
        let lid = self.core.link.lid();
        PortAddress {
            lid,
            gid: address::gid(lid),
            guid: address::guid(lid),
            mac: address::mac(lid),
            up: self.core.link.is_up(),
        }
    }

    /// Returns `true` if the port with this LID answers for its addresses.
    pub fn reaches(&self, lid: u16) -> bool {
        let link = &self.core.link;
        lid == link.lid() || link.is_up() && link.has_device(lid)
    }

    /// Takes the link down or up, and reports [`Event::Port`] to the driver.
    pub fn set_link(&mut self, up: bool) {
        if self.core.link.is_up() != up {
            self.core.link.set_up(up);
            self.core.events.push_back(Event::Port { up });
        }
    }

    /// Changes the faults from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.core.link.set_faults(faults);
        self.core.faults.set(faults);
        self.core.defects = Defects::new(faults.defect);
        self.core.completions.set_shuffling(faults.shuffle_completions);
        self.schedule.set(&faults);
    }

    /// Returns all counters.
    pub fn counters(&self) -> Counters {
        let port = self.core.link.counters();
        let mut hardware = *self.core.counters.device();
        hardware.rx_icrc_encapsulated = self.core.link.wrong_icrcs();
        Counters { port, hardware, injected: self.tally.own() }
    }

    /// Sets counters of the port to 0: those whose base `reset` sets to the value of all time.
    pub fn reset_counters(&mut self, reset: impl FnOnce(&mut Port, &Port)) {
        self.core.link.reset_counters(reset);
    }

    /// Returns the members of multicast groups on the fabric.
    pub fn group_members(&self) -> Vec<Member> {
        self.core.link.members()
    }

    /// Makes the port a member of a group. Queue pairs are attached by [`Nic::attach_multicast`].
    pub fn join_group(&mut self, membership: Membership) -> io::Result<()> {
        self.core.link.join_group(membership)
    }

    /// Ends the membership of the port in a group; returns `false` if it was no member.
    pub fn leave_group(&mut self, mgid: &[u8; 16]) -> bool {
        self.core.link.leave_group(mgid)
    }

    /// Returns the packets that the port lost.
    pub fn drops(&self) -> Drops {
        self.core.link.drops()
    }

    /// Returns how often a rule was broken. An adapter would not report it.
    pub fn violations(&self, rule: Rule) -> u64 {
        self.core.strict.count(rule)
    }

    /// Reports an event that comes from outside.
    pub fn report(&mut self, event: Event) {
        self.core.events.push_back(event);
    }

    /// Takes the next event for the driver.
    pub fn next_event(&mut self) -> Option<Event> {
        let Core { events, defects, .. } = &mut self.core;
        std::iter::from_fn(|| events.pop_front()).find(|event| !defects.loses(event))
    }

    /// Lets nothing wait that is late at the pace of an adapter, or lets it wait again.
    pub(crate) fn hurry(&mut self, hurries: bool) {
        self.core.late.hurry(hurries);
    }

    /// Returns `true` if the device has the pace of an adapter.
    pub(crate) fn is_slow(&self) -> bool {
        self.core.late.is_slow()
    }

    /// Returns how long the modify command that is running keeps its caller.
    pub(crate) fn modify_time(&mut self) -> Duration {
        self.core.late.modify_time()
    }

    /// Returns `true` if there is a queue pair.
    pub fn has_queue_pairs(&self) -> bool {
        self.qps.iter().next().is_some()
    }

    /// Returns the time of the next timer; until then only doorbells and packets make work.
    pub fn next_deadline(&self) -> Option<u64> {
        let core = &self.core;
        let all = [
            core.timers.next(),
            core.link.next_deadline(),
            core.completions.next_deadline(),
            core.late.next_deadline(),
            self.schedule.next_deadline(core.now),
        ];
        all.into_iter().flatten().min()
    }

    /// Returns the descriptor that becomes readable when packets from other processes wait, for a driver that
    /// wants to sleep; `None` without a named fabric.
    pub fn wait_fd(&self) -> Option<RawFd> {
        self.core.link.wait_fd()
    }
}

/// Returns the syndrome, vendor syndrome, `hw_err_synd` and `hw_synd_type` of each error that a device reports.
pub(crate) fn failures() -> impl Iterator<Item = [u8; 4]> {
    Failure::ALL.iter().map(|failure| {
        let [error, kind] = failure.hardware;
        [failure.syndrome.get(), failure.vendor, error, kind]
    })
}

/// Returns the data segments of a receive WQE as a device reads them, or `None` if it would read unwritten bytes.
pub(crate) fn receive_segments(wqe: &[u8]) -> Option<Vec<DataSegment>> {
    let (mut list, mut strict) = (ScatterList::default(), Strict::new(false));
    list.parse(wqe, Object::Qp(0), 0, &mut strict);
    let broken = [Rule::Stride, Rule::Terminator, Rule::ZeroLength, Rule::SegmentLength];
    let sound = broken.iter().all(|rule| strict.count(*rule) == 0);
    sound.then(|| list.segments().to_vec())
}
