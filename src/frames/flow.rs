//! Which frames come to a receiver.

use std::fmt;
use std::mem::offset_of;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;

use rdma_core_sys as sys;

use super::wq::HashQp;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::pd::ProtectionDomain;
use crate::qp::Qp;

/// Ethertype of IPv4.
const IPV4: u16 = 0x0800;
/// Highest priority number that the kernel takes.
const MAX_PRIORITY: u64 = 15;
/// Highest tag that a CQE has room for.
const MAX_TAG: u64 = 0xff_ffff;

/// A description of frames that a receiver wants, for
/// [`FrameReceiver::attach`](crate::frames::FrameReceiver::attach).
///
/// A matching frame goes to the receivers of one rule, and not to the kernel's network stack. Among MAC rules the
/// lowest
/// [priority](Self::priority) number wins. Among multicast rules the kind of match that was attached first wins: attach
/// rules with a
/// [`source`](Self::source) first. If several receivers or programs have rules with the same match, priority and
/// [tag](Self::tag), each gets a copy. If only their tags differ, the kernel refuses the second rule (`EEXIST`).
///
/// There is no match for unicast UDP by port: use [`mac`](Self::mac) and look at the port.
///
/// ```
/// use std::net::Ipv4Addr;
///
/// use doorbell::frames::Flow;
///
/// let group = Ipv4Addr::new(239, 1, 2, 3);
/// let feed = Flow::udp_multicast(group, 30_001).vlan(100).tag(1);
/// // Datagrams of one publisher alone.
/// let one = feed.clone().source(Ipv4Addr::new(192, 0, 2, 7));
/// # let _ = one;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    matches: Matches,
    source: Option<Ipv4Addr>,
    vlan: Option<u16>,
    tag: Option<u32>,
    priority: Option<u16>,
    joins: Option<Ipv4Addr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Matches {
    Multicast { group: Ipv4Addr, port: u16 },
    Mac([u8; 6]),
    Unclaimed,
}

