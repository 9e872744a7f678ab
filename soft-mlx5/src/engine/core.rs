//! The state that all queue pairs of a device share.

mod completions;

use std::collections::VecDeque;
use std::io;

use self::completions::Completions;
use super::NicConfig;
use super::counting::QueueCounters;
use super::faults::OperationFaults;
use super::timing::Late;
use crate::base::defect::Defect;
use crate::fabric::LinkLayer;
use crate::fabric::interface::Interface;
use crate::fabric::link::Link;
use crate::fabric::packet::Route;
use crate::fabric::pcap::Capture;
use crate::fabric::playback::Playback;
use crate::objects::cq::Cq;
use crate::objects::defects::Defects;
use crate::objects::gid_table::GidTable;
use crate::objects::memory::Unmapped;
use crate::objects::mkey::MkeyTable;
use crate::objects::qp::Qp;
use crate::objects::srq::Srq;
use crate::objects::strict::{Object, Rule, Strict};
use crate::objects::table::Table;
use crate::objects::timer::Timers;
use crate::objects::trace::Trace;
use crate::objects::{AddressVector, Event, Pdn, Srqn};

const FIRST_CQN: u32 = 0x400;
const FIRST_SRQN: u32 = 0x1000;
const MAX_QUEUES: u32 = 1 << 20;
const TURN: u32 = 32;

/// Memory of a device about peers that do not answer.
#[derive(Debug, Default)]
pub struct SilentPeers {
    /// Number of the last echo.
    pub last_token: u32,
    /// The line about retries in vain was printed.
    pub retries_told: bool,
    /// The line about a peer that does not get the processor was printed.
    pub behind_told: bool,
}

/// Result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The queue pair has nothing to do until something happens.
    Idle,
    /// More could be done at once.
    More,
    /// The link takes no more for now.
    Blocked,
}

/// The shared part of a device.
#[derive(Debug)]
pub struct Core {
    /// Time of the last step.
    pub now: u64,
    /// The port.
    pub link: Link,
    /// Link layer of the port.
    pub link_layer: LinkLayer,
    /// Source addresses that a driver has set.
    pub gids: GidTable,
    /// Memory keys.
    pub mkeys: MkeyTable,
    /// Completion queues.
    pub cqs: Table<Cq>,
    /// Completions on their way to CQs.
    pub completions: Completions,
    /// Shared receive queues.
    pub srqs: Table<Srq>,
    /// Timers of the queue pairs.
    pub timers: Timers,
    /// Events for the driver.
    pub events: VecDeque<Event>,
    /// Operations that fail on request.
    pub faults: OperationFaults,
    /// The rule that the device breaks, on request.
    pub defects: Defects,
    /// Counters of the transport.
    pub counters: QueueCounters,
    /// The work that waits at the pace of an adapter.
    pub late: Late,
    /// The trace.
    pub trace: Trace,
    /// Judge of breaches that an adapter would not report.
    pub strict: Strict,
    /// Queue pairs with something to do.
    pub active: VecDeque<u32>,
    /// WQEs and packets of a queue pair before the next one has its turn.
    pub turn: u32,
    /// Something was done in this step.
    pub progress: bool,
    /// Peers that do not answer.
    pub silent_peers: SilentPeers,
    /// Number of the last dynamic connection of an initiator. Those of a later device with this port are greater.
    pub last_session: u64,
}

