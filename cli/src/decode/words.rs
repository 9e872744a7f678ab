//! A line as words, and the names that programs give to statuses, events and keys.
//!
//! A name is a sequence of words, so that `IBV_WC_REM_ACCESS_ERR`, `RemoteAccessError` and "REMOTE ACCESS ERROR" are
//! read alike: underscores, capitals and the prefixes of headers make no difference.

use std::collections::HashMap;
use std::sync::OnceLock;

/// A word of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word<'a> {
    /// As it stands in the line.
    pub text: &'a str,
    /// The characters between the word before it and this one.
    pub gap: &'a str,
}

impl<'a> Word<'a> {
    /// Returns `true` if this is that word, in lower case.
    pub fn is(&self, word: &str) -> bool {
        self.text.eq_ignore_ascii_case(word)
    }

    /// Returns the number, and `true` if it is written in decimal.
    pub fn number(&self) -> Option<(u64, bool)> {
        if let Some(digits) = self.text.strip_prefix("0x").or_else(|| self.text.strip_prefix("0X")) {
            return u64::from_str_radix(digits, 16).ok().map(|number| (number, false));
        }
        self.text.parse().ok().map(|number| (number, true))
    }

    /// Returns the number, whose digits are hexadecimal with or without a prefix.
    pub fn hex(&self) -> Option<u64> {
        let digits = self.text.strip_prefix("0x").unwrap_or(self.text);
        u64::from_str_radix(digits, 16).ok()
    }
}

/// Splits a line into words: runs of letters and digits, cut where a capital follows a small letter.
pub fn words(line: &str) -> Vec<Word<'_>> {
    let bytes = line.as_bytes();
    let mut words: Vec<Word> = Vec::new();
    let (mut at, mut end) = (0, 0);
    while at < bytes.len() {
        if !bytes[at].is_ascii_alphanumeric() {
            at += 1;
            continue;
        }
        let start = at;
        let number = bytes[at].is_ascii_digit();
        let prefixed = line[at..].starts_with("0x");
        at += if prefixed { 2 } else { 1 };
        while at < bytes.len() && bytes[at].is_ascii_alphanumeric() {
            // Other text may follow a number without a space.
            if prefixed && !bytes[at].is_ascii_hexdigit() {
                break;
            }
            if !number && bytes[at].is_ascii_uppercase() && bytes[at - 1].is_ascii_lowercase() {
                break;
            }
            at += 1;
        }
        words.push(Word { text: &line[start..at], gap: &line[end..start] });
        end = at;
    }
    words
}

/// Returns `true` if the words begin with a name: its words follow each other without anything but a space, an
/// underscore or a hyphen between them.
pub fn begins(words: &[Word], name: &str) -> bool {
    let mut given = words.iter();
    name.split(' ').enumerate().all(|(number, word)| {
        given.next().is_some_and(|one| one.is(word) && (number == 0 || matches!(one.gap.trim(), "" | "_" | "-")))
    })
}

/// Returns `true` if the words from `at` to `end` are a name of their own, no part of the name of a function, a counter
/// or a file.
pub fn is_whole(words: &[Word], at: usize, end: usize) -> bool {
    let prefix = |before: &Word| ["ibv", "ib", "rdma", "cm", "cma", "mlx5"].iter().any(|known| before.is(known));
    let before = at == 0
        || match words[at].gap {
            "_" => prefix(&words[at - 1]),
            gap => !gap.is_empty() && !gap.ends_with('/'),
        };
    before && words.get(end).is_none_or(|next| !matches!(next.gap, "" | "_" | "-"))
}

/// Rows of a table by the first words of their names.
pub struct Names<T: 'static> {
    by_first: HashMap<&'static str, Vec<(&'static str, &'static T)>>,
}

impl<T> Names<T> {
    /// Sorts a table.
    pub fn new(table: &'static [T], names: fn(&'static T) -> &'static str) -> Self {
        let mut by_first: HashMap<_, Vec<_>> = HashMap::new();
        for row in table {
            for name in names(row).split(", ").filter(|name| !name.is_empty()) {
                let first = name.split(' ').next().unwrap_or_default();
                by_first.entry(first).or_default().push((name, row));
            }
        }
        Self { by_first }
    }

    /// Returns the row with the longest name with which the words begin, and the number of words of that name.
    pub fn longest(&self, words: &[Word]) -> Option<(usize, &'static T)> {
        let first = words.first()?.text.as_bytes();
        let mut lower = [0; 16];
        let lower = lower.get_mut(..first.len())?;
        lower.copy_from_slice(first);
        lower.make_ascii_lowercase();
        let rows = self.by_first.get(std::str::from_utf8(lower).ok()?)?;
        let found = rows.iter().filter(|(name, _)| begins(words, name));
        found.map(|(name, row)| (name.split(' ').count(), *row)).max_by_key(|found| found.0)
    }
}

/// A status of verbs.
#[derive(Debug)]
pub struct Status {
    /// Its number.
    pub number: u32,
    /// Its names: without the prefix of the header, in `ibv_wc_status_str`, and in other programs. A name of which
    /// other texts are full is none.
    pub names: &'static str,
}

