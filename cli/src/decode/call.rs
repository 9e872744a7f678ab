//! Calls that failed: by their name in C or in words, with their errno.

use super::cause::unknown;
use super::event::{Event, SYNDROME, add_command, add_queue, errno, errno_field, event_of};
use super::known::{Row, rows};
use super::lines::Line;
use super::refused;
use super::words::{Word, begins};

/// A call.
struct Called {
    name: String,
    /// Number of the words of its name.
    len: usize,
    /// The call was described in words: `create the queue pair`.
    in_words: bool,
}

/// Returns a call that failed, with its errno.
pub fn call(line: &Line, words: &[Word]) -> Option<Event> {
    let own = |at: &usize| words[*at].gap != "_" || at.checked_sub(1).is_none_or(|before| words[before].is("wrap"));
    // The connection manager may name the call of verbs that failed.
    let all = (0..words.len()).filter(own).filter_map(|at| Some((at, called(&words[at..])?)));
    let (at, Called { name, len, in_words }) =
        all.min_by_key(|(_, call)| call.in_words || call.name.starts_with("rdma"))?;
    let after = at + len;
    let devx = name.contains("devx");
    let modifies = ["modify_qp", "qp_modify", "obj_modify"].iter().any(|end| name.ends_with(end));
    let state = state(words).filter(|_| modifies);
    let not =
        words.windows(2).any(|two| two[1].is("not") && ["could", "can", "did"].iter().any(|verb| two[0].is(verb)));
    let failed =
        not || line.text.contains("n't ") || words.iter().any(|word| FAILED.iter().any(|known| word.is(known)));
    let error = errno_of(&line.text, words, after).filter(|_| failed || !in_words);
    // Without an errno the line says what failed, not why.
    let clear = failed && modifies && (state.is_some() || words.iter().any(|word| word.is("ibv")));
    let said = in_words && (begins_failed(words, at) || words.get(after).is_some_and(|word| word.is("failed")));
    let error = error.map(Some).or((clear || said).then_some(None))?;
    // DEVX prints it in hexadecimal, with or without a prefix.
    let behind = words.iter().position(|word| word.is("syndrome")).and_then(|at| words.get(at + 1));
    let syndrome = behind.and_then(|word| if devx { word.hex() } else { Some(word.number()?.0) });
    let syndrome = syndrome.filter(|&syndrome| syndrome > 0xff);
    if in_words && !modifies && syndrome.is_some() {
        // A command that a program gave the firmware itself.
        return None;
    }
    let devx = in_words && words.iter().any(|word| word.is("devx"));
    let name = if devx { format!("devx_{}", name.trim_start_matches("ibv_")) } else { name };
    let known = rows("call").iter().find(|row| {
        let number = |number: &str| number.parse().ok() == error;
        row.name
            .split_once(' ')
            .is_some_and(|(end, errno)| plain(&name).ends_with(end) && error.is_some() && number(errno))
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
            (Some(_), _) => "the errno is certain, which of its causes it was is not",
            (None, Some(_)) => "the errno is certain, what it means for this call is not known",
            (None, None) => "that the call failed is certain; its errno was not printed",
        },
        "errno of the call",
        "rdma-core, man page of the call; Linux drivers/infiniband/core",
    );
    if let Some(error) = error {
        let causes = refused::causes(plain(&name), error);
        let number = causes.len();
        if number > 0 {
            let which = if number == 1 { "" } else { ", one of" };
            event.finding.notes.push(format!("the stock libmlx5 gives this errno for{which}: {}", causes.join("; ")));
        }
    }
    event.finding.field(None, "call", name);
    if let Some(error) = error {
        errno_field(&mut event.finding, error);
    }
    if let Some(syndrome) = syndrome {
        add_command(&mut event.finding, &line.text, words);
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

/// Words that say that a call failed.
const FAILED: [&str; 8] = ["fail", "failed", "failure", "unable", "cannot", "couldnt", "error", "err"];

/// Returns `true` if the words before say that it failed: `failed to`, `couldn't`, `error in`.
fn begins_failed(words: &[Word], at: usize) -> bool {
    let before = &words[at.saturating_sub(3)..at];
    before.iter().any(|word| {
        FAILED.iter().any(|known| word.is(known)) || ["couldn", "could", "can"].iter().any(|verb| word.is(verb))
    })
}

/// Returns the name without the ending of a variant.
fn plain(name: &str) -> &str {
    match name {
        // libfabric registers with the same calls.
        _ if name.starts_with("fi_mr_reg") => return "ibv_reg_mr",
        "fi_cq_open" => return "ibv_create_cq",
        _ => {}
    }
    ["_iova2", "_iova", "_ex"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

/// Calls without their prefix, and the words of what they make, the longest first.
const MADE: [(&str, &str); 27] = [
    ("create_flow", "qp flow"),
    ("create_flow", "flow rule"),
    ("create_flow", "steering rule"),
    ("create_flow", "flow"),
    ("create_srq", "shared receive queue"),
    ("create_srq", "srq"),
    ("create_comp_channel", "completion channel"),
    ("create_comp_channel", "comp channel"),
    ("create_cq", "completion queue"),
    ("create_cq", "cq"),
    ("create_qp", "queue pair"),
    ("create_qp", "queue pairs"),
    ("create_qp", "qp"),
    ("create_ah", "address handle"),
    ("create_ah", "ah"),
    ("create_mkey", "mkey"),
    ("create_mkey", "memory key"),
    ("alloc_pd", "protection domain"),
    ("alloc_pd", "pd"),
    ("reg_dmabuf_mr", "dmabuf"),
    ("reg_dmabuf_mr", "dma buf"),
    ("reg_mr", "memory region"),
    ("reg_mr", "mr"),
    ("reg_mr", "memory"),
    ("reg_mr", "buffer"),
    ("reg_mr", "address"),
    ("open_device", "device"),
];
/// Words that may stand between a verb and what it makes.
const FILLERS: [&str; 18] = [
    "the", "a", "an", "of", "new", "rc", "ud", "uc", "dc", "ib", "ibv", "rdma", "verbs", "send", "recv", "direct",
    "gpu", "host",
];

/// Returns the call that the words begin with.
fn called(words: &[Word]) -> Option<Called> {
    let first = &words[0];
    let joined = || 1 + words[1..].iter().take_while(|word| word.gap == "_").count();
    let name_of = |len: usize| words[..len].iter().map(|word| word.text).collect::<Vec<_>>().join("_").to_lowercase();
    if ["ibv", "mlx5dv", "rdma"].iter().any(|known| first.is(known)) {
        let len = joined();
        let name = name_of(len);
        // Names of constants and programs, and `ib_mlx5dv_md.c`.
        let constants = ["ibv_wc", "ibv_event", "ibv_qps", "ibv_async", "ibv_dev", "rdma_cm"];
        let other = constants.iter().any(|other| name.starts_with(other)) || name.ends_with("pingpong");
        let is_file =
            words.get(len).is_some_and(|word| word.gap == "." && ["c", "cc", "cpp", "h"].contains(&word.text));
        return (len > 1 && !other && !is_file).then_some(Called { name, len, in_words: false });
    }
    if first.is("fi") && joined() > 1 {
        let len = joined();
        let known = ["ibv_reg_mr", "ibv_create_cq"].contains(&plain(&name_of(len)));
        return known.then(|| Called { name: name_of(len), len, in_words: false });
    }
    // Programs have functions of these names: `reg_mr`, `create_ibv_flow`.
    if ["create", "reg", "alloc", "post", "modify"].iter().any(|verb| first.is(verb)) && joined() > 1 {
        let len = joined();
        let name = name_of(len).replace("_ibv_", "_");
        let known = rows("call").iter().any(|row| row.name.split(' ').next() == Some(plain(&name)));
        return known.then(|| Called { name: format!("ibv_{name}"), len, in_words: false });
    }
    in_words(words)
}

/// Returns the call that words describe: "modify the QP state", "register memory", "QP creation".
fn in_words(words: &[Word]) -> Option<Called> {
    let first = &words[0];
    let found = |name: &str, len| {
        // verbs have no call for keys.
        let prefix = if name == "create_mkey" { "" } else { "ibv_" };
        Some(Called { name: format!("{prefix}{name}"), len, in_words: true })
    };
    let verbs = ["modify", "modifying", "change", "changing", "move", "moving", "transition", "bring"];
    let is_qp = |word: &Word| word.text.get(..2).is_some_and(|qp| qp.eq_ignore_ascii_case("qp")) && word.text.len() < 6;
    if is_qp(first) && words.get(1).is_some_and(|word| word.is("modify") || word.is("transition")) {
        return found("modify_qp", 2);
    }
    let to = words.get(1).filter(|to| first.is("transition") && to.is("to")).and_then(|_| state(words.get(2..3)?));
    if to.is_some() {
        return found("modify_qp", 2);
    }
    if verbs.iter().any(|verb| first.is(verb)) {
        let qp = words.iter().take(3).position(is_qp)?;
        let follows = words[1..=qp].iter().all(|word| matches!(word.gap.trim(), "" | "_"));
        return follows.then_some(()).and_then(|()| found("modify_qp", qp + 1));
    }
    if first.is("post") || first.is("posting") {
        let kinds =
            [("post_send", "send"), ("post_recv", "recv"), ("post_recv", "receive"), ("post_srq_recv", "srq recv")];
        let kind = kinds.into_iter().find(|kind| begins(&words[1..], kind.1))?;
        return found(kind.0, 1 + kind.1.split(' ').count());
    }
    let made =
        |words: &[Word]| MADE.iter().find(|made| begins(words, made.1)).map(|made| (made.0, made.1.split(' ').count()));
    // "QP creation failed", "memory registration error".
    let nouns = ["creation", "registration", "allocation"];
    if let Some((name, len)) = made(words) {
        return words.get(len).filter(|word| nouns.iter().any(|noun| word.is(noun))).and_then(|_| found(name, len + 1));
    }
    let makes: &[&str] = match first.text.to_ascii_lowercase().trim_end_matches("ing") {
        "create" | "creat" => &["create", "reg_mr", "alloc_pd"],
        "register" | "reg" => &["reg"],
        "allocate" | "allocat" | "alloc" => &["alloc", "reg_mr"],
        "open" => &["open"],
        _ => return None,
    };
    let filler = |word: &&Word| FILLERS.iter().any(|known| word.is(known)) && word.gap.trim().len() < 2;
    let skip = 1 + words[1..].iter().take(3).take_while(filler).count();
    let object = words.get(skip..).filter(|rest| !rest.is_empty() && matches!(rest[0].gap.trim(), "" | "_" | "-"))?;
    let (name, len) = made(object)?;
    let fits = makes.iter().any(|start| name.starts_with(start));
    // "Cannot allocate memory" is an errno; a buffer and a device are something else in other programs.
    let common = ["buffer", "memory", "device"].iter().any(|word| object[0].is(word))
        && object.len() > len
        && object[len].gap == "_";
    (fits && !common && !(first.is("allocate") && object[0].is("memory"))).then(|| found(name, skip + len))?
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
    // `[12]`, `(errno=12)`.
    let bracketed = || {
        let closes = |at: usize| match words.get(at + 1) {
            Some(next) => next.gap.starts_with([']', ')']),
            None => text.trim_end().trim_end_matches('.').ends_with([']', ')']),
        };
        (after..words.len()).filter(|&at| words[at].gap.ends_with(['[', '(']) && closes(at)).find_map(number)
    };
    let last = || words.last().filter(|word| word.gap == ": ").and_then(|_| number(words.len() - 1));
    let keyed = |keys: &[&str], range: std::ops::Range<usize>| {
        range.into_iter().find_map(|at| {
            let after = |known: &[&str]| at > 0 && known.iter().any(|known| words[at - 1].is(known));
            // "with 12 entries" says nothing.
            let keyed = match words[at].text {
                "with" => {
                    keys.contains(&"with") && after(&["failed", "fails", "failure", "error", "returned", "exited"])
                }
                "status" if after(&["with"]) => true,
                _ => keys.iter().any(|key| words[at].is(key)),
            };
            keyed.then(|| number(at + 1)).flatten()
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
        .or_else(bracketed)
        .or_else(last)
}
