//! The wire between devices.

pub mod address;
pub mod faults;

pub use faults::Faults;

/// Which devices a device can reach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Fabric {
    /// Only itself.
    #[default]
    Private,
    /// All devices, in whatever process of this network namespace, that joined the same name.
    Named(String),
}

/// Kind of link the port reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: peers are addressed by LID, a GRH is optional.
    #[default]
    InfiniBand,
    /// Ethernet (RoCE v2): peers are addressed by GID, a GRH is required.
    Ethernet,
}
