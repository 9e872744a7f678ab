//! Errors that programs report in words: `key separator value`, and names of statuses.
//!
//! There is one grammar for all programs. The numbers of a report may stand in several lines, if a line says that it
//! goes on, or if both come from one place of one program; otherwise a number stays without an error, and an error
//! without it.

use std::collections::HashMap;
use std::sync::OnceLock;

use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::syndrome::Syndrome;

use super::KnownFields;
use super::lines::Line;
use super::words::{self, Names, Word, begins, status_at};

/// A report of an error.
#[derive(Debug, Default, Clone)]
pub struct Logged {
    /// Line, from 1.
    pub line: usize,
    /// The processor or thread that printed it.
    pub caller: String,
    /// Which program reports it.
    pub printer: Option<&'static str>,
    /// Side, where it says so.
    pub requester: Option<bool>,
    /// Status of verbs, where the report has that.
    pub status: Option<u32>,
    /// The syndrome was printed, and does not only follow from the status.
    pub printed: bool,
    /// `hw_err_synd` and `hw_synd_type`; UCX prints the upper half of the latter.
    pub hardware: Option<(u32, Option<u32>)>,
    /// Numbers.
    pub facts: KnownFields,
    /// Both readings of queue, index and opcode, where the report does not say in which byte order they are.
    pub either: Option<[(Option<u32>, u16); 2]>,
    /// Notes about this report.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Syndrome,
    Vendor,
    Status,
    Qp,
    /// Opcode and queue in one word, as a CQE has them.
    Packed,
    Counter,
    HwError,
    HwType,
    /// The upper half of the type, a slash, and the error.
    Hardware,
    /// Opcode of the WQE.
    Opcode,
    /// An opcode of which the number alone does not say whether it is one of a WQE, a CQE or verbs.
    AnyOpcode,
    Ci,
    /// The first line of a report whose numbers follow.
    Head,
    /// Not read; its words belong to no other key.
    Other,
}

const KEYS: &[(Key, &[&str])] = &[
    (Key::Syndrome, &["syndrome", "syndrom", "synd", "cqe err", "err synd"]),
    (
        Key::Vendor,
        &[
            "vendor err synd",
            "vendor error syndrome",
            "vendor err syndrome",
            "vendor syndrome",
            "vendor synd",
            "vendor error",
            "vendor err",
            "vendor code",
            "vendor",
            "vend err synd",
            "vend err",
            "vend synd",
            "vend",
        ],
    ),
    (
        Key::Status,
        &["status", "status number", "status code", "wc status", "wc error", "completion with error", "cqe with error"],
    ),
    (Key::Qp, &["qp", "qp num", "qp number", "qpn", "sqn", "qn", "local qpn", "qp id"]),
    (Key::Packed, &["wqe qpn", "s wqe opcode qpn"]),
    (Key::Counter, &["wqe counter", "wqe cnt", "wqe index", "wqe idx", "wqe", "indx"]),
    (Key::HwError, &["hw err synd", "hw error syndrome", "hw err", "hw"]),
    (Key::HwType, &["hw synd type", "hw type"]),
    (Key::Hardware, &["hw synd"]),
    (Key::Opcode, &["op", "wqe opcode", "opcode of the wqe"]),
    (Key::AnyOpcode, &["opcode"]),
    (Key::Ci, &["ci"]),
    (Key::Head, &["error cqe on cqn"]),
    (
        Key::Other,
        &[
            "qp state",
            "qp idx",
            "qp type",
            "vendor id",
            "vendor part id",
            "op mod",
            "op own",
            "cq ci",
            "wq ci",
            "exit status",
        ],
    ),
];

fn key_names() -> &'static Names<(Key, &'static [&'static str])> {
    static NAMES: OnceLock<Names<(Key, &'static [&'static str])>> = OnceLock::new();
    NAMES.get_or_init(|| Names::new(KEYS, |row| row.1))
}

