//! Identifiers of a program (`struct rdma_cm_id`), and the ports that they are bound to.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::address::Address;
use crate::objects::Service;
use crate::uverbs::cm::{self, Path};
use crate::uverbs::kernel::abi::rdma_cm::ConnParam;
use crate::uverbs::kernel::events::FileId;

/// Port spaces (`enum rdma_ucm_port_space`).
pub mod ps {
    /// IP over InfiniBand.
    pub const IPOIB: u16 = 0x0002;
    /// Services of InfiniBand.
    pub const IB: u16 = 0x013f;
    /// Connections.
    pub const TCP: u16 = 0x0106;
    /// Datagrams.
    pub const UDP: u16 = 0x0111;
}

/// State of an identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Fresh.
    Idle,
    /// Bound to an address.
    Bound,
    /// Looking for the port of an address.
    AddrQuery,
    /// The port is known.
    AddrResolved,
    /// The path is known.
    RouteResolved,
    /// Connecting, being connected, or connected.
    Connect,
    /// Disconnected.
    Disconnect,
    /// Listening.
    Listen,
}

/// An identifier.
#[derive(Debug)]
pub struct Identifier {
    /// Name that the program gave it; 0 for a request that the program has not accepted.
    pub uid: u64,
    /// File that its events go to.
    pub file: FileId,
    /// State.
    pub state: State,
    /// Port space.
    pub ps: u16,
    /// Service of its queue pair.
    pub service: Service,
    /// Own address.
    pub source: Option<Address>,
    /// Address of the peer.
    pub destination: Option<Address>,
    /// The identifier belongs to the device.
    pub on_device: bool,
    /// The port may be used by other identifiers.
    pub reuse: bool,
    /// The listener takes requests of one family of addresses only.
    pub af_only: bool,
    /// Type of service.
    pub tos: u8,
    /// ACK timeout for its queue pair.
    pub ack_timeout: Option<u8>,
    /// Path to the peer.
    pub path: Option<Path>,
    /// Ports to ask next: an address of the machine does not say which process listens there.
    pub candidates: VecDeque<u16>,
    /// Parameters to ask them with.
    pub wanted: Option<Box<ConnParam>>,
    /// Number of its connection, lookup or inquiry in the protocol.
    pub cm: Option<cm::Id>,
    /// Service that it listens to.
    pub listens: Option<u64>,
    /// Requests that it still takes.
    pub backlog: u32,
    /// Events that the program has read.
    pub reported: u32,
    /// Time until which it waits for a port to appear.
    pub waits_until: u64,
}

impl Identifier {
    /// Makes a fresh identifier.
    pub fn new(uid: u64, file: FileId, ps: u16, service: Service) -> Self {
        Self {
            uid,
            file,
            state: State::Idle,
            ps,
            service,
            source: None,
            destination: None,
            on_device: false,
            reuse: false,
            af_only: false,
            tos: 0,
            ack_timeout: None,
            path: None,
            candidates: VecDeque::new(),
            wanted: None,
            cm: None,
            listens: None,
            backlog: 0,
            reported: 0,
            waits_until: 0,
        }
    }

    /// Returns the service that an address stands for in its port space.
    pub fn service_id(&self, address: &Address) -> u64 {
        match address {
            Address::Ib { service_id, .. } => *service_id,
            Address::Ip { port, .. } => u64::from(self.ps) << 16 | u64::from(*port),
        }
    }

    /// Returns the Q_Key of its datagrams.
    pub fn qkey(&self) -> u32 {
        match self.ps {
            ps::UDP | ps::IB => 0x0123_4567,
            _ => 0x0b1b,
        }
    }

    /// Returns the bytes of the header before its private data.
    pub fn header(&self) -> usize {
        if self.ps == ps::IB { 0 } else { cm::header::SIZE }
    }
}

/// Numbers of identifiers and groups. Libraries keep tables by number, so they stay small.
#[derive(Debug, Default)]
pub struct Numbers {
    given: u32,
    free: BTreeSet<u32>,
}

impl Numbers {
    /// Returns the lowest number that is free.
    pub fn take(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.given += 1;
            self.given
        })
    }

    /// Gives a number back.
    pub fn release(&mut self, number: u32) {
        self.free.insert(number);
    }
}

// Ports that are given to identifiers without one.
const FIRST_EPHEMERAL: u16 = 32768;
const EPHEMERALS: u32 = 28232;
// Processes of a machine use different ranges first, because addresses of the machine lead to all of them.
const RANGE: u32 = 509;

/// Ports in use, by port space.
#[derive(Debug)]
pub struct Ports {
    used: HashMap<(u16, u16), Vec<u32>>,
    base: u32,
    next: u32,
}

impl Ports {
    /// Starts without ports. `lid` is that of the port of the device.
    pub fn new(lid: u16) -> Self {
        Self { used: HashMap::new(), base: u32::from(lid) * RANGE, next: 0 }
    }

    /// Returns the identifiers that use a port.
    pub fn users(&self, ps: u16, port: u16) -> &[u32] {
        self.used.get(&(ps, port)).map_or(&[], Vec::as_slice)
    }

    /// Takes a port for an identifier.
    pub fn take(&mut self, ps: u16, port: u16, id: u32) {
        self.used.entry((ps, port)).or_default().push(id);
    }

    /// Gives the port of an identifier back.
    pub fn release(&mut self, ps: u16, port: u16, id: u32) {
        if let Some(users) = self.used.get_mut(&(ps, port)) {
            users.retain(|user| *user != id);
            if users.is_empty() {
                self.used.remove(&(ps, port));
            }
        }
    }

    /// Returns a port that nobody uses, or `None` if all are in use.
    pub fn ephemeral(&mut self, ps: u16) -> Option<u16> {
        let (base, next) = (self.base, self.next);
        let port = |offset: u32| FIRST_EPHEMERAL + ((base + offset) % EPHEMERALS) as u16;
        let own = (0..RANGE).map(|step| (next + step) % RANGE);
        let free = |offset: &u32| self.users(ps, port(*offset)).is_empty();
        let found = own.chain(RANGE..EPHEMERALS).find(free)?;
        self.next = (found + 1) % RANGE;
        Some(port(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_small() {
        let mut numbers = Numbers::default();
        let first = [(); 3].map(|()| numbers.take());
        numbers.release(first[1]);
        numbers.release(first[0]);
        assert_eq!([(); 3].map(|()| numbers.take()), [1, 2, 4]);
    }

    #[test]
    fn ephemeral_ports_of_neighbours_differ_and_end() {
        let (mut one, mut two) = (Ports::new(1), Ports::new(2));
        let mut seen = std::collections::HashSet::new();
        for id in 0..RANGE {
            for ports in [&mut one, &mut two] {
                let port = ports.ephemeral(ps::TCP).unwrap();
                ports.take(ps::TCP, port, id);
                assert!(seen.insert(port), "{port}");
            }
        }
        for port in (0..EPHEMERALS).map(|offset| FIRST_EPHEMERAL + offset as u16) {
            one.take(ps::TCP, port, RANGE);
        }
        assert_eq!(one.ephemeral(ps::TCP), None);
        assert!(one.ephemeral(ps::UDP).is_some());
        let free = 40_000;
        for id in one.users(ps::TCP, free).to_vec() {
            one.release(ps::TCP, free, id);
        }
        assert_eq!(one.ephemeral(ps::TCP), Some(free));
    }
}
