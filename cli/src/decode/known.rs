//! The table of causes.

use std::sync::OnceLock;

use serde::Serialize;

const TABLE: &str = include_str!("known.txt");

/// Where to look first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The program that got the completion, or a library in it.
    ThisProgram,
    /// The program at the other end.
    Peer,
    /// Settings that both agreed upon: sizes, rights, MTU.
    BothEnds,
    /// The way between the ends, or a peer that has left.
    Path,
    /// The machine: IOMMU, GPU driver, registration on demand.
    Machine,
    /// An error before this one.
    EarlierError,
    /// The error says nothing about its origin.
    Unknown,
}

impl Blame {
    /// Returns it in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::ThisProgram => "this program, or a library in it",
            Self::Peer => "the peer",
            Self::BothEnds => "this program and the peer: what they agreed upon does not fit",
            Self::Path => "the path between the ends, or a peer that is gone",
            Self::Machine => "this machine: its IOMMU, GPU driver or memory registration",
            Self::EarlierError => "an earlier error",
            Self::Unknown => "unknown",
        }
    }
}

/// A row of the table.
#[derive(Debug)]
pub struct Row {
    kind: &'static str,
    /// Its number, or its name in a header.
    pub name: &'static str,
    /// Its names in text, with commas between them.
    pub words: &'static str,
    /// The failure.
    pub failed: &'static str,
    /// Where to look first.
    pub blame: Blame,
    /// The next checks.
    pub checks: Vec<&'static str>,
}

/// Returns all rows.
fn table() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut rows: Vec<Row> = Vec::new();
        for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match (line.strip_prefix("    "), rows.last_mut()) {
                (Some(text), Some(row)) if row.failed.is_empty() => row.failed = text,
                (Some(text), Some(row)) => {
                    let (place, checks) = text.split_once(": ").unwrap_or_default();
                    row.blame = blame(place);
                    row.checks = checks.split("; ").collect();
                }
                _ => {
                    let (head, words) = line.split_once(':').unwrap_or_default();
                    let (kind, name) = head.split_once(' ').unwrap_or_default();
                    let words = words.trim();
                    rows.push(Row { kind, name, words, failed: "", blame: Blame::Unknown, checks: Vec::new() });
                }
            }
        }
        rows
    })
}

fn blame(place: &str) -> Blame {
    match place {
        "program" => Blame::ThisProgram,
        "peer" => Blame::Peer,
        "both" => Blame::BothEnds,
        "path" => Blame::Path,
        "machine" => Blame::Machine,
        "earlier" => Blame::EarlierError,
        _ => Blame::Unknown,
    }
}

/// Returns the rows of a kind.
pub fn rows(kind: &str) -> &'static [Row] {
    let of_kind = |row: &Row| row.kind == kind;
    let table = table();
    let start = table.iter().position(of_kind).unwrap_or_default();
    let len = table[start..].iter().take_while(|row| of_kind(row)).count();
    &table[start..start + len]
}

/// Returns the row of this kind and name.
pub fn find(kind: &str, name: &str) -> Option<&'static Row> {
    rows(kind).iter().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        for (kind, count) in [
            ("syndrome", 15),
            ("status", 3),
            ("event", 30),
            ("cq", 2),
            ("command", 14),
            ("call", 40),
            ("line", 22),
            ("reject", 9),
            ("errno", 33),
        ] {
            let rows = rows(kind);
            assert_eq!(rows.len(), count, "{kind}");
            for row in rows {
                assert!(kind == "errno" || !row.failed.is_empty() && !row.checks.is_empty(), "{row:?}");
                assert_eq!(find(kind, row.name).map(|row| row.failed), Some(row.failed), "{row:?}");
            }
        }
    }
}
