//! Whether a line can report an error, or only names one: in source code, in the output of tests, in documents.

use super::keys::{Key, key_at, value_at};
use super::known::rows;
use super::lines::Line;
use super::words::{Word, begins, status_at, words};

/// Lines around a line of source code that are looked at.
const AROUND: usize = 3;
/// Bytes of a line that are looked at.
const MOST: usize = 600;

/// Kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The line can say that something happened.
    Report,
    /// The line describes what can happen: an entry of a list, a row of a table, an option, prose.
    Description,
    /// Source code, the result of a test, a message of a compiler; or it is empty.
    Names,
}

/// Returns the kind of each line.
pub fn forms(lines: &[Line]) -> Vec<Form> {
    let full: Vec<usize> = (0..lines.len()).filter(|&at| !lines[at].text.trim().is_empty()).collect();
    let text = |at: usize| start(&lines[at].text);
    let code: Vec<bool> = full.iter().map(|&at| is_code(text(at))).collect();
    let mut forms = vec![Form::Names; lines.len()];
    // `git log`: all that follows describes changes, but for what a program logged.
    let changes =
        full.windows(2).position(|two| text(two[0]).starts_with("commit ") && text(two[1]).starts_with("Author:"));
    for (place, &at) in full.iter().enumerate() {
        let logged = is_logged(&lines[at]);
        let around = &code[place.saturating_sub(AROUND)..(place + AROUND + 1).min(full.len())];
        let in_code = code[place] || around.iter().filter(|code| **code).count() > 1;
        let text = text(at);
        let words = words(text);
        // A name that is the whole text is a question.
        let entry = || full.len() > 1 && is_entry(text, &words);
        forms[at] = match logged {
            _ if is_test(text) || is_diagnostic(text) || is_document(text) => Form::Names,
            false if in_code || entry() => Form::Names,
            false if changes.is_some_and(|from| place >= from) || describes(text, &words) => Form::Description,
            _ => Form::Report,
        };
    }
    forms
}

fn start(line: &str) -> &str {
    line.get(..line.len().min(MOST)).or_else(|| line.get(..MOST - 3)).unwrap_or_default().trim()
}

/// Returns `true` if a program logged this line as a warning or an error, or the kernel did.
fn is_logged(line: &Line) -> bool {
    const LEVELS: [&str; 12] = [
        "ERROR",
        "WARN",
        "WARNING",
        "FATAL",
        "CRITICAL",
        "CRIT",
        "ERR",
        "E",
        "*ERROR*",
        "*WARNING*",
        "panicked",
        "EAL:",
    ];
    const KERNEL: [&str; 6] = ["mlx5_core ", "infiniband mlx5", "kernel: ", "libmlx5", "nvme nvme", "mlx5_ib"];
    let text = start(&line.text);
    let is_glog =
        text.starts_with(['W', 'E', 'F']) && text.get(1..5).is_some_and(|day| day.bytes().all(|b| b.is_ascii_digit()));
    let level = |word: &str| LEVELS.contains(&word.trim_matches(['[', ']', ':', '<', '>', '(', ')', '"']));
    let titled = |word: &str| {
        let lower = word.to_ascii_lowercase();
        !word.contains('_') && ["error:", "warning:", "fatal:", "exception:"].iter().any(|level| lower.ends_with(level))
    };
    is_glog
        || text
            .split_whitespace()
            .take(if text.split_whitespace().next().is_some_and(|first| first.ends_with(':')) { 2 } else { 1 })
            .any(titled)
        || text.split_whitespace().take(12).any(level)
        || KERNEL.iter().any(|known| text.contains(known)) && !text.starts_with(['-', '*', '+', '#'])
        || text.contains("level=error")
}

