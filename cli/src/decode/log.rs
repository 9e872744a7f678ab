//! Errors that programs report in words: numbers without bytes.

use std::collections::HashMap;

use mlx5_wire::syndrome::Syndrome;

use super::cause::{self, explain};
use super::lines::Line;
use super::log_formats::{FORMATS, Logged};
use super::{Finding, Kind, KnownFields, wqe};

/// Lines between a report and the dump that belongs to it.
const NEAR: usize = 8;
/// Characters after the sign of a format that are read.
const AHEAD: usize = 400;
/// Characters before it.
const BEFORE: usize = 200;

/// All lines as one, so that a report may be wrapped.
pub struct Flat {
    pub text: String,
    /// Where each line begins.
    starts: Vec<usize>,
    numbers: Vec<usize>,
}

impl Flat {
    fn new(lines: &[Line]) -> Self {
        let mut flat = Self { text: String::new(), starts: Vec::new(), numbers: Vec::new() };
        for line in lines {
            flat.starts.push(flat.text.len());
            flat.numbers.push(line.number);
            flat.text.push_str(&line.text);
            flat.text.push(' ');
        }
        flat
    }

    fn line_at(&self, at: usize) -> usize {
        let index = self.starts.partition_point(|&start| start <= at);
        self.numbers.get(index.saturating_sub(1)).copied().unwrap_or(1)
    }

    /// The text before and after a place.
    fn around(&self, at: usize) -> (&str, &str) {
        let mut from = at.saturating_sub(BEFORE);
        let mut to = (at + AHEAD).min(self.text.len());
        while !self.text.is_char_boundary(from) {
            from += 1;
        }
        while !self.text.is_char_boundary(to) {
            to -= 1;
        }
        (&self.text[from..at], &self.text[at..to])
    }
}

/// Returns all reports of a text.
pub fn reports(lines: &[Line]) -> Vec<Logged> {
    let flat = Flat::new(lines);
    let mut found: Vec<Logged> = Vec::new();
    let mut explained = std::collections::HashSet::new();
    for format in FORMATS {
        let mut fresh = Vec::new();
        for (at, _) in flat.text.match_indices(format.sign) {
            let line = flat.line_at(at);
            if explained.contains(&line) {
                continue;
            }
            let (before, after) = flat.around(at);
            if let Some(mut logged) = (format.read)(before, after) {
                logged.line = line;
                logged.printer = format.printer;
                if logged.facts.syndrome.is_none() {
                    logged.facts.syndrome =
                        logged.status.and_then(Syndrome::from_status).map(Syndrome::get);
                }
                fresh.push(logged);
            }
        }
        explained.extend(fresh.iter().map(|logged| logged.line));
        found.append(&mut fresh);
    }
    found.sort_by_key(|logged| logged.line);
    found
}

/// Returns the findings of the reports that no dump shows; the same report counts once.
pub fn findings(logs: Vec<Logged>, dumped: &[(usize, KnownFields)]) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let mut known: HashMap<_, usize> = HashMap::new();
    for logged in logs {
        let first = dumped.partition_point(|(line, _)| line + NEAR < logged.line);
        let is_dumped = dumped[first..]
            .iter()
            .take_while(|(line, _)| *line <= logged.line + NEAR)
            .any(|(_, facts)| facts.syndrome == logged.facts.syndrome);
        if is_dumped {
            continue;
        }
        let sort = KnownFields { qpn: None, wqe_counter: None, ci: None, ..logged.facts.clone() };
        let key = (logged.printer, logged.requester, logged.status, sort);
        if let Some(same) = known.get(&key).and_then(|&at| found.get_mut(at)) {
            same.times += 1;
            continue;
        }
        known.insert(key, found.len());
        found.push(finding(logged));
    }
    found
}

fn finding(logged: Logged) -> Finding {
    let facts = logged.facts;
    let mut finding = Finding {
        line: logged.line,
        kind: Kind::Log,
        printer: logged.printer,
        times: 1,
        ..Finding::default()
    };
    finding.notes = logged.notes;
    if let Some(status) = logged.status {
        finding.field(None, "status", format!("{status}"));
    }
    let syndrome = facts.syndrome.map(Syndrome::new);
    if let Some(syndrome) = syndrome {
        let field = finding.field(None, "syndrome", format!("{:#04x}", syndrome.get()));
        match syndrome.names() {
            Some(names) => field.means(format!(
                "{}: {} (status {} of verbs)",
                names.mlx5, names.verbs, names.status
            )),
            None => field.means("no name in mlx5dv.h"),
        }
    }
    if let Some(vendor) = facts.vendor {
        let field = finding.field(None, "vendor_err_synd", format!("{vendor:#04x}"));
        match syndrome.and_then(|syndrome| mlx5_wire::vendor::find(syndrome, vendor)) {
            Some(known) => field.means(known.meaning),
            None => field.means("unknown with this syndrome"),
        }
    }
    if let Some((error, kind)) = logged.hardware {
        finding.field(None, "hw_err_synd", format!("{error:#04x}"));
        finding.field(None, "hw_synd_type", format!("{kind:#04x}"));
    }
    if let Some(qpn) = facts.qpn {
        finding.field(None, "QP number", format!("{qpn:#x}"));
    }
    if let Some(counter) = facts.wqe_counter {
        finding.field(None, "wqe_counter", format!("{counter:#06x}"));
    }
    if let Some(opcode) = facts.opcode {
        let field = finding.field(None, "opcode of the WQE", format!("{opcode:#04x}"));
        field.means(wqe::opcode_name(opcode).unwrap_or("no name in mlx5dv.h"));
    }
    match syndrome {
        Some(syndrome) => {
            let error = cause::Error {
                syndrome,
                vendor: facts.vendor,
                requester: logged.requester,
                opcode: facts.opcode,
            };
            finding.explanation = Some(explain(error));
        }
        None => finding.notes.push("no mlx5 adapter reports this status: unknown".into()),
    }
    finding.facts = facts;
    finding
}
