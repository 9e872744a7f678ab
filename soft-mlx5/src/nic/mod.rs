//! The adapter: executes WQEs that the program wrote, moves bytes, writes CQEs.
//!
//! [`Nic`] is a state machine without thread and without clock: whoever drives it calls
//! [`Nic::step`] with the time, real or virtual. It learns of work only as an adapter does: from
//! doorbell records, UAR registers and packets.

mod blue_flame;
mod commands;
mod completion;
mod compress;
mod core;
mod cq;
pub mod defects;
mod execute;
mod faults;
mod handover;
pub mod inspect;
mod memory;
mod mkey;
pub mod objects;
mod psn;
mod qp;
mod receive;
mod requester;
mod responder;
mod response;
mod rq;
mod scatter;
mod shuffle;
mod sq;
mod srq;
pub mod strict;
mod table;
mod timer;
mod tm;
pub mod trace;
mod transmit;
mod uar;
mod wqe;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;

use mlx5_wire::data::DataSegment;

use self::blue_flame::Copies;
use self::core::Core;
use self::defects::{Defect, Defects};
use self::faults::Schedule;
use self::objects::{Event, QpState, Qpn, Result};
use self::qp::{Qp, Turn, is_connected};
use self::strict::{Object, Rule};
use self::table::Table;
use self::uar::{Ring, Uar};
use crate::fabric::link::Drops;
use crate::fabric::packet::Packet;
use crate::fabric::{Fabric, LinkLayer, address};
use crate::faults::Faults;
use crate::guard;

pub use self::mkey::DUMP_FILL_MKEY;

/// Frequency of the clock behind CQE timestamps, in kHz (`hca_core_clock`): one tick per nanosecond.
pub const CORE_CLOCK_KHZ: u32 = 1_000_000;

const FIRST_QPN: u32 = 0x40;
const MAX_QPS: u32 = 1 << 18;
const MAX_PDS: u32 = 1 << 16;

// Bounds of one step.
const PACKETS_PER_STEP: usize = 256;
const TURNS_PER_STEP: usize = 64;
// Queue pairs in error are looked at when nothing else is to do, and once in so many steps.
const ERROR_SCAN_INTERVAL: u32 = 16;
// Doorbell records looked at in a step, of SRQs and of queue pairs.
const RECORD_SCAN: usize = 8;

/// What a device is told at power-up.
#[derive(Debug, Clone, Default)]
pub struct NicConfig {
    /// Devices it can reach.
    pub fabric: Fabric,
    /// Link of its port.
    pub link_layer: LinkLayer,
    /// What goes wrong.
    pub faults: Faults,
    /// Seed of everything random.
    pub seed: u64,
    /// File that gets a line for each WQE, doorbell and CQE; it must exist.
    pub trace: Option<PathBuf>,
    /// Capture file that gets the packets which leave the port; it must exist.
    pub pcap: Option<PathBuf>,
    /// Time 0 of the device in trace and capture, in nanoseconds since 1970.
    pub epoch: u64,
    /// Give programs UAR objects, whose few registers many queue pairs share, instead of a register for
    /// each queue pair.
    pub shared_registers: bool,
    /// Never give a queue pair the number that another one has had.
    pub distinct_qp_numbers: bool,
    /// A step takes one packet, and lets one queue pair execute one WQE or send one packet.
    pub small_steps: bool,
    /// Execute WQEs as they stand in a register that queue pairs share: each ring copies its WQE whole.
    pub blue_flame: bool,
    /// Let the driver count what it pins against `RLIMIT_MEMLOCK`.
    pub memlock: bool,
    /// Offer timestamps in real time, which a CQ then has when its program asks for them.
    pub real_time: bool,
    /// Stop the program where an adapter would silently mangle something.
    pub strict: bool,
}

/// Addresses and state of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAddress {
    /// Local identifier; also where GID, GUID and MAC address come from.
    pub lid: u16,
    /// GID at index 0 of the table.
    pub gid: [u8; 16],
    /// Port and node GUID.
    pub guid: u64,
    /// MAC address.
    pub mac: [u8; 6],
    /// Link state.
    pub up: bool,
}

/// A UAR page as the program must map it (`MAP_SHARED`, one page).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UarPage {
    /// Memory file, owned by the device.
    pub fd: RawFd,
    /// Offset in that file.
    pub offset: u64,
}

