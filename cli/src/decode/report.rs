//! Errors that programs report in words: keys with values, and names of statuses.
//!
//! There is one grammar for all programs. The numbers of a report may stand in several lines, if a line says that it
//! goes on, or if both come from one place of one program; otherwise a number stays without an error, and an error
//! without it.

use std::collections::{BTreeMap, HashMap};

use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::syndrome::Syndrome;

use super::keys::{Key, Number, key_at, printer, separates, value_at};
use super::lines::Line;
use super::words::{self, Word, begins, is_whole, status_at};

/// Contents of a line, or of a part of one, or of the lines of a report.
#[derive(Debug, Default, Clone)]
pub struct Draft {
    /// Line, from 1.
    pub line: usize,
    last: usize,
    /// The processor or thread that printed it.
    pub caller: String,
    /// Which program prints such lines.
    pub printer: Option<&'static str>,
    /// The numbers.
    pub values: BTreeMap<Key, Number>,
    /// The report names a status in words.
    pub named: bool,
    /// Side, where it says so.
    pub requester: Option<bool>,
    /// It has an opcode of verbs.
    pub verbs_opcode: bool,
    /// An adapter before mlx5.
    pub older: bool,
    /// `file.c:123` of the program.
    place: Option<String>,
    /// The text goes on in the next line.
    goes_on: bool,
    /// Lines of another report stand where the text should go on.
    pub mixed: bool,
    /// The report speaks of a completion.
    completion: bool,
    first_key: bool,
}

impl Draft {
    fn new(line: &Line) -> Self {
        Self { line: line.number, last: line.number, caller: line.caller.clone(), ..Self::default() }
    }

    /// Returns the number of a key.
    pub fn get(&self, key: Key) -> Option<u32> {
        self.values.get(&key).map(|number| number.value)
    }

    fn has_error(&self) -> bool {
        self.values.contains_key(&Key::Status) || self.values.contains_key(&Key::Syndrome)
    }

    /// Returns `true` if it says that something failed: a number alone may be of anything.
    fn is_report(&self) -> bool {
        let has = |key| self.values.contains_key(&key);
        let error = [Key::Status, Key::Syndrome].into_iter().any(|key| self.get(key).is_some_and(|n| n != 0));
        error && (self.named || has(Key::Vendor) || self.completion)
            || has(Key::Syndrome) && error && (has(Key::HwError) || has(Key::Packed))
    }

    /// Returns `true` if both have a number of one key. The numbers after the head only complete a report.
    fn contradicts(&self, more: &Self) -> bool {
        more.values.keys().any(|key| *key <= Key::Head && self.values.contains_key(key))
    }

    /// Returns `true` if `more` is the rest of this report.
    fn continues(&self, more: &Self) -> bool {
        if self.mixed || self.contradicts(more) {
            return false;
        }
        let adjacent = more.line - self.last <= 2;
        let same_caller = self.caller == more.caller && !self.caller.is_empty();
        let wrapped = more.caller.is_empty() || self.caller == more.caller;
        let same_place = self.place.is_some() && self.place == more.place;
        // A vendor syndrome alone belongs to the error before it.
        let vendor = self.has_error() && !more.has_error() && more.values.contains_key(&Key::Vendor);
        (adjacent || same_caller) && same_place && self.caller == more.caller
            || adjacent && wrapped && (self.goes_on || more.first_key && more.place.is_none())
            || same_caller && (vendor || self.completion && !self.has_error() && more.has_error())
    }

    /// Returns `true` if `more` says only the syndrome of this report again.
    fn repeats(&self, more: &Self) -> bool {
        let (mine, theirs) = (self.get(Key::Syndrome), more.get(Key::Syndrome));
        theirs.is_some() && mine == theirs && more.values.len() == 1 && more.line - self.last <= 2
    }

    fn join(&mut self, more: Self) {
        self.last = more.last;
        self.goes_on = more.goes_on;
        self.completion |= more.completion;
        self.named |= more.named;
        self.verbs_opcode |= more.verbs_opcode;
        self.requester = self.requester.or(more.requester);
        // The program that is named with the queue knows more about the report.
        self.printer = more.printer.or(self.printer);
        for (key, number) in more.values {
            self.values.entry(key).or_insert(number);
        }
    }
}