/// Words by which a program is known; the first that a line contains decides.
const PRINTERS: &[(&str, &str)] = &[
    ("NET/IB", "NCCL"),
    ("NCCL", "NCCL"),
    ("mlx5_cqe_err", "SPDK"),
    ("ib_mlx5_log", "UCX"),
    (" hw_synd ", "UCX"),
    ("(synd 0x", "UCX"),
    ("end completion with error", "UCX"),
    ("btl_openib", "Open MPI"),
    ("nvmf_rdma", "SPDK"),
    ("nvme_rdma", "SPDK"),
    ("rror on CQ 0x", "SPDK"),
    ("s_wqe_opcode_qpn", "NVSHMEM"),
    ("nvshmem", "NVSHMEM"),
    ("ibgda", "NVSHMEM"),
    ("worker_pool.cpp", "Mooncake"),
    ("rdma_endpoint.cpp", "Mooncake"),
    ("Process failed for slice", "Mooncake"),
    ("wqe_qpn", "DOCA"),
    ("vendor_err_synd=", "DOCA"),
    ("mlx5_crypto", "DPDK"),
    ("nexpected CQE error syndrome", "DPDK"),
    ("Failed status", "perftest"),
    ("CQE ERR: cqe", "the Solaris driver"),
    ("rror cqe on cqn", "the kernel"),
    ("mlx5_handle_error_cqe", "mlx5_ib"),
    ("WC error: ", "mlx5_ib"),
    (" error: local ", "mlx5_ib"),
];

/// Contents of a line, or of a part of one.
#[derive(Debug, Default, Clone)]
struct Draft {
    line: usize,
    last: usize,
    caller: String,
    /// `file.c:123` of the program.
    place: Option<String>,
    /// The text goes on in the next line.
    goes_on: bool,
    /// It speaks of a completion.
    completion: bool,
    /// It names a status in words.
    named: bool,
    status: Option<u32>,
    syndrome: Option<u32>,
    vendor: Option<(u32, bool)>,
    qp: Option<u32>,
    packed: Option<u32>,
    counter: Option<u32>,
    hw: (Option<u32>, Option<u32>),
    opcode: Option<u8>,
    verbs_opcode: bool,
    requester: Option<bool>,
    ci: Option<u32>,
    printer: Option<&'static str>,
    older: bool,
    head: bool,
    first_key: bool,
}

impl Draft {
    fn has_error(&self) -> bool {
        self.named || self.status.is_some() || self.syndrome.is_some()
    }

    /// Returns `true` if it says that something failed: a number alone may be of anything.
    fn is_report(&self) -> bool {
        let of_completion = self.vendor.is_some() || self.completion;
        let status = self.status.is_some_and(|status| status != 0);
        let syndrome = self.syndrome.is_some_and(|syndrome| syndrome != 0);
        self.named && status
            || (status || syndrome) && of_completion
            || syndrome && (self.hw.0.is_some() || self.packed.is_some())
    }

    fn is_empty(&self) -> bool {
        !self.has_error()
            && self.vendor.is_none()
            && self.qp.is_none()
            && self.packed.is_none()
            && self.counter.is_none()
            && !self.head
            && self.ci.is_none()
    }

    /// Returns `true` if both say the same thing differently.
    fn contradicts(&self, more: &Self) -> bool {
        fn differ<T>(a: &Option<T>, b: &Option<T>) -> bool {
            a.is_some() && b.is_some()
        }
        differ(&self.status, &more.status)
            || differ(&self.syndrome, &more.syndrome)
            || differ(&self.vendor, &more.vendor)
            || differ(&self.qp, &more.qp)
            || differ(&self.packed, &more.packed)
            || differ(&self.counter, &more.counter)
    }

