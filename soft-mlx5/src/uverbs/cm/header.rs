//! The header that the RDMA connection manager puts before private data (InfiniBand specification, annex A11): version,
//! family, port and both addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of the header.
pub const SIZE: usize = 36;

/// Addresses of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpHeader {
    /// Port of the sender.
    pub port: u16,
    /// Address of the sender.
    pub source: IpAddr,
    /// Address that the sender asked for.
    pub destination: IpAddr,
}

impl IpHeader {
    /// Reads the header from the start of private data; returns `None` if there is none.
    pub fn parse(data: &[u8]) -> Option<Self> {
        let bytes: &[u8; SIZE] = data.first_chunk()?;
        // The low half of the second byte is reserved.
        let (version, family) = (bytes[0], bytes[1] >> 4);
        let six = |at: usize| Some(Ipv6Addr::from(*bytes[at..].first_chunk::<16>()?));
        let (source, destination) = (six(4)?, six(20)?);
        let low = |ip: Ipv6Addr| Ipv4Addr::from((u128::from(ip)) as u32);
        let (source, destination) = match (version, family) {
            (0, 4) => (low(source).into(), low(destination).into()),
            (0, 6) => (source.into(), destination.into()),
            _ => return None,
        };
        Some(Self { port: u16::from_be_bytes([bytes[2], bytes[3]]), source, destination })
    }

    /// Returns the bytes. Both addresses are of one family.
    pub fn emit(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let sixteen = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => u128::from(u32::from(ip)).to_be_bytes(),
            IpAddr::V6(ip) => ip.octets(),
        };
        bytes[1] = if self.destination.is_ipv4() { 4 << 4 } else { 6 << 4 };
        bytes[2..4].copy_from_slice(&self.port.to_be_bytes());
        bytes[4..20].copy_from_slice(&sixteen(self.source));
        bytes[20..].copy_from_slice(&sixteen(self.destination));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes_of_both_families() {
        let four = IpHeader { port: 0x1234, source: [10, 219, 0, 1].into(), destination: [10, 219, 0, 2].into() };
        let mut bytes = [0; SIZE];
        bytes[1] = 0x40;
        bytes[2..4].copy_from_slice(&[0x12, 0x34]);
        bytes[16..20].copy_from_slice(&[10, 219, 0, 1]);
        bytes[32..].copy_from_slice(&[10, 219, 0, 2]);
        assert_eq!(four.emit(), bytes);
        assert_eq!(IpHeader::parse(&bytes), Some(four));
        let six = IpHeader { port: 1, source: Ipv6Addr::LOCALHOST.into(), destination: Ipv6Addr::UNSPECIFIED.into() };
        let bytes = six.emit();
        assert_eq!((bytes[1], bytes[19], bytes[35]), (0x60, 1, 0));
        assert_eq!(IpHeader::parse(&bytes), Some(six));
    }

    #[test]
    fn what_is_no_header() {
        let mut bytes = [0; SIZE];
        assert_eq!(IpHeader::parse(&bytes), None, "no family");
        bytes[1] = 0x40;
        assert!(IpHeader::parse(&bytes).is_some());
        assert_eq!(IpHeader::parse(&bytes[..SIZE - 1]), None, "too short");
        bytes[0] = 1;
        assert_eq!(IpHeader::parse(&bytes), None, "unknown version");
    }
}
