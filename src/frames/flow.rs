//! Which frames come to a receiver.

use std::fmt;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;

use rdma_core_sys as sys;

use super::wq::HashQp;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::pd::ProtectionDomain;
use crate::qp::Qp;

/// Ethertypes.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Highest priority number that the kernel takes.
const MAX_PRIORITY: u64 = 15;
/// Highest tag that a CQE has room for.
const MAX_TAG: u64 = 0xff_ffff;

/// A description of frames that a receiver wants, for
/// [`FrameReceiver::attach`](crate::frames::FrameReceiver::attach).
///
/// A matching frame goes to the receivers of one rule, and not to the kernel's network stack. Among unicast rules the
/// lowest [priority](Self::priority) number wins. Among multicast rules the kind of match that was attached first wins:
/// attach rules with a [`source`](Self::source) first. If several receivers or programs have rules with the same match,
/// priority and [tag](Self::tag), each gets a copy. If only their tags differ, the kernel refuses the second rule
/// (`EEXIST`).
///
/// ```
/// use std::net::Ipv4Addr;
///
/// use doorbell::frames::Flow;
///
/// let group = Ipv4Addr::new(239, 1, 2, 3);
/// let feed = Flow::udp(group, 30_001).vlan(100).tag(1);
/// // Datagrams of one publisher alone.
/// let one = feed.clone().source(Ipv4Addr::new(192, 0, 2, 7));
/// // A session with an exchange: the segments to our port.
/// let session = Flow::tcp(Ipv4Addr::new(192, 0, 2, 10), 9_100);
/// # let _ = (one, session);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    matches: Matches,
    source: Option<IpAddr>,
    vlan: Option<u16>,
    tag: Option<u32>,
    priority: Option<u16>,
    joins: Option<Ipv4Addr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Matches {
    Port { protocol: Protocol, address: IpAddr, port: u16 },
    Mac([u8; 6]),
    Unclaimed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp = sys::IBV_FLOW_SPEC_TCP as isize,
    Udp = sys::IBV_FLOW_SPEC_UDP as isize,
}