/// Returns `true` for the result of a test, whose name may be that of an error.
fn is_test(text: &str) -> bool {
    const STARTS: [&str; 14] = [
        "test ",
        "ok ",
        "not ok ",
        "--- PASS",
        "--- FAIL",
        "--- SKIP",
        "=== RUN",
        "PASS ",
        "[ RUN ",
        "[       OK",
        "[  PASSED",
        "[  FAILED",
        "✓",
        "✔",
    ];
    const ENDS: [&str; 14] = [
        "... ok",
        "... FAILED",
        "... ignored",
        " PASSED",
        " Passed",
        " SKIPPED",
        " XFAIL",
        "... skipped",
        "... PASS",
        "...passed",
        "... passed",
        "...failed",
        "... failed",
        "[ OK ]",
    ];
    // A time or the name of a job may stand before it.
    let rest = text
        .split_once("Z ")
        .filter(|split| split.0.contains('T') && split.0.len() < 40)
        .map_or(text, |split| split.1.trim_start());
    STARTS.iter().any(|start| rest.starts_with(start))
        || ENDS.iter().any(|end| rest.ends_with(end))
        || rest.contains("::")
            && [" PASSED", " FAILED", " XFAIL", " SKIPPED"].iter().any(|result| rest.contains(result))
        || rest.contains("Test #") && rest.contains("..")
        || rest.contains(" ... ok ")
        || ["PASS", "FAIL", "SKIP", "XFAIL"]
            .iter()
            .any(|result| rest.split_once(&format!("{result}: ")).is_some_and(|(before, _)| before.is_empty()))
        || rest.starts_with(['P', 'F', 'S']) && rest.contains("s] ") && rest.contains(" [ ")
}

/// Returns `true` for a comment of a source, a macro of a man page, or a row of a table.
fn is_document(text: &str) -> bool {
    let macros = text.strip_prefix('.').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    let row = text.starts_with("| ") && text.ends_with(" |") && text.len() > 8;
    macros || row || text.starts_with("// ") || text.starts_with("/// ") || text.starts_with("//! ")
}

/// Returns `true` for a message of a compiler or of a linter: `verbs.c:12:8: error: ...`.
fn is_diagnostic(text: &str) -> bool {
    let placed = [": error: ", ": warning: ", ": note: "].iter().filter_map(|kind| text.find(kind)).min();
    let column = |at: usize| {
        let mut parts = text[..at].rsplit(':');
        let number =
            |part: Option<&str>| part.is_some_and(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
        number(parts.next()) && number(parts.next())
    };
    placed.is_some_and(column) || text.starts_with("error[E") || text.starts_with("warning: unused")
}

/// Returns `true` for a line that can only be source code, in one of the usual languages.
fn is_code(text: &str) -> bool {
    const STARTS: [&str; 34] = [
        "//",
        "/*",
        "*/",
        "#include",
        "#define",
        "#if",
        "#endif",
        "#else",
        "case ",
        "default:",
        "return ",
        "if (",
        "} else",
        "else if",
        "for (",
        "while (",
        "switch (",
        "fn ",
        "pub ",
        "let ",
        "const ",
        "static ",
        "struct ",
        "enum ",
        "impl ",
        "match ",
        "def ",
        "func ",
        "class ",
        "elif ",
        "except ",
        "raise ",
        "@@ ",
        "diff --git",
    ];
    const PARTS: [&str; 16] = [
        "%s",
        "%d",
        "%u",
        "%x",
        "%lu",
        "%zu",
        "%p",
        "%ld",
        "%#x",
        "{:?}",
        "{:#x}",
        " == IBV_",
        " != IBV_",
        "printf(",
        "assert_eq!(",
        "assert!(",
    ];
    // A line of a patch.
    let line = text.strip_prefix(['+', '-']).unwrap_or(text).trim_start();
    let arrow = || {
        line.match_indices("->").any(|(at, _)| {
            let beside = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c == '_');
            beside(line[..at].chars().next_back()) && beside(line[at + 2..].chars().next())
        })
    };
    let calls = || line.ends_with(");") || line.ends_with(") {");
    STARTS.iter().any(|start| line.starts_with(start))
        || PARTS.iter().any(|part| line.contains(part))
        || [";", "),", " },", "])"].iter().any(|end| line.ends_with(end))
        || line.starts_with('"') && line.ends_with("\",")
        || line.starts_with("| ") && !line.ends_with('|')
        || line.contains("$(")
        || calls()
        || line.contains(" => ") && (line.ends_with(',') || line.ends_with('{'))
        || line.ends_with([',', '{', '(', ')', '|', '&']) && arrow()
        || line.contains("if ") && (line.contains("==") || line.contains("!=") || line.ends_with(':'))
}