    /// Returns `true` if `more` is the rest of this report.
    fn continues(&self, more: &Self) -> bool {
        if self.contradicts(more) {
            return false;
        }
        let adjacent = more.line - self.last <= 2;
        let same_caller = self.caller == more.caller && !self.caller.is_empty();
        let wrapped = more.caller.is_empty() || self.caller == more.caller;
        let same_place = self.place.is_some() && self.place == more.place;
        (adjacent || same_caller) && same_place && self.caller == more.caller
            || adjacent && wrapped && (self.goes_on || more.first_key && more.place.is_none())
            || same_caller && self.completion && !self.has_error() && more.has_error()
    }

    fn join(&mut self, more: Self) {
        self.last = more.last;
        self.goes_on = more.goes_on;
        self.completion |= more.completion;
        self.head |= more.head;
        self.named |= more.named;
        self.status = self.status.or(more.status);
        self.syndrome = self.syndrome.or(more.syndrome);
        self.vendor = self.vendor.or(more.vendor);
        self.qp = self.qp.or(more.qp);
        self.packed = self.packed.or(more.packed);
        self.counter = self.counter.or(more.counter);
        self.hw = (self.hw.0.or(more.hw.0), self.hw.1.or(more.hw.1));
        self.opcode = self.opcode.or(more.opcode);
        self.verbs_opcode |= more.verbs_opcode;
        self.requester = self.requester.or(more.requester);
        self.ci = self.ci.or(more.ci);
        // The program that is named with the queue knows more about the report.
        self.printer = more.printer.or(self.printer);
    }
}

/// Returns all reports of a text.
pub fn reports(lines: &[Line]) -> Vec<Logged> {
    let mut found = Vec::new();
    let mut open: HashMap<&str, Draft> = HashMap::new();
    let mut last_caller = "";
    for line in lines.iter().filter(|line| !line.text.is_empty()) {
        for draft in scan(line) {
            // A line without a prefix goes on with the line before it.
            let caller =
                if draft.caller.is_empty() && !open.contains_key("") { last_caller } else { line.caller.as_str() };
            match open.get_mut(caller) {
                Some(before) if before.continues(&draft) => before.join(draft),
                _ => {
                    let closed = open.insert(&line.caller, draft);
                    found.extend(closed.filter(Draft::is_report).map(finish));
                }
            }
        }
        last_caller = &line.caller;
    }
    found.extend(open.into_values().filter(Draft::is_report).map(finish));
    found.sort_by_key(|logged| logged.line);
    found
}

/// Reads a line. A second status or syndrome in it begins another report.
fn scan(line: &Line) -> Vec<Draft> {
    // libmlx4 prints numbers without a prefix in hexadecimal.
    if line.text.contains("WQE @") {
        return Vec::new();
    }
    let words = words::words(&line.text);
    let fresh = || Draft { line: line.number, last: line.number, caller: line.caller.clone(), ..Draft::default() };
    let (mut done, mut draft, mut at) = (Vec::new(), fresh(), 0);
    while at < words.len() {
        let mut piece = fresh();
        let used = read(&words, at, &mut piece);
        if used == 0 {
            at += 1;
            continue;
        }
        // A line about another queue may begin with its number.
        let value = words.get(at + used - 1);
        let assigned = value.is_some_and(|value| value.gap.contains(['=', ':']));
        piece.first_key = at == 0 && words[0].gap.is_empty() && (piece.qp.is_none() || assigned);
        // The number and the name of one status.
        let same = piece.status.is_some() && piece.status == draft.status;
        if same {
            draft.named |= piece.named;
            piece.status = None;
        }
        if draft.contradicts(&piece) {
            if draft.has_error() && piece.has_error() || draft.qp != piece.qp && piece.qp.is_some() {
                done.push(std::mem::replace(&mut draft, fresh()));
            } else {
                // The first number of a kind counts.
                at += used;
                continue;
            }
        }
        draft.first_key |= piece.first_key;
        draft.join(piece);
        at += used;
    }
    done.push(draft);
    if done.iter().all(Draft::is_empty) {
        return Vec::new();
    }
    about_line(line, &words, &mut done);
    done
}

