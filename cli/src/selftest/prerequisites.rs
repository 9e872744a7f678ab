//! Prerequisites of the machine. Without one of these every check would fail, and say nothing about the device.

use doorbell::caps::{LinkLayer, PortState};
use doorbell::{BufferPool, Context, DataPath, PoolConfig, ProtectionDomain};

/// Bytes that the checks register at a time, at most.
const PINNED: u32 = 4 << 20;

/// Opens the device that is tested where none is named.
pub fn choose() -> doorbell::Result<Context> {
    let (mut contexts, mut ranks, mut last) = (Vec::new(), Vec::new(), doorbell::Error::NoDevice);
    for device in doorbell::devices()? {
        match doorbell::open(device.name()) {
            Ok(context) => {
                ranks.push((context.auto_path().0 == DataPath::Direct, active_port(&context).is_some()));
                contexts.push(context);
            }
            Err(error) => last = error,
        }
    }
    best(&ranks).map(|best| contexts.swap_remove(best)).ok_or(last)
}

/// Returns the first device whose rings doorbell drives and which has an active port. Without one the rings decide:
/// another device says nothing about an adapter whose port is down.
fn best(devices: &[(bool, bool)]) -> Option<usize> {
    // `max_by_key` takes the last of equals.
    devices.iter().enumerate().rev().max_by_key(|(_, rank)| **rank).map(|(index, _)| index)
}

/// Returns the first active port.
pub fn active_port(context: &Context) -> Option<u8> {
    (1..=context.attr().phys_port_cnt)
        .find(|port| context.query_port(*port).is_ok_and(|attr| attr.state == PortState::Active))
}

/// Returns what is wrong with the port: `None` if messages can go through it.
pub fn of_port(context: &Context, port: u8, gid_index: Option<u8>) -> doorbell::Result<Option<String>> {
    let (attr, name) = (context.query_port(port)?, context.name());
    let has_gid = gid_index.is_some() || context.gids().iter().any(|gid| gid.port == u32::from(port));
    Ok(port_trouble(name, port, attr.state, attr.link_layer, has_gid))
}

fn port_trouble(name: &str, port: u8, state: PortState, link_layer: LinkLayer, has_gid: bool) -> Option<String> {
    let ethernet = link_layer == LinkLayer::Ethernet;
    if state != PortState::Active {
        let cure = if ethernet { "a cable, and ip link set up" } else { "a cable, and a subnet manager (opensm)" };
        return Some(format!("port {port} of {name} is {state}, and no other is active: it needs {cure}"));
    }
    if ethernet && !has_gid {
        return Some(format!("port {port} of {name} has no GID: set its network interface up (ip link set up)"));
    }
    None
}

/// Returns why the memory that the checks need cannot be registered: `None` if it can. The library's error names a
/// limit that is in the way, and its cure.
pub fn of_memory(pd: &ProtectionDomain) -> Option<String> {
    let error = BufferPool::new(pd, &PoolConfig::new(1, PINNED)).err()?;
    Some(format!("{} MiB of memory cannot be registered: {error}", PINNED >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_needs_a_link_and_on_ethernet_a_gid() {
        use LinkLayer::{Ethernet, InfiniBand};
        use PortState::{Active, Down};
        let trouble = |state, layer, has_gid| port_trouble("mlx5_1", 2, state, layer, has_gid).unwrap_or_default();
        assert_eq!(trouble(Active, InfiniBand, false), "");
        assert_eq!(trouble(Active, Ethernet, true), "");
        assert!(trouble(Active, Ethernet, false).starts_with("port 2 of mlx5_1 has no GID"));
        assert!(trouble(Down, Ethernet, true).ends_with("ip link set up"));
        assert!(trouble(Down, InfiniBand, true).contains("opensm"));
    }

    #[test]
    fn an_adapter_with_a_link_comes_first() {
        let (down, active, other) = ((true, false), (true, true), (false, true));
        assert_eq!(best(&[down, active, active]), Some(1));
        assert_eq!(best(&[other, down, active]), Some(2));
        assert_eq!(best(&[other, down]), Some(1));
        assert_eq!(best(&[other, other]), Some(0));
        assert_eq!(best(&[]), None);
    }
}
