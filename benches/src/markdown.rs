//! The tables of `docs/performance.md`.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use crate::report::Row;

/// Instructions, loads and stores: three rows for each operation, in this order.
pub fn counts(rows: &[Row]) -> String {
    let mut table = String::from(
        "| operation | doorbell | loads, stores | reference | loads, stores | ratio | reference is |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for row in rows.chunks_exact(3) {
        let [instructions, loads, stores] = row else { continue };
        let _ = writeln!(
            table,
            "| {} | {:.1} | {:.1}, {:.1} | {:.1} | {:.1}, {:.1} | {:.2} | {} |",
            instructions.op,
            instructions.doorbell,
            loads.doorbell,
            stores.doorbell,
            instructions.reference,
            loads.reference,
            stores.reference,
            instructions.ratio(),
            instructions.reference_name,
        );
    }
    table
}

/// Nanoseconds, with half of the distance between the quartiles.
pub fn times(rows: &[Row]) -> String {
    let mut table = String::from(
        "| operation | doorbell | reference | ratio | reference is |\n|---|---|---|---|---|\n",
    );
    for row in rows {
        let [doorbell, reference] = row.spread.unwrap_or_default();
        let _ = writeln!(
            table,
            "| {} | {:.2} ± {doorbell:.2} | {:.2} ± {reference:.2} | {:.2} | {} |",
            row.op,
            row.doorbell,
            row.reference,
            row.ratio(),
            row.reference_name,
        );
    }
    table
}

/// Puts `text` between the markers `<!-- name -->` and `<!-- end of name -->` of a file.
///
/// # Errors
/// Those of reading and writing; [`io::ErrorKind::NotFound`] when there are no such markers.
pub fn insert(file: &Path, name: &str, text: &str) -> io::Result<()> {
    let content = fs::read_to_string(file)?;
    let (start, end) = (format!("<!-- {name} -->"), format!("<!-- end of {name} -->"));
    let missing =
        || io::Error::new(io::ErrorKind::NotFound, format!("{start} in {}", file.display()));
    let (before, rest) = content.split_once(&start).ok_or_else(missing)?;
    let (_, after) = rest.split_once(&end).ok_or_else(missing)?;
    fs::write(file, format!("{before}{start}\n{}\n{end}{after}", text.trim_end()))
}
