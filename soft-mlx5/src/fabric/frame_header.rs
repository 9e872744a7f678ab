//! The headers of an Ethernet frame, as a device reads them to steer, hash and check it.

use super::checksum;

/// Bytes of an Ethernet header without a tag.
pub const ETHERNET: usize = 14;
/// Bytes of a VLAN tag.
pub const VLAN_TAG: usize = 4;
/// Offset of a tag.
pub const TAG_AT: usize = 12;

/// Type of a customer VLAN tag.
pub const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
/// Protocol of a tunnel (RFC 2784, RFC 2890).
pub const GRE: u8 = 47;

// Tags that the parser goes through.
const MOST_TAGS: usize = 2;
// Extension headers of IPv6: hop by hop, routing, fragment, destination options.
const EXTENSIONS: [u8; 4] = [0, 43, FRAGMENT, 60];
const FRAGMENT: u8 = 44;

/// Header of TCP or UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transport {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// The checksum is right.
    pub sound: bool,
    /// TCP flags; 0 for a UDP datagram.
    pub flags: u8,
    /// Bytes after the header.
    pub payload: usize,
}

/// An IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ip {
    /// 4 or 6.
    pub version: u8,
    /// Source address; one of IPv4 is in the last four bytes.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
    /// Type of service, or traffic class.
    pub class: u8,
    /// Flow label of IPv6.
    pub flow_label: u32,
    /// Time to live, or hop limit.
    pub hops: u8,
    /// Protocol after the header and its extensions.
    pub protocol: u8,
    /// The header has options or extension headers.
    pub options: bool,
    /// The packet is a fragment.
    pub fragment: bool,
    /// The header is whole, and its checksum is right.
    pub sound: bool,
    /// Offset in the frame.
    pub at: usize,
    /// Offset of the protocol's own header.
    pub body: usize,
    /// Offset of the end of the packet; padding may follow.
    pub end: usize,
    /// TCP or UDP header, of a packet that is no fragment.
    pub transport: Option<Transport>,
}

/// Header of a GRE tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gre {
    /// Ethernet type of the packet in the tunnel.
    pub protocol: u16,
    /// Key, if the header has one.
    pub key: Option<u32>,
    /// IP header of that packet, if it is one of IP.
    pub ip: Option<Ip>,
}

/// The headers of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// Destination address.
    pub destination: [u8; 6],
    /// Source address.
    pub source: [u8; 6],
    /// Tag control information of the outermost tag, when that is one of a customer VLAN.
    pub vlan: Option<u16>,
    /// The outermost tag is one of a service VLAN.
    pub service_vlan: bool,
    /// Type after the tags.
    pub ether_type: u16,
    /// Offset of that type's header.
    pub body: usize,
    /// IP header, if one follows that is long enough.
    pub ip: Option<Ip>,
    /// Tunnel behind the IP header.
    pub gre: Option<Gre>,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
}

impl Ip {
    /// Returns the sum that TCP and UDP add for the addresses, the protocol and their length.
    pub fn pseudo_sum(&self, length: usize) -> u32 {
        checksum::words(&self.source) + checksum::words(&self.destination) + u32::from(self.protocol) + length as u32
    }
}

impl Headers {
    /// Reads a frame without its check sequence; returns `None` if it has no Ethernet header.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let mut ether_type = word(frame, TAG_AT)?;
        let mut headers = Self {
            destination: *frame.first_chunk()?,
            source: *frame[6..].first_chunk()?,
            vlan: None,
            service_vlan: ether_type == SERVICE_VLAN,
            ether_type,
            body: ETHERNET,
            ip: None,
            gre: None,
        };
        for _ in 0..MOST_TAGS {
            if !matches!(ether_type, VLAN | SERVICE_VLAN) {
                break;
            }
            let Some(inner) = word(frame, headers.body + 2) else { break };
            if headers.body == ETHERNET && ether_type == VLAN {
                headers.vlan = word(frame, headers.body);
            }
            ether_type = inner;
            headers.body += VLAN_TAG;
        }
        headers.ether_type = ether_type;
        headers.ip = ip(frame, ether_type, headers.body);
        headers.gre = headers.ip.filter(|ip| ip.protocol == GRE && !ip.fragment).and_then(|ip| gre(frame, ip.body));
        Some(headers)
    }

    /// Returns `true` if the frame is for a group.
    pub fn is_multicast(&self) -> bool {
        self.destination[0] & 1 != 0
    }
}

fn ip(frame: &[u8], ether_type: u16, at: usize) -> Option<Ip> {
    match ether_type {
        IPV4 => ipv4(frame, at),
        IPV6 => ipv6(frame, at),
        _ => None,
    }
}