/// Reads what stands at a word; returns the number of words that were read.
fn read(words: &[Word], at: usize, draft: &mut Draft) -> usize {
    let here = &words[at..];
    if let Some((len, status)) = status_at(here) {
        (draft.status, draft.named) = (Some(status.number), true);
        return len + after_status(&here[len..], status.number, draft);
    }
    let Some((len, (key, _))) = key_names().longest(here) else { return 0 };
    let Some(value) = here.get(len).filter(|value| separates(value.gap)) else { return len };
    let before = at.checked_sub(1).map_or("", |before| words[before].text);
    let theirs = ["peer", "remote", "dest", "src", "r"].iter().any(|word| before.eq_ignore_ascii_case(word));
    let number = value.number();
    let small = number.and_then(|(number, _)| u32::try_from(number).ok());
    match key {
        Key::Other => {}
        Key::Syndrome if here[0].is("cqe") => {
            // Some versions of DPDK print the word of the CQE that ends with the syndrome.
            let Some([error, kind, vendor, syndrome]) =
                value.hex().and_then(|n| u32::try_from(n).ok()).map(u32::to_be_bytes)
            else {
                return len;
            };
            draft.syndrome = Some(syndrome.into());
            draft.completion = true;
            if vendor != 0 {
                draft.vendor = Some((vendor.into(), false));
                draft.hw = (Some(error.into()), Some(kind.into()));
            }
        }
        Key::Syndrome => match small.filter(|&number| number <= 0xff) {
            Some(number) => draft.syndrome = Some(number),
            None => return len,
        },
        Key::Vendor => {
            let written = |text: &str| text.len() <= 2 && text.bytes().any(|byte| byte.is_ascii_alphabetic());
            let bare = || value.hex().filter(|_| written(value.text)).map(|number| (number, false));
            let Some((number, decimal)) = number.or_else(bare) else { return len };
            draft.vendor = u8::try_from(number).ok().map(|number| (number.into(), decimal));
        }
        Key::Status => match small.filter(|&number| number < 64) {
            Some(number) => draft.status = Some(number),
            None => return len,
        },
        Key::Qp if !theirs => {
            let Some(number) = small.filter(|&number| number <= 0xff_ffff) else { return len };
            draft.qp = Some(number);
            if before.eq_ignore_ascii_case("srq") {
                draft.requester = Some(false);
            }
        }
        Key::Qp => {}
        Key::Packed => draft.packed = value.hex().and_then(|number| u32::try_from(number).ok()),
        Key::Counter => {
            let Some(number) = small.filter(|&number| number <= 0xffff) else { return len };
            draft.counter = Some(number);
            let rest = &here[len + 1..];
            if rest.first().is_some_and(|word| word.gap.trim_end() == "]:") {
                if begins(rest, "next wqe") {
                    draft.requester = Some(false);
                } else {
                    opcode(rest, draft);
                }
            }
        }
        Key::HwError => draft.hw.0 = small,
        Key::HwType => draft.hw.1 = small,
        Key::Hardware => {
            let error = here.get(len + 1).filter(|word| word.gap == "/").and_then(Word::number);
            draft.hw = (error.map(|error| error.0 as u32), small.map(|kind| kind << 4));
            return len + 2;
        }
        Key::Opcode => draft.opcode = small.and_then(|number| u8::try_from(number).ok()),
        Key::AnyOpcode => match small {
            Some(0xd) => draft.requester = Some(true),
            Some(0xe) => draft.requester = Some(false),
            Some(_) => draft.verbs_opcode = true,
            None if value.is("ibv") => draft.verbs_opcode = true,
            None => opcode(&here[len..], draft),
        },
        Key::Ci => draft.ci = small,
        Key::Head => draft.head = true,
    }
    len + 1
}