/// Returns all reports of a text.
pub fn reports(lines: &[Line]) -> Vec<Draft> {
    let mut found = Vec::new();
    let mut open: HashMap<&str, Draft> = HashMap::new();
    let mut last_caller = "";
    for line in lines.iter().filter(|line| !line.text.is_empty()) {
        for mut draft in scan(line) {
            // A line without a prefix goes on with the line before it.
            let caller =
                if draft.caller.is_empty() && !open.contains_key("") { last_caller } else { line.caller.as_str() };
            match open.get_mut(caller) {
                Some(before) if before.continues(&draft) => before.join(draft),
                Some(before) if before.repeats(&draft) => {}
                before => {
                    // Two reports began before the first was complete: whose lines follow is not known.
                    let torn = before.filter(|before| before.goes_on && draft.line - before.last <= 1);
                    if let Some(before) = torn.filter(|before| before.contradicts(&draft)) {
                        (before.mixed, draft.mixed) = (true, true);
                    }
                    found.extend(open.insert(&line.caller, draft));
                }
            }
        }
        last_caller = &line.caller;
    }
    found.extend(open.into_values());
    found.sort_by_key(|draft| draft.line);
    found.retain(Draft::is_report);
    found
}

/// Returns the queue pair that a line names.
pub fn queue(line: &Line) -> Option<u32> {
    scan(line).iter().find_map(|draft| draft.get(Key::Qp))
}

/// Reads a line. A second status or syndrome in it begins another report.
fn scan(line: &Line) -> Vec<Draft> {
    // libmlx4 prints numbers without a prefix in hexadecimal.
    if line.text.contains("WQE @") {
        return Vec::new();
    }
    let words = words::words(&line.text);
    let (mut done, mut draft, mut at) = (Vec::new(), Draft::new(line), 0);
    while at < words.len() {
        let mut piece = Draft { last: line.number, ..Draft::default() };
        let used = read(&words, at, &mut piece);
        if used == 0 {
            at += 1;
            continue;
        }
        // A line about another queue may begin with its number.
        let value = words.get(at + used - 1);
        let assigned = value.is_some_and(|value| value.gap.contains(['=', ':']));
        let first = words[0].gap.is_empty() && words[1..=at].iter().all(|word| [".", "->", "_"].contains(&word.gap));
        piece.first_key = first && (!piece.values.contains_key(&Key::Qp) || assigned);
        at += used;
        // The number and the name of one status.
        if piece.get(Key::Status).is_some() && piece.get(Key::Status) == draft.get(Key::Status) {
            draft.named |= piece.named;
            piece.values.remove(&Key::Status);
        }
        if draft.contradicts(&piece) {
            let other_queue = piece.get(Key::Qp).is_some() && draft.get(Key::Qp) != piece.get(Key::Qp);
            if !(other_queue || draft.has_error() && piece.has_error()) {
                // The first number of a kind counts.
                continue;
            }
            done.push(std::mem::replace(&mut draft, Draft::new(line)));
        }
        draft.first_key |= piece.first_key;
        draft.join(piece);
    }
    if !draft.has_error() && done.is_empty() && speaks_of_completion(&words) {
        // Statuses whose names other texts have, too.
        let weak = [(16, "aborted error"), (21, "general error"), (22, "tm error")];
        let found = weak.into_iter().find(|weak| (0..words.len()).any(|at| begins(&words[at..], weak.1)));
        let status = found.map(|(value, _)| (Key::Status, Number { value, bare: false }));
        draft.named |= status.is_some();
        draft.values.extend(status);
    }
    done.push(draft);
    // The others say something only together with these.
    if done.iter().all(|draft| draft.values.keys().all(|key| *key > Key::Head)) {
        return Vec::new();
    }
    about_line(line, &words, &mut done);
    done
}

