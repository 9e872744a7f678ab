//! doorbell's own errors: by the words of their `Display`, and by the name that `Debug` prints.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use super::Finding;
use super::cause::{Explanation, Source};
use super::event::Event;
use super::known::Blame;
use super::lines::Line;

/// A line for each variant of each error, with numbers of an example, as the library's tests keep them.
const TEXTS: &str = include_str!("error_texts.txt");
/// Words in a row by which texts are compared.
const RUN: usize = 3;

/// An error of the library.
struct Known {
    name: &'static str,
    text: &'static str,
    /// Runs of words.
    runs: usize,
}

/// All errors, and which of them have a run of words.
struct Index {
    known: Vec<Known>,
    by_run: HashMap<u64, Vec<usize>>,
}

fn index() -> &'static Index {
    static INDEX: OnceLock<Index> = OnceLock::new();
    INDEX.get_or_init(|| {
        let mut index = Index { known: Vec::new(), by_run: HashMap::new() };
        for line in TEXTS.lines() {
            let Some((name, text)) = line.split_once(": ") else { continue };
            let runs = runs(text);
            for &run in &runs {
                let rows = index.by_run.entry(run).or_default();
                if rows.last() != Some(&index.known.len()) {
                    rows.push(index.known.len());
                }
            }
            index.known.push(Known { name, text, runs: runs.len() });
        }
        index
    })
}

/// Returns the words of a text, with one word for all numbers and names that an error fills in.
fn normal(text: &str) -> impl Iterator<Item = &str> {
    fn word(word: &str) -> &str {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric() && c != '_');
        if word.contains(|c: char| c.is_ascii_digit()) { "#" } else { word }
    }
    text.split_whitespace().take(200).map(word).filter(|word| !word.is_empty())
}

/// Returns a digest of each different run of words.
fn runs(text: &str) -> Vec<u64> {
    let digest = |bytes: &mut dyn Iterator<Item = u8>| {
        bytes.fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    let words: Vec<u64> = normal(text).map(|word| digest(&mut word.bytes())).collect();
    let digests = words.windows(RUN).map(|run| digest(&mut run.iter().flat_map(|word| word.to_le_bytes())));
    let mut runs: Vec<u64> = digests.collect();
    runs.sort_unstable();
    runs.dedup();
    runs
}

/// Returns the error whose text a line has most of, and the part of the text that it has.
fn best(line: &str) -> Option<(&'static Known, f64)> {
    let index = index();
    let mut runs = runs(line);
    runs.retain(|run| index.by_run.contains_key(run));
    let mut hits: HashMap<usize, usize> = HashMap::new();
    for row in runs.iter().flat_map(|run| &index.by_run[run]) {
        *hits.entry(*row).or_default() += 1;
    }
    let share = |row: usize, hits: usize| hits as f64 / index.known[row].runs as f64;
    let found = hits.into_iter().map(|(row, hits)| (row, share(row, hits)));
    let best = found.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
    let Some(best) = best else {
        // A text of fewer words is compared as a whole.
        let short = index.known.iter().find(|known| known.runs == 0 && line.contains(known.text));
        return short.map(|known| (known, 1.0));
    };
    Some((&index.known[best.0], best.1))
}

/// Returns the error whose name stands where `Debug` prints it: behind `Err`, `value: ` or `Error: `, or with its type.
fn debugged(line: &str) -> Option<&'static Known> {
    if !line.contains("Err") && !line.contains("value: ") {
        return None;
    }
    let behind = |name: &str| {
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        ["Err(", "value: ", "Error: "].iter().any(|before| {
            line.match_indices(before).any(|(at, _)| {
                let rest = &line[at + before.len()..];
                // A variant may stand inside another error's.
                let inner = rest.split(['(', ' ']).find(|word| word.trim_matches([',', ')']) == name);
                rest.strip_prefix(name).is_some_and(ends) || inner.is_some() && rest.contains(&format!("({name}"))
            })
        })
    };
    index().known.iter().find(|known| {
        let (of, name) = known.name.rsplit_once("::").unwrap_or(("", known.name));
        behind(name) || !of.is_empty() && line.contains(known.name)
    })
}

/// Returns the errors of doorbell in the lines that no other reader has read.
///
/// A line that only describes may name an error.
pub fn errors(lines: &[Line], describes: impl Fn(usize) -> bool, is_read: impl Fn(usize) -> bool) -> Vec<Event> {
    /// Part of a text that a line must have.
    const ENOUGH: f64 = 0.6;
    let mut found = Vec::new();
    for line in lines.iter().filter(|line| (1..4096).contains(&line.text.len()) && !is_read(line.number)) {
        let (known, text) = match best(&line.text).filter(|best| best.1 >= ENOUGH) {
            Some((known, _)) => (known, line.text.as_str()),
            None if describes(line.number) && !line.text.contains("Err(") && !line.text.contains("value: ") => continue,
            None => match debugged(&line.text) {
                Some(known) => (known, ""),
                None => continue,
            },
        };
        found.push(error(line.number, known, text));
    }
    found
}

fn error(line: usize, known: &Known, text: &str) -> Event {
    let mut finding =
        Finding { line, kind: super::Kind::Log, printer: Some("doorbell"), times: 1, ..Finding::default() };
    finding.field(None, "error", known.name.into());
    // The words of the line, whose numbers are the real ones; a name alone has only the example.
    let start = known.text.split([' ', ':']).next().unwrap_or_default();
    let own = text.find(start).map_or(text, |at| &text[at..]);
    let (failed, check) = match (if own.is_empty() { known.text } else { own }).split_once(": ") {
        Some((failed, check)) => (failed, check),
        None => (if own.is_empty() { known.text } else { own }, "the documentation of this error"),
    };
    let example = if own.is_empty() { "for example: " } else { "" };
    finding.explanation = Some(Explanation {
        failed: format!("{example}{failed}"),
        blame: Blame::ThisProgram,
        checks: vec![check.to_owned().into()],
        sure: "the error is doorbell's own, and says what to do itself".into(),
        sources: vec![Source { claim: "error", place: format!("doorbell::{}", known.name) }],
    });
    Event { finding, object: None }
}

/// Returns the known text that is most like one of the lines, for a text in which nothing was found.
pub fn nearest(lines: &[Line], vocabulary: impl Iterator<Item = &'static str>) -> Option<(usize, &'static str)> {
    /// Part of the words that a line must have.
    const ALIKE: f64 = 0.5;
    let lower = |text: &str| -> Vec<String> { normal(&text.to_ascii_lowercase()).map(str::to_owned).collect() };
    let phrases: Vec<(&str, Vec<String>)> = vocabulary.map(|phrase| (phrase, lower(phrase))).collect();
    let known: HashSet<&String> = phrases.iter().flat_map(|phrase| &phrase.1).collect();
    let mut best: Option<(f64, usize, &'static str)> = None;
    for line in lines.iter().take(10_000).filter(|line| line.text.len() < 4096) {
        let mut words = lower(&line.text);
        words.retain(|word| known.contains(word));
        let mut keep = |share: f64, text| {
            if share >= ALIKE && best.is_none_or(|best| share > best.0) {
                best = Some((share, line.number, text));
            }
        };
        for (phrase, wanted) in phrases.iter().filter(|_| words.len() > 1) {
            let found = wanted.iter().filter(|word| words.contains(word)).count();
            if found > 1 {
                keep(found as f64 / wanted.len() as f64, *phrase);
            }
        }
        if let Some((known, share)) = self::best(&line.text) {
            keep(share + 0.3, known.text);
        }
    }
    best.map(|(_, line, text)| (line, text))
}
