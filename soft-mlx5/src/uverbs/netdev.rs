//! The network interface of an Ethernet port.
//!
//! The device has none. Programs ask the kernel for the interface that sysfs names, and UCX asks whether the interface
//! has a route to a peer. So sysfs names the interface that the port is connected to (`--netdev`), or that of the
//! default route, or else the loopback interface.

use std::ffi::CString;
use std::fs;

const ROUTES: &str = "/proc/net/route";
const LOOPBACK: &str = "lo";

/// Returns the name of the interface of a port that is connected to `joined`, or to none.
pub fn name(joined: Option<&str>) -> String {
    if let Some(name) = joined {
        return name.to_owned();
    }
    let routes = fs::read_to_string(ROUTES).unwrap_or_default();
    of_default_route(&routes).unwrap_or(LOOPBACK).to_owned()
}

/// Returns the number of that interface.
pub fn index(joined: Option<&str>) -> u32 {
    // SAFETY: the name is a C string.
    CString::new(name(joined)).map_or(0, |name| unsafe { libc::if_nametoindex(name.as_ptr()) })
}

// Interface, destination and more, in words.
fn of_default_route(routes: &str) -> Option<&str> {
    let mut lines = routes.lines().skip(1).map(str::split_whitespace);
    lines
        .find_map(|mut words| Some((words.next()?, words.next()?)).filter(|(_, to)| *to == "00000000"))
        .map(|(interface, _)| interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_of_the_default_route() {
        let head = "Iface\tDestination\tGateway\n";
        let lan = "eth1\t0000A8C0\t00000000\n";
        assert_eq!(of_default_route(&format!("{head}{lan}eth0\t00000000\t0100A8C0\n")), Some("eth0"));
        assert_eq!(of_default_route(&format!("{head}{lan}")), None);
        assert_eq!(of_default_route(""), None);
        assert!(index(None) > 0, "{}", name(None));
        assert_eq!((name(Some("lo")), index(Some("lo"))), ("lo".into(), 1));
    }
}
