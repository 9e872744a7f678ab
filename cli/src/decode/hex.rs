//! Bytes in hexadecimal, found in lines of text and put together.

use std::collections::HashMap;

use super::fields;
use super::lines::{Line, Prefixes};

/// Bytes of a CQE and of a basic block.
const BLOCK: usize = 64;
/// Other lines that may stand between two rows of one dump.
const MOST_BETWEEN: usize = 4;
/// Note of a dump whose rows were mixed with those of another.
const MIXED: &str =
    "rows of several dumps are mixed, and no prefix says which belong together: each end of a CQE was read alone";
/// Bytes in a row without an offset that make it a row.
const LEAST_BARE: usize = 8;

/// The words before the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Context {
    /// Nothing that is known.
    None,
    /// The words before a CQE, or before all CQEs of a queue.
    Cqe(&'static str),
    /// The words before the WQE of a CQE.
    SendWqe,
    /// The words before all WQEs of a send queue.
    SendRing,
    /// The words before all WQEs of a receive queue.
    ReceiveRing,
}

/// Bytes that belong together.
#[derive(Debug, Clone)]
pub struct Block {
    /// Line of the first, from 1.
    pub line: usize,
    /// The processor or thread that printed them.
    pub caller: String,
    /// The words before them.
    pub context: Context,
    /// Which program printed them.
    pub printer: Option<&'static str>,
    /// Offset of the first, where the dump says it.
    pub base: Option<u64>,
    /// The bytes in the order of memory.
    pub bytes: Vec<u8>,
    /// Bytes in a group.
    pub group: usize,
    /// Corrections.
    pub notes: Vec<String>,
}

/// Words before a dump, in lower case.
const HEADS: [(&str, Context, &str); 9] = [
    ("got completion with error", Context::Cqe("libmlx5"), "libmlx5"),
    ("dump error cqe", Context::Cqe("mlx5_ib"), "mlx5_ib"),
    ("error cqe on cqn", Context::Cqe("mlx5_core"), "mlx5_core"),
    ("wqe dump", Context::SendWqe, "mlx5_core"),
    ("mlx5 error cq", Context::Cqe("DPDK"), "DPDK"),
    ("mlx5 error sq", Context::SendRing, "DPDK"),
    ("mlx5 error rq", Context::ReceiveRing, "DPDK"),
    ("cqe_dump", Context::Cqe("mlx5_ib"), "mlx5_ib"),
    ("err cqe:", Context::Cqe("DPDK"), "DPDK"),
];

