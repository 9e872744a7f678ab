//! Routes and neighbours of the interfaces behind GIDs: on RoCE the kernel looks them up when a queue pair connects,
//! and `ibv_modify_qp` fails with errno 101 (no route) or 110 (no answer from the neighbour).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use doorbell::{Gid, GidKind};

use super::{Level, Patient};
use crate::sysfs;

/// Neighbours that are named.
const NAMED: usize = 4;

/// Routes and neighbours of one interface.
#[derive(Debug, Default, PartialEq, Eq)]
struct Network {
    /// Networks that it reaches without a gateway.
    direct: Vec<String>,
    /// The interface has a route to all other addresses.
    default: bool,
    /// Addresses that were asked for and did not answer.
    silent: Vec<String>,
}

/// Adds what the routes of each interface with a routed GID mean.
pub fn examine(patient: &mut Patient, port: &str, dir: &Path, gids: &[Gid]) {
    let routed = gids.iter().filter(|gid| gid.kind == GidKind::RoceV2 && gid.raw[..2] != [0xfe, 0x80]);
    let mut seen: Vec<(String, bool)> = Vec::new();
    for gid in routed {
        let ipv4 = gid.raw[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        let file = dir.join("gid_attrs/ndevs").join(gid.index.to_string());
        let Some(interface) = sysfs::read(&file) else {
            let what = format!("{port} route of GID {}", gid.index);
            let text = "sysfs does not say which interface has this GID: whether peers can be reached is not checked";
            patient.add(Level::Note, what, text);
            continue;
        };
        let key = (interface, ipv4);
        if seen.contains(&key) {
            continue;
        }
        let what = format!("{port} route of GID {} through {}", gid.index, key.0);
        if key.0 == "lo" {
            patient.add(Level::Note, what, "the loopback interface: it reaches this host only");
            seen.push(key);
            continue;
        }
        if !Path::new("/sys/class/net").join(&key.0).exists() {
            let text = "the interface is not in this network namespace: connections cannot use it from here, and its routes are not checked";
            patient.add(Level::Note, what, text);
            seen.push(key);
            continue;
        }
        match network(Path::new("/proc/net"), &key.0, ipv4) {
            Some(network) => {
                let (level, text) = network.verdict();
                patient.add(level, what, text);
            }
            None => patient.add(Level::Note, what, "/proc/net is not readable: not checked"),
        }
        seen.push(key);
    }
}

impl Network {
    fn verdict(&self) -> (Level, String) {
        let direct = if self.direct.is_empty() { "none".to_owned() } else { self.direct.join(", ") };
        let (mut level, mut text) = match (self.default, self.direct.is_empty()) {
            (true, _) => (Level::Ok, format!("a default route; without a gateway: {direct}")),
            (false, false) => (
                Level::Note,
                format!(
                    "only {direct}: connecting to a peer outside of it fails with errno 101 (ENETUNREACH), unless a rule of the \
                     policy routing, which is not read here, has a route"
                ),
            ),
            (false, true) => (
                Level::Warning,
                "no route: connecting fails with errno 101 (ENETUNREACH); is the interface up, with an address and a netmask".into(),
            ),
        };
        if !self.silent.is_empty() {
            level = if level == Level::Ok { Level::Note } else { level };
            let names = self.silent.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
            text += &format!("; no answer from {names}: connecting to it fails with errno 110 (ETIMEDOUT)");
        }
        (level, text)
    }
}

/// Reads what the kernel says; `None` where it says nothing.
fn network(proc_net: &Path, interface: &str, ipv4: bool) -> Option<Network> {
    let read = |name: &str| std::fs::read_to_string(proc_net.join(name)).ok();
    Some(match ipv4 {
        true => network_v4(&read("route")?, &read("arp").unwrap_or_default(), interface),
        // The neighbours of IPv6 are not in /proc.
        false => network_v6(&read("ipv6_route")?, interface),
    })
}

/// Columns: interface, destination, gateway, flags, three counts, mask; numbers in the order of the machine.
fn network_v4(routes: &str, neighbours: &str, interface: &str) -> Network {
    let mut network = Network::default();
    for line in routes.lines().skip(1) {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| columns.get(at).and_then(|text| u32::from_str_radix(text, 16).ok());
        let (Some(&name), Some(to), Some(gateway), Some(mask)) = (columns.first(), number(1), number(2), number(7))
        else {
            continue;
        };
        if name != interface {
            continue;
        }
        if mask == 0 {
            network.default = true;
        } else if gateway == 0 {
            let address = Ipv4Addr::from(to.to_ne_bytes());
            network.direct.push(format!("{address}/{}", mask.count_ones()));
        }
    }
    // Columns: address, type, flags, MAC address, mask, interface; flags without 2 are incomplete.
    for line in neighbours.lines().skip(1) {
        let columns: Vec<&str> = line.split_whitespace().collect();
        if let [address, _, flags, .., name] = columns[..] {
            let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or(2);
            if name == interface && flags & 2 == 0 {
                network.silent.push(address.to_owned());
            }
        }
    }
    network
}

/// Columns: destination, its length, source, its length, gateway, metric, two counts, flags, interface.
fn network_v6(routes: &str, interface: &str) -> Network {
    /// The route leads to this host itself, or rejects.
    const UNUSABLE: u32 = 0x8000_0200;
    let mut network = Network::default();
    for line in routes.lines() {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [to, len, _, _, gateway, _, _, _, flags, name] = columns[..] else { continue };
        let (Ok(to), Ok(len), Ok(flags)) =
            (u128::from_str_radix(to, 16), u32::from_str_radix(len, 16), u32::from_str_radix(flags, 16))
        else {
            continue;
        };
        let address = Ipv6Addr::from(to);
        if name != interface || flags & UNUSABLE != 0 || address.is_multicast() {
            continue;
        }
        if len == 0 {
            network.default = true;
        } else if gateway.bytes().all(|byte| byte == b'0') && len < 128 && to >> 118 != 0x3fa {
            network.direct.push(format!("{address}/{len}"));
        }
    }
    network
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
        eth0\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n\
        eth1\t0000A8C0\t00000000\t0001\t0\t0\t100\t0000FFFF\t0\t0\t0\n";
    const ARP: &str = "IP address       HW type     Flags       HW address            Mask     Device\n\
        10.0.0.1         0x1         0x2         52:54:00:12:35:02     *        eth0\n\
        192.168.1.7      0x1         0x0         00:00:00:00:00:00     *        eth1\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn routes_and_neighbours_of_ipv4() {
        let eth0 = network_v4(ROUTES, ARP, "eth0");
        assert_eq!(eth0, Network { direct: vec!["10.0.0.0/24".into()], default: true, silent: Vec::new() });
        assert_eq!(eth0.verdict().0, Level::Ok);
        let eth1 = network_v4(ROUTES, ARP, "eth1");
        assert_eq!((&eth1.direct[..], eth1.default), (&["192.168.0.0/16".to_owned()][..], false));
        let (level, text) = eth1.verdict();
        assert_eq!(level, Level::Note);
        assert!(text.contains("errno 101") && text.contains("192.168.1.7") && text.contains("errno 110"), "{text}");
        let (level, text) = network_v4(ROUTES, ARP, "eth2").verdict();
        assert!(level == Level::Warning && text.starts_with("no route"), "{text}");
    }

    #[test]
    fn routes_of_ipv6() {
        let zero = "0".repeat(32);
        let line = |to: &str, len: &str, gateway: &str, flags: &str, name: &str| {
            format!("{to} {len} {zero} 00 {gateway} 00000400 00000001 00000000 {flags} {name}\n")
        };
        let network = "fd000000000000010000000000000000";
        let local = "fe800000000000000000000000000000";
        let routes = line(network, "40", &zero, "00000001", "eth0")
            + &line(local, "40", &zero, "00000001", "eth0")
            + &line(&zero, "00", "fd000000000000010000000000000001", "00000003", "eth1")
            + &line(&zero, "00", &zero, "00200200", "lo");
        let eth0 = network_v6(&routes, "eth0");
        assert_eq!((&eth0.direct[..], eth0.default), (&["fd00:0:0:1::/64".to_owned()][..], false));
        assert_eq!(eth0.verdict().0, Level::Note);
        assert!(network_v6(&routes, "eth1").default);
    }
}