impl Flow {
    /// Matches UDP datagrams to this port of a multicast group, or of an address of this host.
    pub fn udp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::of(Matches::Port { protocol: Protocol::Udp, address: address.into(), port })
    }

    /// Matches TCP segments to this port of an address of this host. The kernel does not see them: a program that
    /// attaches the rule is its own end of the connection.
    pub fn tcp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::of(Matches::Port { protocol: Protocol::Tcp, address: address.into(), port })
    }

    /// Matches frames to this destination MAC address: normally that of the port's network interface
    /// (`/sys/class/net/INTERFACE/address`). On soft-mlx5 any unicast address works, because a frame to an address that
    /// no port has reaches all ports.
    pub const fn mac(address: [u8; 6]) -> Self {
        Self::of(Matches::Mac(address))
    }

    /// Matches unicast and multicast frames that no other rule of a program or of the kernel matches
    /// (`IBV_FLOW_ATTR_ALL_DEFAULT`).
    pub const fn unclaimed() -> Self {
        Self::of(Matches::Unclaimed)
    }

    const fn of(matches: Matches) -> Self {
        Self { matches, source: None, vlan: None, tag: None, priority: None, joins: None }
    }

    /// Restricts [`udp`](Self::udp) or [`tcp`](Self::tcp) to packets from this address, of the same version of IP.
    pub fn source(mut self, address: impl Into<IpAddr>) -> Self {
        self.source = Some(address.into());
        self
    }

    /// Restricts the match to frames of this VLAN, below 4,096. Not with [`unclaimed`](Self::unclaimed), which matches
    /// no field of a frame.
    pub const fn vlan(mut self, id: u16) -> Self {
        self.vlan = Some(id);
        self
    }

    /// Sets the number, below 2^24, that matching frames return as their [`tag`](crate::frames::Frame::tag). Direct
    /// path only: on the verbs path [`attach`](crate::frames::FrameReceiver::attach) returns
    /// [`Error::Unsupported`](crate::Error::Unsupported).
    pub const fn tag(mut self, tag: u32) -> Self {
        self.tag = Some(tag);
        self
    }

    /// Sets the priority of a rule for a unicast address, at most 15: the lowest number wins. 0 by default. Give a rule
    /// for a port a lower number than one for the [`mac`](Self::mac) of the same host. Other rules have none: the
    /// kernel puts all multicast rules at one priority (`MLX5_IB_FLOW_MCAST_PRIO` of `mlx5/fs.c`), and all
    /// [`unclaimed`](Self::unclaimed) rules at the last.
    pub const fn priority(mut self, priority: u16) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Also joins the IPv4 group on the network interface with this address. The rule holds a UDP socket for that, so
    /// that the kernel sends the IGMP reports that switches with IGMP snooping require. Nothing is received from the
    /// socket. soft-mlx5 needs no reports.
    pub const fn join_on(mut self, interface: Ipv4Addr) -> Self {
        self.joins = Some(interface);
        self
    }

    fn check(&self, verbs: bool) -> Result<()> {
        if let Some(vlan) = self.vlan {
            Error::check_range("VLAN of the flow", vlan.into(), 0, 0xfff)?;
        }
        Error::check_range("priority of the flow", self.priority.unwrap_or(0).into(), 0, MAX_PRIORITY)?;
        let refused = |operation, when| Err(Error::Unsupported { operation, when });
        if self.priority.is_some() && !self.is_unicast() {
            return refused("Flow::priority", "without a unicast address: leave the priority out");
        }
        if self.vlan.is_some() && self.matches == Matches::Unclaimed {
            return refused("Flow::vlan", "on Flow::unclaimed, which matches every frame: use Flow::mac or Flow::udp");
        }
        if self.source.is_some() || self.joins.is_some() {
            let Matches::Port { address, .. } = self.matches else {
                return refused("Flow::source or Flow::join_on", "without an IP address: use Flow::udp");
            };
            if self.source.is_some_and(|source| source.is_ipv4() != address.is_ipv4()) {
                return refused("Flow::source", "of another version of IP than the destination");
            }
            if self.joins.is_some() && !(address.is_ipv4() && address.is_multicast()) {
                return refused("Flow::join_on", "without an IPv4 group: join another with a socket of the program");
            }
        }
        match self.tag {
            Some(_) if verbs => refused("Flow::tag", "on the verbs path: ibv_poll_cq does not report it"),
            Some(_) if self.matches == Matches::Unclaimed => {
                refused("Flow::tag", "on Flow::unclaimed: the kernel takes none there")
            }
            Some(tag) => Error::check_range("tag of the flow", tag.into(), 0, MAX_TAG),
            None => Ok(()),
        }
    }

    fn is_unicast(&self) -> bool {
        match self.matches {
            Matches::Port { address, .. } => !address.is_multicast(),
            Matches::Mac([first, ..]) => first & 1 == 0,
            Matches::Unclaimed => false,
        }
    }

    /// Returns the rule as `ibv_create_flow(3)` takes it, for a port.
    fn rule(&self, port: u8) -> Rule {
        let kind = match self.matches {
            Matches::Unclaimed => sys::IBV_FLOW_ATTR_ALL_DEFAULT,
            _ => sys::IBV_FLOW_ATTR_NORMAL,
        };
        let mut rule = Rule::new(kind, self.priority.unwrap_or(0), port);
        let mut eth = Eth::default();
        if let Some(vlan) = self.vlan {
            eth.vlan = (vlan, 0xfff);
        }
        match self.matches {
            Matches::Unclaimed => return rule,
            Matches::Mac(address) => {
                eth.dst = Some(address);
                rule.add_eth(&eth);
            }
            Matches::Port { protocol, address, port } => {
                eth.dst = group_mac(address);
                eth.ether_type = (if address.is_ipv4() { IPV4 } else { IPV6 }, 0xffff);
                rule.add_eth(&eth);
                rule.add_ip(address, self.source);
                rule.add(
                    protocol as sys::ibv_flow_spec_type,
                    size_of::<sys::ibv_flow_spec_tcp_udp>(),
                    offset_of!(sys::ibv_flow_spec_tcp_udp, val),
                    &[&port.to_be_bytes(), &[0; 2], &[0xff; 2]],
                );
            }
        }
        if let Some(tag) = self.tag {
            rule.add(
                sys::IBV_FLOW_SPEC_ACTION_TAG,
                size_of::<sys::ibv_flow_spec_action_tag>(),
                offset_of!(sys::ibv_flow_spec_action_tag, tag_id),
                &[&tag.to_ne_bytes()],
            );
        }
        rule
    }

    /// Joins the group, if that is asked for.
    fn join(&self) -> Result<Option<UdpSocket>> {
        let (Matches::Port { address: IpAddr::V4(group), .. }, Some(interface)) = (self.matches, self.joins) else {
            return Ok(None);
        };
        let joined = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
            socket.join_multicast_v4(&group, &interface)?;
            Ok(socket)
        });
        let failed = |source| Error::verbs("setsockopt(IP_ADD_MEMBERSHIP)", "the system", source);
        joined.map(Some).map_err(failed)
    }
}

