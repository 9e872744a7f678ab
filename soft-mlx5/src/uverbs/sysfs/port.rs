//! Files of a port.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use super::grouped;
use crate::base::counters::{ALWAYS_ZERO, Counters, NEVER_COUNTED};
use crate::commands::limits;
use crate::engine::PortAddress;
use crate::fabric::LinkLayer;
use crate::fabric::address::{GidType, SWITCH_LID, table_entry};
use crate::uverbs::netdev;

/// Milliseconds for which the kernel would keep values of `hw_counters`. Here each look sees the present values.
const LIFESPAN: u64 = 0;

/// Returns the state of a port in words.
pub fn state(up: bool) -> [(&'static str, &'static str); 2] {
    if up {
        [("state", "4: ACTIVE"), ("phys_state", "5: LinkUp")]
    } else {
        [("state", "1: DOWN"), ("phys_state", "3: Disabled")]
    }
}

/// Returns the files of a port, without the empty entries of its tables. The port is connected to network interface
/// `joined`, or to none.
pub fn files(port: &PortAddress, link: LinkLayer, joined: Option<&str>) -> Vec<(String, String)> {
    let ethernet = link == LinkLayer::Ethernet;
    let (lid, sm_lid) = if ethernet { (0, 0) } else { (port.lid, SWITCH_LID) };
    let caps = if ethernet { limits::PORT_CAPS_ETHERNET } else { limits::PORT_CAPS_INFINIBAND };
    let mut files: Vec<(String, String)> = vec![
        ("rate".into(), "100 Gb/sec (4X EDR)".into()),
        ("link_layer".into(), if ethernet { "Ethernet" } else { "InfiniBand" }.into()),
        ("lid".into(), format!("{lid:#x}")),
        ("lid_mask_count".into(), "0".into()),
        ("sm_lid".into(), format!("{sm_lid:#x}")),
        ("sm_sl".into(), "0".into()),
        ("cap_mask".into(), format!("{caps:#010x}")),
        ("has_smi".into(), u32::from(!ethernet).to_string()),
        ("pkeys/0".into(), format!("{:#06x}", limits::DEFAULT_PKEY)),
    ];
    files.extend(state(port.up).map(|(name, value)| (name.into(), value.into())));
    // Attributes of empty entries cannot be read, which means the same as their absence.
    for (index, (gid_type, gid)) in (0..).map_while(|index| Some((index, table_entry(port.lid, link, index)?))) {
        let named = if gid_type == GidType::RoceV2 { "RoCE v2" } else { "IB/RoCE v1" };
        files.push((format!("gids/{index}"), grouped(&gid)));
        files.push((format!("gid_attrs/types/{index}"), named.into()));
        if ethernet {
            files.push((format!("gid_attrs/ndevs/{index}"), netdev::name(joined)));
        }
    }
    let zeros = ALWAYS_ZERO.map(|name| format!("counters/{name}")).into_iter();
    let never = NEVER_COUNTED.map(|name| format!("hw_counters/{name}")).into_iter();
    files.extend(zeros.chain(never).map(|name| (name, "0".into())));
    files.push(("hw_counters/lifespan".into(), LIFESPAN.to_string()));
    let counters = Counters::default();
    files.extend(values(&counters).map(|(name, value)| (name, value.to_string())));
    files.into_iter().map(|(name, value)| (format!("ports/1/{name}"), value)).collect()
}

fn values(counters: &Counters) -> impl Iterator<Item = (String, u64)> {
    let port = counters.port.named().map(|(name, value)| (format!("counters/{name}"), value));
    let hardware = counters.hardware.named().map(|(name, value)| (format!("hw_counters/{name}"), value));
    port.chain(hardware)
}

/// Writes the counters that differ from those of `before` into the directory of a port.
pub fn show(port: &Path, before: &Counters, now: &Counters) {
    for ((name, before), (_, now)) in values(before).zip(values(now)) {
        if before != now {
            // In place: a monitor may keep the file open. A device that was just removed has no directory.
            let _ = overwrite(&port.join(name), now, now < before);
        }
    }
}

fn overwrite(path: &Path, value: u64, shorter: bool) -> io::Result<()> {
    let text = format!("{value}\n");
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(text.as_bytes())?;
    if shorter { file.set_len(text.len() as u64) } else { Ok(()) }
}
