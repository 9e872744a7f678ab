//! Finds CQEs, WQEs and reports of errors in text, and explains them.
//!
//! No guess is silent: the notes of each finding say which bytes were taken for which structure, and by which sign.

mod call;
mod cause;
mod command;
mod counters;
mod cqe;
mod driver;
mod event;
mod fields;
mod form;
mod hex;
mod keys;
mod known;
mod lines;
mod literals;
mod log;
mod ours;
mod print;
mod refused;
mod report;
mod words;
mod wqe;

use std::collections::HashSet;
use std::io::Read;

use serde::Serialize;

use crate::args::DecodeArgs;
pub use cause::{Explanation, Source};
pub use known::Blame;

/// Bytes of input that are read.
const MOST_INPUT: u64 = 64 << 20;
/// Most findings that are printed; the others are counted.
const MOST_FINDINGS: usize = 64;

/// The findings in a text.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// In the order of the text.
    pub findings: Vec<Finding>,
    /// Findings that are not printed.
    pub left_out: usize,
    /// Notes about the text as a whole.
    pub notes: Vec<String>,
    /// The known words that are most like a line of the text, where nothing was found.
    pub nearest: Option<String>,
}

/// One CQE, WQE or report of an error.
#[derive(Debug, Default, Serialize)]
pub struct Finding {
    /// Line of the text, from 1.
    pub line: usize,
    /// Its kind.
    pub kind: Kind,
    /// Which program printed it, where that can be seen.
    pub printer: Option<&'static str>,
    /// How often the same was reported.
    pub times: usize,
    /// Its bytes in the order of memory; none for a report in words.
    #[serde(serialize_with = "as_hex")]
    pub bytes: Vec<u8>,
    /// Place of the first byte in the whole, for a part.
    pub first_byte: usize,
    /// Field by field.
    pub fields: Vec<Field>,
    /// The signature of a CQE.
    pub signature: Option<Signature>,
    /// The explanation of an error.
    pub explanation: Option<Explanation>,
    /// Assumptions, corrections and contradictions.
    pub notes: Vec<String>,
    /// Numbers, to compare findings.
    #[serde(skip)]
    facts: KnownFields,
    /// The processor or thread that printed it.
    #[serde(skip)]
    caller: String,
}

/// Kind of a finding.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A CQE of an error.
    ErrorCqe,
    /// The last bytes of a CQE of an error.
    PartOfErrorCqe,
    /// Another CQE.
    Cqe,
    /// A send WQE.
    Wqe,
    /// A report of an error in words.
    Log,
    /// Counters that are not 0.
    Counter,
    /// An event that is no error.
    Event,
    /// Bytes that are neither.
    #[default]
    Unknown,
}

/// A field of a CQE or WQE.
#[derive(Debug, Serialize)]
pub struct Field {
    /// Offset in bytes; none for a field that was read from words.
    pub offset: Option<usize>,
    /// Name in `mlx5dv.h` or in UCX.
    pub name: &'static str,
    /// The number.
    pub value: String,
    /// Its meaning.
    pub meaning: Option<String>,
}

/// The signature of a CQE.
#[derive(Debug, Serialize)]
pub struct Signature {
    /// XOR of the bytes of the index that the CQE was signed with.
    pub residue: u8,
    /// Whether the signature holds; `None` without a known index.
    pub holds: Option<bool>,
    /// The comparison in words.
    pub text: String,
}

/// Numbers by which findings are compared.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
struct KnownFields {
    syndrome: Option<u8>,
    vendor: Option<u8>,
    qpn: Option<u32>,
    wqe_counter: Option<u16>,
    opcode: Option<u8>,
    /// Index of the CQE that was printed next to it.
    ci: Option<u32>,
}

impl Finding {
    /// Returns `true` if it is an error.
    pub fn is_error(&self) -> bool {
        matches!(self.kind, Kind::ErrorCqe | Kind::PartOfErrorCqe | Kind::Log | Kind::Counter)
    }

    fn field(&mut self, offset: impl Into<Option<usize>>, name: &'static str, value: String) -> &mut Field {
        self.fields.push(Field { offset: offset.into(), name, value, meaning: None });
        self.fields.last_mut().expect("just added")
    }
}

impl Field {
    fn means(&mut self, meaning: impl Into<String>) {
        self.meaning = Some(meaning.into());
    }
}

fn as_hex<S: serde::Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hex::text(bytes))
}

