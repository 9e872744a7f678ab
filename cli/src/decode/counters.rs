//! Counters of ports and of programs: what is not 0 is explained, 0 is nothing.
//!
//! sysfs, `rdma statistic`, `ethtool -S`, `perfquery`, node_exporter, Telegraf and JSON print a name and its value. A
//! name that was read as a counter is read as nothing else, although statuses have the same words.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::cause::{self, Explanation, Source, explain};
use super::keys::{Key, key_at};
use super::known::Blame;
use super::lines::Line;
use super::words::{status_at, words};
use super::{Finding, Kind};
use crate::doctor::counters::{FLUSHED, MEANINGS};

use mlx5_wire::syndrome::Syndrome;

/// Words of a counter, at most.
const MOST_WORDS: usize = 16;
/// Values of one counter that are printed.
const MOST_VALUES: usize = 16;
/// Names that other programs give to a counter, without prefixes and suffixes.
const ALIASES: [(&str, &str); 29] = [
    ("rx out of buffer", "out_of_buffer"),
    ("rx discards phy", "rx_discards_phy"),
    ("tx discards phy", "port_xmit_discards"),
    ("rx crc errors phy", "port_rcv_errors"),
    ("rx symbol err phy", "symbol_error"),
    ("rx pcs symbol err phy", "symbol_error"),
    ("link down events phy", "link_downed"),
    ("link down events", "link_downed"),
    ("req transport retries exceeded", "req_transport_retries_exceeded"),
    ("req rnr retries exceeded", "rnr_nak_retry_err"),
    ("symbol error", "symbol_error"),
    ("symbol err", "symbol_error"),
    ("link downed", "link_downed"),
    ("link recovers", "link_error_recovery"),
    ("link error recovery", "link_error_recovery"),
    ("port errors received", "port_rcv_errors"),
    ("port receive errors", "port_rcv_errors"),
    ("rcv errors", "port_rcv_errors"),
    ("port rcv errors", "port_rcv_errors"),
    ("port discards transmitted", "port_xmit_discards"),
    ("xmit discards", "port_xmit_discards"),
    ("port transmit discards", "port_xmit_discards"),
    ("port constraint errors received", "port_rcv_constraint_errors"),
    ("rcv constraint errors", "port_rcv_constraint_errors"),
    ("rcv remote physical errors", "port_rcv_remote_physical_errors"),
    ("port receive remote physical errors", "port_rcv_remote_physical_errors"),
    ("local link integrity errors", "local_link_integrity_errors"),
    ("excessive buffer overrun errors", "excessive_buffer_overrun_errors"),
    ("vl15dropped", "VL15_dropped"),
];

/// A counter of one port that was read.
struct Reading {
    line: usize,
    name: &'static str,
    place: String,
    value: u64,
}

/// Reads the counters of a text, and takes them out of its lines.
pub fn take(lines: &mut [Line]) -> Vec<Finding> {
    let mut readings = Vec::new();
    let mut found = Vec::new();
    for at in 0..lines.len() {
        if lines[at].text.is_empty() || lines[at].text.len() > 1 << 16 {
            continue;
        }
        let below = lines[at + 1..].first().and_then(|line| line.text.trim().parse().ok());
        let line = &mut lines[at];
        let spans = known(line, below, &mut readings);
        if !spans.is_empty() {
            blank(&mut line.text, &spans);
        }
        if let Some(sample) = sample(&line.text) {
            found.extend(of_program(line.number, &sample));
            line.text.clear();
        }
    }
    without_flushed(&mut readings);
    let mut by_name: BTreeMap<&str, Vec<Reading>> = BTreeMap::new();
    for reading in readings.into_iter().filter(|reading| reading.value > 0) {
        by_name.entry(reading.name).or_default().push(reading);
    }
    found.extend(by_name.into_values().filter_map(|readings| of_port(&readings)));
    found
}

/// Finds the counters of ports in a line; returns where they stand.
fn known(line: &Line, below: Option<u64>, readings: &mut Vec<Reading>) -> Vec<(usize, usize)> {
    let (text, mut spans, mut at) = (line.text.as_str(), Vec::new(), 0);
    let of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    while let Some(start) = text[at..].bytes().position(of_name).map(|next| at + next) {
        let end = text[start..].bytes().position(|byte| !of_name(byte)).map_or(text.len(), |len| start + len);
        at = end;
        let Some(name) = name_of(&text[start..end]) else { continue };
        let alone =
            text[end..].trim_matches([' ', '<', '=', ':']).is_empty() && !text[..start].trim_end().contains(' ');
        let (value, end) = match value(text, end) {
            Some((value, end)) => (value, end),
            None => match below.filter(|_| alone || text.starts_with("==>")) {
                Some(value) => (value, end),
                None => continue,
            },
        };
        readings.push(Reading { line: line.number, name, place: place(text, start, end), value });
        spans.push((start, end));
        at = end;
    }
    spans
}