/// Returns the destination MAC address of packets to a group; `None` for a unicast address, whose owner the network
/// knows.
fn group_mac(address: IpAddr) -> Option<[u8; 6]> {
    match address {
        _ if !address.is_multicast() => None,
        IpAddr::V4(group) => {
            let [_, a, b, c] = group.octets();
            Some([0x01, 0x00, 0x5e, a & 0x7f, b, c])
        }
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = group.octets();
            Some([0x33, 0x33, a, b, c, d])
        }
    }
}

/// `struct ibv_flow_spec_ipv6` of `infiniband/verbs.h`.
#[repr(C)]
struct SpecIpv6 {
    kind: u32,
    size: u16,
    val: FilterIpv6,
    mask: FilterIpv6,
}

/// `struct ibv_flow_ipv6_filter`.
#[repr(C)]
struct FilterIpv6 {
    source: [u8; 16],
    destination: [u8; 16],
    flow_label: u32,
    next_header: u8,
    traffic_class: u8,
    hop_limit: u8,
}

const _: () = assert!(size_of::<SpecIpv6>() == 88 && offset_of!(SpecIpv6, val) == 8);

/// Fields of an Ethernet header that a rule matches, with masks.
#[derive(Default)]
struct Eth {
    dst: Option<[u8; 6]>,
    ether_type: (u16, u16),
    vlan: (u16, u16),
}

/// Attributes and specifications, one after the other.
#[repr(C)]
struct Rule {
    attr: sys::ibv_flow_attr,
    specs: [u8; Self::SPECS],
}

impl Rule {
    /// Bytes of one specification of each kind.
    const SPECS: usize = size_of::<sys::ibv_flow_spec_eth>()
        + size_of::<SpecIpv6>()
        + size_of::<sys::ibv_flow_spec_tcp_udp>()
        + size_of::<sys::ibv_flow_spec_action_tag>();

    fn new(type_: sys::ibv_flow_attr_type, priority: u16, port: u8) -> Self {
        let size = size_of::<sys::ibv_flow_attr>() as u16;
        let attr = sys::ibv_flow_attr { type_, size, priority, port, ..Default::default() };
        Self { attr, specs: [0; Self::SPECS] }
    }

    fn add_eth(&mut self, eth: &Eth) {
        let Eth { dst, ether_type: (ether_type, type_mask), vlan: (vlan, vlan_mask) } = eth;
        self.add(
            sys::IBV_FLOW_SPEC_ETH,
            size_of::<sys::ibv_flow_spec_eth>(),
            offset_of!(sys::ibv_flow_spec_eth, val),
            &[
                &dst.unwrap_or_default(),
                &[0; 6],
                &ether_type.to_be_bytes(),
                &vlan.to_be_bytes(),
                &[if dst.is_some() { 0xff } else { 0 }; 6],
                &[0; 6],
                &type_mask.to_be_bytes(),
                &vlan_mask.to_be_bytes(),
            ],
        );
    }

    /// Matches the destination as a whole, and the source if there is one.
    fn add_ip(&mut self, destination: IpAddr, source: Option<IpAddr>) {
        match destination {
            IpAddr::V4(destination) => {
                let source = if let Some(IpAddr::V4(source)) = source { Some(source.octets()) } else { None };
                self.add(
                    sys::IBV_FLOW_SPEC_IPV4,
                    size_of::<sys::ibv_flow_spec_ipv4>(),
                    offset_of!(sys::ibv_flow_spec_ipv4, val),
                    &[
                        &source.unwrap_or_default(),
                        &destination.octets(),
                        &source.map_or([0; 4], |_| [0xff; 4]),
                        &[0xff; 4],
                    ],
                );
            }
            IpAddr::V6(destination) => {
                let source = if let Some(IpAddr::V6(source)) = source { Some(source.octets()) } else { None };
                let rest = [0; size_of::<FilterIpv6>() - offset_of!(FilterIpv6, flow_label)];
                self.add(
                    sys::IBV_FLOW_SPEC_IPV6,
                    size_of::<SpecIpv6>(),
                    offset_of!(SpecIpv6, val),
                    &[
                        &source.unwrap_or_default(),
                        &destination.octets(),
                        &rest,
                        &source.map_or([0; 16], |_| [0xff; 16]),
                        &[0xff; 16],
                    ],
                );
            }
        }
    }

