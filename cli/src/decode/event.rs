//! Asynchronous events, errors of CQs, commands that the firmware refused, and calls that failed.

use std::sync::OnceLock;

use mlx5_wire::syndrome::Syndrome;

use super::cause::{Explanation, Source, unknown};
use super::known::{Row, find, rows};
use super::lines::Line;
use super::report::printer;
use super::words::{Names, Word, begins, words};
use super::{Finding, Kind};

/// Lines that a message of the kernel may be wrapped into.
const WRAPPED: usize = 3;

/// A finding, and the object that it is about, of which there may be many.
pub struct Event {
    pub finding: Finding,
    /// Name of the object and its number.
    pub object: Option<(&'static str, u64)>,
}

/// Returns what the lines say that no other reader has read.
pub fn events(lines: &[Line], is_read: impl Fn(usize) -> bool) -> Vec<Event> {
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if line.text.is_empty() || is_read(line.number) {
            continue;
        }
        let words = words(&line.text);
        let words = &words[..words.len().min(400)];
        let event = cq_error(words)
            .or_else(|| command(&lines[at..]))
            .or_else(|| event(words))
            .or_else(|| call(&line.text, words));
        if let Some(mut event) = event {
            event.finding.line = line.number;
            event.finding.kind = Kind::Log;
            event.finding.printer = event.finding.printer.or_else(|| printer(&line.text));
            event.finding.times = 1;
            found.push(event);
        }
    }
    found
}

fn event_of(mut explanation: Explanation, sure: &str, source: &'static str, place: &str) -> Event {
    explanation.sure = format!("{sure}; where to look first is experience, no proof");
    explanation.sources = vec![Source { claim: source, place: place.into() }];
    Event { finding: Finding { explanation: Some(explanation), ..Finding::default() }, object: None }
}

/// `CQ error on CQN 0x40a, syndrom 0x1`.
fn cq_error(words: &[Word]) -> Option<Event> {
    let at = (0..words.len()).find(|&at| begins(&words[at..], "cq error on cqn"))?;
    let (cqn, _) = words.get(at + 4)?.number()?;
    let key = (at + 5..words.len()).find(|&at| words[at].is("syndrom") || words[at].is("syndrome"))?;
    let (syndrome, _) = words.get(key + 1)?.number()?;
    let known = find("cq", &format!("{syndrome:#04x}"));
    let mut event = event_of(
        known.map_or_else(|| unknown("the CQ failed", "dmesg beside it"), Row::explain),
        match known {
            Some(_) => "the syndrome is certain",
            None => "the syndrome of the CQ is unknown",
        },
        "syndrome of the CQ",
        "Linux, mlx5 eq.c (event CQ_ERROR); NVIDIA's programming manual of Ethernet adapters, CQ error event",
    );
    event.finding.printer = Some("mlx5_core");
    event.finding.field(None, "CQ number", format!("{cqn:#x}"));
    let field = event.finding.field(None, "syndrome of the CQ", format!("{syndrome:#04x}"));
    field.means(known.map_or("unknown", |row| row.words[0]));
    event.object = Some(("CQ", cqn));
    Some(event)
}

/// `CREATE_QP(0x500) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x4bb88f), err(-22)`.
fn command(lines: &[Line]) -> Option<Event> {
    let first = &lines[0].text;
    let at = first.find(" op_mod(")?;
    let name = first[..at].rsplit([' ', '\t']).next().filter(|name| name.contains("(0x"))?;
    let text: String = lines.iter().take(WRAPPED).map(|line| line.text.clone() + " ").collect();
    let text = text.replace('\\', "");
    let text = &text[at..];
    let status = &text[text.find("status ")? + 7..];
    let status = &status[..status.find(')')? + 1];
    let number = status[status.rfind('(')? + 1..].trim_end_matches(')');
    let number = u64::from_str_radix(number.trim_start_matches("0x"), 16).ok()?;
    let syndrome = text.find("syndrome (").map(|at| &text[at + 10..]);
    let syndrome = syndrome.and_then(|rest| rest.split(')').next());
    let known = find("command", &format!("{number:#04x}"));
    let refused = || unknown("the firmware refused a command", "the call that led to it");
    let mut event = event_of(
        known.map_or_else(refused, Row::explain),
        "that the firmware refused the command is certain; the syndrome of a command is no syndrome of a CQE, and only NVIDIA can look it up",
        "status of the command",
        "Linux, mlx5 cmd.c (cmd_status_str)",
    );
    event.finding.printer = Some("mlx5_core");
    event.finding.field(None, "command", name.into());
    event.finding.field(None, "status of the command", status.into());
    if let Some(syndrome) = syndrome {
        event.finding.field(None, "syndrome of the command", syndrome.into());
    }
    if let Some(error) = text.split("err(-").nth(1).and_then(|rest| rest.split(')').next()) {
        errno_field(&mut event.finding, error.parse().ok()?);
    }
    Some(event)
}

