//! The cost of a message, and by how much it may differ.

/// A count may be this much above that of the baseline, and above its bound: a change elsewhere can
/// make the compiler inline differently.
pub(crate) const TOLERANCE: f64 = 1.03;

/// The cost of one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) instructions: f64,
    pub(crate) loads: f64,
    pub(crate) stores: f64,
}
