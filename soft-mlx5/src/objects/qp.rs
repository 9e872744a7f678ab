//! A queue pair: its context, its queues, and the state of both sides.

use super::dc::Role;
use super::memory::{Spaces, Span};
use super::mkey::Owner;
use super::rendezvous::Rendezvous;
use super::requester::Requester;
use super::responder::Responder;
use super::rq::ReceiveQueue;
use super::sq::SendQueue;
use super::strict::Object;
use super::timer::Deadline;
use super::{Access, Errno, Event, QpAttr, QpState, QpStatus, Qpn, Result, Service, WqAttr};
use crate::fabric::packet::{MAX_MTU, Route};

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
    /// Role in dynamic connections.
    pub role: Role,
    /// Next timer of the requester; of a connection of a target, the end of its patience with a silent initiator.
    pub deadline: Deadline,
    /// Is in the list of active queue pairs.
    pub active: bool,
    /// A packet has come since RTR.
    pub established: bool,
    /// `SqDrained` was raised since SQD.
    pub drained: bool,
    /// `LastWqe` was raised since error.
    pub last_wqe: bool,
}

impl Qp {
    /// Returns what counts where the queue pair changes or uses a key of one queue pair.
    pub fn owner(&self) -> Owner {
        Owner { pd: self.attr.pd, qpn: self.number }
    }

    /// Makes a queue pair in state Reset.
    pub fn new(number: u32, attr: QpAttr, spaces: &Spaces) -> Result<Self> {
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
            sq: SendQueue::new(attr.sq, attr.service, &spaces.ring, record)?,
            rendezvous: None,
            requester: Requester::default(),
            responder: Responder::default(),
            role: Role::of(attr.dc),
            deadline: Deadline::default(),
            active: false,
            established: false,
            drained: false,
            last_wqe: false,
            attr,
        })
    }

    /// Gives the send queue, which the program does not use, to the device for rendezvous.
    pub fn offload_rendezvous(&mut self) -> Result<()> {
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

    /// Returns the number in its CQEs: a connection completes in the name of its target.
    pub fn cqe_number(&self) -> u32 {
        match &self.role {
            Role::Connection(connection) => connection.target,
            _ => self.number,
        }
    }

    /// Returns an event about it, if the driver hears of it.
    pub fn event(&self, event: impl FnOnce(Qpn) -> Event) -> Option<Event> {
        self.role.raises_events().then(|| event(Qpn(self.number)))
    }

    /// Returns `true` if packets are received.
    pub fn receives(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Returns `true` if doorbells of the send queue are taken.
    pub fn takes_doorbells(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err)
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
}
