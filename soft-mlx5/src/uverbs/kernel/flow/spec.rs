//! The specs of a flow: the fields that frames must have, and the actions on the frames.

use crate::fabric::frame_header::{GRE, IPV4, IPV6, TCP, UDP};
use crate::objects::Result;
use crate::objects::flow::{FIELDS, Fields, at, flag};
use crate::uverbs::kernel::errno::{EINVAL, EOPNOTSUPP};

const HEADER: usize = 8;

const ETH: u32 = 0x20;
const SPEC_IPV4: u32 = 0x30;
const SPEC_IPV6: u32 = 0x31;
const SPEC_TCP: u32 = 0x40;
const SPEC_UDP: u32 = 0x41;
const SPEC_GRE: u32 = 0x51;
// ESP, VXLAN and MPLS, which are not offered, nor is an Ethernet header inside of a tunnel.
const OTHERS: [u32; 3] = [0x34, 0x50, 0x60];
/// Bit of the specs of the packet inside of a tunnel.
const INNER: u32 = 0x100;
const INNER_ETH: u32 = INNER | ETH;
const ACTION_TAG: u32 = 0x1000;
const ACTION_DROP: u32 = 0x1001;
// Actions of IPsec and counters.
const OTHER_ACTIONS: [u32; 2] = [0x1002, 0x1003];

const TAG_BITS: u32 = 24;

/// All specs of a flow, combined.
#[derive(Debug)]
pub struct Specs {
    /// Bits of a frame that count.
    pub mask: Fields,
    /// Values that these bits must have.
    pub value: Fields,
    /// Tag.
    pub tag: Option<u32>,
    /// Frames are dropped.
    pub drop: bool,
    /// The first spec lets through nothing but multicast.
    pub multicast_only: bool,
    // Ethernet type, value and mask, where a spec says it; IP version of a spec.
    ether_type: Option<(u16, u16)>,
    version: Option<u8>,
}

/// A filter: value and mask, each of the length that this device knows.
struct Filter<const N: usize> {
    value: [u8; N],
    mask: [u8; N],
}

impl<const N: usize> Filter<N> {
    // A shorter filter of an older library is extended, a longer filter must end in zeros.
    fn parse(body: &[u8]) -> Result<Self> {
        let (value, mask) = body.split_at(body.len() / 2);
        let known = value.len().min(N);
        if body.len() % 2 != 0 || value.is_empty() {
            return Err(EINVAL);
        }
        if [value, mask].iter().any(|half| half[known..].iter().any(|byte| *byte != 0)) {
            return Err(EINVAL);
        }
        let mut filter = Self { value: [0; N], mask: [0; N] };
        filter.value[..known].copy_from_slice(&value[..known]);
        filter.mask[..known].copy_from_slice(&mask[..known]);
        Ok(filter)
    }

    fn refuse_from(&self, place: usize) -> Result<()> {
        if self.mask[place..].iter().any(|byte| *byte != 0) { Err(EOPNOTSUPP) } else { Ok(()) }
    }
}

impl Specs {
    /// Reads `count` specs that take all of `bytes`.
    pub fn parse(mut bytes: &[u8], count: u8) -> Result<Self> {
        let mut specs = Self {
            mask: [0; FIELDS],
            value: [0; FIELDS],
            tag: None,
            drop: false,
            multicast_only: false,
            ether_type: None,
            version: None,
        };
        for index in 0..count {
            let header: &[u8; HEADER] = bytes.first_chunk().ok_or(EINVAL)?;
            let [a, b, c, d, e, f, reserved @ ..] = *header;
            let (kind, size) = (u32::from_ne_bytes([a, b, c, d]), usize::from(u16::from_ne_bytes([e, f])));
            if reserved != [0; 2] || size < HEADER || size > bytes.len() {
                return Err(EINVAL);
            }
            let (spec, rest) = bytes.split_at(size);
            specs.add(kind, &spec[HEADER..], index == 0)?;
            bytes = rest;
        }
        if bytes.is_empty() { Ok(specs) } else { Err(EINVAL) }
    }

    fn put(&mut self, place: usize, value: &[u8], mask: &[u8]) {
        for (at, (value, mask)) in value.iter().zip(mask).enumerate() {
            // A later spec may say more of the same field.
            self.mask[place + at] |= mask;
            self.value[place + at] = self.value[place + at] & !mask | value & mask;
        }
    }

