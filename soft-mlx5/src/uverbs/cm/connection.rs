//! One side of a connection: its state, and what its owner does with it.

use super::message::{Answered, Dreq, Ids, Message, Mra, REJ_DATA, REP_DATA, REQ_DATA, Rej, Rep, Req, padded};
use super::{Cm, Event, Id, Path, Result, WrongState, reason, time};
use crate::fabric::LinkLayer;
use crate::fabric::mad::Mad;

/// Time for an answer that both sides promise: 4.3 seconds.
pub const RESPONSE_TIMEOUT: u8 = 20;
/// How often a datagram without an answer is sent again.
pub const MAX_RETRIES: u8 = 15;
/// Time that a MRA asks for: 69 seconds.
const SERVICE_TIMEOUT: u8 = 24;
/// Lifetime of a packet in the fabric.
const PACKET_LIFETIME: u8 = 16;
/// ACK timeout of queue pairs: twice the lifetime of a packet.
pub const ACK_TIMEOUT: u8 = PACKET_LIFETIME + 1;

/// State of a connection (figures 133 to 137 of the specification; the states of a MRA are flags here).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing more happens.
    Idle,
    /// This side has asked.
    ReqSent,
    /// This side was asked.
    ReqReceived,
    /// This side has accepted.
    RepSent,
    /// The other side has accepted.
    RepReceived,
    /// Connected.
    Established,
    /// This side wants to disconnect.
    DreqSent,
    /// The other side wants to disconnect.
    DreqReceived,
    /// Disconnected; packets may still be on their way.
    Timewait,
}

/// Parameters of a request.
#[derive(Debug, Clone, Copy)]
pub struct Connect<'a> {
    /// Service.
    pub service_id: u64,
    /// Path.
    pub path: Path,
    /// Link layer of the port.
    pub link: LinkLayer,
    /// Code of the path MTU.
    pub mtu: u8,
    /// Code of the packet rate.
    pub rate: u8,
    /// Partition key.
    pub pkey: u16,
    /// Queue pair.
    pub qpn: u32,
    /// Transport service: 0 RC, 1 UC.
    pub transport: u8,
    /// First packet sequence number that the queue pair receives.
    pub psn: u32,
    /// RDMA READs and atomics that the responder can hold.
    pub responder_resources: u8,
    /// RDMA READs and atomics outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// The queue pair has an SRQ.
    pub srq: bool,
    /// Private data.
    pub data: &'a [u8],
}

/// How a connection is accepted.
#[derive(Debug, Clone, Copy)]
pub struct Accept<'a> {
    /// Queue pair.
    pub qpn: u32,
    /// RDMA READs and atomics that the responder can hold.
    pub responder_resources: u8,
    /// RDMA READs and atomics outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// The queue pair has an SRQ.
    pub srq: bool,
    /// Private data.
    pub data: &'a [u8],
}

/// Values that a queue pair needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpValues {
    /// Path.
    pub path: Path,
    /// Code of the path MTU.
    pub mtu: u8,
    /// Queue pair of the other side.
    pub remote_qpn: u32,
    /// First packet sequence number that this side receives: that of its own message.
    pub receive_psn: u32,
    /// First packet sequence number that this side sends: that of the other side's message.
    pub send_psn: u32,
    /// RDMA READs and atomics that the responder can hold.
    pub responder_resources: u8,
    /// RDMA READs and atomics outstanding.
    pub initiator_depth: u8,
    /// Retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// ACK timeout.
    pub ack_timeout: u8,
}

// A datagram that is sent again until there is an answer.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub mad: Mad,
    pub retries: u8,
    pub timeout: u64,
}

/// One side of a connection.
#[derive(Debug)]
pub struct Connection {
    pub(super) state: State,
    /// Path of its datagrams.
    pub(super) path: Path,
    pub(super) transaction: u64,
    pub(super) remote_id: Id,
    pub(super) remote_guid: u64,
    pub(super) values: QpValues,
    // This side has answered with a MRA, which a repeated message gets again.
    pub(super) mra: Option<Mad>,
    pub(super) rtu: Option<Mad>,
    pub(super) drep: Option<Mad>,
    pub(super) waiting: Option<Waiting>,
    pub(super) max_retries: u8,
    pub(super) timeout: u64,
    pub(super) deadline: Option<u64>,
}

