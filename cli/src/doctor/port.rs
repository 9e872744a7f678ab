//! A port: its state, its addresses and partitions, and a message through each GID.

use doorbell::caps::{LinkLayer, PortState};
use doorbell::{Context, Gid, GidKind, Mtu};

use super::counters::Counters;
use super::{Level, Patient, loopback, queue_pairs, routes};
use crate::info::names;
use crate::sysfs;

/// GIDs through which a message is sent.
const MOST_GIDS: usize = 16;
/// Full member of its partition.
const FULL: u16 = 0x8000;

/// Adds the checks of a port.
pub fn examine(patient: &mut Patient, context: &Context, number: u8) -> doorbell::Result<()> {
    let attr = context.query_port(number)?;
    let port = format!("port {number}");
    let ethernet = attr.link_layer == LinkLayer::Ethernet;
    let link = attr.link_layer;
    if attr.state != PortState::Active {
        let state = attr.state;
        let cause =
            if ethernet { "cable, switch port, ip link set up" } else { "cable, and a subnet manager (opensm)" };
        patient.add(Level::Failure, port, format!("{state}, {link}: nothing is sent or received; look at {cause}"));
        return Ok(());
    }
    // Unknown codes of width and speed are shown as they are: the tables may be older than the adapter.
    let speed = match names::link(&attr) {
        Some((name, gigabits)) => format!("{gigabits} Gb/s ({name})"),
        None => format!("width {:#x} and speed {:#x}, which are unknown", attr.active_width, attr.active_speed),
    };
    patient.add(Level::Ok, &port, format!("active, {link}, {speed}"));
    mtu(patient, &port, ethernet, [attr.active_mtu, attr.max_mtu]);
    if !ethernet && attr.lid == 0 {
        patient.add(Level::Failure, format!("{port} LID"), "0: no subnet manager has configured the port");
    }
    let dir = context.sysfs_path().join(format!("ports/{number}"));
    if !ethernet {
        partitions(patient, &port, &dir.join("pkeys"));
    }
    let mut gids = context.gids();
    gids.retain(|gid| gid.port == u32::from(number));
    addresses(patient, &port, ethernet, &gids);
    if ethernet {
        routes::examine(patient, &port, &dir, &gids);
    }
    let before = Counters::read(&dir);
    for gid in gids.iter().take(MOST_GIDS) {
        let what = format!("{port} loopback through GID {} ({}, {gid})", gid.index, names::gid_kind(gid.kind));
        match loopback::send(context, number, gid.index as u8) {
            Ok(()) => patient.add(Level::Ok, what, "a message arrived"),
            Err(error) => patient.add(Level::Warning, what, error),
        }
    }
    before.compare(patient, &port, &Counters::read(&dir));
    queue_pairs::examine(patient, &port, context.name(), number);
    Ok(())
}

fn mtu(patient: &mut Patient, port: &str, ethernet: bool, mtus: [Option<Mtu>; 2]) {
    let [Some(active), Some(max)] = mtus.map(|mtu| mtu.map(Mtu::bytes)) else { return };
    let what = format!("{port} MTU");
    if active == max {
        return patient.add(Level::Ok, what, format!("{active}"));
    }
    let how =
        if ethernet { ": for more, the interface and all switches need an MTU of that and 100 bytes" } else { "" };
    let both = "both ends of a connection must use the same";
    patient.add(Level::Note, what, format!("{active} of {max}{how}; {both}"));
}

fn addresses(patient: &mut Patient, port: &str, ethernet: bool, gids: &[Gid]) {
    let what = format!("{port} GIDs");
    if gids.is_empty() {
        return patient.add(Level::Warning, what, "none, or the kernel does not report their kinds");
    }
    if !ethernet {
        return patient.add(Level::Ok, what, format!("{}", gids.len()));
    }
    let routed: Vec<&Gid> = gids.iter().filter(|gid| gid.kind == GidKind::RoceV2).collect();
    let is_local = |gid: &&&Gid| gid.raw[..2] == [0xfe, 0x80];
    if routed.is_empty() {
        patient.add(
            Level::Warning,
            what,
            "none of RoCE v2: peers that use it cannot be reached; does the interface have an IP address",
        );
    } else if routed.iter().filter(is_local).count() == routed.len() {
        let text = "those of RoCE v2 are link-local only: peers in other subnets are out of reach; give the interface an IP address";
        patient.add(Level::Note, what, text);
    } else {
        let example = routed.iter().find(|gid| !is_local(gid)).map_or(0, |gid| gid.index);
        let text =
            format!("{} of RoCE v2; index {example} is routed: the peer's must be of the same version", routed.len());
        patient.add(Level::Ok, what, text);
    }
}

fn partitions(patient: &mut Patient, port: &str, dir: &std::path::Path) {
    let what = format!("{port} partition keys");
    let key = |name: &str| u16::from_str_radix(sysfs::read(&dir.join(name))?.strip_prefix("0x")?, 16).ok();
    let keys: Vec<u16> = sysfs::entries(dir).iter().filter_map(|name| key(name)).filter(|&key| key != 0).collect();
    if keys.is_empty() {
        return patient.add(Level::Note, what, "not readable in sysfs");
    }
    let text = keys.iter().map(|key| format!("{key:#06x}")).collect::<Vec<_>>().join(", ");
    if keys.iter().any(|key| key & FULL != 0) {
        patient.add(Level::Ok, what, text);
    } else {
        patient.add(Level::Warning, what, format!("{text}: limited members only, which cannot reach each other"));
    }
}