/// Returns bytes as text.
pub fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Output of one processor or thread so far.
#[derive(Default)]
struct Printed {
    open: Option<Open>,
    context: Option<(Context, &'static str)>,
}

/// Returns all blocks of a text; rows are joined with rows of the same processor, thread or prefix. Lines of which
/// `skip` is true are left out.
pub fn blocks(lines: &[Line], skip: impl Fn(usize) -> bool) -> Vec<Block> {
    let read: Vec<_> = lines
        .iter()
        .filter(|line| !line.text.is_empty() && !skip(line.number))
        .map(|line| (line, row(&line.text)))
        .collect();
    let in_front = read.iter().filter_map(|(line, row)| Some((*line, row.as_ref()?.at)));
    let prefixes = Prefixes::new(in_front.filter(|(line, _)| line.caller.is_empty()));
    let mut found = Vec::new();
    let mut all: HashMap<String, Printed> = HashMap::new();
    for (line, row) in read {
        let head = head(&line.text);
        let caller = if line.caller.is_empty() { prefixes.of(line) } else { line.caller.clone() };
        if let (Some(head), false) = (head, caller.is_empty()) {
            // The rows may come without the prefix.
            let bare = all.entry(String::new()).or_default();
            if bare.open.is_none() {
                bare.context = Some(head);
            }
        }
        let printed = all.entry(caller).or_default();
        if head.is_some() {
            let same = head.map(|head| head.0) == printed.context.map(|context| context.0);
            if row.is_none() || !same {
                found.extend(printed.open.take().into_iter().flat_map(Open::close));
            }
            printed.context = head;
        }
        if let Some(row) = row {
            let goes_on = printed.open.as_ref().is_some_and(|open| open.takes(&row));
            if !goes_on {
                found.extend(printed.open.take().into_iter().flat_map(Open::close));
            }
            printed.open.get_or_insert_with(|| Open::new(line, printed.context)).add(row, line.number);
            continue;
        }
        if head.is_some() {
            continue;
        }
        let Some(current) = &mut printed.open else { continue };
        current.between += 1;
        // hexdump leaves out rows that repeat.
        if current.between > MOST_BETWEEN || current.is_whole() || line.text == "*" {
            found.extend(printed.open.take().into_iter().flat_map(Open::close));
            printed.context = None;
        }
    }
    found.extend(all.into_values().filter_map(|printed| printed.open).flat_map(Open::close));
    found.sort_by_key(|closed| closed.block.line);
    separate(&mut found);
    found.into_iter().map(|closed| closed.block).filter(|block| !block.bytes.is_empty()).collect()
}

/// A block that is complete, and its last line.
struct Closed {
    block: Block,
    last: usize,
}

/// Takes apart what two dumps without prefixes left when their rows came in turns: a row with the end of a CQE stands
/// for itself, and the other rows are dropped, because nothing says which dump they are of.
fn separate(found: &mut [Closed]) {
    let place = |block: &Block| block.base.unwrap_or_default() as usize;
    let ends = |block: &Block| (place(block) + block.bytes.len()) % BLOCK == 0;
    let is_cqe = |block: &Block| matches!(block.context, Context::None | Context::Cqe(_)) && block.base.is_some();
    let follows = |one: &Closed, next: &Closed| {
        let near = next.block.line <= one.last + MOST_BETWEEN && next.block.caller == one.block.caller;
        near && is_cqe(&one.block) && is_cqe(&next.block)
    };
    for cluster in found.chunk_by_mut(follows) {
        let cut = cluster.iter().position(|closed| !ends(&closed.block));
        let torn = cut.is_some_and(|cut| cluster[cut + 1..].iter().any(|row| place(&row.block) % BLOCK != 0));
        if !torn || !cluster.iter().any(|closed| ends(&closed.block)) {
            continue;
        }
        for closed in cluster {
            match closed.block.bytes.last_chunk::<16>().filter(|_| ends(&closed.block)) {
                Some(end) => *closed = alone(&closed.block, closed.last, end),
                None => closed.block.bytes.clear(),
            }
        }
    }
}

/// Returns the end of a CQE as a block of its own.
fn alone(block: &Block, line: usize, end: &[u8]) -> Closed {
    let mut block = Block { line, bytes: end.to_vec(), base: Some(0x30), ..block.clone() };
    block.notes.push(MIXED.into());
    Closed { block, last: line }
}

fn head(line: &str) -> Option<(Context, &'static str)> {
    // The words stand near the beginning; a line of a megabyte is a dump.
    let start = line.get(..line.len().min(512)).or_else(|| line.get(..256)).unwrap_or_default().to_ascii_lowercase();
    HEADS.iter().find(|head| start.contains(head.0)).map(|head| (head.1, head.2))
}

/// One line of a dump.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    /// Where it begins in the line.
    at: usize,
    offset: Option<u64>,
    bytes: Vec<u8>,
    group: usize,
    cut: bool,
}

/// The longest run of groups of equal size in a line.
fn row(line: &str) -> Option<Row> {
    let mut best: Option<Row> = None;
    let mut run: Option<Row> = None;
    let mut offset = None;
    let mut start = 0;
    let words = line.split(|c: char| c.is_whitespace() || ",;=\"'`{}()".contains(c));
    let at = |word: &str| word.as_ptr() as usize - line.as_ptr() as usize;
    for word in words.filter(|word| !word.is_empty()) {
        if let Some(number) = word.strip_suffix(':').and_then(as_offset) {
            keep(&mut best, run.take());
            (offset, start) = (Some(number), at(word));
            continue;
        }
        let place = at(word);
        let joined = without_signs(word);
        let word = joined.as_deref().unwrap_or(word);
        let digits = word.strip_prefix("0x").or_else(|| word.strip_prefix("\\x")).unwrap_or(word);
        let hex = digits.bytes().take_while(u8::is_ascii_hexdigit).count();
        let whole = hex == digits.len() && hex % 2 == 0 && hex > 0;
        // Other text may follow the last word without a space.
        let goes_on = run.as_ref().is_some_and(|run| hex == 2 * run.group);
        if !whole && !goes_on {
            keep(&mut best, run.take());
            offset = None;
            continue;
        }
        if !goes_on {
            keep(&mut best, run.take());
            let at = if offset.is_some() { start } else { place };
            run = Some(Row { at, offset: offset.take(), bytes: Vec::new(), group: hex / 2, cut: false });
        }
        let current = run.as_mut().expect("begun");
        push(&mut current.bytes, &digits[..hex]);
        if !whole {
            current.cut = true;
            keep(&mut best, run.take());
        }
    }
    keep(&mut best, run);
    best.filter(|row| row.bytes.len() >= if row.offset.is_some() { 1 } else { LEAST_BARE })
}