/// Returns `true` if these characters may stand between a key and its value.
fn separates(gap: &str) -> bool {
    gap.len() <= 8 && gap.chars().all(|c| " \t:=([#\"'".contains(c))
}

/// Reads the numbers behind the name of a status: the status again, or what mlx5_ib prints of an event.
fn after_status(words: &[Word], status: u32, draft: &mut Draft) -> usize {
    let Some(first) = words.first().filter(|word| word.gap.trim_start().starts_with('(')) else {
        return 0;
    };
    let numbers: Vec<_> = words.iter().take(3).map_while(Word::number).collect();
    match numbers[..] {
        [(vendor, false), (error, false), (kind, false)] if words[1..3].iter().all(|word| word.gap == " ") => {
            draft.vendor = Some((vendor as u32, false));
            draft.hw = (Some(error as u32), Some(kind as u32));
            3
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
            (draft.opcode, draft.requester) = (Some(opcode), Some(true));
            return;
        }
    }
}

/// Adds what the words around the numbers say.
fn about_line(line: &Line, words: &[Word], drafts: &mut [Draft]) {
    const COMPLETION: [&str; 7] = ["completion", "completions", "cqe", "wqe", "wc", "polling", "slice"];
    // The words stand near the beginning of a line.
    let head = &words[..words.len().min(400)];
    let text = line.text.get(..line.text.len().min(2000)).unwrap_or_default();
    let completion = head.iter().any(|word| COMPLETION.iter().any(|known| word.is(known)));
    let printer = printer(text);
    let place = text.split_whitespace().map(|word| word.trim_end_matches(']')).find(|word| is_place(word));
    // UCX prints the number of the line as a word of its own.
    let requester = match text {
        _ if text.contains("esponder error cqe") => Some(false),
        _ if text.contains("equestor error cqe") || text.contains("equester error cqe") => Some(true),
        _ if text.contains("end completion with error") => Some(true),
        _ => None,
    };
    let goes_on =
        line.text.trim_end().ends_with([',', ':', '=', '(']) || text.matches('(').count() > text.matches(')').count();
    for draft in drafts.iter_mut() {
        draft.completion |= completion;
        draft.printer = printer;
        draft.place = place.map(str::to_owned);
        draft.requester = draft.requester.or(requester);
        draft.older = text.contains("CQE ERR: cqe");
        // perftest and older UCX print the status, and call the vendor syndrome syndrome.
        let of_status = draft.status.and_then(Syndrome::from_status);
        let of_status = of_status.map(|known| u32::from(known.get()));
        if of_status.is_some() && draft.vendor.is_none() && draft.syndrome != of_status {
            draft.vendor = draft.syndrome.take().map(|vendor| (vendor, false));
        }
        if draft.older {
            draft.syndrome = draft.status.take();
        }
    }
    if let Some(last) = drafts.last_mut() {
        last.goes_on = goes_on;
    }
}

/// Returns the program that prints such a line.
pub fn printer(text: &str) -> Option<&'static str> {
    PRINTERS.iter().find(|known| text.contains(known.0)).map(|known| known.1)
}

/// Returns `true` for `file.c:123`.
fn is_place(word: &str) -> bool {
    let Some((file, number)) = word.rsplit_once(':') else { return false };
    !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && [".c", ".cc", ".cpp", ".cu", ".h", ".rs"].iter().any(|end| file.ends_with(end))
}

