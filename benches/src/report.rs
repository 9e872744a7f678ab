//! The table of results, and `bench.json`.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

/// A line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The operation.
    pub op: String,
    /// Unit of the two figures.
    pub unit: &'static str,
    /// The figure of doorbell.
    pub doorbell: f64,
    /// The figure of the reference.
    pub reference: f64,
    /// The reference.
    pub reference_name: String,
}

impl Row {
    /// The figure of doorbell divided by that of the reference.
    pub fn ratio(&self) -> f64 {
        self.doorbell / self.reference
    }
}

/// Prints rows as a table.
pub fn print(rows: &[Row]) {
    println!("{:<50} {:>20} {:>14} {:>14} {:>6}  compared with", "operation", "unit", "doorbell", "libmlx5", "ratio");
    for row in rows {
        println!(
            "{:<50} {:>20} {:>14.2} {:>14.2} {:>6.3}  {}",
            row.op,
            row.unit,
            row.doorbell,
            row.reference,
            row.ratio(),
            row.reference_name
        );
    }
}

/// Writes rows as the lines of a JSON list, without the commas between them.
///
/// # Errors
/// The error of writing the file.
pub fn write_json(rows: &[Row], path: &Path) -> io::Result<()> {
    let mut json = String::new();
    for row in rows {
        // Neither names nor units have characters that JSON escapes.
        let _ = writeln!(
            json,
            "  {{\"op\": \"{}\", \"unit\": \"{}\", \"doorbell\": {:.3}, \"reference\": {:.3}, \
             \"reference_name\": \"{}\", \"ratio\": {:.4}}}",
            row.op,
            row.unit,
            row.doorbell,
            row.reference,
            row.reference_name,
            row.ratio()
        );
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, json)
}