const fn status(number: u32, names: &'static str) -> Status {
    Status { number, names }
}

/// The statuses: `ibv_wc_status_str` of rdma-core, `ib_wc_status_msg` of Linux, `MLX5_CQE_SYNDROME_*` of `mlx5dv.h`,
/// `btl_openib_component.c` of Open MPI 4, `ib_mlx5_log.c` of UCX.
const STATUSES: &[Status] = &[
    status(1, "loc len err, local length err, local length error"),
    status(2, "loc qp op err, local qp op err, local qp operation error, local qp operation err"),
    status(3, "loc eec op err, local ee context operation error, local eec operation error"),
    status(4, "loc prot err, local prot err, local protection error, local protocol error"),
    status(5, "wr flush err, flush err, work request flushed error, wr flushed, work request flushed, wr flush error"),
    status(6, "mw bind err, memory bind operation error, memory management operation error, memory window bind error"),
    status(7, "bad resp err, bad response error"),
    status(8, "loc access err, local access err, local access error"),
    status(9, "rem inv req err, remote inval req err, remote invalid request error, remote invalid request"),
    status(10, "rem access err, remote access err, remote access error"),
    status(11, "rem op err, remote op err, remote operation error, remote operation err"),
    status(
        12,
        "retry exc err, transport retry exc err, transport retry counter exceeded, transport retry count exceeded, retry exceeded error",
    ),
    status(
        13,
        "rnr retry exc err, rnr retry counter exceeded, rnr retry count exceeded, receiver not ready retry exceeded error, rnr retry exceeded",
    ),
    status(14, "loc rdd viol err, local rdd violation error"),
    status(15, "rem inv rd req err, remote invalid rd request"),
    status(16, "rem abort err, remote aborted err, remote abort error"),
    status(17, "inv eecn err, invalid ee context number"),
    status(18, "inv eec state err, invalid ee context state"),
    status(19, "wc fatal err"),
    status(20, "resp timeout err, response timeout error"),
    status(21, "wc general err"),
    status(22, "wc tm err"),
    status(23, "tm rndv incomplete, tm software rendezvous"),
];

/// Returns the name of a status in `verbs.h`.
pub fn status_name(number: u32) -> Option<String> {
    let row = STATUSES.iter().find(|row| row.number == number)?;
    let name = row.names.split(',').next()?.trim_start_matches("wc ");
    Some(format!("IBV_WC_{}", name.replace(' ', "_").to_uppercase()))
}

/// Returns the status whose name the words begin with, and the number of its words.
pub fn status_at(words: &[Word]) -> Option<(usize, &'static Status)> {
    static NAMES: OnceLock<Names<Status>> = OnceLock::new();
    let names = NAMES.get_or_init(|| Names::new(STATUSES, |row| row.names));
    // The prefix of a header; some names are words of their own only with it.
    let skip = match words.first()? {
        word if word.is("mlx5") && begins(words, "mlx5 cqe syndrome") => 3,
        word if word.is("ibv") || word.is("ib") => 1,
        _ => 0,
    };
    let rest = &words[skip..];
    let plain = if skip == 1 { rest.get(1..).filter(|_| rest[0].is("wc")) } else { None };
    let found = names.longest(rest).map(|(len, row)| (len + skip, row));
    found.or_else(|| names.longest(plain?).map(|(len, row)| (len + 2, row)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_of(text: &str) -> Option<u32> {
        status_at(&words(text)).map(|found| found.1.number)
    }

    #[test]
    fn a_status_by_any_of_its_names() {
        for text in [
            "IBV_WC_REM_ACCESS_ERR",
            "IB_WC_REM_ACCESS_ERR",
            "REM_ACCESS_ERR(10)",
            "MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR",
            "REMOTE ACCESS ERROR status number 10",
            "RemoteAccessError",
            "remote access error",
        ] {
            assert_eq!(status_of(text), Some(10), "{text}");
        }
        assert_eq!(status_of("IBV_WC_FATAL_ERR"), Some(19));
        assert_eq!(status_of("IBV_WC_GENERAL_ERR"), Some(21));
        assert_eq!(status_of("Work Request Flushed Error"), Some(5));
        assert_eq!(status_of("RNR retry counter exceeded"), Some(13));
        assert_eq!(status_of("fatal error"), None, "too common");
        assert_eq!(status_of("remote. access error"), None);
    }

    #[test]
    fn words_know_their_gaps_and_numbers() {
        let line = words("vendor_err=0x88, wqe[12] 1b010008");
        let texts: Vec<_> = line.iter().map(|word| (word.gap, word.text)).collect();
        assert_eq!(
            texts,
            [("", "vendor"), ("_", "err"), ("=", "0x88"), (", ", "wqe"), ("[", "12"), ("] ", "1b010008")]
        );
        assert_eq!(line[2].number(), Some((0x88, false)));
        assert_eq!(line[4].number(), Some((12, true)));
        assert_eq!((line[5].number(), line[5].hex()), (None, Some(0x1b01_0008)));
    }
}