/// Prints the findings in a file or in standard input; returns `false` if one is an error or
/// a counter of trouble.
pub fn run(args: &DecodeArgs) -> Result<bool, Box<dyn std::error::Error>> {
    let mut input = Vec::new();
    match &args.file {
        Some(path) => {
            let file = std::fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
            file.take(MOST_INPUT).read_to_end(&mut input).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        None => drop(std::io::stdin().lock().take(MOST_INPUT).read_to_end(&mut input)?),
    }
    let report = decode(&input);
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { print::text(&report) };
    crate::output::write(&text)?;
    Ok(!report.findings.iter().any(Finding::is_error))
}

/// Returns the findings in a text.
pub fn decode(input: &[u8]) -> Report {
    let lines = lines::lines(input);
    let mut report = Report::default();
    lines::foreign_formats(&lines, &mut report.notes);
    let (spoken, counters) = spoken(&lines);
    let logs: Vec<_> = report::reports(&spoken.reports).into_iter().map(log::finding).collect();
    let mut blocks = Vec::new();
    let mut taken = Vec::new();
    for literal in literals::literals(&lines) {
        taken.push(literal.block.line..=literal.last_line);
        blocks.push(literal.block);
    }
    // The ranges are in the order of the text.
    let is_taken = |line: usize| {
        let before = taken.partition_point(|range| *range.start() <= line);
        before > 0 && taken[before - 1].contains(&line)
    };
    blocks.extend(hex::blocks(&lines, is_taken));
    let mut findings: Vec<Finding> = Vec::new();
    for block in &blocks {
        findings.extend(decode_block(block, &logs));
    }
    findings.sort_by_key(|finding| finding.line);
    let mut read: HashSet<usize> = logs.iter().map(|log| log.finding.line).collect();
    let mut events = command::events(&spoken.reports, |line| read.contains(&line) || is_taken(line));
    read.extend(events.iter().map(|event| event.finding.line));
    let reports: HashSet<usize> = spoken.reports.iter().map(|line| line.number).collect();
    events.extend(ours::errors(
        &spoken.all,
        |line| !reports.contains(&line),
        |line| read.contains(&line) || is_taken(line),
    ));
    // The bytes in an error of doorbell are part of it.
    let told: HashSet<usize> = events.iter().map(|event| event.finding.line).collect();
    findings.retain(|finding| finding.kind != Kind::Unknown || !told.contains(&finding.line));
    events.sort_by_key(|event| event.finding.line);
    let logged = log::findings(logs, events, &findings);
    findings.extend(logged);
    findings.extend(counters);
    findings.sort_by_key(|finding| finding.line);
    wqe::relate(&mut findings);
    if findings.is_empty() {
        report.nearest = ours::nearest(&lines, command::vocabulary())
            .map(|(line, words)| format!("line {line} is most like \"{words}\""));
    }
    report.left_out = findings.len().saturating_sub(MOST_FINDINGS);
    findings.truncate(MOST_FINDINGS);
    report.findings = findings;
    report
}

/// The lines of a text that say something in words, without the counters in them.
struct Spoken {
    /// The lines that can report an error.
    reports: Vec<lines::Line>,
    /// The lines that can report an error, and those that describe what to do, as the errors of doorbell do.
    all: Vec<lines::Line>,
}

/// Returns the lines that speak, and the counters that are not 0.
fn spoken(lines: &[lines::Line]) -> (Spoken, Vec<Finding>) {
    let mut lines = lines.to_vec();
    let counters = counters::take(&mut lines);
    let forms = form::forms(&lines);
    let of = |wanted: &[form::Form]| -> Vec<lines::Line> {
        lines.iter().zip(&forms).filter(|(_, form)| wanted.contains(form)).map(|(line, _)| line.clone()).collect()
    };
    (Spoken { reports: of(&[form::Form::Report]), all: of(&[form::Form::Report, form::Form::Description]) }, counters)
}

/// Returns the findings in the bytes of a block.
fn decode_block(block: &hex::Block, logs: &[event::Event]) -> Vec<Finding> {
    let mut found = Vec::new();
    let entries = match block.context {
        hex::Context::ReceiveRing => return vec![receive_ring(block)],
        hex::Context::SendWqe | hex::Context::SendRing => wqe::decode(block),
        hex::Context::Cqe(_) => cqe::decode(block, logs),
        hex::Context::None if cqe::looks_like_error(&block.bytes) => cqe::decode(block, logs),
        hex::Context::None if wqe::looks_like_one(&block.bytes) => wqe::decode(block),
        hex::Context::None => cqe::decode(block, logs),
    };
    for mut finding in entries {
        finding.notes.splice(0..0, block.notes.iter().cloned());
        found.push(finding);
    }
    found
}

fn receive_ring(block: &hex::Block) -> Finding {
    let mut finding = Finding {
        line: block.line,
        printer: block.printer,
        bytes: block.bytes.clone(),
        caller: block.caller.clone(),
        ..Finding::default()
    };
    finding.times = 1;
    finding.notes.push("a receive ring: its WQEs are not decoded".into());
    finding
}
