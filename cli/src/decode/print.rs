//! The report as text.

use std::fmt::Write;

use super::{Explanation, Field, Finding, Kind, Report};

/// Characters in a line.
const WIDTH: usize = 110;

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    for note in &report.notes {
        wrapped(&mut out, "note: ", "      ", note);
    }
    if report.findings.is_empty() {
        let nearest = report.nearest.as_ref().map_or(String::new(), |nearest| format!("; {nearest}"));
        let nothing = "no CQE, no WQE, no report of an error of an mlx5 adapter, and no counter of trouble above 0. A dump needs at least \
                       its last 16 bytes; see doorbell decode --help for what is read";
        wrapped(&mut out, "nothing found: ", "  ", &format!("{nothing}{nearest}"));
    }
    for (number, finding) in report.findings.iter().enumerate() {
        if number > 0 || !report.notes.is_empty() {
            out.push('\n');
        }
        one(&mut out, finding);
    }
    if report.left_out > 0 {
        let _ = writeln!(out, "\nand {} more, left out", report.left_out);
    }
    out
}

fn one(out: &mut String, finding: &Finding) {
    let kind = match finding.kind {
        Kind::ErrorCqe => "CQE of an error",
        Kind::PartOfErrorCqe => "end of a CQE of an error",
        Kind::Cqe => "CQE, no error",
        Kind::Wqe => "send WQE",
        Kind::Log => "report of an error",
        Kind::Counter => "counters that are not 0",
        Kind::Event => "an event, no error",
        Kind::Unknown => "unknown bytes",
    };
    let printer = finding.printer.map_or(String::new(), |printer| format!(", printed by {printer}"));
    let times = if finding.times > 1 { format!(", {} times", finding.times) } else { String::new() };
    let _ = writeln!(out, "line {}: {kind}{printer}{times}", finding.line);
    if let Some(explanation) = &finding.explanation {
        verdict(out, explanation);
    }
    if !finding.fields.is_empty() {
        out.push_str("  fields\n");
    }
    for field in &finding.fields {
        one_field(out, field);
    }
    if let Some(signature) = &finding.signature {
        wrapped(out, "  signature  ", "    ", &signature.text);
    }
    for note in &finding.notes {
        wrapped(out, "  note  ", "    ", note);
    }
    if let Some(explanation) = &finding.explanation {
        wrapped(out, "  how sure  ", "    ", &explanation.sure);
        out.push_str("  sources\n");
        for source in &explanation.sources {
            wrapped(out, &format!("    {}: ", source.claim), "      ", &source.place);
        }
    }
}

fn verdict(out: &mut String, explanation: &Explanation) {
    wrapped(out, "  what failed  ", "    ", &explanation.failed);
    wrapped(out, "  where to look  ", "    ", explanation.blame.text());
    out.push_str("  check next\n");
    for (number, check) in explanation.checks.iter().enumerate() {
        wrapped(out, &format!("    {}. ", number + 1), "       ", check);
    }
}

fn one_field(out: &mut String, field: &Field) {
    let offset = field.offset.map_or("    ".to_owned(), |offset| format!("{offset:#04x}"));
    let head = format!("    {offset}  {:<18} {:<10} ", field.name, field.value);
    match &field.meaning {
        Some(meaning) => wrapped(out, &head, &" ".repeat(40), meaning),
        None => {
            let _ = writeln!(out, "{}", head.trim_end());
        }
    }
}

/// A paragraph: its first line begins with `head`, the others with `indent`.
fn wrapped(out: &mut String, head: &str, indent: &str, text: &str) {
    let mut line = head.to_owned();
    let mut words = 0;
    for word in text.split(' ') {
        if words > 0 && line.chars().count() + word.chars().count() + 1 > WIDTH {
            let _ = writeln!(out, "{}", line.trim_end());
            indent.clone_into(&mut line);
            words = 0;
        }
        if words > 0 {
            line.push(' ');
        }
        line.push_str(word);
        words += 1;
    }
    let _ = writeln!(out, "{}", line.trim_end());
}
