//! Asynchronous events, errors of CQs, commands that the firmware refused, and calls that failed.

use std::sync::OnceLock;

use mlx5_wire::syndrome::Syndrome;

use super::cause::{Explanation, Source, unknown};
use super::keys::printer;
use super::known::{Row, find, rows};
use super::lines::Line;
use super::report::queue;
use super::words::{Names, Word, begins, is_whole, words};
use super::{Finding, Kind};

/// Lines that a message of the kernel may be wrapped into.
const WRAPPED: usize = 3;
/// Field of the syndrome of a command.
const SYNDROME: &str = "syndrome of the command";

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
            .or_else(|| event(line, words))
            .or_else(|| call(line, words))
            .or_else(|| refused(&line.text, words));
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

/// Adds the queue pair that the line names.
fn add_queue(event: &mut Event, line: &Line) {
    if let Some(qpn) = queue(line) {
        event.finding.field(None, "QP number", format!("{qpn:#x}"));
        event.object = Some(("QP", qpn.into()));
    }
}

/// Returns the number behind the first of the keys.
fn keyed(words: &[Word], keys: &[&str]) -> Option<u64> {
    (0..words.len()).find_map(|at| {
        let key = keys.iter().find(|key| begins(&words[at..], key))?;
        let value = words.get(at + key.split(' ').count())?;
        value.number().filter(|_| value.gap.len() < 8).map(|number| number.0)
    })
}

/// `CQ error on CQN 0x40a, syndrom 0x1`; mlx5e prints the event alone: `mlx5e_cq_error_event: cqn=0x00000c event=0x04`.
fn cq_error(words: &[Word]) -> Option<Event> {
    let kind = (0..words.len()).find_map(|at| {
        let kinds = [("cq error", None), ("cq overrun", Some(1)), ("cq access violation", Some(2))];
        kinds.into_iter().find(|kind| begins(&words[at..], kind.0)).map(|kind| kind.1)
    })?;
    let cqn = keyed(words, &["cqn"])?;
    let syndrome = keyed(words, &["syndrom", "syndrome"]).or(kind);
    let known = syndrome.and_then(|syndrome| find("cq", &format!("{syndrome:#04x}")));
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
    let syndrome = syndrome.map_or("not printed".into(), |syndrome| format!("{syndrome:#04x}"));
    event.finding.field(None, "syndrome of the CQ", syndrome).means(known.map_or("unknown", |row| row.words));
    event.object = Some(("CQ", cqn));
    Some(event)
}

/// `CREATE_QP(0x500) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x4bb88f), err(-22)`, and
/// `CREATE_QP(0x500) timeout`.
fn command(lines: &[Line]) -> Option<Event> {
    let first = &lines[0].text;
    let (at, answered) = match first.find(" op_mod(") {
        Some(at) => (at, true),
        None => (first.find(") timeout")? + 1, false),
    };
    let name = first[..at].rsplit([' ', '\t']).next().filter(|name| name.contains("(0x"))?;
    if !answered {
        let mut event = command_of(name.into(), Some(("no answer".into(), "timeout".into())));
        event.finding.printer = Some("mlx5_core");
        return Some(event);
    }
    let text: String = lines.iter().take(WRAPPED).map(|line| line.text.clone() + " ").collect();
    // A message that was wrapped by hand ends its lines with a backslash.
    let text = text[at..].replace('\\', "");
    let status = &text[text.find("status ")? + 7..];
    let status = &status[..status.find(')')? + 1];
    let number = status[status.rfind('(')? + 1..].trim_end_matches(')');
    let number = u64::from_str_radix(number.trim_start_matches("0x"), 16).ok()?;
    let mut event = command_of(name.into(), Some((status.into(), format!("{number:#04x}"))));
    event.finding.printer = Some("mlx5_core");
    let syndrome = text.find("syndrome (").map(|at| &text[at + 10..]);
    if let Some(syndrome) = syndrome.and_then(|rest| rest.split(')').next()) {
        event.finding.field(None, SYNDROME, syndrome.into());
    }
    if let Some(error) = text.split("err(-").nth(1).and_then(|rest| rest.split(')').next()) {
        errno_field(&mut event.finding, error.parse().ok()?);
    }
    Some(event)
}

