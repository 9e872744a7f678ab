//! The tables of times in the documentation.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use crate::lines::EVERYWHERE;
use crate::report::Row;

/// A row for each label: nanoseconds with warm lines, and the ratios to the faster reference for each state of the
/// lines.
pub fn times(rows: &[Row], labels: &[String]) -> String {
    let mut table = String::from(
        "| operation | doorbell, warm | reference, warm | ratio | flushed | other core |\n\
         |---|---|---|---|---|---|\n",
    );
    for label in labels {
        let [warm, flushed, other_core] = EVERYWHERE.map(|lines| {
            let op = format!("{label}, {}", lines.name());
            let rows = rows.iter().filter(|row| row.op == op);
            rows.max_by(|a, b| a.ratio().total_cmp(&b.ratio()))
        });
        let Some(warm) = warm else { continue };
        let ratio = |row: Option<&Row>| row.map_or("-".into(), |row| format!("{:.2}", row.ratio()));
        let _ = writeln!(
            table,
            "| {label} | {:.1} ns | {:.1} ns | {:.2} | {} | {} |",
            warm.doorbell,
            warm.reference,
            warm.ratio(),
            ratio(flushed),
            ratio(other_core),
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
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("{start} in {}", file.display()));
    let (before, rest) = content.split_once(&start).ok_or_else(missing)?;
    let (_, after) = rest.split_once(&end).ok_or_else(missing)?;
    fs::write(file, format!("{before}{start}\n{}\n{end}{after}", text.trim_end()))
}
