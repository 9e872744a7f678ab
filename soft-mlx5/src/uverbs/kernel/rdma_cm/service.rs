//! Listeners: which of them a request is for.

use super::address::Address;
use super::commands::Request;
use super::identifier::{Identifier, State, ps};
use super::{Call, RdmaCm};
use crate::objects::{Result, Service};
use crate::uverbs::cm::header::IpHeader;
use crate::uverbs::kernel::abi::rdma_cm::Listen;
use crate::uverbs::kernel::errno::{EADDRINUSE, EINVAL};

// Backlog of a listener that asks for none or for more.
const MAX_BACKLOG: u32 = 1024;

impl Call<'_> {
    pub(super) fn listen(&mut self, request: &Request) -> Result<()> {
        let wanted: Listen = request.input.get()?;
        if self.id(wanted.id)?.state == State::Idle {
            self.bind_to(wanted.id, Address::ANY)?;
        }
        let rdma_cm = &mut self.core.rdma_cm;
        let id = rdma_cm.id(self.file, wanted.id)?;
        let (State::Bound, Some(source)) = (id.state, id.source) else { return Err(EINVAL) };
        let (space, service) = (id.ps, id.service_id(&source));
        let rivals = rdma_cm.ports.users(space, source.port()).iter();
        let taken = rivals.filter(|other| **other != wanted.id).any(|other| {
            rdma_cm.ids.get(other).is_some_and(|other| {
                let address = other.source.unwrap_or(Address::ANY);
                let same = address.is_any() || source.is_any() || address.gid() == source.gid();
                other.state == State::Listen && address.is_kin(&source) && same
            })
        });
        if taken {
            return Err(EADDRINUSE);
        }
        let id = rdma_cm.id(self.file, wanted.id)?;
        let backlog = wanted.backlog as i32;
        id.backlog = if backlog > 0 { wanted.backlog.min(MAX_BACKLOG) } else { MAX_BACKLOG };
        (id.state, id.listens) = (State::Listen, Some(service));
        rdma_cm.cm.listen(service);
        Ok(())
    }
}

/// A request as a listener sees it.
pub struct Asked<'a> {
    /// Service that it asks for.
    pub service_id: u64,
    /// Transport service.
    pub service: Service,
    /// Private data with its header.
    pub data: &'a [u8],
    /// GIDs of this side and of the other side.
    pub gids: [[u8; 16]; 2],
}

/// Port space, and own and other address that a request names.
pub type Ends = (u16, Address, Address);

impl RdmaCm {
    /// Returns the listener for a request, and the addresses of the new connection.
    pub fn listener_for(&self, asked: &Asked) -> Option<(u32, Ends)> {
        let port = asked.service_id as u16;
        let spaces = [ps::TCP, ps::UDP, ps::IPOIB, ps::IB].into_iter();
        let users = spaces.flat_map(|space| self.ports.users(space, port));
        let fitting = users.filter_map(|number| {
            let id = self.ids.get(number).filter(|id| id.listens == Some(asked.service_id))?;
            let (own, other) = ends(id, asked)?;
            (id.service == asked.service).then_some((*number, id, own, other))
        });
        // A listener at the very address comes before one at all addresses.
        let best = fitting.max_by_key(|(_, id, ..)| id.source.is_some_and(|own| !own.is_any()));
        best.map(|(number, id, own, other)| (number, (id.ps, own, other)))
    }
}

fn ends(id: &Identifier, asked: &Asked) -> Option<(Address, Address)> {
    let source = id.source?;
    let port = source.port();
    if id.ps == ps::IB || matches!(source, Address::Ib { .. }) {
        let [own, other] =
            asked.gids.map(|gid| Address::Ib { gid, service_id: asked.service_id, mask: u64::MAX, pkey: 0xffff });
        let fits = source.is_any() || source.gid() == own.gid();
        return fits.then_some((own, other));
    }
    let header = IpHeader::parse(asked.data)?;
    let own = Address::ip(header.destination, port);
    let fits = if source.is_any() { !id.af_only || source.is_kin(&own) } else { source.as_ip() == own.as_ip() };
    fits.then_some((own, Address::ip(header.source, header.port)))
}