/// A command that a program gave the firmware itself: `DevX create QP failed errno=22 status=0x3 syndrome=0x4bb88f`,
/// `Failed to create FT (syndrome: 0x6231e6)`.
fn refused(text: &str, words: &[Word]) -> Option<Event> {
    // No CQE has so large a syndrome.
    let syndrome = keyed(words, &["syndrome"]).filter(|&syndrome| syndrome > 0xff)?;
    let failed = text.find("failed").map(|at| text[..at].rsplit("DevX ").next().unwrap_or_default());
    let to = || text.split("ailed to ").nth(1).and_then(|rest| rest.split(['(', ',', '.']).next());
    let name = failed.or_else(to)?.rsplit(": ").next()?.trim();
    let status = keyed(words, &["status"]).map(|status| format!("{status:#04x}"));
    let mut event = command_of(name.to_owned(), status.map(|status| (status.clone(), status)));
    event.finding.field(None, SYNDROME, format!("{syndrome:#x}"));
    if let Some(error) = keyed(words, &["errno"]) {
        errno_field(&mut event.finding, error);
    }
    Some(event)
}

/// Returns the finding of a command and its status: in words, and by its name in the table.
fn command_of(name: String, status: Option<(String, String)>) -> Event {
    let known = status.as_ref().and_then(|status| find("command", &status.1));
    let refused = || unknown("the firmware refused a command", "the call that led to it");
    let mut event = event_of(
        known.map_or_else(refused, Row::explain),
        "that the command failed is certain; the syndrome of a command is no syndrome of a CQE, and only NVIDIA can look it up",
        "status of the command",
        "Linux, mlx5 cmd.c (cmd_status_str)",
    );
    event.finding.field(None, "command", name);
    if let Some((text, _)) = status {
        event.finding.field(None, "status of the command", text);
    }
    event
}

fn event(line: &Line, words: &[Word]) -> Option<Event> {
    static NAMES: OnceLock<Names<Row>> = OnceLock::new();
    let names = NAMES.get_or_init(|| Names::new(rows("event"), |row| row.words));
    let speaks = words.iter().any(|word| word.is("event") || word.is("async"));
    let named = (0..words.len()).find_map(|at| {
        let (len, row) = names.longest(&words[at..]).filter(|found| is_whole(words, at, at + found.0))?;
        let last = row.words.rsplit_once(", ").is_some_and(|(_, last)| begins(&words[at..], last));
        let own = words[at].is("event") && at > 0 && words[at - 1].is("ibv");
        (own || speaks || !last && len > 2).then_some(row)
    });
    // The table is in the order of `ibv_event_type`.
    let number = || speaks.then(|| keyed(words, &["async event", "async event type", "event type"])).flatten();
    let found = named.or_else(|| number().and_then(|number| rows("event").get(usize::try_from(number).ok()?)))?;
    let mut event = event_of(
        found.explain(),
        "the event is certain",
        "event",
        "rdma-core libibverbs/man/ibv_get_async_event.3 and enum_strs.c; InfiniBand specification, asynchronous events",
    );
    event.finding.field(None, "event", found.name.into());
    add_queue(&mut event, line);
    Some(event)
}

