//! Flow rules: which frames go where.
//!
//! As in the kernel's `fs_core.c`, a *level* is a flow table. Levels with small numbers come first, and a frame leaves
//! the levels at the first rule that it matches, unless that rule passes it on. In a level, rules of one mask are a
//! group. The groups are searched in the order of their places in the table; a new group takes the first free place.
//! Rules of the same mask and value are one entry: its frames go to the targets of all of them.

use std::collections::BTreeMap;

use super::Tirn;
use crate::fabric::frame_header::{Headers, Ip, TCP, UDP};

/// The fields that rules can match: a layer in the layout of `fte_match_set_lyr_2_4` and, after it, the IPv6 flow
/// label; the header of a tunnel; and the layer of the packet in the tunnel.
pub type Fields = [u8; FIELDS];
/// Their size in bytes.
pub const FIELDS: usize = at::INNER + at::GRE_PROTOCOL;

/// Places in [`Fields`].
pub mod at {
    pub const SOURCE_MAC: usize = 0;
    pub const ETHER_TYPE: usize = 6;
    pub const DESTINATION_MAC: usize = 8;
    /// Tag control information: 16 bits.
    pub const VLAN: usize = 14;
    pub const PROTOCOL: usize = 16;
    /// Type of service.
    pub const CLASS: usize = 17;
    /// Bits of [`FLAGS`].
    pub const FLAGS: usize = 18;
    pub const TCP_FLAGS: usize = 19;
    pub const TCP_SOURCE: usize = 20;
    pub const TCP_DESTINATION: usize = 22;
    pub const HOPS: usize = 27;
    pub const UDP_SOURCE: usize = 28;
    pub const UDP_DESTINATION: usize = 30;
    pub const SOURCE_IP: usize = 32;
    pub const DESTINATION_IP: usize = 48;
    pub const FLOW_LABEL: usize = 64;
    pub const GRE_PROTOCOL: usize = 68;
    pub const GRE_KEY: usize = 70;
    /// Offset of the fields of the packet in a tunnel from those of the packet around it.
    pub const INNER: usize = 74;
}

/// Bits at [`at::FLAGS`].
pub mod flag {
    pub const CUSTOMER_VLAN: u8 = 1 << 7;
    pub const SERVICE_VLAN: u8 = 1 << 6;
    pub const FRAGMENT: u8 = 1 << 5;
    /// Shift of the IP version.
    pub const IP_VERSION_SHIFT: u8 = 1;
}

/// Copies a number into its place, in network order.
pub fn put<const N: usize>(fields: &mut Fields, place: usize, bytes: [u8; N]) {
    fields[place..place + N].copy_from_slice(&bytes);
}

/// Returns the fields of a frame.
pub fn fields_of(headers: &Headers) -> Fields {
    let mut fields = [0; FIELDS];
    put(&mut fields, at::SOURCE_MAC, headers.source);
    put(&mut fields, at::DESTINATION_MAC, headers.destination);
    put(&mut fields, at::ETHER_TYPE, headers.ether_type.to_be_bytes());
    if let Some(vlan) = headers.vlan {
        put(&mut fields, at::VLAN, vlan.to_be_bytes());
        fields[at::FLAGS] |= flag::CUSTOMER_VLAN;
    }
    if headers.service_vlan {
        fields[at::FLAGS] |= flag::SERVICE_VLAN;
    }
    if let Some(ip) = &headers.ip {
        put_ip(&mut fields, 0, ip);
    }
    if let Some(gre) = &headers.gre {
        put(&mut fields, at::GRE_PROTOCOL, gre.protocol.to_be_bytes());
        put(&mut fields, at::GRE_KEY, gre.key.unwrap_or(0).to_be_bytes());
        put(&mut fields, at::INNER + at::ETHER_TYPE, gre.protocol.to_be_bytes());
        if let Some(ip) = &gre.ip {
            put_ip(&mut fields, at::INNER, ip);
        }
    }
    fields
}