/// Words that stand in a description. Those of the second list may stand in a report, too, behind what failed.
const GENERIC: [&str; 44] = [
    "if",
    "when",
    "whenever",
    "unless",
    "means",
    "mean",
    "indicates",
    "indicate",
    "may",
    "might",
    "should",
    "must",
    "would",
    "can",
    "returns",
    "return",
    "occurs",
    "typically",
    "usually",
    "fails",
    "describes",
    "defines",
    "lists",
    "maps",
    "treat",
    "handles",
    "simulates",
    "simulate",
    "inject",
    "injects",
    "expects",
    "expected",
    "ensure",
    "supports",
    "supported",
    "documented",
    "instead",
    "which",
    "example",
    "verify",
    "codes",
    "completes",
    "will",
    "wait",
];
/// Words with which an entry of a list of changes begins.
const CHANGES: [&str; 40] = [
    "fix",
    "fixes",
    "fixed",
    "add",
    "adds",
    "added",
    "remove",
    "removes",
    "removed",
    "improve",
    "improved",
    "update",
    "updated",
    "support",
    "avoid",
    "document",
    "documented",
    "allow",
    "change",
    "changed",
    "rename",
    "renamed",
    "drop",
    "dropped",
    "introduce",
    "introduced",
    "merge",
    "revert",
    "refactor",
    "clean",
    "explain",
    "treat",
    "map",
    "translate",
    "simplify",
    "deprecate",
    "implement",
    "implemented",
    "make",
    "stop",
];
/// Words that say that something happened.
const HAPPENED: [&str; 17] = [
    "failed",
    "fail",
    "couldn",
    "couldnt",
    "unable",
    "cannot",
    "got",
    "received",
    "completed",
    "returned",
    "aborted",
    "rejected",
    "timed",
    "unexpected",
    "panicked",
    "polled",
    "polling",
];

/// Returns `true` for a line that describes errors: an entry of a list, a row of a table, an option, prose.
fn describes(text: &str, words: &[Word]) -> bool {
    let Some(first) = words.first() else { return false };
    if text.starts_with("--")
        || text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic()))
    {
        return true;
    }
    let injected = words.iter().any(|word| word.text.to_ascii_lowercase().starts_with("inject")) && !has_value(words);
    if injected || ["# ", "export ", "$ ", "**"].iter().any(|start| text.starts_with(start)) {
        return true;
    }
    let row = text.starts_with('|') && text.ends_with('|') && text.len() > 2;
    let hashes = first.text.len() >= 7 && first.text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let from = usize::from(hashes);
    // `mlx5: fix ...`
    let prefixed = words.iter().take(6).position(|word| word.gap == ": ").map(|at| &words[at]);
    let changes = |word: &&Word| CHANGES.iter().any(|change| word.is(change));
    let lists = words.get(from).filter(changes).is_some() || prefixed.filter(changes).is_some();
    if row || lists {
        return true;
    }
    // "fail to register" happened, "calls fail with ENOMEM" does not say so.
    let fails = |at: usize| words[at].is("fail") && words.get(at + 1).is_none_or(|next| !next.is("to"));
    let happened = (0..words.len()).find(|&at| HAPPENED.iter().any(|known| words[at].is(known)) && !fails(at));
    let generic = |at: &usize| GENERIC.iter().any(|known| words[*at].is(known)) || fails(*at);
    // `could not`, `error: ...` say that it happened, `is returned` does not.
    let told = words
        .windows(2)
        .position(|two| two[1].gap.starts_with(": ") && two[0].text.to_ascii_lowercase().ends_with("error"));
    let passive =
        |at: usize| words[at].is("returned") && at > 0 && ["is", "are", "be"].iter().any(|verb| words[at - 1].is(verb));
    let refused = words.iter().position(|word| word.is("t") && word.gap == "'").and_then(|at| at.checked_sub(1));
    let happened = happened.filter(|&at| !passive(at)).into_iter().chain(told).chain(refused).min();
    let first_generic = (0..words.len()).find(generic);
    let passes = (1..words.len()).any(passive);
    if happened.is_none() && ["- ", "* ", "+ ", "\u{2022} "].iter().any(|bullet| text.starts_with(bullet)) {
        return true;
    }
    let quiet = words.iter().take(12).any(|word| ["INFO", "DEBUG", "TRACE"].contains(&word.text));
    let articles = words
        .iter()
        .filter(|word| ["the", "a", "an", "and", "are", "is", "to", "of"].iter().any(|article| word.is(article)));
    if happened.is_none() && !has_value(words) && (quiet || words.len() > 9 && articles.count() > 1) {
        return true;
    }
    // A first person tells what happened.
    let person = words.iter().take(8).any(|word| word.text == "I" || word.is("we") || word.is("my"));
    let values = words.len() > 6 && has_value(words);
    words.len() > 5
        && !(person && values)
        && (passes || first_generic.is_some_and(|at| happened.is_none_or(|told| at < told)))
}