/// A call of verbs that failed, with its errno.
fn call(line: &Line, words: &[Word]) -> Option<Event> {
    let own = |at: &usize| words[*at].gap != "_" || at.checked_sub(1).is_none_or(|before| words[before].is("wrap"));
    let called = |at: usize| called(&words[at..]).map(|(name, len)| (name, at + len));
    // The connection manager may name the call of verbs that failed.
    let all = (0..words.len()).filter(own).filter_map(called);
    let (name, after) = all.min_by_key(|(name, _)| name.starts_with("rdma"))?;
    let modifies = name.ends_with("modify_qp") || name.ends_with("qp_modify");
    let state = state(words).filter(|_| modifies);
    let failed = ["fail", "failed", "failure", "unable", "cannot", "error"];
    let failed = line.text.contains("n't ") || words.iter().any(|word| failed.iter().any(|known| word.is(known)));
    let error = errno_of(&line.text, words, after);
    // Without an errno the line says what failed, not why.
    let clear = modifies && failed && (state.is_some() || words.iter().any(|word| word.is("ibv")));
    let error = error.map(Some).or(clear.then_some(None))?;
    let known = rows("call").iter().find(|row| {
        let number = |number: &str| number.parse().ok() == error;
        row.name.split_once(' ').is_some_and(|(end, errno)| name.ends_with(end) && error.is_some() && number(errno))
    });
    let other = || {
        let text = error.and_then(errno).map_or("", |row| row.words);
        let number = error.map_or("no errno was printed".into(), |number| format!("errno {number}"));
        let check = "dmesg of the same second: mlx5_cmd_out_err, if the firmware refused it; the errno of the call: 22 is an attribute, 101 the route, 110 the neighbour";
        unknown(&format!("{name} failed: {text} ({number})").replace(":  ", " "), check)
    };
    let mut event = event_of(
        known.map_or_else(other, Row::explain),
        match (known, error) {
            (Some(_), _) => "the errno is certain",
            (None, Some(_)) => "the errno is certain, what it means for this call is not known",
            (None, None) => "that the call failed is certain; its errno was not printed",
        },
        "errno of the call",
        "rdma-core, man page of the call; Linux drivers/infiniband/core",
    );
    event.finding.field(None, "call", name);
    if let Some(error) = error {
        errno_field(&mut event.finding, error);
    }
    if let Some(syndrome) = keyed(words, &["syndrome"]).filter(|&syndrome| syndrome > 0xff) {
        event.finding.field(None, SYNDROME, format!("{syndrome:#x}"));
    }
    if let Some(state) = state {
        event.finding.field(None, "to state", state.into());
        if let Some(explanation) = &mut event.finding.explanation {
            explanation.checks.sort_by_key(|check| !check.starts_with(&format!("to {state}")));
        }
    }
    add_queue(&mut event, line);
    Some(event)
}

/// Returns the call that the words begin with, and the number of its words.
fn called(words: &[Word]) -> Option<(String, usize)> {
    let first = &words[0];
    if ["ibv", "mlx5dv", "rdma"].iter().any(|known| first.is(known)) {
        let len = 1 + words[1..].iter().take_while(|word| word.gap == "_").count();
        let name = words[..len].iter().map(|word| word.text).collect::<Vec<_>>().join("_").to_lowercase();
        // Names of constants and programs, and `ib_mlx5dv_md.c`.
        let constants = ["ibv_wc", "ibv_event", "ibv_qps", "ibv_async", "ibv_dev", "rdma_cm"];
        let other = constants.iter().any(|other| name.starts_with(other)) || name.ends_with("pingpong");
        let is_file =
            words.get(len).is_some_and(|word| word.gap == "." && ["c", "cc", "cpp", "h"].contains(&word.text));
        return (len > 1 && !other && !is_file).then_some((name, len));
    }
    // "Failed to modify QP", "modify the QP state".
    let verbs = ["modify", "modifying", "change", "changing", "move", "moving", "transition", "bring"];
    let is_qp = |word: &Word| word.text.get(..2).is_some_and(|qp| qp.eq_ignore_ascii_case("qp")) && word.text.len() < 6;
    if is_qp(first) && words.get(1).is_some_and(|word| word.is("modify") || word.is("transition")) {
        return Some(("ibv_modify_qp".into(), 2));
    }
    if !verbs.iter().any(|verb| first.is(verb)) {
        return None;
    }
    let qp = words.iter().take(3).position(is_qp)?;
    let follows = words[1..=qp].iter().all(|word| matches!(word.gap.trim(), "" | "_"));
    follows.then(|| ("ibv_modify_qp".into(), qp + 1))
}

