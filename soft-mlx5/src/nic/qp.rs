//! Queue pairs: context, state, and the turn that each gets.

use super::completion::{self, Failure};
use super::core::Core;
use super::execute;
use super::memory::{Spaces, Span, Unmapped};
use super::objects::{
    self, Access, AddressVector, Errno, Event, QpAttr, QpModify, QpState, QpStatus, Qpn, Service, WqAttr,
};
use super::requester::{self, Requester};
use super::responder::{self, Responder};
use super::rq::ReceiveQueue;
use super::sq::{SendQueue, blocks};
use super::strict::{Object, Rule};
use super::timer::Deadline;
use super::tm::message;
use super::tm::rendezvous::{self, Rendezvous};
use crate::fabric::LinkLayer;
use crate::fabric::address::{self, GidType};
use crate::fabric::packet::{MAX_MTU, Route};

const DEFAULT_HOP_LIMIT: u8 = 64;

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Number.
    pub number: u32,
    /// Number that stands in its packets: 0 and 1 for management, else its own.
    pub wire_number: u32,
    /// Attributes of the creation.
    pub attr: QpAttr,
    /// State.
    pub state: QpState,
    /// Remote access rights.
    pub access: Access,
    /// Queue key (UD).
    pub qkey: u32,
    /// Bytes of payload in a packet.
    pub mtu: usize,
    /// Peer, where connected.
    pub dest_qpn: u32,
    /// Route to the peer; `None` if its address belongs to no port.
    pub route: Option<Route>,
    /// Receive queue, empty with an SRQ.
    pub rq: ReceiveQueue,
    /// Send queue.
    pub sq: SendQueue,
    /// Rendezvous queue, if the device owns the send queue.
    pub rendezvous: Option<Rendezvous>,
    /// Executes the send queue.
    pub requester: Requester,
    /// Serves the peer.
    pub responder: Responder,
    /// Next timer of the requester.
    pub deadline: Deadline,
    /// Is in the list of active queue pairs.
    pub active: bool,
    // A packet has come since RTR.
    established: bool,
    // `SqDrained` was raised since SQD; `LastWqe` since error.
    drained: bool,
    last_wqe: bool,
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

impl Qp {
    /// Makes a queue pair in state Reset.
    pub fn new(number: u32, attr: QpAttr, spaces: &Spaces) -> objects::Result<Self> {
        if attr.dbrec % 8 != 0 || attr.sq.buf % 8 != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let record = Span::of(&spaces.record, attr.dbrec, 8);
        // The receive side for frames is a queue of its own.
        let rq = if attr.service == Service::Raw { WqAttr::default() } else { attr.rq };
        Ok(Self {
            number,
            wire_number: number,
            state: QpState::Reset,
            access: 0,
            qkey: 0,
            // A datagram is as long as the port allows; a connection has the MTU of its path.
            mtu: MAX_MTU,
            dest_qpn: 0,
            route: None,
            rq: ReceiveQueue::new(rq, &spaces.ring, record.clone())?,
            sq: SendQueue::new(attr.sq, &spaces.ring, record)?,
            rendezvous: None,
            requester: Requester::default(),
            responder: Responder::default(),
            deadline: Deadline::default(),
            active: false,
            established: false,
            drained: false,
            last_wqe: false,
            attr,
        })
    }

    /// Gives the send queue, which the program does not use, to the device for rendezvous.
    pub fn offload_rendezvous(&mut self) -> objects::Result<()> {
        let mut queue = Rendezvous::new();
        self.sq = queue.send_queue()?;
        self.rendezvous = Some(queue);
        (self.attr.signal_all, self.attr.scatter_to_cqe_sq) = (false, false);
        Ok(())
    }

    /// Returns the object for the strict rules.
    pub fn object(&self) -> Object {
        Object::Qp(self.number)
    }

    /// Returns `true` if packets are received.
    pub fn receives(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Returns `true` if doorbells of the send queue are taken.
    pub fn takes_doorbells(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err)
    }

    /// Returns `true` if WQEs were posted since the last flush.
    pub fn has_unflushed(&mut self, core: &mut Core) -> bool {
        let receives = self.attr.srq.is_none() && self.available(core) > 0;
        receives || self.ready(core) > 0
    }