/// A software mlx5 adapter.
#[derive(Debug)]
pub struct Nic {
    core: Core,
    pds: Table<()>,
    // Boxed: a queue pair is large, and the table moves when it grows.
    qps: Table<Box<Qp>>,
    uar: Uar,
    groups: Vec<([u8; 16], Qpn)>,
    schedule: Schedule,
    small_steps: bool,
    // Queue pairs that wait for the link, and such that are in error.
    blocked: Vec<u32>,
    failed: Vec<u32>,
    rings: Vec<Ring>,
    copies: Copies,
    steps: u32,
    // The SRQ and the queue pair whose records were looked at last.
    srq_cursor: u32,
    qp_cursor: u32,
}

impl Nic {
    /// Powers up a device and joins its fabric.
    ///
    /// # Safety
    /// A device accesses the memory it is told about, without asking the program again. Whoever creates
    /// an object on it vouches for the memory that the attributes name: where the device writes (CQEs, CQ
    /// records, registered memory with a write access), nobody else's memory is found until the object is
    /// destroyed.
    pub unsafe fn new(config: NicConfig) -> io::Result<Self> {
        guard::signals::install();
        Ok(Self {
            core: Core::new(&config)?,
            pds: Table::new(1, MAX_PDS),
            qps: if config.distinct_qp_numbers {
                Table::distinct(FIRST_QPN)
            } else {
                Table::new(FIRST_QPN, MAX_QPS)
            },
            uar: Uar::new()?,
            groups: Vec::new(),
            schedule: Schedule::new(&config.faults),
            small_steps: config.small_steps,
            blocked: Vec::new(),
            failed: Vec::new(),
            rings: Vec::new(),
            copies: Copies::new(config.blue_flame),
            steps: 0,
            srq_cursor: 0,
            qp_cursor: 0,
        })
    }

    /// The UAR page with this index, made at its first use.
    pub fn uar_page(&mut self, index: u32) -> Result<UarPage> {
        self.uar.page(index).map_err(commands::errno)
    }

    /// Addresses and state of the port.
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

    /// Takes the link down or up; [`Event::Port`] tells the driver.
    pub fn set_link(&mut self, up: bool) {
        if self.core.link.is_up() != up {
            self.core.link.set_up(up);
            self.core.events.push_back(Event::Port { up });
        }
    }