/// Returns the digits of bytes with a sign between them: `00:01:...` and `\x00\x01...`, if it is a row of them.
fn without_signs(word: &str) -> Option<String> {
    let bytes = word.as_bytes();
    let between = bytes.len() >= 47 && bytes.iter().skip(2).step_by(3).all(|sign| b":-".contains(sign));
    let escaped = bytes.len() >= 64 && bytes.chunks(4).all(|byte| byte.starts_with(b"\\x"));
    (between || escaped).then(|| word.replace([':', '-'], "").replace("\\x", ""))
}

fn keep(best: &mut Option<Row>, run: Option<Row>) {
    let Some(run) = run else { return };
    let is_better = |best: &Row| (run.offset.is_some(), run.bytes.len()) > (best.offset.is_some(), best.bytes.len());
    if best.as_ref().is_none_or(is_better) {
        *best = Some(run);
    }
}

fn as_offset(word: &str) -> Option<u64> {
    let digits = word.strip_prefix("0x").unwrap_or(word);
    (2..=16).contains(&digits.len()).then(|| u64::from_str_radix(digits, 16).ok())?
}

fn push(bytes: &mut Vec<u8>, digits: &str) {
    let digit = |c: u8| (c as char).to_digit(16).unwrap_or_default() as u8;
    bytes.extend(digits.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])));
}

/// A block that is being read.
struct Open {
    block: Block,
    /// Offset and length of the last row.
    last: Option<(u64, usize)>,
    last_line: usize,
    between: usize,
    mixed: bool,
    /// The rows, for a block with rows that are too long, and their lines.
    rows: Vec<Vec<u8>>,
    lines: Vec<usize>,
}