/// Returns the counter of a port with this name: its words may stand behind a prefix, and before a suffix.
fn name_of(text: &str) -> Option<&'static str> {
    static NAMES: OnceLock<BTreeMap<String, &'static str>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let own = MEANINGS.iter().map(|row| (row.0.to_ascii_lowercase(), row.0));
        let flushed = FLUSHED.iter().map(|pair| (pair.1.to_owned(), pair.1));
        own.chain(flushed).chain(ALIASES.iter().map(|row| (row.0.replace(' ', "_"), row.1))).collect()
    });
    if text.len() < 8 || text.len() > 128 {
        return None;
    }
    let mut words: Vec<String> = words(text).iter().map(|word| word.text.to_ascii_lowercase()).collect();
    if words.len() > MOST_WORDS {
        return None;
    }
    loop {
        let found = (0..words.len()).find_map(|from| names.get(&words[from..].join("_")));
        let suffix = || words.last().is_some_and(|last| ["total", "counter", "count"].contains(&last.as_str()));
        match found {
            Some(name) => return Some(name),
            None if suffix() => drop(words.pop()),
            None => return None,
        }
    }
}

/// Reads the value behind a name: `:0`, `: 0`, ` 0`, `":0`, `.....0`, `{device="mlx5_0"} 0`, `":{"value":0`. Returns
/// its end, too.
fn value(text: &str, mut at: usize) -> Option<(u64, usize)> {
    let labels =
        |rest: &str| rest.starts_with('{').then(|| rest.find('}').filter(|&end| rest[..end].contains('='))).flatten();
    if let Some(end) = labels(&text[at..]) {
        at += end + 1;
    }
    let rest = &text[at..];
    let nested = rest.find("\"value\"").filter(|&found| found < 24).map_or(0, |found| found + 7);
    let gap = rest[nested..].find(|c: char| !" \t\"':=.|{".contains(c)).filter(|gap| nested + gap > 0 && *gap < 60)?;
    let digits = &rest[nested + gap..];
    let len = digits.find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '+').unwrap_or(digits.len());
    let number = digits[..len].trim_end_matches(['i', 'u', '.']);
    let value =
        number.parse::<f64>().ok().filter(|value| *value >= 0.0 && number.starts_with(|c: char| c.is_ascii_digit()))?;
    Some((value as u64, at + nested + gap + len))
}

/// Returns what names the port of a counter: its labels, or what stands before it.
fn place(text: &str, start: usize, end: usize) -> String {
    let labels =
        text[start..end].find('{').map(|at| text[start + at..end].split_inclusive('}').next().unwrap_or_default());
    let before = text[..start].rsplit(char::is_whitespace).next().unwrap_or_default();
    let link = text.trim_start().strip_prefix("link ").and_then(|rest| rest.split_whitespace().next());
    let place = labels.or(link).unwrap_or(before).trim_matches(['/', '"', ':', ',', '[', '(', '\'', '{', '}']);
    place.chars().take(100).collect()
}

fn blank(text: &mut String, spans: &[(usize, usize)]) {
    let mut left = String::with_capacity(text.len());
    let mut at = 0;
    for (start, end) in spans {
        left.push_str(&text[at..*start]);
        left.push('|');
        at = *end;
    }
    left.push_str(&text[at..]);
    *text = left;
}

/// Flushed requests are counted as completions with an error, too.
fn without_flushed(readings: &mut Vec<Reading>) {
    for (all, flushed) in FLUSHED {
        let flushes: Vec<u64> = readings.iter().filter(|one| one.name == flushed).map(|one| one.value).collect();
        for (one, flushes) in readings.iter_mut().filter(|one| one.name == all).zip(flushes) {
            one.value = one.value.saturating_sub(flushes);
        }
    }
    readings.retain(|one| FLUSHED.iter().all(|pair| pair.1 != one.name));
}

fn of_port(readings: &[Reading]) -> Option<Finding> {
    let first = readings.first()?;
    let meaning = MEANINGS.iter().find(|row| row.0 == first.name)?.1;
    let mut finding = Finding { line: first.line, kind: Kind::Counter, times: 1, ..Finding::default() };
    for reading in readings.iter().take(MOST_VALUES) {
        let field = finding.field(None, first.name, reading.value.to_string());
        if !reading.place.is_empty() {
            field.means(reading.place.clone());
        }
    }
    let left = readings.len().saturating_sub(MOST_VALUES);
    if left > 0 {
        finding.notes.push(format!("and {left} more values that are not 0"));
    }
    finding.explanation = Some(Explanation {
        failed: meaning.to_owned(),
        blame: blame(first.name),
        checks: vec![
            "does it rise while the trouble lasts: read it twice; it counts since the driver was loaded, so an old value may have nothing to do with it".into(),
        ],
        sure: "the value is certain; it is no completion with an error".into(),
        sources: vec![Source { claim: "counter", place: "NVIDIA, counters of mlx5 in sysfs and ethtool; Linux drivers/infiniband/hw/mlx5/counters.c".into() }],
    });
    Some(finding)
}

