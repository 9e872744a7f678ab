//! The report of a difference between the twins.

use std::fmt;

/// Where the twins differ, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub field: String,
    pub libmlx5: String,
    pub doorbell: String,
}

pub type Result<T> = std::result::Result<T, Difference>;

impl Difference {
    pub fn new(field: impl Into<String>, libmlx5: impl fmt::Display, doorbell: impl fmt::Display) -> Self {
        Self { field: field.into(), libmlx5: libmlx5.to_string(), doorbell: doorbell.to_string() }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  field:    {}", self.field)?;
        writeln!(f, "  libmlx5:  {}", self.libmlx5)?;
        write!(f, "  doorbell: {}", self.doorbell)
    }
}

/// Compares two numbers.
pub fn same(field: impl FnOnce() -> String, libmlx5: u64, doorbell: u64) -> Result<()> {
    if libmlx5 == doorbell {
        return Ok(());
    }
    Err(Difference::new(field(), format!("{libmlx5:#x}"), format!("{doorbell:#x}")))
}

/// Compares bytes; a difference names the first that differs.
pub fn same_bytes(field: impl FnOnce() -> String, libmlx5: &[u8], doorbell: &[u8]) -> Result<()> {
    if libmlx5 == doorbell {
        return Ok(());
    }
    let at = libmlx5.iter().zip(doorbell).position(|(l, d)| l != d);
    let at = at.unwrap_or(libmlx5.len().min(doorbell.len()));
    let from = at & !15;
    let around = |bytes: &[u8]| hex(&bytes[from.min(bytes.len())..(from + 16).min(bytes.len())]);
    let field = format!("{}, byte {at:#x} (16 bytes from {from:#x})", field());
    Err(Difference::new(field, around(libmlx5), around(doorbell)))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// A list of data segments.
pub fn describe(segments: &[u8]) -> String {
    segments.chunks(16).map(hex).collect::<Vec<_>>().join(" | ")
}