/// Returns the state that a queue pair was to be moved to: `to RTR`, `next state RTR`, `init2rtr`, `INIT->RTR`,
/// `(RTR)`.
fn state(words: &[Word]) -> Option<&'static str> {
    const STATES: [&str; 6] = ["RESET", "INIT", "RTR", "RTS", "SQD", "ERR"];
    const OF_NOW: [&str; 5] = ["curr", "current", "from", "in", "old"];
    let of = |word: &Word| {
        let lower = word.text.to_ascii_lowercase();
        // `init2rtr`
        let name = lower.split_once('2').map_or(lower.as_str(), |(_, to)| to).to_ascii_uppercase();
        STATES.into_iter().find(|state| name == *state && (name != "ERR" || word.text.ends_with("ERR")))
    };
    let mut last = None;
    for (at, word) in words.iter().enumerate() {
        let before = |back: usize| at.checked_sub(back).map_or("", |at| words[at].text).to_ascii_lowercase();
        let now = OF_NOW.iter().any(|now| before(1) == *now || before(1) == "state" && before(2) == *now);
        let Some(state) = of(word).filter(|_| !now) else { continue };
        if before(1) == "to" || before(1) == "state" && before(2) == "next" {
            return Some(state);
        }
        last = Some(state);
    }
    last
}

/// Finds the errno of a failed call: as `errno 101`, as text or name, as a number after the call, or before it.
fn errno_of(text: &str, words: &[Word], after: usize) -> Option<u64> {
    // -1 says only that it failed.
    let number = |at: usize| {
        let value = words.get(at).filter(|value| value.gap.len() < 8)?;
        let (number, _) = value.number()?;
        errno(number).map(|_| number).filter(|&number| number != 1 || !value.gap.ends_with('-'))
    };
    let last = || words.last().filter(|word| word.gap == ": ").and_then(|_| number(words.len() - 1));
    let keyed = |keys: &[&str], range: std::ops::Range<usize>| {
        range.into_iter().find_map(|at| {
            let with_status = words[at].is("status") && at > 0 && words[at - 1].is("with");
            (with_status || keys.iter().any(|key| words[at].is(key))).then(|| number(at + 1)).flatten()
        })
    };
    let by_text = || {
        let lower = text.to_ascii_lowercase();
        let row = rows("errno").iter().find(|row| {
            let name = row.name.split(' ').nth(1).unwrap_or_default();
            lower.contains(&row.words.to_ascii_lowercase()) || words.iter().any(|word| word.text == name)
        });
        row.and_then(|row| row.name.split(' ').next()?.parse().ok())
    };
    let after = after.min(words.len());
    let arrow = || (after..words.len()).filter(|&at| words[at].gap.contains("->")).find_map(number);
    let keys = ["error", "err", "ret", "rc", "returned", "returns", "with", "code", "failed", "result"];
    keyed(&["errno"], 0..words.len())
        .or_else(by_text)
        .or_else(|| keyed(&keys, after..words.len()))
        .or_else(arrow)
        .or_else(|| keyed(&["status", "ret", "rc", "error"], 0..after))
        .or_else(last)
}

/// Returns the row of an errno, whose name is its number and its name in the header.
fn errno(number: u64) -> Option<&'static Row> {
    rows("errno").iter().find(|row| row.name.split(' ').next() == Some(&number.to_string()))
}

fn errno_field(finding: &mut Finding, number: u64) {
    let field = finding.field(None, "errno", number.to_string());
    if let Some(row) = errno(number) {
        let name = row.name.split(' ').nth(1).unwrap_or_default();
        field.means(format!("{name}: {}", row.words));
    }
}

/// Returns the words that are known, for a text in which nothing was found.
pub fn vocabulary() -> impl Iterator<Item = &'static str> {
    let statuses = (0..=0x22).filter_map(|number| Syndrome::new(number).names()).map(|names| names.verbs);
    let events = rows("event").iter().flat_map(|row| row.words.split(", ").skip(1));
    statuses.chain(events).chain(["CQ error on CQN", "vendor syndrome", "ibv_modify_qp failed, errno"])
}