fn blame(name: &str) -> Blame {
    match name {
        "out_of_buffer" | "rx_discards_phy" => Blame::ThisProgram,
        "rnr_nak_retry_err" | "req_cqe_error" | "resp_cqe_error" => Blame::BothEnds,
        _ if name.starts_with("req_remote") || name.starts_with("resp_") => Blame::BothEnds,
        _ => Blame::Path,
    }
}

/// A line that is a name and a number.
struct Sample<'a> {
    name: &'a str,
    value: f64,
}

/// Reads a line that is a name, perhaps with labels, and a number.
fn sample(text: &str) -> Option<Sample<'_>> {
    let text = text.trim().trim_end_matches([',', '}']).trim_start_matches(['{', '"', '\'']);
    let (name, value) = text.rsplit_once(|c: char| c.is_whitespace() || ":=\"".contains(c))?;
    let value = value.trim_end_matches(['i', 'u']).parse::<f64>().ok()?;
    let name = name.trim_end_matches([' ', '\t', ':', '=', '"', '\'', '.']);
    let ident = if name.ends_with('}') { name.split('{').next()? } else { name };
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./-:[]".contains(c);
    if ident.len() > 200 || !ident.contains('_') || !ident.chars().all(plain) {
        return None;
    }
    let last = ident.rsplit(['/', '.']).next()?;
    let all = words(last);
    let is_key = (0..all.len())
        .any(|at| key_at(&all[at..]).is_some_and(|(len, key)| key != Key::Other && at + len == all.len()));
    let counts = all.last().is_some_and(|last| ["total", "count", "errors", "errs"].iter().any(|word| last.is(word)));
    let calls = ["ibv", "mlx5dv", "rdma"].iter().any(|prefix| all.first().is_some_and(|first| first.is(prefix)));
    // An enumeration: the name is in capitals.
    let constant = last.bytes().all(|byte| !byte.is_ascii_lowercase());
    (constant || counts || !is_key && !calls).then_some(Sample { name, value })
}

/// Returns what a counter of a program says that counts completions of one status.
fn of_program(line: usize, sample: &Sample) -> Option<Finding> {
    let all = words(sample.name);
    let (_, status) = (0..all.len()).find_map(|at| status_at(&all[at..])).filter(|_| sample.value >= 1.0)?;
    if sample.name.bytes().all(|byte| !byte.is_ascii_lowercase()) {
        return None;
    }
    let mut finding = Finding { line, kind: Kind::Counter, times: 1, ..Finding::default() };
    finding.field(None, "counter", format!("{}", sample.value)).means(sample.name);
    let syndrome = Syndrome::from_status(status.number);
    let mut explanation = match syndrome {
        Some(syndrome) => {
            explain(cause::Error { syndrome, vendor: None, requester: None, opcode: None, printed: false })
        }
        None => cause::of_status(status.number),
    };
    "a counter of a program; it does not say when that was".clone_into(&mut explanation.sure);
    finding.explanation = Some(explanation);
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::lines::lines;

    fn read(text: &str) -> Vec<(String, String)> {
        let found = take(&mut lines(text.as_bytes()));
        let fields = found.iter().flat_map(|finding| &finding.fields);
        fields.map(|field| (field.name.to_owned(), field.value.clone())).collect()
    }

    #[test]
    fn every_form_of_a_counter() {
        for text in [
            "/sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer:483",
            "link mlx5_0/1 rx_write_requests 9 out_of_buffer 483 resp_local_length_error 0",
            "     rx_out_of_buffer: 483",
            "{\"port\":1,\"out_of_buffer\":483,\"resp_local_length_error\":0}",
            "  \"out_of_buffer\": {\"value\": 483},",
            "node_infiniband_out_of_buffer_total{device=\"mlx5_0\",port=\"1\"} 483",
            "node_infiniband_out_of_buffer_total{device=\"mlx5_0\",port=\"1\"} 4.83e+02",
            "infiniband,device=mlx5_0 out_of_buffer=483i,resp_local_length_error=0i 1700000000",
            "==> /sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer <==\n483",
            "out_of_buffer\n483\nresp_local_length_error\n0",
        ] {
            assert_eq!(read(text), [("out_of_buffer".to_owned(), "483".to_owned())], "{text}");
            assert!(read(&text.replace("483", "0").replace("4.83e+02", "0")).is_empty(), "{text}");
        }
        assert_eq!(read("SymbolErrorCounter:..............1"), [("symbol_error".to_owned(), "1".to_owned())]);
        assert!(read(&format!("{}_out_of_buffer 483", "a".repeat(128))).is_empty(), "no counter has so long a name");
        assert_eq!(read("[LinkDownedCounter == 2]"), [("link_downed".to_owned(), "2".to_owned())]);
        assert_eq!(read("app_wc_rem_access_err_total{peer=\"a\"} 3"), [("counter".to_owned(), "3".to_owned())]);
        assert!(read("app_wc_rem_access_err_total 0\nIBV_WC_REM_ACCESS_ERR = 10,").is_empty());
        assert!(read("req_cqe_error 7\nreq_cqe_flush_error 7").is_empty());
        assert!(read("vendor_err: 129\nwc.status=12\nqp_num: 4660").is_empty());
    }
}
