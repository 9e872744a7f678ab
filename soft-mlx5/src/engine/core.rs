//! The state that all queue pairs of a device share.

use std::collections::VecDeque;
use std::io;

use super::NicConfig;
use super::faults::OperationFaults;
use super::timing::Late;
use crate::base::counters::Hardware;
use crate::base::defect::Defect;
use crate::fabric::LinkLayer;
use crate::fabric::echo::Echo;
use crate::fabric::interface::Interface;
use crate::fabric::link::Link;
use crate::fabric::mad::Arrived;
use crate::fabric::packet::Route;
use crate::fabric::pcap::Capture;
use crate::fabric::playback::Playback;
use crate::objects::completion::Completion;
use crate::objects::cq::Cq;
use crate::objects::defects::{Defects, TORN_NS};
use crate::objects::gid_table::GidTable;
use crate::objects::memory::Unmapped;
use crate::objects::mkey::MkeyTable;
use crate::objects::qp::Qp;
use crate::objects::shuffle::Shuffler;
use crate::objects::srq::Srq;
use crate::objects::strict::{Object, Rule, Strict};
use crate::objects::table::Table;
use crate::objects::timer::Timers;
use crate::objects::trace::Trace;
use crate::objects::{AddressVector, Cqn, Event, Pdn, Srqn};

const FIRST_CQN: u32 = 0x400;
const FIRST_SRQN: u32 = 0x1000;
const MAX_QUEUES: u32 = 1 << 20;
const TURN: u32 = 32;

/// Hints that were printed.
#[derive(Debug, Default)]
pub struct Hints {
    /// The hint at retries that were in vain was printed.
    pub retries_exceeded: bool,
    /// The hint at a peer that does not get the processor was printed.
    pub peer_behind: bool,
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
    /// Shared receive queues.
    pub srqs: Table<Srq>,
    /// Timers of the queue pairs.
    pub timers: Timers,
    /// Events for the driver.
    pub events: VecDeque<Event>,
    /// Management datagrams for the driver.
    pub management: VecDeque<Arrived>,
    /// Sequence number of the next management datagram.
    pub management_psn: u32,
    /// Operations that fail on request.
    pub faults: OperationFaults,
    /// The rule that the device breaks, on request.
    pub defects: Defects,
    /// Counters of the transport.
    pub counters: Hardware,
    /// CQs with a torn CQE, and when it becomes whole.
    pub torn: Vec<(Cqn, u64)>,
    /// Completions on their way to their CQs.
    pub shuffler: Shuffler,
    /// The work that waits at the pace of an adapter.
    pub late: Late,
    /// The trace.
    pub trace: Trace,
    /// Judge of breaches that an adapter would not report.
    pub strict: Strict,
    /// Queue pairs with something to do.
    pub active: VecDeque<u32>,
    /// CQs that hold CQEs back.
    pub held_back: Vec<Cqn>,
    /// CQs that overran and whose queue pairs do not know it yet.
    pub failed_cqs: Vec<Cqn>,
    /// WQEs and packets of a queue pair before the next one has its turn.
    pub turn: u32,
    /// Something was done in this step.
    pub progress: bool,
    /// Turns that queue pairs have had.
    pub turns: u64,
    /// Echoes of other devices, each with the number of turns after which it goes back.
    pub echoes: VecDeque<(u64, Echo)>,
    /// Number of the last echo of this device.
    pub last_token: u32,
    /// Lines that the program got about peers that do not answer.
    pub hints: Hints,
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
            srqs: Table::new(FIRST_SRQN, MAX_QUEUES),
            timers: Timers::default(),
            events: VecDeque::new(),
            management: VecDeque::new(),
            management_psn: 0,
            faults: OperationFaults::new(config.faults, config.seed, config.tally.clone()),
            defects,
            counters: Hardware::default(),
            torn: Vec::new(),
            shuffler: Shuffler::new(config.faults.shuffle_completions, config.seed),
            late: Late::new(config.timing, config.seed),
            strict: Strict::new(config.strict),
            active: VecDeque::new(),
            held_back: Vec::new(),
            failed_cqs: Vec::new(),
            turn: if config.small_steps { 1 } else { TURN },
            progress: false,
            turns: 0,
            echoes: VecDeque::new(),
            last_token: 0,
            hints: Hints::default(),
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

    /// Reports a completion.
    pub fn complete(&mut self, cqn: Cqn, completion: &Completion) {
        self.progress = true;
        if self.shuffler.is_on() && !self.is_of_tag_matching(cqn) {
            self.shuffler.hold(cqn, completion, self.now);
        } else {
            self.write_cqe(cqn, completion);
        }
    }