    fn add(&mut self, kind: u32, body: &[u8], first: bool) -> Result<()> {
        // Where the fields of the packet are that the spec is about.
        let layer = if kind & INNER != 0 { at::INNER } else { 0 };
        match kind & !INNER {
            _ if kind == INNER_ETH => return Err(EOPNOTSUPP),
            ETH => self.add_ethernet(&Filter::parse(body)?, first),
            SPEC_IPV4 => return self.add_ipv4(layer, &Filter::parse(body)?, first),
            SPEC_IPV6 => return self.add_ipv6(layer, &Filter::parse(body)?),
            SPEC_TCP => self.add_ports(layer, TCP, at::TCP_SOURCE, &Filter::parse(body)?),
            SPEC_UDP => self.add_ports(layer, UDP, at::UDP_SOURCE, &Filter::parse(body)?),
            kind if OTHERS.contains(&kind) => return Err(EOPNOTSUPP),
            _ if kind & INNER != 0 => return Err(EINVAL),
            SPEC_GRE => return self.add_gre(&Filter::parse(body)?),
            ACTION_TAG => {
                let (tag, reserved) = body.split_first_chunk().ok_or(EINVAL)?;
                let tag = u32::from_ne_bytes(*tag);
                if reserved != [0; 4] || tag >> TAG_BITS != 0 {
                    return Err(EINVAL);
                }
                self.tag = Some(tag);
            }
            ACTION_DROP if body.is_empty() => self.drop = true,
            kind if OTHER_ACTIONS.contains(&kind) => return Err(EOPNOTSUPP),
            _ => return Err(EINVAL),
        }
        Ok(())
    }

    // Destination, source, type and tag.
    fn add_ethernet(&mut self, filter: &Filter<16>, first: bool) {
        let Filter { value, mask } = filter;
        self.put(at::DESTINATION_MAC, &value[..6], &mask[..6]);
        self.put(at::SOURCE_MAC, &value[6..12], &mask[6..12]);
        self.put(at::ETHER_TYPE, &value[12..14], &mask[12..14]);
        let word = |bytes: &[u8; 16]| u16::from_be_bytes([bytes[12], bytes[13]]);
        if word(mask) != 0 {
            self.ether_type = Some((word(value), word(mask)));
        }
        if mask[14..] != [0; 2] {
            self.put(at::VLAN, &value[14..], &mask[14..]);
            self.put(at::FLAGS, &[flag::CUSTOMER_VLAN], &[flag::CUSTOMER_VLAN]);
        }
        self.multicast_only |= first && mask[0] & value[0] & 1 != 0;
    }

    fn add_version(&mut self, layer: usize, version: u8) {
        if layer == 0 {
            self.version = Some(version);
        }
        let mask = 0xf << flag::IP_VERSION_SHIFT;
        self.put(layer + at::FLAGS, &[version << flag::IP_VERSION_SHIFT], &[mask]);
    }

    // Protocol and key; flags and version are not offered.
    fn add_gre(&mut self, filter: &Filter<8>) -> Result<()> {
        let Filter { value, mask } = filter;
        if mask[..2] != [0; 2] {
            return Err(EOPNOTSUPP);
        }
        self.add_protocol(0, GRE)?;
        self.put(at::GRE_PROTOCOL, &value[2..4], &mask[2..4]);
        self.put(at::GRE_KEY, &value[4..], &mask[4..]);
        Ok(())
    }

    // The protocol that a spec behind the IP header implies, which no spec before may contradict.
    fn add_protocol(&mut self, layer: usize, protocol: u8) -> Result<()> {
        let place = layer + at::PROTOCOL;
        let known = self.mask[place];
        if known != 0 && (known != 0xff || self.value[place] != protocol) {
            return Err(EINVAL);
        }
        self.put(place, &[protocol], &[0xff]);
        Ok(())
    }

    // Source, destination, protocol, type of service; time to live and flags are not offered.
    fn add_ipv4(&mut self, layer: usize, filter: &Filter<12>, first: bool) -> Result<()> {
        let Filter { value, mask } = filter;
        filter.refuse_from(10)?;
        self.add_version(layer, 4);
        self.put(layer + at::SOURCE_IP + 12, &value[..4], &mask[..4]);
        self.put(layer + at::DESTINATION_IP + 12, &value[4..8], &mask[4..8]);
        self.put(layer + at::PROTOCOL, &value[8..9], &mask[8..9]);
        self.put(layer + at::CLASS, &value[9..10], &mask[9..10]);
        self.multicast_only |= first && value[4] >> 4 == 0xe;
        Ok(())
    }

