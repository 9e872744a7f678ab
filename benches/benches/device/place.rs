//! Where messages are measured: a device, a port, and the GID that both libraries send from.

use std::fs;
use std::net::Ipv6Addr;

use doorbell::caps::{LinkLayer, PortAttr, PortState};
use doorbell::{Context, Device, Gid, GidKind, QpConfig};

/// A port of a device, and the GID that both libraries send from.
pub struct Place {
    pub context: Context,
    pub port: u8,
    pub attr: PortAttr,
    /// `None` on InfiniBand.
    pub gid: Option<Gid>,
}

impl Place {
    /// Finds the first device that can be measured, where `make` makes what measures it. Or returns why each device
    /// cannot: a line for each.
    pub fn find<T>(make: impl Fn(&Self) -> Result<T, String>) -> Result<(Self, T), String> {
        let devices = doorbell::devices().map_err(|error| format!("device: not taken: {error}"))?;
        let mut reasons = Vec::new();
        for device in &devices {
            match Self::on(device).and_then(|place| Ok((make(&place)?, place))) {
                Ok((made, place)) => return Ok((place, made)),
                Err(reason) => reasons.push(format!("device: {} not taken: {reason}", device.name())),
            }
        }
        Err(reasons.join("\n"))
    }

    /// Takes a device if doorbell drives its queues, and a port is up.
    fn on(device: &Device) -> Result<Self, String> {
        let context = device.open().map_err(|error| error.to_string())?;
        if let (_, Some(reason)) = context.auto_path() {
            return Err(reason.to_string());
        }
        let mut ports =
            (1..=context.attr().phys_port_cnt).filter_map(|port| Some((port, context.query_port(port).ok()?)));
        let (port, attr) = ports.find(|(_, attr)| attr.state == PortState::Active).ok_or("no port is up")?;
        let gid = match attr.link_layer {
            LinkLayer::Ethernet => Some(gid(&context, port).ok_or(format!("port {port} has no GID for RoCE v2"))?),
            _ => None,
        };
        Ok(Self { context, port, attr, gid })
    }

    /// Configures a queue pair of doorbell.
    pub fn config(&self) -> QpConfig {
        let config = QpConfig::rc().port(self.port);
        self.gid.iter().fold(config, |config, gid| config.gid_index(gid.index as u8))
    }

    /// Returns name, kind and port of the device, and its firmware.
    pub fn describe(&self) -> String {
        let Self { context, port, .. } = self;
        let folder = context.sysfs_path();
        let description = fs::read_to_string(folder.join("node_desc")).unwrap_or_default();
        if description.starts_with("soft-mlx5") {
            return format!("{} (soft-mlx5)", context.name());
        }
        let pci = fs::read_link(folder.join("device")).unwrap_or_default();
        let pci = pci.file_name().map_or("no PCI device".into(), |pci| pci.to_string_lossy().into_owned());
        format!("{} ({pci}, port {port}, firmware {})", context.name(), context.firmware())
    }
}

/// Returns the GID that doorbell takes by itself: the first one of RoCE v2 and IPv4, or else of RoCE v2.
fn gid(context: &Context, port: u8) -> Option<Gid> {
    let gids = context.gids().into_iter();
    let mut gids = gids.filter(|gid| gid.port == u32::from(port) && gid.kind == GidKind::RoceV2).collect::<Vec<_>>();
    gids.sort_by_key(|gid| Ipv6Addr::from(gid.raw).to_ipv4_mapped().is_none());
    gids.into_iter().next()
}