impl Connection {
    pub(super) fn has_peer(&self) -> bool {
        !matches!(self.state, State::Idle | State::Timewait)
    }

    pub(super) fn ids(&self, id: Id) -> Ids {
        Ids { local: id, remote: self.remote_id }
    }
}

impl Cm {
    /// Returns the state of a connection.
    pub fn state(&self, id: Id) -> Option<State> {
        self.connections.get(&id).map(|connection| connection.state)
    }

    /// Returns the values for the queue pair of a connection.
    pub fn qp_values(&self, id: Id) -> Option<QpValues> {
        self.connections.get(&id).map(|connection| connection.values)
    }

    /// Asks for a connection.
    pub fn connect(&mut self, wanted: &Connect) -> Id {
        let id = self.fresh_id();
        let transaction = self.fresh_transaction(id);
        let req = Req {
            local_id: id,
            service_id: wanted.service_id,
            ca_guid: self.guid,
            qkey: 0,
            qpn: wanted.qpn,
            responder_resources: wanted.responder_resources,
            initiator_depth: wanted.initiator_depth,
            remote_response_timeout: RESPONSE_TIMEOUT,
            transport: wanted.transport,
            flow_control: wanted.flow_control,
            psn: wanted.psn,
            local_response_timeout: RESPONSE_TIMEOUT,
            retry_count: wanted.retry_count,
            pkey: wanted.pkey,
            mtu: wanted.mtu,
            rnr_retry_count: wanted.rnr_retry_count,
            max_cm_retries: MAX_RETRIES,
            srq: wanted.srq,
            path: wanted.path.to_req(wanted.link, wanted.rate, ACK_TIMEOUT),
            data: padded::<REQ_DATA>(wanted.data),
        };
        let connection = Connection {
            state: State::ReqSent,
            path: wanted.path,
            transaction,
            remote_id: 0,
            remote_guid: 0,
            values: QpValues {
                path: wanted.path,
                mtu: wanted.mtu,
                remote_qpn: 0,
                receive_psn: wanted.psn,
                send_psn: 0,
                responder_resources: wanted.responder_resources,
                initiator_depth: wanted.initiator_depth,
                retry_count: wanted.retry_count,
                rnr_retry_count: wanted.rnr_retry_count,
                ack_timeout: ACK_TIMEOUT,
            },
            mra: None,
            rtu: None,
            drep: None,
            waiting: None,
            max_retries: MAX_RETRIES,
            timeout: 2 * time(PACKET_LIFETIME) + time(RESPONSE_TIMEOUT),
            deadline: None,
        };
        self.connections.insert(id, connection);
        self.send_reliably(id, transaction, &Message::Req(req));
        id
    }

    /// Accepts a connection.
    pub fn accept(&mut self, id: Id, accept: &Accept) -> Result<()> {
        let guid = self.guid;
        let connection = self.in_state(id, &[State::ReqReceived])?;
        let values = &mut connection.values;
        values.responder_resources = accept.responder_resources;
        values.initiator_depth = accept.initiator_depth;
        let values = connection.values;
        let rep = Rep {
            ids: connection.ids(id),
            qkey: 0,
            qpn: accept.qpn,
            psn: values.receive_psn,
            responder_resources: accept.responder_resources,
            initiator_depth: accept.initiator_depth,
            ack_delay: 0,
            flow_control: accept.flow_control,
            rnr_retry_count: accept.rnr_retry_count,
            srq: accept.srq,
            ca_guid: guid,
            data: padded::<REP_DATA>(accept.data),
        };
        (connection.state, connection.mra) = (State::RepSent, None);
        let transaction = connection.transaction;
        self.send_reliably(id, transaction, &Message::Rep(rep));
        Ok(())
    }