    fn is_of_tag_matching(&mut self, cqn: Cqn) -> bool {
        self.srqs.iter_mut().any(|(_, srq)| srq.own_cq() == Some(cqn))
    }

    /// Writes the CQEs whose time has come.
    pub fn release_completions(&mut self) {
        while let Some((cqn, completion)) = self.shuffler.release(self.now) {
            self.write_cqe(cqn, &completion);
        }
        if self.late.is_due(&self.late.completions, self.now) {
            self.write_late_cqes();
        }
    }

    /// Writes all CQEs of a queue pair: later CQEs must not come before them.
    pub fn release_completions_of(&mut self, qpn: u32) {
        while let Some((cqn, completion)) = self.shuffler.release_of_qp(qpn) {
            self.write_cqe(cqn, &completion);
        }
        self.write_late_cqes();
        self.write_blocks();
    }

    /// Writes the CQEs that wait for their bunch.
    pub fn write_late_cqes(&mut self) {
        while let Some((cqn, completion)) = self.late.completions.take() {
            self.write_cqe_now(cqn, &completion);
        }
    }

    /// Reports a completion of a queue of frames. Its CQEs do not name their queue, so they are never shuffled.
    pub fn complete_frame(&mut self, cqn: Cqn, completion: &Completion) {
        self.progress = true;
        self.write_cqe(cqn, completion);
    }

    /// Writes a CQE now, or with its bunch.
    pub fn write_cqe(&mut self, cqn: Cqn, completion: &Completion) {
        if self.late.is_on() {
            self.late.completions.add((cqn, completion.clone()), self.now);
        } else {
            self.write_late_cqes();
            self.write_cqe_now(cqn, completion);
        }
    }

    fn write_cqe_now(&mut self, cqn: Cqn, completion: &Completion) {
        match self.defects.completions(completion) {
            None => self.push_cqe(cqn, completion),
            Some(others) => others.iter().for_each(|completion| self.push_cqe(cqn, completion)),
        }
    }

    fn push_cqe(&mut self, cqn: Cqn, completion: &Completion) {
        self.progress = true;
        // Only a driver's mistake lets a queue pair outlive its CQ; no program waits for the CQE then.
        let Some(cq) = self.cqs.get_mut(cqn.0) else { return };
        self.trace.completed(cqn, cq.producer(), completion);
        self.counters.count_failure(completion);
        let event = cq.push(completion, &self.defects, &mut self.strict);
        if self.defects.is(Defect::TornCqe) {
            // This CQE has made the one before whole.
            self.torn.retain(|(torn, _)| *torn != cqn);
            self.torn.push((cqn, self.now + TORN_NS));
        }
        if cq.holds_back() && !self.held_back.contains(&cqn) {
            self.held_back.push(cqn);
        }
        self.raise(event);
    }

    /// Reports an event of a CQ to the driver.
    pub fn raise(&mut self, event: Option<Event>) {
        if let Some(Event::CqError(cqn)) = event {
            self.failed_cqs.push(cqn);
        }
        self.events.extend(event);
    }

    /// Gives an SRQ up, because the program took its memory away. Queue pairs notice when they need a WQE.
    #[cold]
    pub fn lose_srq(&mut self, number: u32) {
        if self.srqs.get_mut(number).is_some_and(Srq::abandon) {
            self.strict.violation(Rule::QueueMemory, Object::Srq(number), 0, &[]);
            self.events.push_back(Event::SrqError(Srqn(number)));
        }
    }

    /// Writes the CQEs that were held back for a compressed block.
    pub fn write_blocks(&mut self) {
        while let Some(cqn) = self.held_back.pop() {
            let cq = self.cqs.get_mut(cqn.0);
            let event = cq.and_then(|cq| cq.write_block(&self.defects, &mut self.strict));
            self.raise(event);
        }
    }

    /// Writes the rest of torn CQEs whose time has come.
    pub fn mend_cqes(&mut self) {
        let Self { torn, now, cqs, strict, .. } = self;
        torn.retain(|(cqn, until)| {
            let due = *until <= *now;
            if let Some(cq) = cqs.get_mut(cqn.0).filter(|_| due) {
                cq.mend(strict);
            }
            !due
        });
    }

    /// Looks at the arm record of a CQ.
    pub fn arm(&mut self, cq: u32) {
        let Some(cq) = self.cqs.get_mut(cq) else { return };
        let number = cq.number();
        let event = cq.arm(&mut self.strict, &mut self.trace);
        let early = self.defects.is(Defect::EarlyEvent).then_some(Event::Completion(number));
        self.raise(event.or(early));
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
