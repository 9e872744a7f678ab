//! Lines of pasted text, without the additions of mail programs and terminals.

use std::cmp::Reverse;
use std::collections::HashMap;

/// Bytes of a prefix that are read.
const MOST_PREFIX: usize = 160;

/// A line.
#[derive(Debug, Clone)]
pub struct Line {
    /// From 1.
    pub number: usize,
    /// Without quotation marks of mail and without colours.
    pub text: String,
    /// The processor or thread that printed it, as its prefix says; empty where that says nothing.
    pub caller: String,
}

impl Line {
    fn new(number: usize, text: &str) -> Self {
        // mpirun --tag-output: `[1,30]<stderr>:`, which other text follows without a space.
        let tag = text.find("<std").filter(|&at| at < 80 && text[..at].ends_with(']'));
        let tagged = tag.and_then(|at| Some((text[..at].rfind('[')?, at, text[at..].find(">:")? + at)));
        if let Some((start, at, end)) = tagged {
            let (caller, text) = (text[start..at].to_owned(), text[end + 2..].to_owned());
            return Self { number, text, caller };
        }
        Self { number, text: text.to_owned(), caller: caller(text).unwrap_or_default().to_owned() }
    }
}

/// Returns the processor or thread in the prefix of a line.
fn caller(line: &str) -> Option<&str> {
    let start = line.get(..line.len().min(160)).or_else(|| line.get(..80))?.trim_start();
    let mut words = start.split_whitespace();
    let first = words.next()?;
    // The kernel with CONFIG_PRINTK_CALLER: `[  408.380181][    C3]`, `[  408.380181][ T1234]`.
    if let Some((_, rest)) = start.split_once("][") {
        let caller = rest.split(']').next()?.trim();
        let digits = caller.strip_prefix(['C', 'T']).unwrap_or_default();
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(caller);
        }
    }
    // UCX: `[node3:2411:0:2411]`; Open MPI: `[[27217,0],12]`; both may have a time before it.
    for word in [Some(first), words.next()].into_iter().flatten() {
        let inner = word.split(['[', ']']).find(|inner| inner.matches(':').count() == 3);
        if let Some(inner) = inner.filter(|_| word.starts_with('[')) {
            return Some(inner);
        }
    }
    if first.starts_with("[[") {
        return first.split_inclusive(']').nth(1).map(|_| first.split("][").next().unwrap_or(first));
    }
    // NCCL: `node:2411:2520 [3]`.
    let is_time = first.bytes().all(|byte| byte.is_ascii_digit() || byte == b':');
    if first.matches(':').count() == 2 && !is_time && start[first.len()..].trim_start().starts_with('[') {
        return Some(first);
    }
    // glog: `W0419 23:51:51.067479 114309 file.cpp:373]`.
    let is_glog = first.len() == 5
        && first.starts_with(['I', 'W', 'E', 'F'])
        && first[1..].bytes().all(|byte| byte.is_ascii_digit());
    if is_glog {
        return start.split_whitespace().nth(2);
    }
    None
}

/// Words in front of rows (`rank 0:`, `node7 kernel:`), if several rows have them.
pub struct Prefixes(Vec<String>);

impl Prefixes {
    /// Returns the prefixes of these rows, of which the second says where it begins in its line.
    pub fn new<'a>(rows: impl Iterator<Item = (&'a Line, usize)>) -> Self {
        /// More are no callers, but text.
        const MOST: usize = 64;
        let mut count: HashMap<String, usize> = HashMap::new();
        for (line, at) in rows {
            *count.entry(without_times(&line.text[..at])).or_default() += 1;
        }
        let mut several: Vec<_> = count.into_iter().filter(|(_, rows)| *rows > 1).map(|(prefix, _)| prefix).collect();
        several.retain(|prefix| !prefix.is_empty());
        several.truncate(if several.len() > MOST { 0 } else { MOST });
        // The longest first.
        several.sort_by_key(|prefix| Reverse(prefix.len()));
        Self(several)
    }

    /// Returns the prefix of a line; empty without one.
    pub fn of(&self, line: &Line) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let start = line.text.get(..line.text.len().min(MOST_PREFIX)).or_else(|| line.text.get(..MOST_PREFIX / 2));
        let start = without_times(start.unwrap_or_default());
        self.0.iter().find(|prefix| start.starts_with(prefix.as_str())).cloned().unwrap_or_default()
    }
}