    /// Says that the answer to a request or to a reply takes longer.
    pub fn ask_for_time(&mut self, id: Id) -> Result<()> {
        let connection = self.in_state(id, &[State::ReqReceived, State::RepReceived])?;
        let answered = match connection.state {
            State::ReqReceived => Answered::Req,
            _ => Answered::Rep,
        };
        let mra = Mra { ids: connection.ids(id), answered, service_timeout: SERVICE_TIMEOUT };
        let (path, transaction) = (connection.path, connection.transaction);
        let mad = self.send(&path, transaction, &Message::Mra(mra));
        self.in_state(id, &[State::ReqReceived, State::RepReceived])?.mra = Some(mad);
        Ok(())
    }

    /// Says that this side is ready to use a connection that the other side has accepted.
    pub fn ready(&mut self, id: Id) -> Result<()> {
        let connection = self.in_state(id, &[State::RepReceived])?;
        connection.state = State::Established;
        let (path, transaction) = (connection.path, connection.transaction);
        let ids = connection.ids(id);
        let mad = self.send(&path, transaction, &Message::Rtu(ids));
        self.in_state(id, &[State::Established])?.rtu = Some(mad);
        Ok(())
    }

    /// Takes note that the queue pair of an accepted connection has received a packet: the other side is ready.
    pub fn communication_established(&mut self, id: Id) -> Result<()> {
        let connection = self.in_state(id, &[State::RepSent, State::Established])?;
        if connection.state == State::RepSent {
            connection.state = State::Established;
            self.stop_waiting(id);
            self.event(id, Event::Ready);
        }
        Ok(())
    }

    /// Refuses a connection.
    pub fn reject(&mut self, id: Id, why: u16, data: &[u8]) -> Result<()> {
        use State::*;
        let states = [ReqSent, ReqReceived, RepSent, RepReceived];
        let connection = self.in_state(id, &states)?;
        let accepted = connection.state == RepReceived;
        self.send_rej(id, why, data);
        if accepted {
            self.enter_timewait(id);
        } else {
            self.rest(id);
        }
        Ok(())
    }

    /// Disconnects, or agrees when the other side disconnects.
    pub fn disconnect(&mut self, id: Id) -> Result<()> {
        let connection = self.in_state(id, &[State::Established, State::DreqReceived])?;
        let ids = connection.ids(id);
        if connection.state == State::Established {
            let qpn = connection.values.remote_qpn;
            connection.state = State::DreqSent;
            let transaction = self.fresh_transaction(id);
            self.send_reliably(id, transaction, &Message::Dreq(Dreq { ids, qpn }));
        } else {
            let (path, transaction) = (connection.path, connection.transaction);
            let mad = self.send(&path, transaction, &Message::Drep(ids));
            self.in_state(id, &[State::DreqReceived])?.drep = Some(mad);
            self.enter_timewait(id);
        }
        Ok(())
    }

    /// Forgets a connection, a lookup or an inquiry. The other side is told.
    pub fn destroy(&mut self, id: Id) {
        if self.destroy_lookup(id) {
            return;
        }
        match self.state(id) {
            None => return,
            Some(State::ReqSent) => self.send_rej(id, reason::TIMEOUT, &[]),
            Some(State::ReqReceived | State::RepSent | State::RepReceived) => {
                self.send_rej(id, reason::CONSUMER_DEFINED, &[]);
            }
            Some(State::Established | State::DreqReceived) => {
                let _ = self.disconnect(id);
            }
            Some(State::Idle | State::DreqSent | State::Timewait) => {}
        }
        self.set_deadline(id, None);
        if let Some(connection) = self.connections.remove(&id) {
            self.forget_remote(id, &connection);
        }
        self.events.retain(|(of, _)| *of != id);
    }

