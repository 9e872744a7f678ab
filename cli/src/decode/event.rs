//! The contents of a report: the finding, its object, its errno.

use mlx5_wire::firmware::command::Opcode;

use super::Finding;
use super::cause::{Explanation, Source};
use super::known::{Row, find, rows};
use super::lines::Line;
use super::report::queue;
use super::words::{Word, begins};

/// Field of the syndrome of a command.
pub const SYNDROME: &str = "syndrome of the command";

/// Reasons of refused commands of soft-mlx5, by their syndromes.
const SOFT_MLX5: &str = include_str!("soft_mlx5.txt");

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

/// Adds the name of a firmware command that the line has, such as `INIT2RTR_QP`, and the status of its answer.
pub fn add_command(finding: &mut Finding, text: &str, words: &[Word]) {
    if let Some(name) = command_name(text) {
        finding.field(None, "command", name.into());
    }
    // Programs also call the errno a status.
    let number = keyed(words, &["status"]).map(|status| format!("{status:#04x}"));
    if let Some((number, known)) = number.and_then(|number| find("command", &number).map(|known| (number, known))) {
        finding.field(None, "status of the command", number).means(known.words);
    }
}

/// Adds the syndrome of a refused command. Those of soft-mlx5 have known reasons.
pub fn add_syndrome(finding: &mut Finding, syndrome: u64) {
    let text = format!("{syndrome:#x}");
    let reason = SOFT_MLX5.lines().find_map(|line| line.strip_prefix(&format!("{text} ")));
    let field = finding.field(None, SYNDROME, text);
    if let Some(reason) = reason {
        field.means(format!("on soft-mlx5: {reason}; an adapter has other numbers"));
    }
}

/// Returns the first name of a firmware command in a text.
pub fn command_name(text: &str) -> Option<&'static str> {
    let words = text.split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
    let mut long = words.filter(|word| word.len() > 5 && word.contains('_'));
    long.find_map(|word| (0..0xfff).filter_map(|code| Opcode(code).name()).find(|name| *name == word))
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
