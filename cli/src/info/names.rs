//! Numbers of the headers in words.

use doorbell::GidKind;
use doorbell::caps::PortAttr;

/// Lanes of a port, by the code of `ibv_port_attr::active_width`.
pub fn lanes(code: u8) -> Option<u32> {
    Some(match code {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    })
}

/// Name and rate in Gb/s of a lane, by the code of `active_speed` or `active_speed_ex` of `ibv_port_attr`, as
/// `ibv_devinfo` has them.
pub fn lane_speed(code: u32) -> Option<(&'static str, f64)> {
    Some(match code {
        1 => ("SDR", 2.5),
        2 => ("DDR", 5.0),
        4 => ("QDR", 10.0),
        8 => ("FDR10", 10.0),
        16 => ("FDR", 14.0),
        32 => ("EDR", 25.0),
        64 => ("HDR", 50.0),
        128 => ("NDR", 100.0),
        256 => ("XDR", 200.0),
        _ => return None,
    })
}

/// Name of the speed of a port, for example `4x EDR`, and its rate in Gb/s.
pub fn link(port: &PortAttr) -> Option<(String, f64)> {
    let (lanes, (name, rate)) = lanes(port.active_width).zip(lane_speed(port.active_speed))?;
    Some((format!("{lanes}x {name}"), f64::from(lanes) * rate))
}

/// Name of the kind of packets that a GID is for.
pub fn gid_kind(kind: GidKind) -> String {
    match kind {
        GidKind::InfiniBand => "InfiniBand".to_owned(),
        GidKind::RoceV1 => "RoCE v1".to_owned(),
        GidKind::RoceV2 => "RoCE v2".to_owned(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_headers() {
        assert_eq!((lanes(2), lanes(16), lanes(3)), (Some(4), Some(2), None));
        assert_eq!(lane_speed(64), Some(("HDR", 50.0)));
        assert_eq!(lane_speed(256), Some(("XDR", 200.0)));
        assert_eq!(lane_speed(3), None);
    }
}
