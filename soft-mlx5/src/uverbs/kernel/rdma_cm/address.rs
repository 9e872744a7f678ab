//! Addresses of programs, and the ports of the fabric that they lead to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::{mem, ptr};

use crate::fabric::LinkLayer;
use crate::fabric::address::{self, table_entry};
use crate::objects::Result;
use crate::uverbs::kernel::errno::EINVAL;

const AF_IB: u16 = 27;
/// Bytes of `struct sockaddr_in`, `sockaddr_in6` and `sockaddr_ib`.
const IN: usize = 16;
const IN6: usize = 28;
const IB: usize = 48;

/// Address of one end: of the Internet, or of InfiniBand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// `AF_INET` or `AF_INET6`.
    Ip {
        /// Address.
        ip: IpAddr,
        /// Port.
        port: u16,
        /// Interface of a link-local address.
        scope: u32,
    },
    /// `AF_IB`.
    Ib {
        /// GID; zero for any.
        gid: [u8; 16],
        /// Service.
        service_id: u64,
        /// Bits of the service that count.
        mask: u64,
        /// Partition key.
        pkey: u16,
    },
}

impl Address {
    /// Any address of the version 4.
    pub const ANY: Self = Self::ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

    /// Returns an address of the Internet.
    pub const fn ip(ip: IpAddr, port: u16) -> Self {
        Self::Ip { ip, port, scope: 0 }
    }

    /// Reads a `struct sockaddr`; returns `None` if it has no family.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        let word = |at: usize| bytes.get(at..at + 2).map(|pair| [pair[0], pair[1]]);
        let family = word(0).map(u16::from_ne_bytes).ok_or(EINVAL)?;
        let port = u16::from_be_bytes(word(2).ok_or(EINVAL)?);
        Ok(Some(match i32::from(family) {
            libc::AF_UNSPEC => return Ok(None),
            libc::AF_INET => {
                let ip: [u8; 4] = take(bytes, 4)?;
                Self::ip(Ipv4Addr::from(ip).into(), port)
            }
            libc::AF_INET6 => {
                let ip: [u8; 16] = take(bytes, 8)?;
                let scope = u32::from_ne_bytes(take(bytes, 24)?);
                Self::Ip { ip: Ipv6Addr::from(ip).into(), port, scope }
            }
            _ if family == AF_IB => Self::Ib {
                gid: take(bytes, 8)?,
                service_id: u64::from_be_bytes(take(bytes, 24)?),
                mask: u64::from_be_bytes(take(bytes, 32)?),
                pkey: port,
            },
            _ => return Err(EINVAL),
        }))
    }

    /// Returns the `struct sockaddr`.
    pub fn emit(&self) -> Vec<u8> {
        match *self {
            Self::Ip { ip: IpAddr::V4(ip), port, .. } => {
                let mut bytes = begin(libc::AF_INET as u16, port, IN);
                bytes[4..8].copy_from_slice(&ip.octets());
                bytes
            }
            Self::Ip { ip: IpAddr::V6(ip), port, scope } => {
                let mut bytes = begin(libc::AF_INET6 as u16, port, IN6);
                bytes[8..24].copy_from_slice(&ip.octets());
                bytes[24..28].copy_from_slice(&scope.to_ne_bytes());
                bytes
            }
            Self::Ib { gid, service_id, mask, pkey } => {
                let mut bytes = begin(AF_IB, pkey, IB);
                bytes[8..24].copy_from_slice(&gid);
                bytes[24..32].copy_from_slice(&service_id.to_be_bytes());
                bytes[32..40].copy_from_slice(&mask.to_be_bytes());
                bytes
            }
        }
    }

    /// Returns the bytes of the `struct sockaddr`, with zeros behind them.
    pub fn emit_array<const N: usize>(&self) -> [u8; N] {
        let bytes = self.emit();
        let mut all = [0; N];
        let len = bytes.len().min(N);
        all[..len].copy_from_slice(&bytes[..len]);
        all
    }

    /// Returns the port: the low bits of a service.
    pub fn port(&self) -> u16 {
        match self {
            Self::Ip { port, .. } => *port,
            Self::Ib { service_id, .. } => *service_id as u16,
        }
    }

    /// Sets the port.
    pub fn set_port(&mut self, new: u16) {
        match self {
            Self::Ip { port, .. } => *port = new,
            Self::Ib { service_id, mask, .. } => {
                *service_id = *service_id & !0xffff | u64::from(new);
                *mask = u64::MAX;
            }
        }
    }

    /// Returns `true` if the address stands for all addresses.
    pub fn is_any(&self) -> bool {
        match self {
            Self::Ip { ip, .. } => ip.is_unspecified(),
            Self::Ib { gid, .. } => *gid == [0; 16],
        }
    }

    /// Returns the address without its port, if it is one of the Internet.
    pub fn as_ip(&self) -> Option<IpAddr> {
        match self {
            Self::Ip { ip, .. } => Some(*ip),
            Self::Ib { .. } => None,
        }
    }

    /// Returns the GID that the address is, or stands for.
    pub fn gid(&self) -> [u8; 16] {
        match self {
            Self::Ip { ip: IpAddr::V4(ip), .. } => ip.to_ipv6_mapped().octets(),
            Self::Ip { ip: IpAddr::V6(ip), .. } => ip.octets(),
            Self::Ib { gid, .. } => *gid,
        }
    }

    /// Returns `true` if it is a multicast group.
    pub fn is_multicast(&self) -> bool {
        address::is_multicast_gid(&self.gid())
    }

    /// Returns `true` if both are of one family.
    pub fn is_kin(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ip { ip: one, .. }, Self::Ip { ip: two, .. }) => one.is_ipv4() == two.is_ipv4(),
            (Self::Ib { .. }, Self::Ib { .. }) => true,
            _ => false,
        }
    }

    /// Returns the place in the fabric that the address leads to.
    pub fn place(&self) -> Option<Place> {
        if self.is_multicast() {
            return Some(Place::Group);
        }
        if self.is_any() || self.as_ip().is_some_and(is_of_machine) {
            return Some(Place::Machine);
        }
        address::lid_of_gid(&self.gid()).map(Place::Port)
    }

    /// Returns the index of the GID that port uses for this family of addresses.
    pub fn gid_index(&self, link: LinkLayer) -> u8 {
        match (link, self) {
            (LinkLayer::InfiniBand, _) => 0,
            (_, Self::Ip { ip: IpAddr::V4(_), .. }) => 3,
            (_, Self::Ib { gid, .. }) => gid_index(gid, link),
            _ => 1,
        }
    }
}