impl Flow {
    /// Matches UDP datagrams to a port of an IPv4 multicast group.
    pub const fn udp_multicast(group: Ipv4Addr, port: u16) -> Self {
        Self::of(Matches::Multicast { group, port })
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

    /// Restricts [`udp_multicast`](Self::udp_multicast) to datagrams from this address.
    pub const fn source(mut self, address: Ipv4Addr) -> Self {
        self.source = Some(address);
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

    /// Sets the priority of a rule for a unicast [`mac`](Self::mac), at most 15: the lowest number wins. 0 by default.
    /// Other rules have none: the kernel puts all multicast rules at one priority (`MLX5_IB_FLOW_MCAST_PRIO` of
    /// `mlx5/fs.c`), and all [`unclaimed`](Self::unclaimed) rules at the last.
    pub const fn priority(mut self, priority: u16) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Also joins the group on the network interface with this address. The rule holds a UDP socket for that, so that
    /// the kernel sends the IGMP reports that switches with IGMP snooping require. Nothing is received from the socket.
    /// soft-mlx5 needs no reports.
    pub const fn join_on(mut self, interface: Ipv4Addr) -> Self {
        self.joins = Some(interface);
        self
    }

    fn check(&self, verbs: bool) -> Result<()> {
        if let Matches::Multicast { group, .. } = self.matches {
            if !group.is_multicast() {
                let gid = group.to_ipv6_mapped().octets();
                return Err(Error::NotMulticast { operation: "Flow::udp_multicast", gid });
            }
        }
        if let Some(vlan) = self.vlan {
            Error::check_range("VLAN of the flow", vlan.into(), 0, 0xfff)?;
        }
        Error::check_range("priority of the flow", self.priority.unwrap_or(0).into(), 0, MAX_PRIORITY)?;
        let refused = |operation, when| Err(Error::Unsupported { operation, when });
        if self.priority.is_some() && !matches!(self.matches, Matches::Mac([first, ..]) if first & 1 == 0) {
            return refused("Flow::priority", "without a unicast address: use Flow::mac, or leave the priority out");
        }
        if self.vlan.is_some() && self.matches == Matches::Unclaimed {
            return refused(
                "Flow::vlan",
                "on Flow::unclaimed, which matches every frame: use Flow::mac or Flow::udp_multicast",
            );
        }
        if !matches!(self.matches, Matches::Multicast { .. }) {
            if self.source.is_some() {
                return refused("Flow::source", "without a group: use Flow::udp_multicast");
            }
            if self.joins.is_some() {
                return refused("Flow::join_on", "without a group: use Flow::udp_multicast");
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

    /// Returns the rule as `ibv_create_flow(3)` takes it, for a port.
    fn rule(&self, port: u8) -> Rule {
        let kind = match self.matches {
            Matches::Unclaimed => sys::IBV_FLOW_ATTR_ALL_DEFAULT,
            _ => sys::IBV_FLOW_ATTR_NORMAL,
        };
        let default = if let Matches::Multicast { .. } = self.matches { 1 } else { 0 };
        let mut rule = Rule::new(kind, self.priority.unwrap_or(default), port);
        let mut eth = Eth::default();
        if let Some(vlan) = self.vlan {
            eth.vlan = (vlan, 0xfff);
        }
        match self.matches {
            Matches::Unclaimed => return rule,
            Matches::Mac(address) => {
                eth.dst = address;
                rule.add_eth(&eth);
            }
            Matches::Multicast { group, port } => {
                let [_, a, b, c] = group.octets();
                eth.dst = [0x01, 0x00, 0x5e, a & 0x7f, b, c];
                eth.ether_type = (IPV4, 0xffff);
                rule.add_eth(&eth);
                let (source, mask) = self.source.map_or(([0; 4], [0; 4]), |one| (one.octets(), [0xff; 4]));
                rule.add(
                    sys::IBV_FLOW_SPEC_IPV4,
                    size_of::<sys::ibv_flow_spec_ipv4>(),
                    offset_of!(sys::ibv_flow_spec_ipv4, val),
                    &[&source, &group.octets(), &mask, &[0xff; 4]],
                );
                rule.add(
                    sys::IBV_FLOW_SPEC_UDP,
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
        let (Matches::Multicast { group, .. }, Some(interface)) = (self.matches, self.joins) else {
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

/// Fields of an Ethernet header that a rule matches, with masks; the destination is matched as a whole.
#[derive(Default)]
struct Eth {
    dst: [u8; 6],
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
        + size_of::<sys::ibv_flow_spec_ipv4>()
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
                &dst[..],
                &[0; 6],
                &ether_type.to_be_bytes(),
                &vlan.to_be_bytes(),
                &[0xff; 6],
                &[0; 6],
                &type_mask.to_be_bytes(),
                &vlan_mask.to_be_bytes(),
            ],
        );
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
/// let rule = receiver.attach(&Flow::udp_multicast([239, 1, 2, 3].into(), 30_001))?;
/// // Nothing comes any more.
/// drop(rule);
/// # Ok(())
/// # }
/// ```
#[must_use = "a rule ends when it is dropped"]
pub struct FlowRule {
    flow: *mut sys::ibv_flow,
    context: Context,
    // Dropped after the rule was destroyed; kept for ever if it cannot be.
    target: Option<Target>,
    _membership: Option<UdpSocket>,
}

// SAFETY: the handle is used for destroying it only.
unsafe impl Send for FlowRule {}
// SAFETY: as above.
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
        let flow = Flow::udp_multicast(Ipv4Addr::new(239, 129, 2, 3), 30_001)
            .source(Ipv4Addr::new(192, 0, 2, 7))
            .vlan(100)
            .tag(0xab_cdef);
        let rule = flow.rule(1);
        assert_eq!((rule.attr.type_, rule.attr.priority), (0, 1));
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
    fn other_rules() {
        let mac = bytes(&Flow::mac([2, 0, 0, 0, 0, 1]));
        assert_eq!((mac.len(), &mac[6..12]), (40, &[2, 0, 0, 0, 0, 1][..]));
        assert_eq!(mac[28..38], [0; 10]);
        let rest = Flow::unclaimed().rule(1);
        assert_eq!((rest.attr.type_, rest.attr.num_of_specs, rest.attr.size), (1, 0, 20));
    }

    #[test]
    fn what_the_kernel_would_refuse_is_refused_in_words() {
        let flow = || Flow::udp_multicast(Ipv4Addr::new(239, 1, 2, 3), 1);
        assert!(flow().vlan(4095).tag(0xff_ffff).check(false).is_ok());
        let mac = |first| Flow::mac([first, 0, 0, 0, 0, 1]);
        assert!(mac(2).vlan(4095).tag(0xff_ffff).priority(15).check(false).is_ok());
        let unicast = Flow::udp_multicast(Ipv4Addr::new(192, 0, 2, 1), 1);
        for (flow, word) in [
            (unicast, "192.0.2.1 is not a multicast address"),
            (flow().vlan(4096), "VLAN"),
            (flow().tag(1 << 24), "tag"),
            (mac(2).priority(16), "priority"),
            (flow().priority(0), "Flow::priority"),
            (mac(1).priority(1), "Flow::priority"),
            (Flow::unclaimed().priority(1), "Flow::priority"),
            (Flow::unclaimed().vlan(5), "Flow::vlan"),
            (Flow::unclaimed().source(Ipv4Addr::LOCALHOST), "without a group"),
            (mac(2).source(Ipv4Addr::LOCALHOST), "without a group"),
            (Flow::unclaimed().tag(1), "Flow::unclaimed"),
            (Flow::mac([0; 6]).join_on(Ipv4Addr::LOCALHOST), "without a group"),
        ] {
            let error = flow.check(false).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(flow().tag(1).check(true).unwrap_err().to_string().contains("verbs path"));
    }
}