    /// Changes what goes wrong from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.core.link.set_faults(faults);
        self.core.faults.set(faults);
        self.core.defects = Defects::new(faults.defect);
        self.core.shuffler.set(faults.shuffle_completions);
        self.schedule.set(&faults);
    }

    /// Packets that the port lost.
    pub fn drops(&self) -> Drops {
        self.core.link.drops()
    }

    /// Breaches of a rule that an adapter would not report.
    pub fn violations(&self, rule: Rule) -> u64 {
        self.core.strict.count(rule)
    }

    /// Reports an event that comes from outside.
    pub fn report(&mut self, event: Event) {
        self.core.events.push_back(event);
    }

    /// Next event for the driver.
    pub fn next_event(&mut self) -> Option<Event> {
        let Core { events, defects, .. } = &mut self.core;
        std::iter::from_fn(|| events.pop_front()).find(|event| !defects.loses(event))
    }

    /// Works for a bounded while at time `now_ns`; `false` when there was nothing to do.
    pub fn step(&mut self, now_ns: u64) -> bool {
        self.core.now = self.core.now.max(now_ns);
        self.core.trace.now = self.core.now;
        self.core.progress = false;
        while let Some(up) = self.schedule.port_change(self.core.now) {
            self.set_link(up);
        }
        if !self.schedule.works(self.core.now) {
            return false;
        }
        self.steps = self.steps.wrapping_add(1);
        self.take_doorbells(false);
        self.look_at_records();
        self.run_active();
        self.core.progress |= self.core.link.poll();
        self.receive_packets();
        self.expire_timers();
        if !self.small_steps {
            self.run_active();
        }
        self.core.release_completions();
        self.core.write_blocks();
        self.core.mend_cqes();
        self.core.progress |= self.core.link.flush(self.core.now);
        self.fail_users_of_failed_cqs();
        // Whose turn did not come in a small step may have something to do.
        self.core.progress |= self.small_steps && !self.core.active.is_empty();
        if !self.core.progress || self.steps % ERROR_SCAN_INTERVAL == 0 {
            self.take_doorbells(true);
            self.look_at_failed();
        }
        self.core.progress
    }

    /// Whether there is a queue pair.
    pub fn has_queue_pairs(&self) -> bool {
        self.qps.iter().next().is_some()
    }

    /// Time of the next timer; until then only doorbells and packets make work.
    pub fn next_deadline(&self) -> Option<u64> {
        let core = &self.core;
        let all = [
            core.timers.next(),
            core.link.next_deadline(),
            core.shuffler.next_deadline(),
            core.torn.iter().map(|(_, until)| *until).min(),
            self.schedule.next_deadline(core.now),
        ];
        all.into_iter().flatten().min()
    }

    /// Descriptor that becomes readable when packets from other processes wait, for a driver that
    /// wants to sleep; `None` without a named fabric.
    pub fn wait_fd(&self) -> Option<RawFd> {
        self.core.link.wait_fd()
    }

    /// Looks at doorbell records, a few at a time, so that what they cover is known early.
    fn look_at_records(&mut self) {
        for _ in 0..RECORD_SCAN {
            let Core { srqs, strict, trace, .. } = &mut self.core;
            if let Some((number, srq)) = srqs.next_mut(&mut self.srq_cursor) {
                if srq.observe(strict, trace).is_err() {
                    self.core.lose_srq(number);
                }
            }
            if let Some((_, qp)) = self.qps.next_mut(&mut self.qp_cursor) {
                qp.observe(&mut self.core);
            }
        }
    }

    fn take_doorbells(&mut self, all: bool) {
        let core = &mut self.core;
        core.progress |= self.uar.take_arms(|cqs| {
            for cq in cqs {
                let Some(cq) = core.cqs.get_mut(*cq) else { continue };
                let number = cq.number();
                let event = cq.arm(&mut core.strict, &mut core.trace);
                let early =
                    core.defects.is(Defect::EarlyEvent).then_some(Event::Completion(number));
                core.raise(event.or(early));
            }
        });
        let mut rings = std::mem::take(&mut self.rings);
        self.uar.take_rings(all, &mut rings);
        for ring in rings.drain(..) {
            self.core.progress = true;
            self.take_ring(ring);
        }
        self.look_at_copies();
        // The vector goes back with its capacity.
        self.rings = rings;
    }

    /// A register was written with the first eight bytes of a control segment.
    fn ring(&mut self, ring: Ring) {
        let (page, users) = self.uar.users(ring.register);
        self.core.trace.rang(page, &ring);
        let qpn = (ring.value >> 8) as u32 & 0xff_ffff;
        let bytes = ring.value.to_be_bytes();
        let index = (ring.value >> 40) as u16;
        match self.qps.get_mut(qpn).filter(|qp| qp.attr.register.page == page) {
            Some(qp) if qp.takes_doorbells() => {
                qp.sq.ring(index, ring.value as u8 & 0x3f);
                self.core.activate(qp);
            }
            Some(qp) => {
                let object = qp.object();
                self.core.strict.violation(Rule::DoorbellState, object, index.into(), &bytes);
            }
            None => self.core.strict.violation(Rule::DoorbellQpn, Object::Uar(page), qpn, &bytes),
        }
        if users == [qpn] {
            return;
        }
        // Another's ring may have been overwritten by this one: that of a user of this register or, where the value
        // does not belong here, of any on the page.
        let others = if users.contains(&qpn) { users.to_vec() } else { self.uar.users_of(page) };
        for user in others {
            if let Some(qp) = self.qps.get_mut(user).filter(|qp| qp.takes_doorbells()) {
                qp.ring_by_record(&mut self.core);
            }
        }
    }

    /// How many things of a kind a step does at most, which is `many` otherwise.
    fn at_most(&self, many: usize) -> usize {
        if self.small_steps || self.schedule.is_slow() { 1 } else { many }
    }

    fn run_active(&mut self) {
        let turns = self.core.active.len().min(self.at_most(TURNS_PER_STEP));
        for _ in 0..turns {
            let Some(number) = self.core.active.pop_front() else { break };
            let Some(qp) = self.qps.get_mut(number) else { continue };
            qp.active = false;
            match qp.turn(&mut self.core) {
                Turn::Idle => {}
                Turn::More => self.core.activate(qp),
                Turn::Blocked => self.blocked.push(number),
            }
            if qp.state == QpState::Err && !self.failed.contains(&number) {
                self.failed.push(number);
            }
        }
        for number in self.blocked.drain(..) {
            if let Some(qp) = self.qps.get_mut(number) {
                self.core.activate(qp);
            }
        }
    }

    fn receive_packets(&mut self) {
        for _ in 0..self.at_most(PACKETS_PER_STEP) {
            let Some(frame) = self.core.link.receive() else { break };
            self.core.progress = true;
            match Packet::parse(frame.bytes()) {
                Ok(packet) => self.dispatch(&packet),
                Err(_) => self.core.link.count_malformed(),
            }
            self.core.link.recycle(frame);
        }
    }

    fn dispatch(&mut self, packet: &Packet) {
        if packet.bth.dest_qpn != transmit::MULTICAST_QPN {
            return deliver(&mut self.qps, &mut self.core, packet.bth.dest_qpn, packet);
        }
        let group = &packet.grh[24..];
        let ours = packet.slid == self.core.link.lid();
        for (_, Qpn(member)) in self.groups.iter().filter(|(joined, _)| joined[..] == *group) {
            let own = ours && packet.deth.source_qpn == *member;
            let blocks = |qp: &Qp| qp.attr.block_multicast_loopback;
            if own && self.qps.get(*member).is_some_and(|qp| blocks(qp)) {
                continue;
            }
            deliver(&mut self.qps, &mut self.core, *member, packet);
        }
    }

    fn expire_timers(&mut self) {
        while let Some(number) = self.core.timers.pop(self.core.now) {
            let Some(qp) = self.qps.get_mut(number) else { continue };
            if self.core.timers.is_due(number, &mut qp.deadline, self.core.now) {
                requester::expire(qp, &mut self.core);
            }
        }
    }

    /// A CQ that overran takes its queue pairs with it.
    fn fail_users_of_failed_cqs(&mut self) {
        while let Some(cq) = self.core.failed_cqs.pop() {
            for (_, qp) in self.qps.iter_mut() {
                let uses = qp.attr.send_cq == cq || qp.attr.recv_cq == cq;
                let shares = tm::target(qp, &self.core).is_some_and(|(own, _)| own == cq);
                if (uses || shares) && qp.receives() {
                    qp.fail_fatally(&mut self.core);
                }
            }
        }
    }

    /// Queue pairs in error flush what is posted later, too, and receives come without a doorbell.
    fn look_at_failed(&mut self) {
        let (qps, core) = (&mut self.qps, &mut self.core);
        self.failed.retain(|number| {
            let Some(qp) = qps.get_mut(*number).filter(|qp| qp.state == QpState::Err) else {
                return false;
            };
            if qp.has_unflushed(core) {
                core.progress = true;
                core.activate(qp);
            }
            true
        });
    }
}