/// Reads what stands at a word; returns the number of words that were read.
fn read(words: &[Word], at: usize, draft: &mut Draft) -> usize {
    let here = &words[at..];
    if let Some((len, status)) = status_at(here).filter(|(len, _)| is_whole(words, at, at + len)) {
        // A count, or an entry of a list: `IBV_WC_RETRY_EXC_ERR=0`.
        if here.get(len).is_some_and(|next| matches!(next.gap, "=" | ": " | ":" | " = ") && next.number().is_some()) {
            return len + 1;
        }
        draft.named = true;
        if here[0].is("mlx5") {
            let syndrome = Syndrome::from_status(status.number).map_or(0, Syndrome::get);
            draft.values.insert(Key::Syndrome, Number { value: syndrome.into(), bare: false });
            return len;
        }
        draft.values.insert(Key::Status, Number { value: status.number, bare: false });
        return len + after_status(&here[len..], status.number, draft);
    }
    let Some((len, key)) = key_at(here) else { return 0 };
    let rest = &here[len..];
    let before = at.checked_sub(1).map_or("", |before| words[before].text);
    let Some((used, number)) = value_at(rest) else {
        let named = rest.first().is_some_and(|word| separates(word.gap));
        if let Some((more, status)) = status_at(rest).filter(|_| named && key == Key::Syndrome) {
            let syndrome = Syndrome::from_status(status.number).map_or(0, Syndrome::get);
            draft.values.insert(Key::Syndrome, Number { value: syndrome.into(), bare: false });
            draft.named = true;
            return len + more;
        }
        if named && matches!(key, Key::Opcode | Key::AnyOpcode) {
            match rest[0].is("ibv") {
                true => draft.verbs_opcode = true,
                false => opcode(rest, draft),
            }
        }
        return len;
    };
    let most = match key {
        Key::Status => 63,
        Key::Syndrome if here[0].is("cqe") => u32::MAX,
        Key::Syndrome => 0xff,
        Key::Counter => 0xffff,
        Key::Qp => 0xff_ffff,
        _ => u32::MAX,
    };
    // The bytes of a CQE may follow the word, too.
    if number.value > most || key == Key::Status && rest[0].gap.contains('[') {
        return len;
    }
    match key {
        Key::Other => {}
        Key::Syndrome if here[0].is("cqe") => {
            // Some versions of DPDK print the word of the CQE that ends with the syndrome.
            let word = rest[0].hex().and_then(|word| u32::try_from(word).ok()).unwrap_or_default();
            let [error, kind, vendor, syndrome] =
                word.to_be_bytes().map(|byte| Number { value: byte.into(), bare: false });
            draft.values.insert(Key::Syndrome, syndrome);
            draft.completion = true;
            if vendor.value != 0 {
                draft.values.extend([(Key::Vendor, vendor), (Key::HwError, error), (Key::HwType, kind)]);
            }
        }
        // The index of a queue pair in a program, and the number of a command (`CREATE_QP(0x500)`).
        Key::Qp if rest[0].gap == "[" || rest[0].gap == "(" && here[0].gap == "_" => {}
        Key::Qp => {
            let theirs = ["peer", "remote", "dest", "src", "r"].iter().any(|word| before.eq_ignore_ascii_case(word));
            if !theirs {
                draft.values.insert(key, number);
            }
            if before.eq_ignore_ascii_case("srq") {
                draft.requester = Some(false);
            }
        }
        // Printed in hexadecimal, with or without a prefix; a debugger prints it in decimal.
        Key::Packed => {
            let hex = rest[used - 1].hex().filter(|_| !(number.bare && here[0].is("s")));
            let word = hex.and_then(|word| u32::try_from(word).ok()).unwrap_or(number.value);
            draft.values.insert(key, Number { value: word, bare: false });
        }
        Key::Counter => {
            draft.values.insert(key, number);
            let rest = &rest[used..];
            if rest.first().is_some_and(|word| word.gap.trim_end() == "]:") {
                if begins(rest, "next wqe") {
                    draft.requester = Some(false);
                } else {
                    opcode(rest, draft);
                }
            }
        }
        Key::Hardware => {
            let error = rest.get(used).filter(|word| word.gap == "/").and_then(Word::number);
            draft.values.insert(Key::HwType, Number { value: number.value << 4, bare: false });
            if let Some((error, _)) = error {
                draft.values.insert(Key::HwError, Number { value: error as u32, bare: false });
            }
            return len + used + 1;
        }
        Key::AnyOpcode => match number.value {
            0xd => draft.requester = Some(true),
            0xe => draft.requester = Some(false),
            _ => draft.verbs_opcode = true,
        },
        _ => drop(draft.values.insert(key, number)),
    }
    len + used
}