impl Core {
    /// Makes the shared part of a new device.
    pub fn new(config: &NicConfig) -> io::Result<Self> {
        let mut link = Link::new(&config.joined_fabric(), config.faults, config.seed, config.tally.clone())?;
        if let Some(path) = &config.pcap {
            link.capture(Capture::open(path, config.epoch)?);
        }
        if let Some(path) = &config.frames {
            link.play(Playback::open(path, config.frames_rate)?);
        }
        if let Some(name) = &config.netdev {
            link.join(Interface::open(name)?);
        }
        let defects = Defects::new(config.faults.defect);
        if defects.is(Defect::PortDown) {
            link.set_up(false);
        }
        Ok(Self {
            now: 0,
            trace: Trace::open(config.trace.as_deref(), config.epoch, link.lid())?,
            link,
            link_layer: config.link_layer,
            gids: GidTable::default(),
            mkeys: MkeyTable::new(config.seed ^ config.epoch),
            cqs: Table::new(FIRST_CQN, MAX_QUEUES),
            completions: Completions::new(config),
            srqs: Table::new(FIRST_SRQN, MAX_QUEUES),
            timers: Timers::default(),
            events: VecDeque::new(),
            faults: OperationFaults::new(config.faults, config.seed, config.tally.clone()),
            defects,
            counters: QueueCounters::default(),
            late: Late::new(config.timing, config.lowest_timeout, config.seed),
            strict: Strict::new(config.strict),
            active: VecDeque::new(),
            turn: if config.small_steps { 1 } else { TURN },
            progress: false,
            silent_peers: SilentPeers::default(),
            last_session: config.epoch,
        })
    }

    /// Returns the route to the destination of an address vector, if that and the source address exist.
    pub fn route(&self, av: &AddressVector) -> Option<Route> {
        self.gids.route(av, self.link.lid(), self.link_layer)
    }

    /// Lets a queue pair work in this step or the next.
    #[inline]
    pub fn activate(&mut self, qp: &mut Qp) {
        if !qp.active {
            qp.active = true;
            self.active.push_back(qp.number);
        }
    }

    /// Gives an SRQ up, because the program took its memory away. Queue pairs notice when they need a WQE.
    #[cold]
    pub fn lose_srq(&mut self, number: u32) {
        if self.srqs.get_mut(number).is_some_and(Srq::abandon) {
            self.strict.violation(Rule::QueueMemory, Object::Srq(number), 0, &[]);
            self.events.push_back(Event::SrqError(Srqn(number)));
        }
    }

    /// Takes a receive WQE for the message that begins at `qp`; returns `false` if none is posted.
    pub fn take_receive(&mut self, qp: &mut Qp) -> bool {
        let receive = &mut qp.responder.receive;
        if receive.counter.is_some() {
            return true;
        }
        receive.placed = 0;
        if self.defects.is(Defect::StaleRecord) {
            let srq = qp.attr.srq.and_then(|srqn| self.srqs.get(srqn.0));
            if srq.map_or_else(|| qp.rq.available(), Srq::available).is_ok_and(|posted| posted < 2) {
                return false;
            }
        }
        receive.counter = match qp.attr.srq {
            None => {
                let (strict, trace) = (&mut self.strict, &mut self.trace);
                match qp.rq.take(&mut receive.list, Object::Qp(qp.number), strict, trace) {
                    Ok(taken) => taken,
                    Err(Unmapped) => {
                        qp.lose_memory(self);
                        return false;
                    }
                }
            }
            Some(srqn) => {
                let Some(srq) = self.srqs.get_mut(srqn.0) else { return false };
                let taken = srq.take(&mut receive.list, &mut self.strict, &mut self.trace);
                let lost = taken.is_err();
                if lost || srq.is_abandoned() {
                    self.lose_srq(srqn.0);
                    qp.fail_fatally(self);
                    return false;
                }
                let taken = taken.ok().flatten();
                if let Some(taken) = taken.filter(|_| self.defects.is(Defect::SrqOrder)) {
                    srq.ignore_link(taken.slot);
                }
                self.events.extend(taken.and_then(|taken| taken.event));
                taken.map(|taken| taken.slot)
            }
        };
        self.defects.receive(&mut receive.list);
        if let Some(counter) = receive.counter {
            self.trace.receive(qp.number, qp.attr.srq, counter, &receive.list);
        }
        receive.counter.is_some()
    }

    /// Returns the domain of the keys in the receive WQEs of `qp`.
    pub fn receive_pd(&self, qp: &Qp) -> Pdn {
        let srq = qp.attr.srq.and_then(|srqn| self.srqs.get(srqn.0));
        srq.map_or(qp.attr.pd, |srq| srq.attr().pd)
    }
}
