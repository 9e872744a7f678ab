//! Communication management: the protocol by which queue pairs of two ports find each other.
//!
//! [`Cm`] is a state machine without socket, thread and clock. Datagrams and the time go in, datagrams and events come
//! out. [`message`] and [`header`] define the bytes, [`connection`] is one side of one connection, [`lookup`] finds the
//! queue pair of a datagram service. The owner decides what a listener accepts and what an event means to a program.

mod connection;
mod handlers;
pub mod header;
mod lookup;
pub mod message;
mod path;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};

use self::connection::Connection;
use self::lookup::{Inquiry, Lookup};
use self::message::{Answered, Data, Ids, Message, REJ_DATA, Rej, Rep, Req, SidrRep, SidrReq};
use crate::base::rng::Rng;
use crate::fabric::mad::Mad;

pub use self::connection::{Accept, Connect, QpValues, State};
pub use self::lookup::Answer;
pub use self::path::Path;

/// Number under which this side knows a connection, a lookup or an inquiry: its communication identifier.
pub type Id = u32;

/// Reasons of a REJ.
pub mod reason {
    /// The other side gave up.
    pub const TIMEOUT: u16 = 4;
    /// There is no connection of this identifier.
    pub const INVALID_COMM_ID: u16 = 6;
    /// The service has no listener.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// The connection was of a queue pair that does not exist any more.
    pub const STALE_CONNECTION: u16 = 10;
    /// The program refused.
    pub const CONSUMER_DEFINED: u16 = 28;
}

/// Status of a SIDR_REP.
pub mod sidr_status {
    /// The queue pair is there.
    pub const SUCCESS: u8 = 0;
    /// The service has no listener.
    pub const UNSUPPORTED: u8 = 1;
    /// The program refused.
    pub const REJECT: u8 = 2;
}

/// An event of a connection, a lookup or an inquiry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Somebody wants to connect to a service. The identifier is a new connection.
    Request(Box<Req>),
    /// Somebody looks for the queue pair of a service. The identifier is a new inquiry.
    Inquiry(Box<SidrReq>),
    /// The other side has accepted.
    Reply(Box<Rep>),
    /// The other side has refused.
    Rejected {
        /// Reason.
        reason: u16,
        /// Private data.
        data: Box<Data<REJ_DATA>>,
    },
    /// The other side is ready to use the connection that this side has accepted.
    Ready,
    /// The other side wants to disconnect.
    DisconnectRequest,
    /// The other side has disconnected, or does not answer.
    Disconnected {
        /// There was no answer.
        timed_out: bool,
    },
    /// The other side does not answer.
    Unreachable,
    /// The queue pair may be used again.
    TimewaitExit,
    /// A service has answered.
    Found(Box<SidrRep>),
}

/// The call does not fit the state of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongState;

/// Result of a call.
pub type Result<T> = std::result::Result<T, WrongState>;

/// Connections of a port.
#[derive(Debug)]
pub struct Cm {
    guid: u64,
    rng: Rng,
    now: u64,
    last_id: Id,
    // Services, and how many listeners each has.
    services: HashMap<u64, u32>,
    connections: HashMap<Id, Connection>,
    // Connections that came from others: by the GUID and identifier of the other side, and by its GUID and queue pair.
    by_remote_id: HashMap<(u64, Id), Id>,
    by_remote_qpn: HashMap<(u64, u32), Id>,
    lookups: HashMap<Id, Lookup>,
    inquiries: HashMap<Id, Inquiry>,
    by_request: HashMap<(u16, Id), Id>,
    // Deadlines of connections and lookups.
    timers: BTreeSet<(u64, Id)>,
    events: VecDeque<(Id, Event)>,
    outgoing: VecDeque<(Path, Mad)>,
}

/// Returns the nanoseconds that a 5-bit code stands for.
fn time(code: u8) -> u64 {
    4096 << (code & 0x1f)
}

impl Cm {
    /// Starts without connections. `guid` is that of the adapter; identifiers and sequence numbers follow from `seed`.
    pub fn new(guid: u64, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self {
            guid,
            now: 0,
            last_id: rng.next_u64() as u32,
            rng,
            services: HashMap::new(),
            connections: HashMap::new(),
            by_remote_id: HashMap::new(),
            by_remote_qpn: HashMap::new(),
            lookups: HashMap::new(),
            inquiries: HashMap::new(),
            by_request: HashMap::new(),
            timers: BTreeSet::new(),
            events: VecDeque::new(),
            outgoing: VecDeque::new(),
        }
    }