/// Syndrome, vendor syndrome, `hw_err_synd` and `hw_synd_type` of each error that a device reports.
pub(crate) fn failures() -> impl Iterator<Item = [u8; 4]> {
    completion::Failure::ALL.iter().map(|failure| {
        let [error, kind] = failure.hardware;
        [failure.syndrome.get(), failure.vendor, error, kind]
    })
}

/// The data segments of a receive WQE as a device reads them; `None` when it would read what was never written.
pub(crate) fn receive_segments(wqe: &[u8]) -> Option<Vec<DataSegment>> {
    let (mut list, mut strict) = (scatter::ScatterList::default(), strict::Strict::new(false));
    list.parse(wqe, Object::Qp(0), 0, &mut strict);
    let broken = [Rule::Stride, Rule::Terminator, Rule::ZeroLength];
    let sound = broken.iter().all(|rule| strict.count(*rule) == 0);
    sound.then(|| list.segments().to_vec())
}

/// Hands a packet to the queue pair it is for, if that one wants it.
fn deliver(qps: &mut Table<Box<Qp>>, core: &mut Core, number: u32, packet: &Packet) {
    let Some(qp) = qps.get_mut(number) else { return };
    let from_peer = !is_connected(qp.attr.service)
        || qp.route.as_ref().is_some_and(|route| route.dlid == packet.slid);
    if packet.service != qp.attr.service || !from_peer || !qp.receives() {
        return;
    }
    if packet.operation.is_response() {
        response::receive(qp, core, packet);
    } else {
        qp.note_arrival(core);
        responder::receive(qp, core, packet);
    }
}