impl Open {
    fn new(line: &Line, context: Option<(Context, &'static str)>) -> Self {
        let block = Block {
            line: line.number,
            caller: line.caller.clone(),
            context: context.map_or(Context::None, |context| context.0),
            printer: context.map(|context| context.1),
            base: None,
            bytes: Vec::new(),
            group: 0,
            notes: Vec::new(),
        };
        Self { block, last: None, last_line: 0, between: 0, mixed: false, rows: Vec::new(), lines: Vec::new() }
    }

    fn is_whole(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().map(Vec::len).sum::<usize>() % BLOCK == 0
    }

    fn takes(&self, row: &Row) -> bool {
        match (self.last, row.offset) {
            // Words of one size: hashes in lines of their own are no rows of one dump.
            (None, None) => self.rows.is_empty() || row.group == self.block.group,
            (Some((last, len)), Some(offset)) => {
                let step = offset.wrapping_sub(last);
                // A row that is too long is cut when the next one says where it begins.
                step > 0 && step <= len as u64 && (step == len as u64 || step % 8 == 0)
            }
            _ => false,
        }
    }

    fn add(&mut self, row: Row, line: usize) {
        self.last_line = line;
        if let (Some((last, len)), Some(offset)) = (self.last, row.offset) {
            let step = offset.wrapping_sub(last) as usize;
            if step < len {
                self.cut_to(step);
            }
        }
        if self.between > 0 {
            self.mixed = true;
            self.between = 0;
        }
        if self.rows.is_empty() {
            self.block.base = row.offset;
            self.block.group = row.group;
        }
        if row.cut {
            self.block.notes.push("other text follows a word of the dump without a space: cut off".into());
        }
        self.last = row.offset.map(|offset| (offset, row.bytes.len()));
        self.rows.push(row.bytes);
        self.lines.push(line);
    }

    /// Cuts the last row to `step` bytes.
    fn cut_to(&mut self, step: usize) {
        const NOTE: &str =
            "rows have more bytes than their offsets leave room for: what is too much was cut off their end";
        if let Some(row) = self.rows.last_mut() {
            row.truncate(step);
        }
        if !self.block.notes.iter().any(|note| note == NOTE) {
            self.block.notes.push(NOTE.into());
        }
    }

    fn close(mut self) -> Vec<Closed> {
        // The last row must be as long as the rows before it.
        if let (Some(_), [.., before, last]) = (self.last, self.rows.as_slice()) {
            if last.len() > before.len() {
                let step = before.len();
                self.cut_to(step);
            }
        }
        let total: usize = self.rows.iter().map(Vec::len).sum();
        let sixteens = |row: &Vec<u8>| row.len() / 16 * 16;
        let trimmed: usize = self.rows.iter().map(sixteens).sum();
        if self.last.is_none() && total % BLOCK != 0 && trimmed % BLOCK == 0 && trimmed > 0 {
            // Numbers before the rows that look like words of the dump, such as a date.
            for row in &mut self.rows {
                row.drain(..row.len() % 16);
            }
            self.block.notes.push("words in front of full rows of 16 bytes were left out".into());
        }
        if self.mixed {
            self.block.notes.push(
                "other lines stand between the rows: if several programs print at once, the rows may be of different dumps".into(),
            );
        }
        if let Some(ends) = self.mixed_ends() {
            return ends;
        }
        self.block.bytes = self.rows.concat();
        vec![Closed { block: self.block, last: self.last_line }]
    }

    /// Returns the ends of CQEs as blocks of their own, if rows without offsets cannot be of one dump after the other.
    fn mixed_ends(&self) -> Option<Vec<Closed>> {
        let is_end = |row: &Vec<u8>| row.len() == 16 && fields::is_error(row);
        let ends: Vec<usize> = (0..self.rows.len()).filter(|&row| is_end(&self.rows[row])).collect();
        let torn = ends.len() > 1 && ends.iter().any(|end| end % 4 != 3);
        let rows = matches!(self.block.context, Context::None | Context::Cqe(_)) && self.last.is_none();
        let end = |row: usize| alone(&self.block, self.lines[row], &self.rows[row]);
        (torn && rows).then(|| ends.into_iter().map(end).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::lines::lines;

    fn only(text: &str) -> Block {
        let mut blocks = blocks(&lines(text.as_bytes()), |_| false);
        assert_eq!(blocks.len(), 1, "{blocks:?}");
        blocks.remove(0)
    }

    #[test]
    fn a_row_is_the_longest_run_of_equal_groups() {
        let row = row("[  408.380187] 00000030: 00 00 a9 00 56 04 | ..V.").unwrap();
        assert_eq!((row.offset, row.group), (Some(0x30), 1));
        assert_eq!(row.bytes, [0, 0, 0xa9, 0, 0x56, 4]);
        assert_eq!(super::row("error 4, opcode 1, len 21938, vendor err 81"), None);
        assert_eq!(super::row("dead beef face 10.5.0.202"), None, "six bytes");
        let glued = super::row("00000000 00008813 08006214 0000f6d2[1496344648.549828] [vegas06:1").unwrap();
        assert_eq!((glued.bytes.len(), glued.cut), (16, true));
    }

    #[test]
    fn rows_are_put_together_by_their_offsets() {
        let block = only("00000000: 01 02 03 04 05 06 07 08 09\n00000008: 11 12 13 14 15 16 17 18 19\n");
        assert_eq!(block.bytes.len(), 16, "nine bytes in a row of eight");
        assert_eq!(block.notes.len(), 1);
        assert_eq!(blocks(&lines(b"00000000: 01 02\n00000000: 03 04"), |_| false).len(), 2);
        assert_eq!(only("00000030: 00 01 02 03").base, Some(0x30));
        for torn in ["00000000: 01 02 03 04\n00000003: 05 06", "00000000 00000000\n0000 0000 0000 0000"] {
            assert_eq!(blocks(&lines(torn.as_bytes()), |_| false).len(), 2, "{torn}");
        }
    }

    #[test]
    fn lines_between_rows_are_reported() {
        let mixed = "00000000 00000000 00000000 00000000\nother text\n".repeat(4);
        let block = only(&mixed);
        assert_eq!(block.bytes.len(), 64);
        assert!(block.notes[0].contains("other lines"));
    }

    #[test]
    fn dates_in_front_of_rows_are_left_out() {
        let dated = "20260729 00000000 00000000 00000000 00000001\n".repeat(4);
        let block = only(&dated);
        assert_eq!((block.bytes.len(), block.bytes[15]), (64, 1));
    }
}