/// Copies the fields of an IP packet into the layer that starts at `layer`.
fn put_ip(fields: &mut Fields, layer: usize, ip: &Ip) {
    fields[layer + at::FLAGS] |= ip.version << flag::IP_VERSION_SHIFT;
    if ip.fragment {
        fields[layer + at::FLAGS] |= flag::FRAGMENT;
    }
    fields[layer + at::PROTOCOL] = ip.protocol;
    fields[layer + at::CLASS] = ip.class;
    fields[layer + at::HOPS] = ip.hops;
    put(fields, layer + at::SOURCE_IP, ip.source);
    put(fields, layer + at::DESTINATION_IP, ip.destination);
    put(fields, layer + at::FLOW_LABEL, ip.flow_label.to_be_bytes());
    let Some(transport) = &ip.transport else { return };
    let ports = match ip.protocol {
        TCP => [at::TCP_SOURCE, at::TCP_DESTINATION],
        UDP => [at::UDP_SOURCE, at::UDP_DESTINATION],
        _ => return,
    };
    fields[layer + at::TCP_FLAGS] = transport.flags;
    put(fields, layer + ports[0], transport.source.to_be_bytes());
    put(fields, layer + ports[1], transport.destination.to_be_bytes());
}

/// Target of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// To receive queues.
    Tir(Tirn),
    /// Nowhere.
    Drop,
}

/// A rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Number of its flow table.
    pub level: u8,
    /// Bits of the fields that count.
    pub mask: Fields,
    /// Values that these bits must have.
    pub value: Fields,
    /// Tag in the CQE; `None` for a rule without a tag.
    pub tag: Option<u32>,
    /// Target of its frames.
    pub target: Target,
    /// The frames also go on to the next level.
    pub continues: bool,
}

/// A rule of the same mask and value has another tag or another action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict;

#[derive(Debug)]
struct Entry {
    tag: u32,
    continues: bool,
    // Keyed by the number of the flow.
    targets: Vec<(u32, Target)>,
}

impl Entry {
    fn drops(&self) -> bool {
        self.targets.iter().any(|(_, target)| *target == Target::Drop)
    }
}

#[derive(Debug)]
struct Group {
    mask: Fields,
    entries: BTreeMap<Fields, Entry>,
}

/// All rules of a device.
#[derive(Debug, Default)]
pub struct Rules {
    levels: BTreeMap<u8, Vec<Option<Group>>>,
}

fn masked(fields: &Fields, mask: &Fields) -> Fields {
    std::array::from_fn(|at| fields[at] & mask[at])
}

