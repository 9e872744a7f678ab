//! Why a check stops before its end.

use std::fmt;

/// Why a check did not pass.
#[derive(Debug)]
pub enum Stop {
    /// The device, the driver or doorbell does something wrong.
    Fail(String),
    /// Something is missing that the check needs.
    Cannot(String),
}

impl<E: fmt::Display> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Fail(error.to_string())
    }
}

/// Ends a check with a failure.
pub fn fail<T>(what: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Fail(what.into()))
}

/// Ends a check unless two values are equal.
pub fn same<T: PartialEq + fmt::Debug>(what: impl fmt::Display, wanted: &T, found: &T) -> Result<(), Stop> {
    if wanted == found {
        return Ok(());
    }
    fail(format!("{what}: {found:x?} instead of {wanted:x?}"))
}