/// Returns the words of a prefix that are no time or date.
fn without_times(prefix: &str) -> String {
    let is_time = |word: &&str| {
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        let signs = word.bytes().filter(|byte| b".:-TZ+,[]".contains(byte)).count();
        let parts = word.contains(['.', '-']) || word.matches(':').count() > 1;
        *word == "[" || digits > 0 && digits + signs == word.len() && parts
    };
    let prefix = prefix.get(..prefix.len().min(MOST_PREFIX)).unwrap_or_default();
    prefix.split_whitespace().filter(|word| !is_time(word)).collect::<Vec<_>>().join(" ")
}

/// Returns the lines of a text in any encoding.
pub fn lines(input: &[u8]) -> Vec<Line> {
    let text = String::from_utf8_lossy(input);
    // Mail that was saved without decoding.
    let quoted_printable = text.contains("=0A=") || text.contains("=3D");
    let mut lines: Vec<Line> = Vec::new();
    let mut continues = false;
    for (number, raw) in text.split('\n').enumerate() {
        let mut line = without_colours(raw.trim_end_matches('\r'));
        let mut ends = true;
        if quoted_printable {
            if let Some(cut) = line.strip_suffix('=') {
                ends = cut.ends_with("=0A");
                line = cut.trim_end_matches("=0A").to_owned();
            }
            line = line.replace("=3D", "=").replace("=20", " ").replace("=0A", "");
        }
        let unquoted = unquote(&line);
        match lines.last_mut().filter(|_| continues) {
            Some(last) => last.text.push_str(unquoted),
            None => lines.push(Line::new(number + 1, unquoted)),
        }
        continues = !ends;
    }
    lines
}

fn unquote(line: &str) -> &str {
    line.trim_start_matches(['>', ' ', '\t']).trim_end()
}

fn without_colours(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("\x1b[") {
        out.push_str(&rest[..at]);
        rest = &rest[at + 2..];
        let end = rest.find(|c: char| c.is_ascii_alphabetic()).map_or(rest.len(), |end| end + 1);
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// Says which dumps of other adapters the text has.
pub fn foreign_formats(lines: &[Line], notes: &mut Vec<String>) {
    let mlx4 = |line: &&Line| line.text.contains("(QPN ") && line.text.contains("WQE @") && line.text.contains("CQN ");
    if let Some(line) = lines.iter().find(mlx4) {
        notes.push(format!(
            "line {}: a dump of libmlx4 (ConnectX-3 and older), whose CQEs have another layout: not decoded",
            line.number
        ));
    }
    if let Some(line) = lines.iter().find(|line| line.text.contains("mcxnex")) {
        notes.push(format!("line {}: the Solaris driver of ConnectX-2, whose CQEs have another layout", line.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(input: &str) -> Vec<String> {
        lines(input.as_bytes()).into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn quotations_and_colours_go() {
        assert_eq!(texts("> > >  00 11\r\n\x1b[31mred\x1b[0m x"), ["00 11", "red x"]);
    }

    #[test]
    fn prefixes_name_the_caller() {
        for (line, caller) in [
            ("[  408.380187][    C3] 00000000: 00 00", "C3"),
            ("May 16 01:02:03 n1 kernel: [  408.1][ T771] infiniband mlx5_0: x", "T771"),
            ("[node3:2411:0:2411] ib_mlx5_log.c:177  Transport", "node3:2411:0:2411"),
            ("[1496344648.549828] [vegas06:14872:0:14] x", "vegas06:14872:0:14"),
            ("[[27217,0],12][btl_openib_component.c:3556:handle_wc] from", "[[27217,0],12"),
            ("nodea:2411:2520 [3] NCCL WARN x", "nodea:2411:2520"),
            ("\t\u{b}nodea:2411:2520 [3] NCCL WARN x", "nodea:2411:2520"),
            ("  \u{0}a::\u{fffd}\u{fffd}: b", ""),
            ("W0419 23:51:51.067479 114309 worker_pool.cpp:373] Worker", "114309"),
            ("Sun Oct  1 17:01:10 2017[1,30]<stdout>:[1506866470.7] UCX", "[1,30]"),
            ("[1,0]<stderr>:00000000 00000000", "[1,0]"),
            ("17:30:11 [     INFO ] < DCI QP 0x29fc8", ""),
            ("[  408.380187] 00000000: 00 00", ""),
            ("00000000: 00 01", ""),
        ] {
            assert_eq!(lines(line.as_bytes())[0].caller, caller, "{line}");
        }
    }

    #[test]
    fn mail_as_it_came_over_the_wire() {
        let mail = "WC err=\nor: 4=0A=\n[  1.2] 00000000: 00 e2=0A=\nstatus=3D5";
        assert_eq!(texts(mail), ["WC error: 4", "[  1.2] 00000000: 00 e2", "status=5"]);
        assert_eq!(texts("a =\nb"), ["a =", "b"], "without a sign of it nothing is joined");
    }
}