    /// Looks at the doorbell record.
    pub fn observe(&mut self, core: &mut Core) {
        let object = self.object();
        let Core { strict, trace, now, .. } = core;
        let mut seen = Ok(());
        if self.state != QpState::Reset && self.attr.srq.is_none() {
            seen = self.rq.observe(object, strict, trace);
        }
        if self.state == QpState::Rts && self.rendezvous.is_none() {
            seen = seen.and_then(|()| self.sq.observe(object, *now, strict));
        }
        self.unless_lost(core, seen);
    }

    /// Takes the record as rung: a register that several queue pairs share was written, perhaps by this one.
    pub fn ring_by_record(&mut self, core: &mut Core) {
        let rung = self.sq.ring_by_record();
        self.unless_lost(core, rung);
        core.activate(self);
    }

    fn available(&mut self, core: &mut Core) -> u16 {
        let posted = self.rq.available();
        self.unless_lost(core, posted)
    }

    fn ready(&mut self, core: &mut Core) -> u16 {
        let ready = self.sq.ready(self.object(), &mut core.strict);
        self.unless_lost(core, ready)
    }

    fn unless_lost<T: Default>(&mut self, core: &mut Core, found: Result<T, Unmapped>) -> T {
        found.unwrap_or_else(|Unmapped| {
            self.lose_memory(core);
            T::default()
        })
    }

    /// Stops the queue pair, because the program took the memory of a queue away. The queues are empty from now
    /// on. An adapter would still read the old memory.
    #[cold]
    pub fn lose_memory(&mut self, core: &mut Core) {
        core.strict.violation(Rule::QueueMemory, self.object(), self.sq.next().into(), &[]);
        self.rq.abandon();
        self.sq.abandon();
        self.fail_fatally(core);
    }

    /// Stops for a reason that no completion reports.
    pub fn fail_fatally(&mut self, core: &mut Core) {
        if self.state != QpState::Err && self.state != QpState::Reset {
            core.events.push_back(Event::QpFatal(Qpn(self.number)));
            self.fail(core);
        }
    }

    /// Applies the changes of MODIFY_QP.
    pub fn modify(&mut self, change: &QpModify, core: &mut Core) {
        if change.state == Some(QpState::Reset) {
            self.reset(core);
        }
        if let Some(access) = change.access {
            self.access = access;
        }
        if let Some(qkey) = change.qkey {
            self.qkey = qkey;
        }
        if let Some(mtu) = change.path_mtu {
            self.mtu = (mtu as usize).clamp(256, MAX_MTU);
        }
        if let Some(qpn) = change.dest_qpn {
            self.dest_qpn = qpn;
        }
        if let Some(av) = &change.av {
            self.route = core.route(av);
        }
        self.requester.modify(change);
        self.responder.modify(change);
        if let Some(state) = change.state {
            self.enter(state, core);
        }
    }

    /// Releases the entries and slots of its SRQ.
    pub fn release(&mut self, core: &mut Core) {
        message::cancel(self, core);
        rendezvous::cancel(self, core);
        if let Some((slot, srqn)) = self.responder.receive.counter.zip(self.attr.srq) {
            // The WQE is lost to the program: the queue pair had taken it and reports nothing more.
            if let Some(srq) = core.srqs.get_mut(srqn.0) {
                srq.complete(slot);
            }
        }
    }

    fn reset(&mut self, core: &mut Core) {
        self.release(core);
        core.release_completions_of(self.number);
        self.rq.reset();
        self.sq.reset();
        self.rendezvous.iter_mut().for_each(Rendezvous::reset);
        self.requester = Requester::default();
        self.responder = Responder::default();
        core.timers.set(self.number, &mut self.deadline, None);
        (self.established, self.drained, self.last_wqe) = (false, false, false);
    }

    fn enter(&mut self, state: QpState, core: &mut Core) {
        if state == QpState::Sqd {
            self.drained = false;
        }
        let posted = self.available(core);
        if self.state == QpState::Reset && state == QpState::Init && posted > 0 {
            let index = posted.into();
            core.strict.violation(Rule::ReceiveState, self.object(), index, &posted.to_be_bytes());
        }
        self.state = state;
        if state == QpState::Err {
            core.timers.set(self.number, &mut self.deadline, None);
        }
        if state != QpState::Reset {
            core.activate(self);
        }
    }

    /// Stops this queue pair; its WQEs are flushed at its next turn.
    pub fn fail(&mut self, core: &mut Core) {
        if self.state != QpState::Err && self.state != QpState::Reset {
            self.enter(QpState::Err, core);
        }
    }