/// Returns `true` for an entry of a list of errors: a name, and nothing that one occurrence has.
fn is_entry(text: &str, words: &[Word]) -> bool {
    if words.is_empty() {
        return false;
    }
    let mut at = 0;
    // A number may stand before the name.
    if words[0].number().is_some() && words.len() > 1 && words[0].gap.len() < 4 {
        at = 1;
    }
    let here = &words[at..];
    let named = status_at(here).map(|found| found.0).or_else(|| event_at(here)).or_else(|| errno_at(here));
    let Some(len) = named else { return false };
    if here.len() == len + 1 && here[len].gap.contains('=') && here[len].number().is_some() {
        return true;
    }
    let before = here[0].gap;
    let bullet = text.len() < 400 && before.chars().all(|c| !c.is_alphanumeric());
    bullet && !has_value(words) && !text.contains("mlx5_") && !text.contains("failed") && here.len() >= len
}

/// Returns the number of the words of the name of an event with which the words begin.
fn event_at(words: &[Word]) -> Option<usize> {
    let skip = ["ibv", "ib", "rdma"].iter().any(|prefix| words[0].is(prefix));
    let rest = &words[usize::from(skip)..];
    let rest = if rest.first()?.is("cm") { &rest[1..] } else { rest };
    let mut names = rows("event").iter().filter_map(|row| row.words.split(", ").next());
    names.find(|name| begins(rest, name)).map(|name| name.split(' ').count() + usize::from(skip))
}

/// Returns 1 if the words begin with the name of an errno.
fn errno_at(words: &[Word]) -> Option<usize> {
    let name = |row: &super::known::Row| row.name.split(' ').nth(1) == Some(words[0].text);
    rows("errno").iter().any(name).then_some(1)
}

/// Returns `true` if the words have a number that one occurrence has: a vendor syndrome, a queue, an index, an address.
fn has_value(words: &[Word]) -> bool {
    (0..words.len()).any(|at| {
        let value = |found: (usize, Key)| {
            let rest = words.get(at + found.0..)?;
            (found.1 != Key::Other).then_some(value_at(rest)?)
        };
        words[at].text.starts_with("0x") || key_at(&words[at..]).and_then(value).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::lines::lines;

    fn can_report(text: &str) -> bool {
        forms(&lines(text.as_bytes())).contains(&Form::Report)
    }

    #[test]
    fn names_are_no_reports() {
        for text in [
            "test cqe::remote_access_error ... ok",
            "if (wc.status == IBV_WC_RETRY_EXC_ERR)",
            "IBV_WC_LOC_LEN_ERR (1)\nIBV_WC_LOC_QP_OP_ERR (2)",
            "verbs.c:12:8: error: 'IBV_WC_TM_ERR' undeclared",
            "- Fix a leak after IBV_WC_RETRY_EXC_ERR",
            "IBV_WC_RETRY_EXC_ERR is returned if no acknowledgement came",
        ] {
            assert!(!can_report(text), "{text}");
        }
        for text in [
            "IBV_WC_RETRY_EXC_ERR",
            "completion failed: IBV_WC_RETRY_EXC_ERR",
            "ibv_reg_mr failed: Cannot allocate memory. This may mean that ulimit -l is too low",
            "E0729 05:04:30.527725 14093 a.cpp:70] IBV_WC_RETRY_EXC_ERR if (x == 3);",
        ] {
            assert!(can_report(text), "{text}");
        }
    }
}
