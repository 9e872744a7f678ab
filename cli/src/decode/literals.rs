//! Bytes as languages and debuggers write them: lists of numbers (Rust, Go, C, gdb) and strings with escapes (Python,
//! gdb).

use super::hex::{Block, Context};
use super::lines::Line;
use super::{cqe, wqe};

/// Most bytes of a literal.
const MOST: usize = 1 << 16;

/// A block, and the lines that it takes.
pub struct Literal {
    pub block: Block,
    pub last_line: usize,
}

/// An element of a literal.
enum Item<'a> {
    /// Digits, whose base the other elements tell.
    Number(&'a str),
    Byte(u8),
}

/// Returns the literals that are CQEs or WQEs.
pub fn literals(lines: &[Line]) -> Vec<Literal> {
    let mut text = String::new();
    let mut starts = Vec::new();
    for line in lines {
        starts.push(text.len());
        text.push_str(&line.text);
        text.push('\n');
    }
    let line_at = |at: usize| starts.partition_point(|&start| start <= at).saturating_sub(1);
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = text[at..].find(['[', '{', '(', '"', '\'']) {
        at += next;
        let mut cursor = Cursor { text: &text, at };
        let (bytes, note) = match cursor.literal() {
            Some(items) => bytes(&items),
            None => {
                at += 1;
                continue;
            }
        };
        if let Some(bytes) = bytes.filter(|bytes| is_known(bytes)) {
            let (first, last) = (line_at(at), line_at(cursor.at - 1));
            let block = Block {
                line: lines[first].number,
                caller: lines[first].caller.clone(),
                context: Context::None,
                printer: None,
                base: None,
                bytes,
                group: 1,
                notes: note.map(str::to_owned).into_iter().collect(),
            };
            found.push(Literal { block, last_line: lines[last].number });
        }
        at = cursor.at.max(at + 1);
    }
    found
}

fn is_known(bytes: &[u8]) -> bool {
    cqe::looks_like_error(bytes) || bytes.len() >= 32 && wqe::looks_like_one(bytes)
}

/// Returns the bytes of a list: hexadecimal if any of its numbers can only be that.
fn bytes(items: &[Item]) -> (Option<Vec<u8>>, Option<&'static str>) {
    let numbers = |base: u32| -> Option<Vec<u32>> {
        let number = |item: &Item| match item {
            Item::Byte(byte) => Some(u32::from(*byte)),
            Item::Number(digits) => match digits.strip_prefix("0x") {
                Some(digits) => u32::from_str_radix(digits, 16).ok(),
                None => u32::from_str_radix(digits, base).ok(),
            },
        };
        items.iter().map(number).collect()
    };
    let only_hex = items.iter().any(|item| match item {
        Item::Number(digits) if !digits.starts_with("0x") => {
            digits.bytes().any(|byte| byte.is_ascii_alphabetic()) || digits.len() == 2 && digits.starts_with('0')
        }
        _ => false,
    });
    let decimal = numbers(10).filter(|_| !only_hex);
    if let Some((bytes, note)) = decimal.and_then(|numbers| known(&numbers)) {
        return (Some(bytes), note);
    }
    let found = numbers(16).and_then(|numbers| known(&numbers));
    let guess = "the numbers are taken for hexadecimal: so they are a CQE or WQE";
    found.map_or((None, None), |(bytes, note)| (Some(bytes), note.or((!only_hex).then_some(guess))))
}

/// Returns the bytes if they are a CQE or WQE: a list of bytes, or of words in either order, whose first is reserved.
fn known(numbers: &[u32]) -> Option<(Vec<u8>, Option<&'static str>)> {
    if let Ok(bytes) = numbers.iter().map(|&number| u8::try_from(number)).collect::<Result<Vec<_>, _>>() {
        return (bytes.len() >= 16 && is_known(&bytes)).then_some((bytes, None));
    }
    if numbers[0] != 0 || numbers.len() % 4 != 0 {
        return None;
    }
    let bytes = |of: fn(u32) -> [u8; 4]| numbers.iter().flat_map(|&number| of(number)).collect::<Vec<u8>>();
    let orders = [
        (bytes(u32::to_be_bytes), "a list of words in the order of the CQE"),
        (bytes(u32::to_le_bytes), "a list of words in the byte order of this machine: swapped"),
    ];
    let (bytes, note) = orders.into_iter().find(|order| cqe::ends_like_error(&order.0))?;
    Some((bytes, Some(note)))
}

struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn eat(&mut self, what: &str) -> bool {
        let eaten = self.rest().starts_with(what);
        self.at += if eaten { what.len() } else { 0 };
        eaten
    }

    fn spaces(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Reads a list in brackets, or strings and characters with escapes one after the other.
    fn literal(&mut self) -> Option<Vec<Item<'a>>> {
        let mut items = Vec::new();
        let close = match self.rest().chars().next()? {
            '[' => Some(']'),
            '{' => Some('}'),
            '(' => Some(')'),
            _ => None,
        };
        if close.is_some() {
            self.at += 1;
        }
        loop {
            self.spaces();
            if let Some(close) = close {
                if self.rest().starts_with(close) {
                    self.at += 1;
                    break;
                }
            }
            let before = self.at;
            let complete = items.len();
            if !self.element(&mut items) {
                items.truncate(complete);
                // Text behind a string ends it.
                if close.is_none() && !items.is_empty() {
                    self.at = before;
                    break;
                }
                return None;
            }
            if close.is_none() && !self.eat(",") {
                break;
            }
            self.eat(",");
            if items.len() > MOST {
                return None;
            }
        }
        (items.len() >= 4).then_some(items)
    }

    /// Reads a number, a number with its character (gdb), a string or a character, and how often it repeats.
    fn element(&mut self, items: &mut Vec<Item<'a>>) -> bool {
        let first = items.len();
        match self.rest().chars().next() {
            Some(quote @ ('"' | '\'')) => {
                if !self.string(quote, items) {
                    return false;
                }
            }
            // A signed byte.
            Some('-') => {
                let rest = &self.rest()[1..];
                let digits = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(0)];
                let Some(byte) = digits.parse().ok().filter(|&byte: &u8| byte <= 128) else { return false };
                items.push(Item::Byte(byte.wrapping_neg()));
                self.at += 1 + digits.len();
            }
            Some(c) if c.is_ascii_hexdigit() => {
                let rest = self.rest();
                let prefix = if rest.starts_with("0x") { 2 } else { 0 };
                let end = rest[prefix..].find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(0) + prefix;
                if end == prefix || end > prefix + 10 {
                    return false;
                }
                // `b'...'` of Python inside of a call.
                if rest[end..].starts_with(['"', '\'']) {
                    return false;
                }
                items.push(Item::Number(&rest[..end]));
                self.at += end;
                // 136 '\210'
                let at = self.at;
                if self.eat(" '") {
                    self.at -= 1;
                    if !self.string('\'', &mut Vec::new()) {
                        self.at = at;
                    }
                }
            }
            _ => return false,
        }
        if self.eat(" <repeats ") {
            let rest = self.rest();
            let Some(times) = rest.split(' ').next().and_then(|times| times.parse::<usize>().ok()) else {
                return false;
            };
            let Some(end) = rest.find('>') else { return false };
            self.at += end + 1;
            let Some(last) = items.pop() else { return false };
            items.truncate(first);
            for _ in 0..times.min(MOST) {
                items.push(match last {
                    Item::Number(digits) => Item::Number(digits),
                    Item::Byte(byte) => Item::Byte(byte),
                });
            }
        }
        true
    }

    fn string(&mut self, quote: char, items: &mut Vec<Item<'a>>) -> bool {
        self.at += 1;
        let start = self.at;
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            if byte == quote as u8 {
                self.at += 1;
                return true;
            }
            if byte == b'\n' || !byte.is_ascii() || self.at - start > MOST {
                break;
            }
            self.at += 1;
            if byte != b'\\' {
                items.push(Item::Byte(byte));
                continue;
            }
            let Some(escape) = bytes.get(self.at) else { break };
            self.at += 1;
            let value = match escape {
                b'x' => {
                    let Some(byte) =
                        self.text.get(self.at..self.at + 2).and_then(|two| u8::from_str_radix(two, 16).ok())
                    else {
                        break;
                    };
                    self.at += 2;
                    byte
                }
                b'0'..=b'7' => {
                    self.at -= 1;
                    let len = bytes[self.at..].iter().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
                    let value = u32::from_str_radix(&self.text[self.at..self.at + len], 8).unwrap_or(256);
                    self.at += len;
                    let Ok(byte) = u8::try_from(value) else { break };
                    byte
                }
                // A character of JSON.
                b'u' => {
                    let digits = self.text.get(self.at..self.at + 4);
                    let Some(byte) = digits.and_then(|four| u8::from_str_radix(four.strip_prefix("00")?, 16).ok())
                    else {
                        break;
                    };
                    self.at += 4;
                    byte
                }
                b'n' => b'\n',
                b't' => b'\t',
                b'r' => b'\r',
                b'a' => 7,
                b'b' => 8,
                b'v' => 11,
                b'f' => 12,
                b'e' => 27,
                other if other.is_ascii_punctuation() => *other,
                _ => break,
            };
            items.push(Item::Byte(value));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::lines::lines;

    /// B1 of the dumps of adapters.
    const TAIL: [u8; 16] = [0, 0, 0, 0, 0, 0, 0x88, 0x13, 8, 0, 1, 0x13, 7, 0x47, 0x67, 0xd2];

    fn cqe() -> Vec<u8> {
        [&[0; 48][..], &TAIL].concat()
    }

    #[test]
    fn each_language_writes_the_same_bytes() {
        let cqe = cqe();
        let python: String = cqe
            .iter()
            .map(|&byte| match byte {
                b'G' | b'g' => char::from(byte).to_string(),
                7 => "\\x07".into(),
                _ => format!("\\x{byte:02x}"),
            })
            .collect();
        let go: Vec<String> = cqe.iter().map(u8::to_string).collect();
        for text in [
            format!("completion failed: {cqe:?}"),
            format!("completion failed: {cqe:x?}"),
            format!("completion failed: {cqe:02x?}"),
            format!("completion failed: {cqe:#?} end"),
            format!("cqe {:#04x?}", cqe),
            format!("b'{python}'"),
            format!("cqe = b\"{python}\" # x"),
            format!("cqe [{}]", go.join(" ")),
            format!("[]byte{{{}}}", cqe.iter().map(|byte| format!("{byte:#x}")).collect::<Vec<_>>().join(", ")),
            "$1 = {0x0 <repeats 54 times>, 0x88, 0x13, 0x8, 0x0, 0x1, 0x13, 0x7, 0x47, 0x67, 0xd2}".into(),
            "$2 = '\\000' <repeats 53 times>, \"\\000\\210\\023\\b\\000\\001\\023\\aGg\\322\"".into(),
            "$3 = {0 '\\000' <repeats 54 times>, 136 '\\210', 19 '\\023', 8 '\\b', 0 '\\000', 1 '\\001', 19 '\\023', 7 '\\a', 71 'G', 103 'g', 210 '\\322'}".into(),
        ] {
            let found = literals(&lines(format!("x = [1, 2]\n{text}\ny\n").as_bytes()));
            assert_eq!(found.len(), 1, "{text}");
            assert_eq!(found[0].block.bytes, cqe, "{text}");
            assert_eq!(found[0].block.line, 2, "{text}");
        }
    }

    #[test]
    fn other_lists_are_none() {
        for text in [
            "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]",
            "[0; 64]",
            "it's \"quoted\" and it isn't",
            "[2024-01-01 00:00:00] [info] [thread 12]",
            "'\\x00\\x",
            "thread 'main' panicked: a text that has no second quotation mark",
            "{0x0 <repeats 99999999999999999999 times>}",
        ] {
            assert!(literals(&lines(text.as_bytes())).is_empty(), "{text}");
        }
    }
}