fn event(words: &[Word]) -> Option<Event> {
    static NAMES: OnceLock<Names<Row>> = OnceLock::new();
    let names = NAMES.get_or_init(|| Names::new(rows("event"), |row| &row.words));
    let speaks = words.iter().any(|word| word.is("event") || word.is("async"));
    let found = (0..words.len()).find_map(|at| {
        let (len, row) = names.longest(&words[at..])?;
        let last = row.words.len() > 1 && begins(&words[at..], row.words[row.words.len() - 1]);
        let own = words[at].is("event") && at > 0 && words[at - 1].is("ibv");
        (own || speaks || !last && len > 3).then_some(row)
    })?;
    let mut event = event_of(
        found.explain(),
        "the event is certain",
        "event",
        "rdma-core libibverbs/man/ibv_get_async_event.3 and enum_strs.c; InfiniBand specification, asynchronous events",
    );
    event.finding.field(None, "event", found.name.into());
    Some(event)
}

/// A call of verbs that failed, with its errno.
fn call(text: &str, words: &[Word]) -> Option<Event> {
    let failed = ["failed", "fail", "error", "errno"];
    if !words.iter().any(|word| failed.iter().any(|known| word.is(known))) {
        return None;
    }
    let at = words.iter().position(|word| ["ibv", "mlx5dv"].iter().any(|known| word.is(known)));
    let (name, after) = match at {
        Some(at) => {
            let len = 1 + words[at + 1..].iter().take_while(|word| word.gap == "_").count();
            let parts: Vec<_> = words[at..at + len].iter().map(|word| word.text).collect();
            (parts.join("_").to_lowercase(), at + len)
        }
        None => {
            let at = (0..words.len()).find(|&at| begins(&words[at..], "modify qp"))?;
            ("ibv_modify_qp".to_owned(), at + 2)
        }
    };
    if name == "ibv" || name.starts_with("ibv_wc") || name.starts_with("ibv_event") {
        return None;
    }
    let error = errno_of(text, words, after)?;
    let known = rows("call").iter().find(|row| {
        row.name.split_once(' ').is_some_and(|(end, number)| name.ends_with(end) && number.parse() == Ok(error))
    });
    let failed = || {
        let text = errno(error).map_or("", |row| row.words[0]);
        let failed = format!("{name} failed: {text} (errno {error})");
        unknown(&failed, "dmesg of the same second: mlx5_cmd_out_err, if the firmware refused it")
    };
    let mut event = event_of(
        known.map_or_else(failed, Row::explain),
        match known {
            Some(_) => "the errno is certain",
            None => "the errno is certain, what it means for this call is not known",
        },
        "errno of the call",
        "rdma-core, man page of the call; Linux drivers/infiniband/core",
    );
    event.finding.field(None, "call", name);
    errno_field(&mut event.finding, error);
    let states = ["RESET", "INIT", "RTR", "RTS", "SQD", "ERR"];
    let state = (after.min(words.len())..words.len()).find_map(|at| {
        let leads = words[at - 1].is("to")
            || words[at - 1].is("state") && at > 1 && words[at - 2].is("next")
            || words[at - 1].is("QPS");
        states.into_iter().find(|state| leads && words[at].is(state))
    });
    if let Some(state) = state {
        event.finding.field(None, "to state", state.into());
        if let Some(explanation) = &mut event.finding.explanation {
            explanation.checks.sort_by_key(|check| !check.starts_with(&format!("to {state}")));
        }
    }
    Some(event)
}

/// Finds the errno of a failed call: as `errno 101`, as a number after the call, as text, or as a number before it.
fn errno_of(text: &str, words: &[Word], after: usize) -> Option<u64> {
    let known = |number: u64| errno(number).map(|_| number);
    let number = |at: usize| words.get(at).and_then(Word::number).and_then(|(number, _)| known(number));
    let keyed = |keys: &[&str], range: std::ops::Range<usize>| {
        range.into_iter().find_map(|at| keys.iter().any(|key| words[at].is(key)).then(|| number(at + 1)).flatten())
    };
    let by_text = || {
        let lower = text.to_ascii_lowercase();
        let row = rows("errno").iter().find(|row| lower.contains(&row.words[0].to_ascii_lowercase()));
        row.and_then(|row| row.name.split(' ').next()?.parse().ok())
    };
    let keys = ["error", "err", "ret", "rc", "returned", "with", "code"];
    keyed(&["errno"], 0..words.len())
        .or_else(by_text)
        .or_else(|| keyed(&keys, after.min(words.len())..words.len()))
        .or_else(|| keyed(&["status", "ret", "rc", "error"], 0..after.min(words.len())))
}

/// Returns the row of an errno, whose name is its number and its name in the header.
fn errno(number: u64) -> Option<&'static Row> {
    rows("errno").iter().find(|row| row.name.split(' ').next() == Some(&number.to_string()))
}

fn errno_field(finding: &mut Finding, number: u64) {
    let field = finding.field(None, "errno", number.to_string());
    if let Some(row) = errno(number) {
        let name = row.name.split(' ').nth(1).unwrap_or_default();
        field.means(format!("{name}: {}", row.words[0]));
    }
}

/// Returns the words that are known, for a text in which nothing was found.
pub fn vocabulary() -> impl Iterator<Item = &'static str> {
    let statuses = (0..=0x22).filter_map(|number| Syndrome::new(number).names()).map(|names| names.verbs);
    let events = rows("event").iter().flat_map(|row| row.words.iter().skip(1).copied());
    statuses.chain(events).chain(["CQ error on CQN", "vendor syndrome", "ibv_modify_qp failed, errno"])
}
