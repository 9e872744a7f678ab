//! Members of multicast groups, as the subnet administrator of a fabric knows them.
//!
//! Between processes a member is a socket in the abstract namespace whose name says everything: all devices find it in
//! the kernel's list, and it goes with its process. Packets to a group reach all ports; only queue pairs that are
//! attached to the group take them, whether or not their port is a member.

use std::collections::BTreeMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use super::{Fabric, scope};

/// A membership of a port in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership {
    /// The group.
    pub mgid: [u8; 16],
    /// Queue key of the group.
    pub qkey: u32,
    /// Kind of member, four bits: full, not a member, sender only.
    pub join_state: u8,
}

/// A membership and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// LID of the port.
    pub lid: u16,
    /// Membership of the port.
    pub membership: Membership,
}

/// Members on an in-process switch.
pub type Shared = Arc<Mutex<Vec<Member>>>;

#[derive(Debug)]
enum Directory {
    Shared(Shared),
    // Beginning of the names of all members, and the sockets that are ours.
    Named(String, BTreeMap<[u8; 16], UnixDatagram>),
}

/// The multicast groups of a fabric.
#[derive(Debug)]
pub struct Groups {
    lid: u16,
    directory: Directory,
}

impl Groups {
    /// Joins the port with this LID to the groups of a fabric, still without a membership.
    pub fn new(fabric: &Fabric, lid: u16) -> Self {
        let directory = match fabric {
            Fabric::Private => Directory::Shared(Shared::default()),
            Fabric::Switch(switch) => Directory::Shared(switch.members()),
            Fabric::Named(name) => Self::of_processes(name, false),
            Fabric::OfAllUsers(name) => Self::of_processes(name, true),
        };
        Self { lid, directory }
    }

    fn of_processes(name: &str, of_all_users: bool) -> Directory {
        // The name of a fabric may be as long as a name of a socket.
        let prefix = format!("soft-mlx5-group/{:016x}/", digest(&format!("{}/{name}", scope(of_all_users))));
        Directory::Named(prefix, BTreeMap::new())
    }

    /// Returns all members, ordered by group and LID.
    pub fn members(&self) -> Vec<Member> {
        let mut members = match &self.directory {
            Directory::Shared(members) => members.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            Directory::Named(prefix, _) => {
                let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
                let named = |line: &str| parse(line.split_once(&format!("@{prefix}"))?.1);
                sockets.lines().filter_map(named).collect()
            }
        };
        members.sort_unstable_by_key(|member| (member.membership.mgid, member.lid));
        members
    }

    /// Adds or changes the membership of this port in a group.
    pub fn join(&mut self, membership: Membership) -> io::Result<()> {
        self.leave(&membership.mgid);
        let member = Member { lid: self.lid, membership };
        match &mut self.directory {
            Directory::Shared(members) => {
                members.lock().unwrap_or_else(PoisonError::into_inner).push(member);
            }
            Directory::Named(prefix, sockets) => {
                let name = SocketAddr::from_abstract_name(format!("{prefix}{}", text(&member)))?;
                sockets.insert(membership.mgid, UnixDatagram::bind_addr(&name)?);
            }
        }
        Ok(())
    }

    /// Ends the membership of this port in a group; returns `false` if there was none.
    pub fn leave(&mut self, mgid: &[u8; 16]) -> bool {
        let ours = |member: &Member| member.lid == self.lid && member.membership.mgid == *mgid;
        match &mut self.directory {
            Directory::Shared(members) => {
                let mut members = members.lock().unwrap_or_else(PoisonError::into_inner);
                let before = members.len();
                members.retain(|member| !ours(member));
                members.len() < before
            }
            Directory::Named(_, sockets) => sockets.remove(mgid).is_some(),
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        if let Directory::Shared(members) = &self.directory {
            let mut members = members.lock().unwrap_or_else(PoisonError::into_inner);
            members.retain(|member| member.lid != self.lid);
        }
    }
}

// FNV-1a.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn text(member: &Member) -> String {
    let Membership { mgid, qkey, join_state } = member.membership;
    let mgid = u128::from_be_bytes(mgid);
    format!("{}/{mgid:032x}/{qkey:08x}/{join_state:x}", member.lid)
}

fn parse(text: &str) -> Option<Member> {
    let mut parts = text.split('/');
    let lid = parts.next()?.parse().ok()?;
    let mgid = u128::from_str_radix(parts.next()?, 16).ok()?.to_be_bytes();
    let qkey = u32::from_str_radix(parts.next()?, 16).ok()?;
    let join_state = u8::from_str_radix(parts.next()?, 16).ok()?;
    let membership = Membership { mgid, qkey, join_state };
    parts.next().is_none().then_some(Member { lid, membership })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::Switch;

    fn membership(group: u8, qkey: u32) -> Membership {
        let mut mgid = [0; 16];
        (mgid[0], mgid[15]) = (0xff, group);
        Membership { mgid, qkey, join_state: 1 }
    }

    #[test]
    fn all_ports_of_a_fabric_see_its_members_until_they_leave() {
        let name = format!("groups-{}-{}", std::process::id(), "x".repeat(40));
        let switch = Switch::new();
        for fabric in [Fabric::Named(name), Fabric::Switch(switch)] {
            let (mut one, mut two) = (Groups::new(&fabric, 1), Groups::new(&fabric, 2));
            let other = Groups::new(&Fabric::Named("groups-other".into()), 1);
            one.join(membership(7, 0x8000_0001)).unwrap();
            two.join(membership(7, 0x8000_0001)).unwrap();
            one.join(membership(3, 5)).unwrap();
            // A membership that is changed stays one.
            one.join(membership(3, 6)).unwrap();
            let expected = [(1, membership(3, 6)), (1, membership(7, 0x8000_0001)), (2, membership(7, 0x8000_0001))]
                .map(|(lid, membership)| Member { lid, membership });
            assert_eq!((one.members(), two.members()), (expected.to_vec(), expected.to_vec()));
            assert!(other.members().is_empty());
            assert!(one.leave(&membership(3, 0).mgid) && !one.leave(&membership(3, 0).mgid));
            drop(one);
            assert_eq!(two.members(), expected[2..]);
        }
    }

    #[test]
    fn foreign_names_are_no_members() {
        for name in ["", "1", "1/ff/5", "x/ff/5/1", "1/ff/5/1/9", "99999/ff/5/1"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }
}
