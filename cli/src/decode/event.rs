//! The contents of a report: the finding, its object, its errno.

use super::Finding;
use super::cause::{Explanation, Source};
use super::known::{Row, rows};
use super::lines::Line;
use super::report::queue;
use super::words::{Word, begins};

/// Field of the syndrome of a command.
pub const SYNDROME: &str = "syndrome of the command";

/// A finding, and the object that it is about, of which there may be many.
pub struct Event {
    pub finding: Finding,
    /// Name of the object and its number.
    pub object: Option<(&'static str, u64)>,
}

pub fn event_of(mut explanation: Explanation, sure: &str, source: &'static str, place: &str) -> Event {
    explanation.sure = format!("{sure}; where to look first is experience, no proof");
    explanation.sources = vec![Source { claim: source, place: place.into() }];
    Event { finding: Finding { explanation: Some(explanation), ..Finding::default() }, object: None }
}

/// Adds the queue pair that the line names.
pub fn add_queue(event: &mut Event, line: &Line) {
    if let Some(qpn) = queue(line) {
        event.finding.field(None, "QP number", format!("{qpn:#x}"));
        event.object = Some(("QP", qpn.into()));
    }
}

/// Returns the number behind the first of the keys; of -22 it is 22.
pub fn keyed(words: &[Word], keys: &[&str]) -> Option<u64> {
    (0..words.len()).find_map(|at| {
        let key = keys.iter().find(|key| begins(&words[at..], key))?;
        let value = words.get(at + key.split(' ').count())?;
        value.number().filter(|_| value.gap.len() < 8).map(|number| number.0)
    })
}

/// Returns the row of an errno, whose name is its number and its name in the header.
pub fn errno(number: u64) -> Option<&'static Row> {
    rows("errno").iter().find(|row| row.name.split(' ').next() == Some(&number.to_string()))
}

pub fn errno_field(finding: &mut Finding, number: u64) {
    let field = finding.field(None, "errno", number.to_string());
    if let Some(row) = errno(number) {
        let name = row.name.split(' ').nth(1).unwrap_or_default();
        field.means(format!("{name}: {}", row.words));
    }
}
