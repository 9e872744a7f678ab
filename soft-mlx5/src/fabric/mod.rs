//! The wire between devices.
//!
//! [`packet`] and [`headers`] define the bytes, [`echo`] those by which devices know each other's progress, [`link`] is
//! the port that sends them with the [`faults`] asked for, [`switch`] and [`socket`] carry them within a process and
//! between processes.

pub mod address;
pub mod checksum;
pub mod echo;
pub mod ethernet;
pub mod faults;
pub mod frame_header;
pub mod groups;
pub mod headers;
pub mod icrc;
pub mod interface;
pub mod link;
pub mod mad;
pub mod opcode;
pub mod packet;
pub mod pcap;
pub mod playback;
pub mod psn;
#[cfg(test)]
pub mod samples;
mod socket;
pub mod switch;

pub use switch::Switch;

/// Which devices a device can reach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Fabric {
    /// Only itself.
    #[default]
    Private,
    /// All devices of this process that are plugged into the same switch.
    Switch(Switch),
    /// All devices, in whatever process of this user in this network namespace, that joined the same name.
    Named(String),
    /// All devices, in whatever process of any user in this network namespace, that joined the same name. Each process
    /// can write to the memory of each.
    OfAllUsers(String),
}

/// Returns the user of this process.
fn user() -> u32 {
    // SAFETY: no arguments, no memory.
    unsafe { libc::getuid() }
}

/// Returns the part of the names of sockets that keeps the fabrics of users apart.
fn scope(of_all_users: bool) -> String {
    if of_all_users { "all".into() } else { user().to_string() }
}

/// Kind of link the port reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: peers are addressed by LID, a GRH is optional.
    #[default]
    InfiniBand,
    /// Ethernet (RoCE): peers are addressed by GID, a GRH is required.
    Ethernet,
}
