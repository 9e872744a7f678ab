//! Asynchronous events, errors of CQs, and commands that the firmware refused; other lines go to the other readers.

use std::sync::OnceLock;

use mlx5_wire::syndrome::Syndrome;

use super::call::call;
use super::cause::{Explanation, unknown};
use super::event::{Event, add_queue, add_syndrome, command_name, errno_field, event_of, keyed};
use super::keys::printer;
use super::known::{Row, find, rows};
use super::lines::Line;
use super::words::{Names, Word, begins, is_whole, words};
use super::{Kind, driver};

/// Lines that a message of the kernel may be wrapped into.
const WRAPPED: usize = 3;

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
            .or_else(|| driver::line(lines, at, words))
            .or_else(|| call(line, words))
            .or_else(|| refused(&line.text, words));
        if let Some(mut event) = event {
            event.finding.line = line.number;
            let harmless = |explained: &Explanation| explained.failed.ends_with("No error");
            let harmless = event.finding.explanation.as_ref().is_some_and(harmless);
            event.finding.kind = if harmless { Kind::Event } else { Kind::Log };
            event.finding.printer = event.finding.printer.or_else(|| printer(&line.text));
            event.finding.times = 1;
            found.push(event);
        }
    }
    found
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
    let syndrome = syndrome.and_then(|rest| rest.split(')').next()).map(|text| text.trim_start_matches("0x"));
    if let Some(syndrome) = syndrome.and_then(|text| u64::from_str_radix(text, 16).ok()) {
        add_syndrome(&mut event.finding, syndrome);
    }
    if let Some(error) = text.split("err(-").nth(1).and_then(|rest| rest.split(')').next()) {
        errno_field(&mut event.finding, error.parse().ok()?);
    }
    Some(event)
}

/// A command that a program gave the firmware itself: `DevX create QP failed errno=22 status=0x3 syndrome=0x4bb88f`,
/// `Failed to create FT (syndrome: 0x6231e6)`, `CREATE_QP: syndrome=0x4bb88f`.
fn refused(text: &str, words: &[Word]) -> Option<Event> {
    // No CQE has so large a syndrome.
    let named = command_name(text);
    // Beside the name of a command DEVX prints it without a prefix, too.
    let behind = || words.get(words.iter().position(|word| word.is("syndrome"))? + 1)?.hex();
    let syndrome = named.and_then(|_| behind()).or_else(|| keyed(words, &["syndrome"]));
    let syndrome = syndrome.filter(|&syndrome| syndrome > 0xff)?;
    let is_bare = text.contains(&format!("syndrome={syndrome:#x}"));
    let failed = text.find("failed").map(|at| text[..at].rsplit("DevX ").next().unwrap_or_default());
    let to = || text.split("ailed to ").nth(1).and_then(|rest| rest.split(['(', ',', '.']).next());
    // A bare `syndrome=0x4bb88f` is that of a command.
    let bare = || named.or(is_bare.then_some("not printed"));
    let name = failed.or_else(to).or_else(bare)?.rsplit(": ").next()?.trim();
    let status = keyed(words, &["status"]).map(|status| format!("{status:#04x}"));
    let mut event = command_of(name.to_owned(), status.map(|status| (status.clone(), status)));
    add_syndrome(&mut event.finding, syndrome);
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
    if found.name.starts_with("RDMA_CM") {
        driver::add_status(&mut event, words);
    }
    add_queue(&mut event, line);
    Some(event)
}

/// Returns the words that are known, for a text in which nothing was found.
pub fn vocabulary() -> impl Iterator<Item = &'static str> {
    let statuses = (0..=0x22).filter_map(|number| Syndrome::new(number).names()).map(|names| names.verbs);
    let events = rows("event").iter().flat_map(|row| row.words.split(", ").skip(1));
    statuses.chain(events).chain(["CQ error on CQN", "vendor syndrome", "ibv_modify_qp failed, errno"])
}
