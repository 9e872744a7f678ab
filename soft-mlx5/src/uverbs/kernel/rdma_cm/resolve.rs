//! Binding an identifier to an address, and finding the way to another one.

use super::address::{self, Address, Place};
use super::commands::Request;
use super::events::{Param, Queued};
use super::identifier::{State, ps};
use super::{Call, HOP_LIMIT, event, status_of};
use crate::fabric::LinkLayer;
use crate::objects::Result;
use crate::uverbs::cm::Path;
use crate::uverbs::kernel::Core;
use crate::uverbs::kernel::abi::rdma_cm::{Bind, BindIp, EventHead, ResolveAddr, ResolveIp, ResolveRoute};
use crate::uverbs::kernel::errno::{EADDRINUSE, EADDRNOTAVAIL, EINVAL, ENODEV, ETIMEDOUT};

const NANOSECONDS: u64 = 1_000_000;

impl Call<'_> {
    pub(super) fn bind_ip(&mut self, request: &Request) -> Result<()> {
        let wanted: BindIp = request.input.get()?;
        let address = Address::parse(&wanted.addr)?.ok_or(EINVAL)?;
        self.bind_to(wanted.id, address)
    }

    pub(super) fn bind(&mut self, request: &Request) -> Result<()> {
        let wanted: Bind = request.input.get()?;
        let address = parse(wanted.addr.as_flattened(), wanted.addr_size)?.ok_or(EINVAL)?;
        if wanted.reserved != 0 {
            return Err(EINVAL);
        }
        self.bind_to(wanted.id, address)
    }

    /// Binds an identifier to an address, and to a free port if the address names none.
    pub(super) fn bind_to(&mut self, number: u32, mut address: Address) -> Result<()> {
        if self.id(number)?.state != State::Idle {
            return Err(EINVAL);
        }
        let own = self.core.nic.port().lid;
        match address.place() {
            Some(Place::Machine) => {}
            Some(Place::Port(lid)) if lid == own => {}
            // A group may be bound to, as the kernel allows for joining it.
            Some(Place::Group) => {}
            _ => return Err(EADDRNOTAVAIL),
        }
        let rdma_cm = &mut self.core.rdma_cm;
        let id = rdma_cm.id(self.file, number)?;
        if matches!(address, Address::Ib { .. }) && id.ps != ps::IB {
            return Err(EINVAL);
        }
        let (space, reuse, af_only) = (id.ps, id.reuse, id.af_only);
        if address.port() == 0 {
            address.set_port(rdma_cm.ports.ephemeral(space).ok_or(EADDRNOTAVAIL)?);
        }
        for other in rdma_cm.ports.users(space, address.port()) {
            let Some(other) = rdma_cm.ids.get(other) else { continue };
            let Some(taken) = other.source else { continue };
            let shared = reuse && other.reuse && other.state != State::Listen;
            let apart = (af_only || other.af_only) && !taken.is_kin(&address);
            let same = taken.is_any() || address.is_any() || taken.gid() == address.gid();
            if same && !shared && !apart {
                return Err(EADDRINUSE);
            }
        }
        rdma_cm.ports.take(space, address.port(), number);
        let id = rdma_cm.id(self.file, number)?;
        (id.state, id.on_device) = (State::Bound, !address.is_any());
        id.source = Some(address);
        Ok(())
    }

    pub(super) fn resolve_ip(&mut self, request: &Request) -> Result<()> {
        let wanted: ResolveIp = request.input.get()?;
        let source = Address::parse(&wanted.src_addr)?;
        let destination = Address::parse(&wanted.dst_addr)?.ok_or(EINVAL)?;
        self.resolve(wanted.id, source, destination, wanted.timeout_ms)
    }

    pub(super) fn resolve_addr(&mut self, request: &Request) -> Result<()> {
        let wanted: ResolveAddr = request.input.get()?;
        let source = match wanted.src_size {
            0 => None,
            size => parse(wanted.src_addr.as_flattened(), size)?,
        };
        let destination = parse(wanted.dst_addr.as_flattened(), wanted.dst_size)?.ok_or(EINVAL)?;
        if wanted.reserved != 0 {
            return Err(EINVAL);
        }
        self.resolve(wanted.id, source, destination, wanted.timeout_ms)
    }

    fn resolve(&mut self, number: u32, source: Option<Address>, destination: Address, timeout_ms: u32) -> Result<()> {
        if self.id(number)?.state == State::Idle {
            let any = match destination {
                Address::Ip { ip, .. } if ip.is_ipv6() => Address::ip(std::net::Ipv6Addr::UNSPECIFIED.into(), 0),
                Address::Ip { .. } => Address::ANY,
                Address::Ib { service_id, pkey, .. } => {
                    Address::Ib { gid: [0; 16], service_id: service_id & !0xffff, mask: !0xffff, pkey }
                }
            };
            self.bind_to(number, source.unwrap_or(any))?;
        }
        let now = self.core.clock.now();
        let id = self.id(number)?;
        if id.state != State::Bound || !id.source.is_some_and(|own| own.is_kin(&destination)) {
            return Err(EINVAL);
        }
        id.destination = Some(destination);
        id.state = State::AddrQuery;
        let waits_until = now + u64::from(timeout_ms) * NANOSECONDS;
        id.waits_until = waits_until;
        let peers = self.core.nic.peers(now);
        self.core.rdma_cm.waiting.insert(number);
        self.core.rdma_cm.look_at.get_or_insert(now);
        self.core.try_resolve(number, now, &peers);
        Ok(())
    }

    pub(super) fn resolve_route(&mut self, request: &Request) -> Result<()> {
        let wanted: ResolveRoute = request.input.get()?;
        let id = self.id(wanted.id)?;
        if id.state != State::AddrResolved {
            return Err(EINVAL);
        }
        id.state = State::RouteResolved;
        self.core.raise(wanted.id, event::ROUTE_RESOLVED, 0);
        Ok(())
    }
}

