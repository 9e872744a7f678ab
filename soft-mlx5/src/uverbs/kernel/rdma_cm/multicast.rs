//! Multicast groups that an identifier joins.

use std::net::IpAddr;

use super::address::Address;
use super::commands::Request;
use super::deliver::rows;
use super::events::{Param, Queued};
use super::identifier::{State, ps};
use super::{Call, event};
use crate::fabric::LinkLayer;
use crate::fabric::address::mlid_of_group;
use crate::fabric::groups::{Member, Membership};
use crate::objects::{Errno, Result, Service};
use crate::uverbs::kernel::Core;
use crate::uverbs::kernel::abi::rdma_cm::{AhAttr, DestroyId, EventHead, JoinIpMcast, JoinMcast, UdParam};
use crate::uverbs::kernel::errno::{EADDRINUSE, EINVAL, ENOENT, ENOMEM, ENOSPC};

/// A group.
#[derive(Debug)]
pub struct Group {
    /// Identifier that has joined it.
    pub id: u32,
    address: Address,
    /// Its GID.
    pub gid: [u8; 16],
    // Kind of member that the identifier is.
    join_state: u8,
    /// Events that the program has read.
    pub reported: u32,
}

const MULTICAST_QPN: u32 = 0xff_ffff;
/// Partition of IPoIB, whose groups carry it.
const PKEY: [u8; 2] = [0xff, 0xff];
/// Kinds of members by join flags: a full member, and one that only sends.
const JOIN_STATES: [u8; 2] = [1, 8];

impl Call<'_> {
    pub(super) fn join_ip_multicast(&mut self, request: &Request) -> Result<()> {
        let wanted: JoinIpMcast = request.input.get()?;
        let address = Address::parse(&wanted.addr)?.ok_or(EINVAL)?;
        let join = Join { uid: wanted.uid, id: wanted.id, address, join_state: JOIN_STATES[0] };
        self.join(request, wanted.response, &join)
    }

    pub(super) fn join_multicast(&mut self, request: &Request) -> Result<()> {
        let wanted: JoinMcast = request.input.get()?;
        let storage = wanted.addr.as_flattened().get(..wanted.addr_size.into()).ok_or(EINVAL)?;
        let join_state = *JOIN_STATES.get(usize::from(wanted.join_flags)).ok_or(EINVAL)?;
        let address = Address::parse(storage)?.ok_or(EINVAL)?;
        let join = Join { uid: wanted.uid, id: wanted.id, address, join_state };
        self.join(request, wanted.response, &join)
    }

    fn join(&mut self, request: &Request, response: u64, join: &Join) -> Result<()> {
        let Join { uid, id: number, address, join_state } = *join;
        if request.room < 4 {
            return Err(ENOSPC);
        }
        let link = self.core.link;
        let id = self.id(number)?;
        let fits = matches!(id.state, State::Bound | State::AddrResolved | State::RouteResolved);
        if !fits || !id.on_device || id.service != Service::Ud {
            return Err(EINVAL);
        }
        let (space, qkey) = (id.ps, id.qkey());
        let gid = group_gid(&address, space, link);
        let rdma_cm = &mut self.core.rdma_cm;
        if rdma_cm.groups.values().any(|group| group.id == number && group.address == address) {
            return Err(EADDRINUSE);
        }
        let group = rdma_cm.numbers.take();
        rdma_cm.groups.insert(group, Group { id: number, address, gid, join_state, reported: 0 });
        let joined = self.core.follow_membership(&gid, qkey);
        let answered = joined.and_then(|qkey| request.respond(response, &group).map(|()| qkey));
        let qkey = match answered {
            Ok(qkey) => qkey,
            Err(error) => {
                self.core.rdma_cm.groups.remove(&group);
                self.core.rdma_cm.numbers.release(group);
                let _ = self.core.follow_membership(&gid, 0);
                return Err(error);
            }
        };
        let param = UdParam {
            qp_num: MULTICAST_QPN,
            qkey,
            ah_attr: vector(&address, space, link),
            private_data: rows(&[]),
            ..UdParam::default()
        };
        let head = EventHead { uid, id: group, event: event::MULTICAST_JOIN, status: 0 };
        let param = Param::Ud(Box::new(param));
        self.core.rdma_cm.push(Queued { of: number, group: Some(group), fresh: None, head, param });
        Ok(())
    }

    pub(super) fn leave_multicast(&mut self, request: &Request) -> Result<()> {
        if request.room < 4 {
            return Err(ENOSPC);
        }
        let wanted: DestroyId = request.input.get()?;
        let rdma_cm = &mut self.core.rdma_cm;
        let id = rdma_cm.groups.get(&wanted.id).ok_or(ENOENT)?.id;
        let file = rdma_cm.id(self.file, id)?.file;
        let left = rdma_cm.groups.remove(&wanted.id).ok_or(ENOENT)?;
        rdma_cm.numbers.release(wanted.id);
        if let Some(file) = rdma_cm.files.get_mut(&file) {
            file.extract(|queued| queued.group == Some(wanted.id));
        }
        let _ = self.core.follow_membership(&left.gid, 0);
        request.respond(wanted.response, &left.reported)
    }
}

