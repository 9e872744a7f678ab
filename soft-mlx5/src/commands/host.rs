//! Interrupts of a function.

use std::fmt;

/// Interrupts of a function.
pub trait Interrupts: fmt::Debug + Send {
    /// Raises the MSI-X vector.
    fn raise(&mut self, vector: u32);
}