fn parse(storage: &[u8], size: u16) -> Result<Option<Address>> {
    Address::parse(storage.get(..size.into()).ok_or(EINVAL)?)
}

impl Core {
    /// Adds an event without parameters.
    pub(super) fn raise(&mut self, of: u32, event: u32, status: u32) {
        let Some(uid) = self.rdma_cm.ids.get(&of).map(|id| id.uid) else { return };
        let head = EventHead { uid, id: of, event, status };
        self.rdma_cm.push(Queued { of, group: None, fresh: None, head, param: Param::None });
    }

    /// Looks again for the ports that identifiers wait for; returns `true` if one waits no longer.
    pub(super) fn resolve_waiting(&mut self, now: u64, peers: &[u16]) -> bool {
        let waiting: Vec<_> = self.rdma_cm.waiting.iter().copied().collect();
        waiting.into_iter().fold(false, |any, number| any | self.try_resolve(number, now, peers))
    }

    // Resolves the address that an identifier waits for, if that is possible now; returns `true` if it waits no longer.
    fn try_resolve(&mut self, number: u32, now: u64, peers: &[u16]) -> bool {
        let own = self.nic.port().lid;
        let Some(id) = self.rdma_cm.ids.get(&number) else { return false };
        let (Some(to), until) = (id.destination, id.waits_until) else { return false };
        let lid = match to.place() {
            None => Err(ENODEV),
            Some(Place::Group) => Ok(own),
            Some(Place::Port(lid)) if lid == own || peers.contains(&lid) => Ok(lid),
            Some(Place::Machine) => Ok(self.candidates(number, peers).first().copied().unwrap_or(own)),
            Some(Place::Port(_)) if now < until => return false,
            // As if nobody had answered the question for the hardware address.
            Some(Place::Port(_)) => Err(ETIMEDOUT),
        };
        let link = self.link;
        let Some(id) = self.rdma_cm.ids.get_mut(&number) else { return false };
        self.rdma_cm.waiting.remove(&number);
        match lid {
            Ok(lid) => {
                let path = path(own, lid, &to, link, id.tos);
                (id.path, id.state, id.on_device) = (Some(path), State::AddrResolved, true);
                if let Some(source) = id.source.as_mut().filter(|source| source.is_any()) {
                    *source = own_address(source, &to, own, link);
                }
                self.raise(number, event::ADDR_RESOLVED, 0);
            }
            Err(error) => {
                id.state = State::Bound;
                self.raise(number, event::ADDR_ERROR, status_of(error));
            }
        }
        true
    }

    /// Returns the ports on which a process may listen at the address that an identifier goes to.
    pub(super) fn candidates(&self, number: u32, peers: &[u16]) -> Vec<u16> {
        let own = self.nic.port().lid;
        let Some(id) = self.rdma_cm.ids.get(&number) else { return Vec::new() };
        let Some(to) = id.destination else { return Vec::new() };
        if to.place() != Some(Place::Machine) {
            return id.path.iter().map(|path| path.remote_lid).collect();
        }
        let here = self.rdma_cm.cm.is_served(id.service_id(&to));
        let own = (here || peers.is_empty()).then_some(own);
        own.into_iter().chain(peers.iter().copied()).collect()
    }
}

/// Returns the path to a port.
pub fn path(own: u16, lid: u16, to: &Address, link: LinkLayer, traffic_class: u8) -> Path {
    let index = to.gid_index(link);
    Path {
        local_lid: own,
        remote_lid: lid,
        local_gid: address::gid_of(own, link, index),
        remote_gid: address::gid_of(lid, link, index),
        sl: 0,
        traffic_class,
        flow_label: 0,
        hop_limit: if link == LinkLayer::Ethernet { HOP_LIMIT } else { 0 },
    }
}

// Returns the address of this side on the way to another one, with the port of `source`.
fn own_address(source: &Address, to: &Address, lid: u16, link: LinkLayer) -> Address {
    let port = source.port();
    match (to.place(), *to) {
        // The machine is both ends.
        (Some(Place::Machine), Address::Ip { ip, scope, .. }) => Address::Ip { ip, port, scope },
        (_, Address::Ip { ip, scope, .. }) if ip.is_ipv4() => {
            let gid = address::gid_of(lid, LinkLayer::Ethernet, 3);
            let ip = std::net::Ipv6Addr::from(gid).to_ipv4_mapped();
            Address::Ip { ip: ip.map_or(ip_any(), Into::into), port, scope }
        }
        (_, Address::Ip { scope, .. }) => {
            let ip = std::net::Ipv6Addr::from(address::gid_of(lid, LinkLayer::Ethernet, 1)).into();
            Address::Ip { ip, port, scope }
        }
        (_, Address::Ib { .. }) => match *source {
            Address::Ib { service_id, mask, pkey, .. } => {
                let gid = address::gid_of(lid, link, 0);
                Address::Ib { gid, service_id, mask, pkey }
            }
            other @ Address::Ip { .. } => other,
        },
    }
}

fn ip_any() -> std::net::IpAddr {
    std::net::Ipv4Addr::UNSPECIFIED.into()
}
