//! The table of results, and `bench.json`.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

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
    /// Half of the distance between the quartiles of each, where it was measured more than once.
    pub spread: Option<[f64; 2]>,
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
        let [doorbell, reference] = [0, 1].map(|i| {
            let figure = [row.doorbell, row.reference][i];
            match row.spread {
                Some(spread) => format!("{figure:.2} ±{:.2}", spread[i]),
                None => format!("{figure:.2}"),
            }
        });
        println!(
            "{:<50} {:>20} {doorbell:>14} {reference:>14} {:>6.3}  {}",
            row.op,
            row.unit,
            row.ratio(),
            row.reference_name
        );
    }
}

/// Writes rows as a JSON list.
///
/// # Errors
/// Those of writing.
pub fn write_json(rows: &[Row], path: &Path) -> io::Result<()> {
    let mut json = String::from("[\n");
    for (i, row) in rows.iter().enumerate() {
        let comma = if i + 1 == rows.len() { "" } else { "," };
        // Neither names nor units have characters that JSON escapes.
        let _ = writeln!(
            json,
            "  {{\"op\": \"{}\", \"unit\": \"{}\", \"doorbell\": {:.3}, \"reference\": {:.3}, \
             \"reference_name\": \"{}\", \"ratio\": {:.4}}}{comma}",
            row.op,
            row.unit,
            row.doorbell,
            row.reference,
            row.reference_name,
            row.ratio()
        );
    }
    json.push_str("]\n");
    fs::write(path, json)
}