/// Reads the numbers behind the name of a status: the status again, alone or with the vendor syndrome, or what mlx5_ib
/// prints of an event.
fn after_status(words: &[Word], status: u32, draft: &mut Draft) -> usize {
    let Some(first) = words.first().filter(|word| word.gap.trim_start().starts_with('(')) else {
        return 0;
    };
    let numbers: Vec<_> = words.iter().take(3).map_while(Word::number).collect();
    let value = |number: u64| Number { value: number as u32, bare: false };
    match numbers[..] {
        [(vendor, false), (error, false), (kind, false)] if words[1..3].iter().all(|word| word.gap == " ") => {
            let keys = [Key::Vendor, Key::HwError, Key::HwType];
            draft.printer = Some("mlx5_ib");
            draft.values.extend(keys.into_iter().zip([vendor, error, kind].map(value)));
            3
        }
        // Tracepoints of rpcrdma: `WR_FLUSH_ERR (5/0xf9)`.
        [(number, _), (vendor, _), ..] if number == u64::from(status) && words[1].gap == "/" => {
            draft.values.insert(Key::Vendor, value(vendor));
            2
        }
        [(number, _), ..] if number == u64::from(status) && first.gap.len() <= 2 => 1,
        _ => 0,
    }
}

/// Reads the name of an opcode.
fn opcode(words: &[Word], draft: &mut Draft) {
    const OTHERS: [(&str, u8); 5] = [
        ("GGA_DMA", 0x2f),
        ("COMPARE_SWAP", 0x11),
        ("FETCH_ADD", 0x12),
        ("MASKED_COMPARE_SWAP", 0x14),
        ("MASKED_FETCH_ADD", 0x15),
    ];
    for len in (1..=3.min(words.len())).rev() {
        if words[1..len].iter().any(|word| word.gap != "_") {
            continue;
        }
        let name = words[..len].iter().map(|word| word.text).collect::<Vec<_>>().join("_");
        if name == "RECV" {
            draft.requester = Some(false);
            return;
        }
        let other = OTHERS.iter().find(|known| known.0 == name).map(|known| known.1);
        if let Some(opcode) = other.or_else(|| WqeOpcode::named(&name).map(WqeOpcode::get)) {
            draft.values.insert(Key::Opcode, Number { value: opcode.into(), bare: false });
            draft.requester = Some(true);
            return;
        }
    }
}

/// Adds what the words around the numbers say.
fn about_line(line: &Line, words: &[Word], drafts: &mut [Draft]) {
    let text = line.text.get(..line.text.len().min(2000)).unwrap_or_default();
    let completion = speaks_of_completion(words);
    let printer = printer(text);
    let place = text.split_whitespace().map(|word| word.trim_end_matches(']')).find(|word| is_place(word));
    // UCX prints the number of the line as a word of its own.
    let requester = match text {
        _ if text.contains("esponder error cqe") || text.contains("opcode=RESP_ERR") => Some(false),
        _ if text.contains("equestor error cqe") || text.contains("equester error cqe") => Some(true),
        _ if text.contains("end completion with error") || text.contains("opcode=REQ_ERR") => Some(true),
        _ => None,
    };
    for draft in drafts.iter_mut() {
        draft.completion |= completion;
        draft.printer = draft.printer.or(printer);
        draft.place = place.map(str::to_owned);
        draft.requester = draft.requester.or(requester);
        draft.older = text.contains("CQE ERR: cqe");
        if draft.older {
            let syndrome = draft.values.remove(&Key::Status);
            draft.values.extend(syndrome.map(|syndrome| (Key::Syndrome, syndrome)));
        }
        // perftest and older UCX print the status, and call the vendor syndrome syndrome.
        let of_status = draft.get(Key::Status).and_then(Syndrome::from_status).map(|known| u32::from(known.get()));
        if of_status.is_some() && !draft.values.contains_key(&Key::Vendor) && draft.get(Key::Syndrome) != of_status {
            let vendor = draft.values.remove(&Key::Syndrome);
            draft.values.extend(vendor.map(|vendor| (Key::Vendor, vendor)));
        }
    }
    let goes_on =
        line.text.trim_end().ends_with([',', ':', '=', '(']) || text.matches('(').count() > text.matches(')').count();
    if let Some(last) = drafts.last_mut() {
        last.goes_on = goes_on;
    }
}

fn speaks_of_completion(words: &[Word]) -> bool {
    const COMPLETION: [&str; 8] = ["completion", "completions", "cqe", "wqe", "wc", "polling", "slice", "srpt"];
    // The words stand near the beginning of a line.
    let head = &words[..words.len().min(400)];
    head.iter().any(|word| COMPLETION.iter().any(|known| word.is(known)))
        || (0..head.len()).any(|at| begins(&head[at..], "poll cq"))
}

/// Returns `true` for `file.c:123`.
fn is_place(word: &str) -> bool {
    let Some((file, number)) = word.rsplit_once(':') else { return false };
    !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && [".c", ".cc", ".cpp", ".cu", ".h", ".rs"].iter().any(|end| file.ends_with(end))
}