/// Place in the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// One port.
    Port(u16),
    /// A port of this machine, which its listeners tell.
    Machine,
    /// A multicast group.
    Group,
}

/// Returns the index of the GID that a port sends from to a GID: RoCE v2, and of the same family.
pub fn gid_index(gid: &[u8; 16], link: LinkLayer) -> u8 {
    match (link, address::ipv4_of_gid(gid)) {
        (LinkLayer::InfiniBand, _) => 0,
        (_, Some(_)) => 3,
        (_, None) => 1,
    }
}

/// Returns the GID of a port.
pub fn gid_of(lid: u16, link: LinkLayer, index: u8) -> [u8; 16] {
    table_entry(lid, link, index.into()).map_or_else(|| address::gid(lid), |(_, gid)| gid)
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    bytes.get(at..).and_then(|rest| rest.first_chunk().copied()).ok_or(EINVAL)
}

fn begin(family: u16, port: u16, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[..2].copy_from_slice(&family.to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes
}

/// Returns `true` if an interface of the machine has this address.
fn is_of_machine(ip: IpAddr) -> bool {
    ip.is_loopback() || machine_addresses().contains(&ip)
}

fn machine_addresses() -> Vec<IpAddr> {
    let mut all = Vec::new();
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: the call fills `list`, which is freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return all;
    }
    let mut entry = list;
    // SAFETY: entries of the list are valid until it is freed.
    while let Some(interface) = unsafe { entry.as_ref() } {
        // SAFETY: an address is null, or valid for the structure of its family.
        let family = unsafe { interface.ifa_addr.as_ref() }.map(|addr| i32::from(addr.sa_family));
        let size = match family {
            Some(libc::AF_INET) => mem::size_of::<libc::sockaddr_in>(),
            Some(libc::AF_INET6) => mem::size_of::<libc::sockaddr_in6>(),
            _ => 0,
        };
        entry = interface.ifa_next;
        if size == 0 {
            continue;
        }
        // SAFETY: as above: the address is not null, because it has a family.
        let bytes = unsafe { std::slice::from_raw_parts(interface.ifa_addr.cast::<u8>(), size) };
        all.extend(Address::parse(bytes).ok().flatten().and_then(|address| address.as_ip()));
    }
    // SAFETY: the list is the one that getifaddrs made.
    unsafe { libc::freeifaddrs(list) };
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_their_structures() {
        let gid = address::gid(7);
        for address in [
            Address::ip([10, 219, 0, 7].into(), 0x1234),
            Address::Ip { ip: Ipv6Addr::from(gid).into(), port: 1, scope: 3 },
            Address::Ib { gid, service_id: 0x0106_1234, mask: u64::MAX, pkey: 0xffff },
        ] {
            assert_eq!(Address::parse(&address.emit()), Ok(Some(address)));
            assert_eq!(address.place(), Some(Place::Port(7)));
            let bytes = address.emit();
            for len in 0..bytes.len() {
                let _ = Address::parse(&bytes[..len]);
            }
        }
        assert_eq!(Address::parse(&[0; 128]), Ok(None));
        assert_eq!(Address::parse(&[9; 128]), Err(EINVAL));
    }

    #[test]
    fn places_of_the_fabric() {
        let place = |ip: &str| Address::ip(ip.parse().unwrap(), 1).place();
        assert_eq!(place("127.0.0.1"), Some(Place::Machine));
        assert_eq!(place("127.9.9.9"), Some(Place::Machine));
        assert_eq!(place("::1"), Some(Place::Machine));
        assert_eq!(place("0.0.0.0"), Some(Place::Machine));
        assert_eq!(place("239.1.2.3"), Some(Place::Group));
        assert_eq!(place("ff12::1"), Some(Place::Group));
        assert_eq!(place("10.219.1.2"), Some(Place::Port(0x102)));
        assert_eq!(place("198.51.100.1"), None);
        for own in machine_addresses() {
            assert_eq!(Address::ip(own, 1).place(), Some(Place::Machine));
        }
    }

    #[test]
    fn the_port_of_a_service() {
        let mut address = Address::Ib { gid: [0; 16], service_id: 0x0106_0000, mask: !0xffff, pkey: 0 };
        address.set_port(0x77);
        assert_eq!(address.port(), 0x77);
        assert!(address.is_any());
        let Address::Ib { service_id, mask, .. } = address else { panic!("{address:?}") };
        assert_eq!((service_id, mask), (0x0106_0077, u64::MAX));
    }
}