    /// Takes requests for a service from now on.
    pub fn listen(&mut self, service_id: u64) {
        *self.services.entry(service_id).or_default() += 1;
    }

    /// Undoes [`Self::listen`].
    pub fn unlisten(&mut self, service_id: u64) {
        if let Some(count) = self.services.get_mut(&service_id) {
            *count -= 1;
            if *count == 0 {
                self.services.remove(&service_id);
            }
        }
    }

    /// Returns `true` if there is a listener to a service.
    pub fn is_served(&self, service_id: u64) -> bool {
        self.services.contains_key(&service_id)
    }

    /// Takes the next event.
    pub fn next_event(&mut self) -> Option<(Id, Event)> {
        self.events.pop_front()
    }

    /// Takes the next datagram to send.
    pub fn next_outgoing(&mut self) -> Option<(Path, Mad)> {
        self.outgoing.pop_front()
    }

    /// Returns the time of the next timer.
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns the LIDs of ports that connections and lookups wait for or talk to.
    pub fn remote_lids(&self) -> Vec<u16> {
        let connections = self.connections.values().filter(|connection| connection.has_peer());
        let connections = connections.map(|connection| connection.path.remote_lid);
        let lookups = self.lookups.values().filter(|lookup| lookup.waits());
        let mut all: Vec<_> = connections.chain(lookups.map(|lookup| lookup.path.remote_lid)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the number of connections, lookups, inquiries, indices and timers.
    #[cfg(test)]
    pub fn sizes(&self) -> [usize; 7] {
        [
            self.connections.len(),
            self.by_remote_id.len(),
            self.by_remote_qpn.len(),
            self.lookups.len(),
            self.inquiries.len(),
            self.by_request.len(),
            self.timers.len(),
        ]
    }

    /// Returns a sequence number for a new queue pair.
    pub fn random_psn(&mut self) -> u32 {
        self.rng.next_u64() as u32 & 0xff_ffff
    }

    /// Moves the time on and lets timers expire.
    pub fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some(&(at, id)) = self.timers.first() {
            if at > self.now {
                return;
            }
            self.timers.remove(&(at, id));
            if self.connections.contains_key(&id) {
                self.expire_connection(id);
            } else {
                self.expire_lookup(id);
            }
        }
    }

    /// Takes a datagram that arrived by this path, seen from this side.
    pub fn receive(&mut self, from: &Path, mad: &Mad) {
        let Some((transaction, message)) = Message::parse(mad) else { return };
        match message {
            Message::Req(req) => self.receive_req(from, transaction, req),
            Message::Mra(mra) => self.receive_mra(&mra),
            Message::Rej(rej) => self.receive_rej(&rej),
            Message::Rep(rep) => self.receive_rep(from, transaction, rep),
            Message::Rtu(ids) => self.receive_rtu(ids),
            Message::Dreq(dreq) => self.receive_dreq(from, transaction, &dreq),
            Message::Drep(ids) => self.receive_drep(ids),
            Message::SidrReq(req) => self.receive_sidr_req(from, transaction, req),
            Message::SidrRep(rep) => self.receive_sidr_rep(rep),
        }
    }

    fn fresh_id(&mut self) -> Id {
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            let id = self.last_id;
            let taken = self.connections.contains_key(&id)
                || self.lookups.contains_key(&id)
                || self.inquiries.contains_key(&id);
            if id != 0 && !taken {
                return id;
            }
        }
    }

    fn fresh_transaction(&mut self, id: Id) -> u64 {
        u64::from(id) << 32 | self.rng.next_u64() & 0xffff_ffff
    }

    fn send(&mut self, path: &Path, transaction: u64, message: &Message) -> Mad {
        let mad = message.emit(transaction);
        self.outgoing.push_back((*path, mad));
        mad
    }

    fn event(&mut self, id: Id, event: Event) {
        self.events.push_back((id, event));
    }

    // Refuses a message for which there is no connection.
    fn refuse(&mut self, path: &Path, transaction: u64, ids: Ids, answered: Answered, why: u16) {
        let data = [0; REJ_DATA];
        let rej = Rej { ids, answered, reason: why, guid: 0, data };
        self.send(path, transaction, &Message::Rej(rej));
    }
}