impl Rules {
    /// Adds a rule of flow `flow`.
    pub fn add(&mut self, flow: u32, rule: &Rule) -> Result<(), Conflict> {
        let value = masked(&rule.value, &rule.mask);
        let groups = self.levels.entry(rule.level).or_default();
        let same = |group: &&mut Group| group.mask == rule.mask;
        if let Some(group) = groups.iter_mut().flatten().find(same) {
            if let Some(entry) = group.entries.get_mut(&value) {
                let drops = rule.target == Target::Drop;
                let other_tag = rule.tag.is_some_and(|tag| tag != entry.tag);
                if drops != entry.drops() || rule.continues != entry.continues || other_tag {
                    return Err(Conflict);
                }
                entry.targets.push((flow, rule.target));
                return Ok(());
            }
        }
        let entry = Entry { tag: rule.tag.unwrap_or(0), continues: rule.continues, targets: vec![(flow, rule.target)] };
        if let Some(group) = groups.iter_mut().flatten().find(same) {
            group.entries.insert(value, entry);
            return Ok(());
        }
        let group = Group { mask: rule.mask, entries: BTreeMap::from([(value, entry)]) };
        match groups.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(group),
            None => groups.push(Some(group)),
        }
        Ok(())
    }

    /// Removes the rules of a flow.
    pub fn remove(&mut self, flow: u32) {
        for place in self.levels.values_mut().flatten() {
            let Some(group) = place else { continue };
            for entry in group.entries.values_mut() {
                entry.targets.retain(|(owner, _)| *owner != flow);
            }
            group.entries.retain(|_, entry| !entry.targets.is_empty());
            if group.entries.is_empty() {
                *place = None;
            }
        }
    }

    /// Returns `true` if there is any rule.
    pub fn is_empty(&self) -> bool {
        !self.levels.values().flatten().any(Option::is_some)
    }

    /// Returns the number of targets of all rules.
    pub fn len(&self) -> usize {
        let groups = self.levels.values().flatten().flatten();
        groups.flat_map(|group| group.entries.values()).map(|entry| entry.targets.len()).sum()
    }

    /// Appends the targets of a frame, each once with its tag.
    pub fn find(&self, fields: &Fields, found: &mut Vec<(Target, u32)>) {
        for groups in self.levels.values() {
            let mut groups = groups.iter().flatten();
            let entry = groups.find_map(|group| group.entries.get(&masked(fields, &group.mask)));
            let Some(entry) = entry else { continue };
            for (_, target) in &entry.targets {
                let known = found.iter().any(|(other, _)| other == target);
                if !known && *target != Target::Drop {
                    found.push((*target, entry.tag));
                }
            }
            if !entry.continues {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::samples::Sample;

    const QUEUES: [Target; 4] =
        [Target::Tir(Tirn(1)), Target::Tir(Tirn(2)), Target::Tir(Tirn(3)), Target::Tir(Tirn(4))];

    fn rule(target: Target, places: &[(usize, &[u8])]) -> Rule {
        let (mut mask, mut value) = ([0; FIELDS], [0; FIELDS]);
        for (place, bytes) in places {
            mask[*place..][..bytes.len()].fill(0xff);
            value[*place..][..bytes.len()].copy_from_slice(bytes);
        }
        Rule { level: 2, mask, value, tag: None, target, continues: false }
    }

    fn group(target: Target, last: u8) -> Rule {
        rule(target, &[(at::DESTINATION_IP + 12, &[239, 1, 2, last])])
    }

    fn find(rules: &Rules, sample: &Sample) -> Vec<(Target, u32)> {
        let mut found = Vec::new();
        let headers = Headers::parse(&sample.build()).unwrap();
        rules.find(&fields_of(&headers), &mut found);
        found
    }

    fn feed(last: u8) -> Sample {
        Sample::udp([239, 1, 2, last], 5001, b"tick")
    }

    #[test]
    fn the_same_rule_twice_copies_frames() {
        let mut rules = Rules::default();
        for (flow, target) in (1..).zip(QUEUES) {
            rules.add(flow, &group(target, 3)).unwrap();
        }
        rules.add(9, &group(QUEUES[0], 3)).unwrap();
        assert_eq!(find(&rules, &feed(3)), QUEUES.map(|queue| (queue, 0)));
        assert_eq!(find(&rules, &feed(4)), []);
        rules.remove(1);
        assert_eq!(find(&rules, &feed(3)).len(), 4, "another flow leads to the first queue, too");
        rules.remove(9);
        assert_eq!(find(&rules, &feed(3)), [QUEUES[1], QUEUES[2], QUEUES[3]].map(|q| (q, 0)));
        (2..=4).for_each(|flow| rules.remove(flow));
        assert!(rules.is_empty());
    }

    #[test]
    fn other_tags_and_actions_conflict() {
        let mut rules = Rules::default();
        let tagged = |tag| Rule { tag: Some(tag), ..group(QUEUES[1], 3) };
        rules.add(1, &tagged(7)).unwrap();
        assert_eq!(rules.add(2, &tagged(8)), Err(Conflict));
        assert_eq!(rules.add(2, &group(Target::Drop, 3)), Err(Conflict));
        rules.add(2, &tagged(7)).unwrap();
        // A rule without a tag of its own gets the tag of the entry.
        rules.add(3, &group(QUEUES[2], 3)).unwrap();
        assert_eq!(find(&rules, &feed(3)), [(QUEUES[1], 7), (QUEUES[2], 7)]);
        rules.add(4, &group(QUEUES[0], 4)).unwrap();
        assert_eq!(rules.add(5, &Rule { tag: Some(1), ..group(QUEUES[0], 4) }), Err(Conflict));
    }

    #[test]
    fn small_levels_come_first_and_may_pass_frames_on() {
        let mut rules = Rules::default();
        let any = |target, level| Rule { level, ..rule(target, &[]) };
        rules.add(1, &any(QUEUES[0], 9)).unwrap();
        rules.add(2, &Rule { level: 3, tag: Some(5), ..group(QUEUES[1], 3) }).unwrap();
        assert_eq!(find(&rules, &feed(3)), [(QUEUES[1], 5)]);
        assert_eq!(find(&rules, &feed(4)), [(QUEUES[0], 0)]);
        rules.add(3, &Rule { level: 1, continues: true, ..group(QUEUES[2], 3) }).unwrap();
        assert_eq!(find(&rules, &feed(3)), [(QUEUES[2], 0), (QUEUES[1], 5)]);
        rules.add(4, &Rule { level: 2, ..group(Target::Drop, 3) }).unwrap();
        assert_eq!(find(&rules, &feed(3)), [(QUEUES[2], 0)]);
        assert_eq!(rules.len(), 4);
    }

    #[test]
    fn in_a_level_the_first_group_wins_and_a_freed_place_is_taken_again() {
        let mut rules = Rules::default();
        let narrow = |target| {
            let mut narrow = group(target, 3);
            put(&mut narrow.mask, at::UDP_DESTINATION, [0xff; 2]);
            put(&mut narrow.value, at::UDP_DESTINATION, 5001u16.to_be_bytes());
            narrow
        };
        let port = rule(QUEUES[2], &[(at::UDP_DESTINATION, &5001u16.to_be_bytes())]);
        rules.add(1, &group(QUEUES[0], 3)).unwrap();
        rules.add(2, &narrow(QUEUES[1])).unwrap();
        assert_eq!(find(&rules, &feed(3)), [(QUEUES[0], 0)]);
        rules.remove(1);
        assert_eq!(find(&rules, &feed(3)), [(QUEUES[1], 0)]);
        rules.add(3, &port).unwrap();
        assert_eq!(find(&rules, &feed(3)), [(QUEUES[2], 0)]);
    }

    #[test]
    fn bits_that_the_mask_leaves_out_do_not_count() {
        let mut rules = Rules::default();
        let mut vlan = rule(QUEUES[0], &[]);
        put(&mut vlan.mask, at::VLAN, 0x0fffu16.to_be_bytes());
        put(&mut vlan.value, at::VLAN, 0xe064u16.to_be_bytes());
        (vlan.mask[at::FLAGS], vlan.value[at::FLAGS]) = (flag::CUSTOMER_VLAN, flag::CUSTOMER_VLAN);
        rules.add(1, &vlan).unwrap();
        assert_eq!(find(&rules, &feed(3).vlan(0x2064)).len(), 1);
        assert_eq!(find(&rules, &feed(3).vlan(0x2065)), []);
        assert_eq!(find(&rules, &feed(3)), []);
        // Only the outer tag counts.
        assert_eq!(find(&rules, &feed(3).vlan(1).vlan(0x64)), []);
    }

    #[test]
    fn ports_are_those_of_their_protocol() {
        let mut rules = Rules::default();
        let udp = [(at::PROTOCOL, &[UDP][..]), (at::UDP_DESTINATION, &[0x13, 0x89])];
        rules.add(1, &rule(QUEUES[0], &udp)).unwrap();
        let version = [(at::DESTINATION_IP, &[0; 10][..]), (at::TCP_DESTINATION, &[0x13, 0x89])];
        rules.add(2, &rule(QUEUES[1], &version)).unwrap();
        assert_eq!(find(&rules, &feed(3)), [(QUEUES[0], 0)]);
        assert_eq!(find(&rules, &feed(3).tcp()), [(QUEUES[1], 0)]);
        assert_eq!(find(&rules, &feed(3).ipv6()), [(QUEUES[0], 0)]);
    }
}