    /// Ends what is under way with a port that has left the fabric, as the kernel of its machine would have done for a
    /// process that died.
    pub fn peer_lost(&mut self, lid: u16) {
        let lost: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.has_peer() && connection.path.remote_lid == lid)
            .map(|(id, connection)| (*id, connection.state))
            .collect();
        for (id, state) in lost {
            match state {
                State::ReqSent | State::RepSent => {
                    self.rest(id);
                    self.event(id, Event::Unreachable);
                }
                State::ReqReceived | State::RepReceived => {
                    self.rest(id);
                    let data = Box::new([0; REJ_DATA]);
                    self.event(id, Event::Rejected { reason: reason::TIMEOUT, data });
                }
                State::Established => {
                    self.with(id, |connection| connection.state = State::DreqReceived);
                    self.event(id, Event::DisconnectRequest);
                }
                State::DreqSent => {
                    self.enter_timewait(id);
                    self.event(id, Event::Disconnected { timed_out: true });
                }
                State::Idle | State::DreqReceived | State::Timewait => {}
            }
        }
        self.lookups_lost(lid);
    }

    fn send_rej(&mut self, id: Id, why: u16, data: &[u8]) {
        let Some(connection) = self.connections.get(&id) else { return };
        let answered = match connection.state {
            State::ReqReceived => Answered::Req,
            State::RepReceived => Answered::Rep,
            _ => Answered::Other,
        };
        let guid = if why == reason::TIMEOUT { self.guid } else { 0 };
        let data = padded::<REJ_DATA>(data);
        let rej = Rej { ids: connection.ids(id), answered, reason: why, guid, data };
        let (path, transaction) = (connection.path, connection.transaction);
        self.send(&path, transaction, &Message::Rej(rej));
    }

    pub(super) fn in_state(&mut self, id: Id, states: &[State]) -> Result<&mut Connection> {
        let connection = self.connections.get_mut(&id);
        connection.filter(|connection| states.contains(&connection.state)).ok_or(WrongState)
    }

    pub(super) fn with(&mut self, id: Id, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.connections.get_mut(&id) {
            change(connection);
        }
    }

    pub(super) fn set_deadline(&mut self, id: Id, at: Option<u64>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(before) = std::mem::replace(&mut connection.deadline, at) {
            self.timers.remove(&(before, id));
        }
        self.timers.extend(at.map(|at| (at, id)));
    }

    pub(super) fn stop_waiting(&mut self, id: Id) {
        self.with(id, |connection| connection.waiting = None);
        self.set_deadline(id, None);
    }

    /// Ends a connection that was never established.
    pub(super) fn rest(&mut self, id: Id) {
        self.stop_waiting(id);
        self.with(id, |connection| (connection.state, connection.mra) = (State::Idle, None));
        if let Some(connection) = self.connections.remove(&id) {
            self.forget_remote(id, &connection);
            self.connections.insert(id, connection);
        }
    }

    pub(super) fn enter_timewait(&mut self, id: Id) {
        self.stop_waiting(id);
        self.with(id, |connection| connection.state = State::Timewait);
        let until = self.now + time(ACK_TIMEOUT);
        self.set_deadline(id, Some(until));
    }

    fn forget_remote(&mut self, id: Id, connection: &Connection) {
        let by_id = (connection.remote_guid, connection.remote_id);
        if self.by_remote_id.get(&by_id) == Some(&id) {
            self.by_remote_id.remove(&by_id);
        }
        let by_qpn = (connection.remote_guid, connection.values.remote_qpn);
        if self.by_remote_qpn.get(&by_qpn) == Some(&id) {
            self.by_remote_qpn.remove(&by_qpn);
        }
    }

    // Sends a message again and again until there is an answer.
    fn send_reliably(&mut self, id: Id, transaction: u64, message: &Message) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (path, timeout) = (connection.path, connection.timeout);
        let retries = connection.max_retries;
        let mad = self.send(&path, transaction, message);
        self.with(id, |connection| connection.waiting = Some(Waiting { mad, retries, timeout }));
        self.set_deadline(id, Some(self.now + timeout));
    }

    pub(super) fn expire_connection(&mut self, id: Id) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.deadline = None;
        let again = connection.waiting.as_mut().filter(|waiting| waiting.retries > 0);
        if let Some(waiting) = again {
            waiting.retries -= 1;
            let (mad, timeout) = (waiting.mad, waiting.timeout);
            self.outgoing.push_back((connection.path, mad));
            return self.set_deadline(id, Some(now + timeout));
        }
        match connection.state {
            State::ReqSent | State::RepSent => {
                self.rest(id);
                self.event(id, Event::Unreachable);
            }
            State::DreqSent => {
                self.enter_timewait(id);
                self.event(id, Event::Disconnected { timed_out: true });
            }
            State::Timewait => {
                self.rest(id);
                self.event(id, Event::TimewaitExit);
            }
            _ => {}
        }
    }
}