fn finish(draft: Draft) -> Logged {
    let mut logged = Logged {
        line: draft.line,
        printer: draft.printer,
        requester: draft.requester,
        // The words of UCX stand for the syndrome beside them.
        status: draft.status.filter(|&status| status != 0 && !(draft.named && draft.syndrome.is_some())),
        printed: draft.syndrome.is_some(),
        ..Logged::default()
    };
    let byte = |number: Option<u32>| number.and_then(|number| u8::try_from(number).ok());
    let from_status = logged.status.and_then(Syndrome::from_status).map(Syndrome::get);
    logged.facts.syndrome = byte(draft.syndrome).or(from_status);
    logged.facts.vendor = byte(draft.vendor.map(|vendor| vendor.0));
    (logged.facts.qpn, logged.facts.ci) = (draft.qp, draft.ci);
    logged.facts.opcode = draft.opcode;
    logged.facts.wqe_counter = draft.counter.and_then(|counter| u16::try_from(counter).ok());
    // SPDK prints the first of the two only.
    logged.hardware = draft.hw.0.map(|error| (error, draft.hw.1));
    if let Some((number @ 10..=255, true)) = draft.vendor {
        logged
            .notes
            .push(format!("vendor syndrome {number} is printed in decimal: it is {number:#04x}, not 0x{number}"));
    }
    if draft.verbs_opcode {
        logged.notes.push("the opcode in a completion with an error has no meaning in verbs: not read".into());
    }
    if draft.older {
        logged.notes.push("an adapter before mlx5, whose syndromes have the same numbers as far as is known".into());
    }
    if draft.status.is_none() && draft.syndrome.is_some() && draft.vendor.is_none() && draft.qp.is_some() {
        logged.notes.push("the vendor syndrome is in the bytes of the CQE, which DPDK writes to /var/log or to the folder of --log-path: decode that, it says more".into());
    }
    if logged.facts.vendor.is_none() && draft.syndrome.is_none() && draft.named {
        logged.notes.push("known by the name of its status only".into());
    }
    match draft.packed {
        Some(word) => order(&mut logged, word),
        // libgdsync prints the counter without swapping it, others swap it.
        None if draft.printer == Some("DOCA") && draft.qp.is_none() => {
            let counter = logged.facts.wqe_counter.unwrap_or_default();
            if counter != counter.swap_bytes() {
                logged.either = Some([(None, counter), (None, counter.swap_bytes())]);
                logged.facts.wqe_counter = None;
            }
        }
        None => {}
    }
    if logged.either.is_some() {
        logged.notes.push(
            "the program may print numbers in the byte order of the CQE or in that of the machine, and these numbers fit both"
                .into(),
        );
    }
    logged.caller = draft.caller;
    logged
}

/// Decides whether a word of opcode and queue was swapped when it was printed: the place of the opcode tells it.
fn order(logged: &mut Logged, word: u32) {
    let counter = logged.facts.wqe_counter.unwrap_or_default();
    let forms = [(word, counter), (word.swap_bytes(), counter.swap_bytes())];
    // Operations of queue pairs on which programs of this kind send; 0 is that of a receive.
    let likely = |word: u32| {
        let opcode = WqeOpcode::new((word >> 24) as u8);
        match opcode.get() {
            _ if word & 0xff_ffff < 2 || opcode.name().is_none() => 0,
            0x08..=0x0b | 0x10..=0x15 => 2,
            _ => 1,
        }
    };
    let [printed, swapped] = forms.map(|form| likely(form.0));
    let (word, counter) = match printed.cmp(&swapped) {
        std::cmp::Ordering::Greater => forms[0],
        std::cmp::Ordering::Less => {
            logged.notes.push(format!(
                "printed without swapping the bytes: {:#010x} is {:#010x} in the order of the CQE, whose first byte is the opcode",
                forms[0].0, forms[1].0
            ));
            forms[1]
        }
        std::cmp::Ordering::Equal if forms[0].0 == forms[1].0 => forms[0],
        std::cmp::Ordering::Equal => {
            logged.either = Some(forms.map(|(word, counter)| (Some(word), counter)));
            logged.facts.wqe_counter = None;
            return;
        }
    };
    logged.facts.qpn = Some(word & 0xff_ffff);
    logged.facts.wqe_counter = logged.facts.wqe_counter.map(|_| counter);
    logged.facts.opcode = Some((word >> 24) as u8).filter(|&opcode| opcode != 0);
    logged.requester = logged.requester.or(logged.facts.opcode.map(|_| true));
}
