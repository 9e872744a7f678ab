//! Configuration and capabilities of a device.

use std::path::PathBuf;

use super::timing::Timing;
use crate::base::faults::Faults;
use crate::base::tally::Tally;
use crate::fabric::{Fabric, LinkLayer};

/// The configuration of a device at power-up.
#[derive(Debug, Clone, Default)]
pub struct NicConfig {
    /// Devices it can reach.
    pub fabric: Fabric,
    /// Connects processes of all users on a named fabric.
    pub all_users: bool,
    /// Link of its port.
    pub link_layer: LinkLayer,
    /// Raw packet queue pairs and flows are refused, as without `CAP_NET_RAW`.
    pub refuse_raw: bool,
    /// Capture file whose frames come to the port once there is a flow.
    pub frames: Option<PathBuf>,
    /// Frames of it in a second, instead of the times of the capture.
    pub frames_rate: Option<f64>,
    /// Network interface of the machine at the other end of the link.
    pub netdev: Option<String>,
    /// Faults.
    pub faults: Faults,
    /// Pace of the device.
    pub timing: Timing,
    /// Lowest code of an ACK timeout: lower ones are taken as this one, and each takes its time exactly.
    pub lowest_timeout: Option<u8>,
    /// Seed of all random choices.
    pub seed: u64,
    /// File that gets a line for each WQE, doorbell and CQE; it must exist.
    pub trace: Option<PathBuf>,
    /// Capture file that gets the packets which leave the port; it must exist.
    pub pcap: Option<PathBuf>,
    /// Time 0 of the device in trace and capture, in nanoseconds since 1970.
    pub epoch: u64,
    /// Give programs UAR objects, whose few registers many queue pairs share, instead of a register for
    /// each queue pair.
    pub shared_registers: bool,
    /// Never give a queue pair a number that another one has had.
    pub distinct_qp_numbers: bool,
    /// A step takes one packet, and lets one queue pair execute one WQE or send one packet.
    pub small_steps: bool,
    /// Execute WQEs as they stand in a register that queue pairs share: each ring copies its WQE whole.
    pub blue_flame: bool,
    /// Give no program a user of the firmware: it cannot send commands (DEVX).
    pub without_devx: bool,
    /// Let the driver count what it pins against `RLIMIT_MEMLOCK`.
    pub memlock: bool,
    /// Offer timestamps in real time, which a CQ then has when its program asks for them.
    pub real_time: bool,
    /// Stop the program where an adapter would silently corrupt data.
    pub strict: bool,
    /// Counts injected faults.
    pub(crate) tally: Tally,
}

impl NicConfig {
    /// Returns the fabric that the device joins.
    pub fn joined_fabric(&self) -> Fabric {
        match &self.fabric {
            Fabric::Named(name) if self.all_users => Fabric::OfAllUsers(name.clone()),
            fabric => fabric.clone(),
        }
    }
}

/// Addresses and state of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAddress {
    /// Local identifier; GID, GUID and MAC address derive from it.
    pub lid: u16,
    /// GID at index 0 of the table.
    pub gid: [u8; 16],
    /// Port and node GUID.
    pub guid: u64,
    /// MAC address.
    pub mac: [u8; 6],
    /// Link state.
    pub up: bool,
}