    /// Returns the state for QUERY_QP.
    pub fn status(&self) -> QpStatus {
        QpStatus {
            state: self.state,
            rq_psn: self.responder.expected_psn(),
            sq_psn: self.requester.next_psn(),
            sq_draining: self.state == QpState::Sqd && !self.requester.is_idle(),
        }
    }

    /// Notes a packet for this queue pair.
    pub fn note_arrival(&mut self, core: &mut Core) {
        if !self.established {
            self.established = true;
            if self.state == QpState::Rtr {
                core.events.push_back(Event::CommunicationEstablished(Qpn(self.number)));
            }
        }
    }

    /// Works for a bounded while.
    pub fn turn(&mut self, core: &mut Core) -> Turn {
        let mut budget = core.turn;
        // Refusals are sent even if this queue pair has failed.
        let answers = responder::transmit(self, core, &mut budget);
        match self.state {
            QpState::Reset | QpState::Init => return Turn::Idle,
            QpState::Err => {
                self.flush(core);
                return answers;
            }
            _ => {}
        }
        let requests = execute::run(self, core, &mut budget);
        if self.state == QpState::Sqd && self.requester.is_idle() && !self.drained {
            self.drained = true;
            core.events.push_back(Event::SqDrained(Qpn(self.number)));
        }
        match (answers, requests) {
            (Turn::More, _) | (_, Turn::More) => Turn::More,
            (Turn::Blocked, _) | (_, Turn::Blocked) => Turn::Blocked,
            _ => Turn::Idle,
        }
    }

    /// Completes everything that a queue pair in error holds or gets.
    pub fn flush(&mut self, core: &mut Core) {
        requester::flush(self, core);
        self.flush_posted_sends(core);
        rendezvous::cancel(self, core);
        responder::flush(self, core);
        if self.attr.srq.is_some() && !self.last_wqe {
            self.last_wqe = true;
            core.progress = true;
            core.release_completions_of(self.number);
            core.events.push_back(Event::LastWqe(Qpn(self.number)));
        }
    }

    fn flush_posted_sends(&mut self, core: &mut Core) {
        loop {
            let ready = self.ready(core);
            if ready == 0 {
                return;
            }
            let index = self.sq.next();
            let Ok(ctrl) = self.sq.ctrl(index) else { return self.lose_memory(core) };
            let len = blocks(ctrl.ds());
            if len == 0 || len > ready {
                let bytes = ctrl.to_bytes();
                core.strict.violation(Rule::SendSize, self.object(), index.into(), &bytes);
                // The start of the next WQE is not known.
                self.sq.advance(ready);
            } else {
                self.sq.advance(len);
            }
            if self.rendezvous.is_some() {
                continue;
            }
            let cqe = completion::requester_error(self, ctrl.opcode(), index, Failure::FLUSH);
            core.complete(self.attr.send_cq, &cqe);
        }
    }
}

/// Returns the route from port `slid` to the destination of an address vector, or `None` if the destination or the
/// source GID does not exist.
pub fn route(av: &AddressVector, slid: u16, layer: LinkLayer) -> Option<Route> {
    let by_gid = av.grh.and_then(|grh| address::lid_of_gid(&grh.dgid));
    let dlid = match layer {
        LinkLayer::Ethernet => by_gid?,
        LinkLayer::InfiniBand if av.dlid == 0 => by_gid?,
        LinkLayer::InfiniBand => av.dlid,
    };
    let index = av.grh.map_or(0, |grh| grh.sgid_index.into());
    Some(route_from(av, slid, dlid, address::table_entry(slid, layer, index)?))
}

/// Returns the route from a source address to port `dlid`.
pub fn route_from(av: &AddressVector, slid: u16, dlid: u16, sgid: (GidType, [u8; 16])) -> Route {
    Route {
        slid,
        dlid,
        sl: av.sl,
        global: av.grh.is_some(),
        sgid,
        dgid: av.grh.map_or_else(|| address::gid(dlid), |grh| grh.dgid),
        flow_label: av.grh.map_or(0, |grh| grh.flow_label),
        traffic_class: av.grh.map_or(0, |grh| grh.traffic_class),
        hop_limit: av.grh.map_or(DEFAULT_HOP_LIMIT, |grh| grh.hop_limit),
    }
}

/// Returns `true` if the service is connected to one peer.
pub fn is_connected(service: Service) -> bool {
    matches!(service, Service::Rc | Service::Uc)
}