    // Source, destination, flow label, next header, traffic class; the hop limit is not offered.
    fn add_ipv6(&mut self, layer: usize, filter: &Filter<40>) -> Result<()> {
        let Filter { value, mask } = filter;
        filter.refuse_from(38)?;
        self.add_version(layer, 6);
        self.put(layer + at::SOURCE_IP, &value[..16], &mask[..16]);
        self.put(layer + at::DESTINATION_IP, &value[16..32], &mask[16..32]);
        self.put(layer + at::FLOW_LABEL, &value[32..36], &mask[32..36]);
        self.put(layer + at::PROTOCOL, &value[36..37], &mask[36..37]);
        self.put(layer + at::CLASS, &value[37..38], &mask[37..38]);
        Ok(())
    }

    fn add_ports(&mut self, layer: usize, protocol: u8, place: usize, filter: &Filter<4>) {
        self.put(layer + at::PROTOCOL, &[protocol], &[0xff]);
        // On the wire the source comes first, in the spec the destination.
        self.put(layer + place, &filter.value[2..], &filter.mask[2..]);
        self.put(layer + place + 2, &filter.value[..2], &filter.mask[..2]);
    }

    /// Checks that an Ethernet type and an IP version in different specs fit each other.
    pub fn check_types(&self) -> Result<()> {
        let (Some((value, mask)), Some(version)) = (self.ether_type, self.version) else {
            return Ok(());
        };
        let of_version = if version == 4 { IPV4 } else { IPV6 };
        if mask == 0xffff && value == of_version { Ok(()) } else { Err(EINVAL) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::frame_header::Headers;
    use crate::fabric::samples::Sample;
    use crate::objects::flow::fields_of;

    fn spec(kind: u32, body: &[u8]) -> Vec<u8> {
        let size = (HEADER + body.len()) as u16;
        [&kind.to_ne_bytes()[..], &size.to_ne_bytes(), &[0; 2], body].concat()
    }

    fn eth(value: [u8; 16], mask: [u8; 16]) -> Vec<u8> {
        spec(ETH, &[value, mask].concat())
    }

    #[test]
    fn what_the_kernel_refuses() {
        let parse = |spec: Vec<u8>| Specs::parse(&spec, 1).err();
        assert_eq!(parse(spec(SPEC_UDP, &[0; 8])), None);
        assert_eq!(parse(spec(SPEC_UDP, &[0; 7])), Some(EINVAL));
        assert_eq!(parse(spec(SPEC_UDP, &[])), Some(EINVAL));
        assert_eq!(parse(spec(0x77, &[0; 8])), Some(EINVAL));
        assert_eq!(parse(spec(0x60, &[0; 8])), Some(EOPNOTSUPP));
        assert_eq!(parse(spec(INNER_ETH, &[0; 32])), Some(EOPNOTSUPP));
        assert_eq!(parse(spec(0x50 | INNER, &[0; 8])), Some(EOPNOTSUPP));
        assert_eq!(parse(spec(ACTION_DROP | INNER, &[])), Some(EINVAL));
        assert_eq!(parse(spec(SPEC_GRE | INNER, &[0; 16])), Some(EINVAL));
        // Flags of GRE; then another protocol in the spec before.
        let mut gre = [0; 16];
        assert_eq!(parse(spec(SPEC_GRE, &gre)), None);
        gre[8] = 0x20;
        assert_eq!(parse(spec(SPEC_GRE, &gre)), Some(EOPNOTSUPP));
        let udp_then_gre = [spec(SPEC_UDP, &[0; 8]), spec(SPEC_GRE, &[0; 16])].concat();
        assert_eq!(Specs::parse(&udp_then_gre, 2).err(), Some(EINVAL));
        assert_eq!(parse(spec(ACTION_TAG, &0x00ff_ffff_u64.to_ne_bytes())), None);
        assert_eq!(parse(spec(ACTION_TAG, &0x0100_0000_u64.to_ne_bytes())), Some(EINVAL));
        assert_eq!(parse(spec(ACTION_TAG, &[0; 4])), Some(EINVAL));
        let mut reserved = spec(ACTION_DROP, &[]);
        assert_eq!(parse(reserved.clone()), None);
        reserved[6] = 1;
        assert_eq!(parse(reserved), Some(EINVAL));
        // One spec with bytes after it; two specs of which only one is there.
        assert_eq!(parse([spec(ACTION_DROP, &[]), vec![0]].concat()), Some(EINVAL));
        assert_eq!(Specs::parse(&spec(ACTION_DROP, &[]), 2).err(), Some(EINVAL));
        // A time to live.
        let mut extended = [0; 24];
        extended[22] = 1;
        assert_eq!(parse(spec(SPEC_IPV4, &extended)), Some(EOPNOTSUPP));
        extended[22] = 0;
        assert_eq!(parse(spec(SPEC_IPV4, &extended)), None);
        assert_eq!(parse(spec(SPEC_IPV4, &extended[..16])), None);
        // A longer filter of a newer library.
        let mut long = [0; 12];
        assert_eq!(parse(spec(SPEC_TCP, &long)), None);
        long[5] = 1;
        assert_eq!(parse(spec(SPEC_TCP, &long)), Some(EINVAL));
    }

    /// The rule of a validator for datagrams in a tunnel: Ethernet type, protocol of the outer packet, type of the
    /// inner one, address and port there.
    #[test]
    fn a_rule_for_datagrams_in_a_tunnel() {
        let udp = Sample::udp([239, 1, 2, 3], 5001, b"tick");
        let (mut eth_value, mut eth_mask) = ([0; 16], [0; 16]);
        eth_value[12] = 8;
        eth_mask[12..14].fill(0xff);
        let mut outer = [0; 24];
        (outer[8], outer[20]) = (GRE, 0xff);
        let gre = [0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
        let mut inner = [0; 24];
        inner[4..9].copy_from_slice(&[239, 1, 2, 3, UDP]);
        inner[16..21].fill(0xff);
        let ports = [0x13, 0x89, 0, 0, 0xff, 0xff, 0, 0];
        let bytes = [
            eth(eth_value, eth_mask),
            spec(SPEC_IPV4, &outer),
            spec(SPEC_GRE, &gre),
            spec(SPEC_IPV4 | INNER, &inner),
            spec(SPEC_UDP | INNER, &ports),
        ];
        let specs = Specs::parse(&bytes.concat(), 5).unwrap();
        specs.check_types().unwrap();
        let matches = |frame: &[u8]| {
            let fields = fields_of(&Headers::parse(frame).unwrap());
            fields.iter().zip(&specs.mask).zip(&specs.value).all(|((field, mask), value)| field & mask == *value)
        };
        assert!(matches(&udp.tunnel(None)) && matches(&udp.tunnel(Some(7))));
        assert!(!matches(&udp.build()));
        for (group, port) in [([239, 1, 2, 4], 5001), ([239, 1, 2, 3], 5002)] {
            assert!(!matches(&Sample::udp(group, port, b"tick").tunnel(None)));
        }
        assert!(!matches(&udp.tcp().tunnel(None)));
    }

    #[test]
    fn types_must_fit_the_version() {
        let check = |value: u16, mask: u16, kind: u32, len: usize| {
            let (mut values, mut masks) = ([0; 16], [0; 16]);
            values[12..14].copy_from_slice(&value.to_be_bytes());
            masks[12..14].copy_from_slice(&mask.to_be_bytes());
            let bytes = [eth(values, masks), spec(kind, &vec![0; len])].concat();
            Specs::parse(&bytes, 2).unwrap().check_types().is_ok()
        };
        assert!(check(IPV4, 0xffff, SPEC_IPV4, 16));
        assert!(check(IPV6, 0xffff, SPEC_IPV6, 80));
        assert!(check(0, 0, SPEC_IPV4, 16));
        assert!(!check(IPV6, 0xffff, SPEC_IPV4, 16));
        assert!(!check(IPV4, 0x0fff, SPEC_IPV4, 16));
        assert!(check(0x88f7, 0xffff, SPEC_UDP, 8));
    }

    #[test]
    fn a_first_spec_that_lets_through_multicast_only() {
        let only = |bytes: Vec<u8>| Specs::parse(&bytes, 1).unwrap().multicast_only;
        let first = |value: u8| std::array::from_fn(|at| if at == 0 { value } else { 0 });
        assert!(only(eth(first(1), first(1))));
        assert!(!only(eth(first(1), first(0xfe))));
        assert!(!only(eth(first(0xfe), first(0xff))));
        let mut ipv4 = [0; 16];
        ipv4[4] = 239;
        assert!(only(spec(SPEC_IPV4, &ipv4)));
        let udp = spec(SPEC_UDP, &[0; 8]);
        let second = [udp, spec(SPEC_IPV4, &ipv4)].concat();
        assert!(!Specs::parse(&second, 2).unwrap().multicast_only);
    }
}