/// A wish of a program to join a group.
struct Join {
    uid: u64,
    id: u32,
    address: Address,
    join_state: u8,
}

impl Core {
    /// Makes the port the member of a group that the identifiers of this process want it to be, or no member if none
    /// wants the group. Returns the queue key of the group: that of its first member, or `qkey`. Ethernet has no
    /// administrator who knows members.
    pub(super) fn follow_membership(&mut self, mgid: &[u8; 16], qkey: u32) -> Result<u32> {
        if self.link == LinkLayer::Ethernet {
            return Ok(qkey);
        }
        let groups = self.rdma_cm.groups.values().filter(|group| group.gid == *mgid);
        let join_state = groups.fold(0, |state, group| state | group.join_state);
        if join_state == 0 {
            self.nic.leave_group(mgid);
            return Ok(qkey);
        }
        let members = self.nic.group_members();
        let first = members.iter().find(|member| member.membership.mgid == *mgid);
        let qkey = first.map_or(qkey, |member| member.membership.qkey);
        let membership = Membership { mgid: *mgid, qkey, join_state };
        let lid = self.nic.port().lid;
        if !members.contains(&Member { lid, membership }) {
            let joined = self.nic.join_group(membership);
            joined.map_err(|error| error.raw_os_error().map_or(ENOMEM, Errno))?;
        }
        Ok(qkey)
    }
}

fn vector(address: &Address, space: u16, link: LinkLayer) -> AhAttr {
    let group = group_gid(address, space, link);
    let index = address.gid_index(link);
    AhAttr {
        dgid: group,
        sgid_index: index,
        hop_limit: 1,
        dlid: mlid_of_group(&group),
        is_global: 1,
        port_num: 1,
        ..AhAttr::default()
    }
}

/// Returns the multicast GID of an address: on Ethernet the address itself, on InfiniBand that of IPoIB with the
/// signature of datagrams.
fn group_gid(address: &Address, space: u16, link: LinkLayer) -> [u8; 16] {
    let gid = address.gid();
    let signature = if space == ps::UDP { [0x40, 0x01] } else { [0x40, 0x1b] };
    match address {
        Address::Ip { ip: IpAddr::V4(ip), .. } if link == LinkLayer::InfiniBand => {
            let [a, b, c, d] = ip.octets();
            let mut group = [0; 16];
            group[..2].copy_from_slice(&[0xff, 0x12]);
            group[2..4].copy_from_slice(&signature);
            group[4..6].copy_from_slice(&PKEY);
            group[12..].copy_from_slice(&[a & 0x0f, b, c, d]);
            group
        }
        // A GID of IPoIB already.
        Address::Ip { .. } if gid[..4] == [0xff, 0x10, 0xa0, 0x1b] => gid,
        Address::Ip { .. } if link == LinkLayer::InfiniBand => {
            let mut group = gid;
            group[..2].copy_from_slice(&[0xff, 0x10 | gid[1] & 0x0f]);
            group[2..4].copy_from_slice(&[0x60 | signature[0] & 0x0f, signature[1]]);
            group[4..6].copy_from_slice(&PKEY);
            group
        }
        _ => gid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_families_on_both_links() {
        let four = Address::ip([239, 1, 2, 3].into(), 0);
        let six = Address::ip("ff0e::1:2".parse().unwrap(), 0);
        let hex = |address, space, link| {
            let gid = group_gid(&address, space, link);
            gid.chunks(2).map(|p| format!("{:02x}{:02x}", p[0], p[1])).collect::<Vec<_>>().join(":")
        };
        let ib = LinkLayer::InfiniBand;
        assert_eq!(hex(four, ps::UDP, ib), "ff12:4001:ffff:0000:0000:0000:0f01:0203");
        assert_eq!(hex(four, ps::IPOIB, ib), "ff12:401b:ffff:0000:0000:0000:0f01:0203");
        assert_eq!(hex(six, ps::UDP, ib), "ff1e:6001:ffff:0000:0000:0000:0001:0002");
        let roce = LinkLayer::Ethernet;
        assert_eq!(hex(four, ps::UDP, roce), "0000:0000:0000:0000:0000:ffff:ef01:0203");
        assert_eq!(hex(six, ps::UDP, roce), "ff0e:0000:0000:0000:0000:0000:0001:0002");
    }
}