    /// Appends a specification of `size` bytes: its header, and from `offset` on the fields of value and mask. Each
    /// kind at most once.
    fn add(&mut self, kind: sys::ibv_flow_spec_type, size: usize, offset: usize, fields: &[&[u8]]) {
        let at = usize::from(self.attr.size) - size_of::<sys::ibv_flow_attr>();
        let spec = &mut self.specs[at..at + size];
        spec[..4].copy_from_slice(&kind.to_ne_bytes());
        spec[4..6].copy_from_slice(&(size as u16).to_ne_bytes());
        let mut to = offset;
        for field in fields {
            spec[to..to + field.len()].copy_from_slice(field);
            to += field.len();
        }
        self.attr.size += size as u16;
        self.attr.num_of_specs += 1;
    }
}

/// Destination of the frames of a rule.
#[derive(Clone)]
pub(super) enum Target {
    Raw(Arc<Qp>),
    Hash(Arc<HashQp>),
}

impl Target {
    fn as_raw(&self) -> *mut sys::ibv_qp {
        match self {
            Self::Raw(qp) => qp.as_raw(),
            Self::Hash(qp) => qp.as_raw(),
        }
    }
}

/// A rule that directs frames to a receiver until it is dropped. If it outlives the receiver, the frames are lost.
///
/// ```no_run
/// # fn run(receiver: &doorbell::frames::FrameReceiver) -> doorbell::Result<()> {
/// use doorbell::frames::Flow;
///
/// let rule = receiver.attach(&Flow::udp([239, 1, 2, 3], 30_001))?;
/// // Nothing comes any more.
/// drop(rule);
/// # Ok(())
/// # }
/// ```
#[must_use = "a rule ends when it is dropped"]
pub struct FlowRule {
    flow: *mut sys::ibv_flow,
    context: Context,
    // Dropped after `ibv_destroy_flow` succeeded. If it fails, the target is leaked, because the rule still leads to
    // it.
    target: Option<Target>,
    _membership: Option<UdpSocket>,
}

// SAFETY: the handle is used for destroying it only.
unsafe impl Send for FlowRule {}
// SAFETY: the reason for `Send` holds for shared references, too.
unsafe impl Sync for FlowRule {}

impl FlowRule {
    pub(super) fn create(pd: &ProtectionDomain, target: Target, flow: &Flow, port: u8, verbs: bool) -> Result<Self> {
        flow.check(verbs)?;
        let context = pd.context().clone();
        let _membership = flow.join()?;
        let mut rule = flow.rule(port);
        let attr = (&raw mut rule).cast::<sys::ibv_flow_attr>();
        // SAFETY: a live queue pair; the attributes and, after them, as many specifications as they say.
        let flow = unsafe { sys::ibv_create_flow(target.as_raw(), attr) };
        if flow.is_null() {
            return Err(Error::raw_packet("ibv_create_flow", context.name()));
        }
        Ok(Self { flow, context, target: Some(target), _membership })
    }
}

impl Drop for FlowRule {
    fn drop(&mut self) {
        let gone = self.context.owner().is_this_process() && {
            // SAFETY: created by us, destroyed once; its queue pair is alive.
            let errno = unsafe { sys::ibv_destroy_flow(self.flow) };
            self.context.destroyed("ibv_destroy_flow", errno)
        };
        if !gone {
            std::mem::forget(self.target.take());
        }
    }
}