fn gre(frame: &[u8], at: usize) -> Option<Gre> {
    const CHECKSUM: u16 = 1 << 15;
    const KEY: u16 = 1 << 13;
    const SEQUENCE: u16 = 1 << 12;
    const VERSION: u16 = 7;
    let (flags, protocol) = (word(frame, at)?, word(frame, at + 2)?);
    if flags & VERSION != 0 {
        return None;
    }
    let has = |flag| flags & flag != 0;
    let key_at = at + 4 + if has(CHECKSUM) { 4 } else { 0 };
    let key = if has(KEY) { Some(u32::from_be_bytes(*frame.get(key_at..)?.first_chunk()?)) } else { None };
    let body = key_at + if has(KEY) { 4 } else { 0 } + if has(SEQUENCE) { 4 } else { 0 };
    Some(Gre { protocol, key, ip: ip(frame, protocol, body) })
}

fn ipv4(frame: &[u8], at: usize) -> Option<Ip> {
    const MORE_FRAGMENTS: u16 = 1 << 13;
    const OFFSET: u16 = 0x1fff;
    let header: &[u8; 20] = frame.get(at..)?.first_chunk()?;
    let length = usize::from(header[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let fits = header[0] >> 4 == 4 && length >= 20 && total >= length && at + total <= frame.len();
    let mut address = [[0; 16]; 2];
    address[0][12..].copy_from_slice(&header[12..16]);
    address[1][12..].copy_from_slice(&header[16..]);
    let fragment = u16::from_be_bytes([header[6], header[7]]) & (MORE_FRAGMENTS | OFFSET) != 0;
    let mut ip = Ip {
        version: 4,
        source: address[0],
        destination: address[1],
        class: header[1],
        flow_label: 0,
        hops: header[8],
        protocol: header[9],
        options: length > 20,
        fragment,
        sound: fits && checksum::sum(&frame[at..at + length]) == 0xffff,
        at,
        body: at + length.max(20),
        end: if fits { at + total } else { frame.len() },
        transport: None,
    };
    if !fragment {
        ip.transport = transport(frame, &ip, fits);
    }
    Some(ip)
}

fn ipv6(frame: &[u8], at: usize) -> Option<Ip> {
    let header: &[u8; 40] = frame.get(at..)?.first_chunk()?;
    let first = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    let end = at + 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let fits = first >> 28 == 6 && end <= frame.len();
    let mut ip = Ip {
        version: 6,
        source: *header[8..].first_chunk()?,
        destination: *header[24..].first_chunk()?,
        class: (first >> 20) as u8,
        flow_label: first & 0xf_ffff,
        hops: header[7],
        protocol: header[6],
        options: false,
        fragment: false,
        sound: fits,
        at,
        body: at + 40,
        end: end.min(frame.len()),
        transport: None,
    };
    while EXTENSIONS.contains(&ip.protocol) && fits {
        let Some(extension) = frame.get(ip.body..ip.body + 8).filter(|_| ip.body + 8 <= end) else {
            ip.sound = false;
            return Some(ip);
        };
        ip.options = true;
        let fragment = ip.protocol == FRAGMENT;
        ip.fragment |= fragment;
        ip.body += if fragment { 8 } else { 8 + 8 * usize::from(extension[1]) };
        ip.protocol = extension[0];
    }
    if !ip.fragment {
        ip.transport = transport(frame, &ip, fits);
    }
    Some(ip)
}

// Reads the ports even if lengths are wrong. Adapters steer such packets, too: in rdma-core's tests the length of an
// IPv6 packet counts the header. `fits` says that the packet is as long as its header says.
fn transport(frame: &[u8], ip: &Ip, fits: bool) -> Option<Transport> {
    let body = frame.get(ip.body..ip.end)?;
    let (length, header) = match ip.protocol {
        TCP => (body.len(), usize::from(*body.get(12)? >> 4) * 4),
        UDP => (usize::from(word(body, 4)?), 8),
        _ => return None,
    };
    let whole = fits && header >= 8 && (header..=body.len()).contains(&length);
    // A UDP datagram over IPv4 may have no checksum.
    let none = ip.protocol == UDP && word(body, 6)? == 0;
    let sum = || ip.pseudo_sum(length) + checksum::words(&body[..length]);
    let sound = whole && if none { ip.version == 4 } else { checksum::folded(sum()) == 0xffff };
    Some(Transport {
        source: word(body, 0)?,
        destination: word(body, 2)?,
        sound,
        flags: if ip.protocol == TCP { *body.get(13)? } else { 0 },
        payload: length.saturating_sub(header),
    })
}

/// Fills in the checksum of a TCP or UDP header, and ignores the old one.
pub fn fill_transport(frame: &mut [u8], ip: &Ip) {
    let at = match ip.protocol {
        TCP => 16,
        UDP => 6,
        _ => return,
    };
    let length = ip.end.saturating_sub(ip.body);
    if ip.fragment || length < at + 2 {
        return;
    }
    let sum = checksum::set(frame, ip.body..ip.end, ip.body + at, ip.pseudo_sum(length));
    if sum == 0 && ip.protocol == UDP {
        frame[ip.body + at..ip.body + at + 2].fill(0xff);
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::Sample;
    use super::*;

    #[test]
    fn a_datagram_of_market_data() {
        let frame = Sample::udp([239, 1, 2, 3], 5001, b"tick").vlan(0x2064).build();
        let headers = Headers::parse(&frame).unwrap();
        assert_eq!(headers.destination, [0x01, 0x00, 0x5e, 1, 2, 3]);
        assert_eq!((headers.vlan, headers.ether_type, headers.body), (Some(0x2064), IPV4, 18));
        assert!(headers.is_multicast() && !headers.service_vlan);
        let ip = headers.ip.unwrap();
        assert_eq!((ip.version, ip.protocol, &ip.destination[12..]), (4, UDP, &[239, 1, 2, 3][..]));
        assert!(ip.sound && !ip.fragment && !ip.options);
        let udp = ip.transport.unwrap();
        assert_eq!((udp.destination, udp.sound, udp.payload), (5001, true, 4));
        // The padding to 60 bytes is no part of it.
        assert_eq!((frame.len(), ip.end), (60, 18 + 32));
    }

    #[test]
    fn each_wrong_bit_is_seen() {
        let frame = Sample::udp([239, 1, 2, 3], 5001, b"ticks").build();
        let sound = |frame: &[u8]| {
            let ip = Headers::parse(frame).and_then(|headers| headers.ip);
            let udp = ip.and_then(|ip| ip.transport);
            ip.is_some_and(|ip| ip.sound) && udp.is_some_and(|udp| udp.sound)
        };
        assert!(sound(&frame));
        for at in 14..14 + 33 {
            for bit in 0..8 {
                let mut damaged = frame.clone();
                damaged[at] ^= 1 << bit;
                assert!(!sound(&damaged), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic() {
        let frames = [
            Sample::udp([239, 1, 2, 3], 5001, b"tick").vlan(7).vlan(9).build(),
            Sample::udp([239, 1, 2, 3], 5001, b"tick").ipv6().build(),
            Sample::udp([1, 1, 1, 1], 1, b"").tcp().build(),
        ];
        for whole in frames {
            for len in 0..whole.len() {
                assert_eq!(Headers::parse(&whole[..len]).is_some(), len >= ETHERNET);
            }
            for at in 0..whole.len() {
                for value in 0..=255 {
                    let mut frame = whole.clone();
                    frame[at] = value;
                    let _ = Headers::parse(&frame);
                }
            }
        }
    }

    #[test]
    fn a_datagram_in_a_tunnel() {
        let inner = Sample::udp([239, 1, 2, 3], 5001, b"tick");
        for (key, header) in [(None, 4), (Some(7), 8)] {
            let frame = inner.tunnel(key);
            let headers = Headers::parse(&frame).unwrap();
            let (outer, gre) = (headers.ip.unwrap(), headers.gre.unwrap());
            assert_eq!((outer.protocol, outer.sound, outer.transport), (GRE, true, None));
            assert_eq!((gre.protocol, gre.key), (IPV4, key));
            let ip = gre.ip.unwrap();
            assert_eq!((ip.at, &ip.destination[12..]), (14 + 20 + header, &[239, 1, 2, 3][..]));
            assert_eq!(ip.transport.map(|udp| (udp.destination, udp.sound)), Some((5001, true)));
            for len in 0..frame.len() {
                let _ = Headers::parse(&frame[..len]);
            }
            // Another version of GRE, and a fragment of the outer packet.
            let mut other = frame.clone();
            other[35] = 1;
            assert_eq!(Headers::parse(&other).unwrap().gre, None);
            other = frame;
            other[20] |= 0x20;
            assert_eq!(Headers::parse(&other).unwrap().gre, None);
        }
        assert_eq!(Headers::parse(&inner.build()).unwrap().gre, None);
    }

    #[test]
    fn fragments_have_no_transport_header() {
        let mut frame = Sample::udp([239, 1, 2, 3], 5001, b"tick").build();
        frame[20] |= 0x20;
        let ip = Headers::parse(&frame).unwrap().ip.unwrap();
        assert!(ip.fragment && ip.transport.is_none());
    }
}
