//! State of the function.

/// State of the function; the later ones can do what the earlier ones can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// After reset.
    Disabled,
    /// After ENABLE_HCA.
    Enabled,
    /// After INIT_HCA.
    Initialized,
}