impl fmt::Debug for FlowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowRule").field("device", &self.context.name()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn bytes(flow: &Flow) -> Vec<u8> {
        let rule = flow.rule(2);
        let attr = rule.attr;
        assert_eq!((attr.port, attr.flags, attr.comp_mask), (2, 0, 0));
        rule.specs[..usize::from(attr.size) - size_of::<sys::ibv_flow_attr>()].to_vec()
    }

    /// The recipe of VMA for a group of market data.
    #[test]
    fn a_multicast_rule_as_the_kernel_reads_it() {
        let flow = Flow::udp(Ipv4Addr::new(239, 129, 2, 3), 30_001)
            .source(Ipv4Addr::new(192, 0, 2, 7))
            .vlan(100)
            .tag(0xab_cdef);
        let rule = flow.rule(1);
        assert_eq!((rule.attr.type_, rule.attr.priority), (0, 0));
        assert_eq!((rule.attr.num_of_specs, rule.attr.size), (4, 20 + 40 + 24 + 16 + 12));
        let specs = bytes(&flow);
        let ne = |value: u32| value.to_ne_bytes();
        assert_eq!((&specs[..4], &specs[4..6]), (&ne(0x20)[..], &40_u16.to_ne_bytes()[..]));
        assert_eq!(specs[6..12], [0x01, 0x00, 0x5e, 0x01, 2, 3]);
        assert_eq!(specs[18..22], [0x08, 0x00, 0x00, 100]);
        assert_eq!(specs[22..28], [0xff; 6]);
        assert_eq!(specs[28..38], [0, 0, 0, 0, 0, 0, 0xff, 0xff, 0x0f, 0xff]);
        assert_eq!(specs[40..46], [0x30, 0, 0, 0, 24, 0]);
        assert_eq!(specs[48..64], [192, 0, 2, 7, 239, 129, 2, 3, 255, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!(specs[64..70], [0x41, 0, 0, 0, 16, 0]);
        assert_eq!(specs[70..78], [0x75, 0x31, 0, 0, 0xff, 0xff, 0, 0]);
        assert_eq!(specs[80..86], [0, 0x10, 0, 0, 12, 0]);
        assert_eq!(specs[88..92], ne(0xab_cdef));
    }

    #[test]
    fn a_rule_for_an_address_of_ipv6_as_the_kernel_reads_it() {
        let host: Ipv6Addr = "2001:db8::7".parse().unwrap();
        let specs = bytes(&Flow::tcp(host, 443).source(host));
        assert_eq!(specs.len(), 40 + 88 + 16);
        // No destination MAC address.
        assert_eq!((&specs[6..12], &specs[18..20], &specs[22..28]), (&[0; 6][..], &[0x86, 0xdd][..], &[0; 6][..]));
        assert_eq!(specs[40..46], [0x31, 0, 0, 0, 88, 0]);
        assert_eq!((&specs[48..64], &specs[64..80]), (&host.octets()[..], &host.octets()[..]));
        assert_eq!((&specs[80..88], &specs[88..120], &specs[120..128]), (&[0; 8][..], &[0xff; 32][..], &[0; 8][..]));
        assert_eq!(specs[128..134], [0x40, 0, 0, 0, 16, 0]);
        assert_eq!(specs[134..142], [1, 187, 0, 0, 0xff, 0xff, 0, 0]);
        let group = bytes(&Flow::udp("ff3e::1:2:3".parse::<Ipv6Addr>().unwrap(), 1));
        assert_eq!((&group[6..12], &group[22..28]), (&[0x33, 0x33, 0, 2, 0, 3][..], &[0xff; 6][..]));
    }

    #[test]
    fn other_rules() {
        let mac = bytes(&Flow::mac([2, 0, 0, 0, 0, 1]));
        assert_eq!((mac.len(), &mac[6..12]), (40, &[2, 0, 0, 0, 0, 1][..]));
        assert_eq!(mac[28..38], [0; 10]);
        let rest = Flow::unclaimed().rule(1);
        assert_eq!((rest.attr.type_, rest.attr.num_of_specs, rest.attr.size), (1, 0, 20));
    }

    #[test]
    fn what_the_kernel_would_refuse_is_refused_in_words() {
        let flow = || Flow::udp(Ipv4Addr::new(239, 1, 2, 3), 1);
        let unicast = || Flow::tcp(Ipv6Addr::LOCALHOST, 1);
        assert!(unicast().source(Ipv6Addr::LOCALHOST).priority(3).check(false).is_ok());
        assert!(flow().vlan(4095).tag(0xff_ffff).check(false).is_ok());
        let mac = |first| Flow::mac([first, 0, 0, 0, 0, 1]);
        assert!(mac(2).vlan(4095).tag(0xff_ffff).priority(15).check(false).is_ok());
        for (flow, word) in [
            (flow().vlan(4096), "VLAN"),
            (flow().tag(1 << 24), "tag"),
            (mac(2).priority(16), "priority"),
            (flow().priority(0), "Flow::priority"),
            (mac(1).priority(1), "Flow::priority"),
            (Flow::unclaimed().priority(1), "Flow::priority"),
            (Flow::unclaimed().vlan(5), "Flow::vlan"),
            (Flow::unclaimed().source(Ipv4Addr::LOCALHOST), "without an IP address"),
            (mac(2).source(Ipv4Addr::LOCALHOST), "without an IP address"),
            (unicast().source(Ipv4Addr::LOCALHOST), "another version of IP"),
            (unicast().join_on(Ipv4Addr::LOCALHOST), "without an IPv4 group"),
            (Flow::unclaimed().tag(1), "Flow::unclaimed"),
            (Flow::mac([0; 6]).join_on(Ipv4Addr::LOCALHOST), "without an IP address"),
        ] {
            let error = flow.check(false).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(flow().tag(1).check(true).unwrap_err().to_string().contains("verbs path"));
    }
}
