//! What goes wrong on the link, on request.

/// Probabilities (0 to 1) with which a port mistreats a packet that it sends.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Faults {
    /// The packet is lost.
    pub loss: f64,
    /// The packet arrives twice.
    pub duplication: f64,
    /// The packet is overtaken by packets sent after it.
    pub reordering: f64,
}
