//! Bytes of netlink messages: headers, attributes, datagrams.

use crate::objects::Errno;

/// Bytes of the header of a message.
const HEADER: usize = 16;
/// Bytes of the header of an attribute.
const ATTRIBUTE: usize = 4;
/// Bytes of a datagram at most: programs receive into a page.
const DATAGRAM: usize = 4096;
/// Room for the entry of a table that is written next.
const ENTRY: usize = 512;

/// Flags of a message.
pub const REQUEST: u16 = 1;
const MULTI: u16 = 2;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;

const ERROR: u16 = 2;
const DONE: u16 = 3;
const NESTED: u16 = 1 << 15;

/// Header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Type.
    pub kind: u16,
    /// Flags.
    pub flags: u16,
    /// Number that a request and its answers share.
    pub sequence: u32,
    /// The four words as they stand, which an error repeats.
    bytes: [u8; HEADER],
}

impl Header {
    /// Returns `true` if the request asks for all objects.
    pub fn is_dump(&self) -> bool {
        self.flags & DUMP == DUMP
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// Splits the first message off: its header, its body, and what follows.
pub fn split(bytes: &[u8]) -> Option<(Header, &[u8], &[u8])> {
    let len = word(bytes, 0)? as usize;
    let body = bytes.get(HEADER..len)?;
    let header = Header {
        kind: half(bytes, 4)?,
        flags: half(bytes, 6)?,
        sequence: word(bytes, 8)?,
        bytes: *bytes.first_chunk()?,
    };
    Some((header, body, bytes.get(padded(len)..).unwrap_or_default()))
}

/// Attributes of a request.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Attributes<'a> {
    /// Returns the value of an attribute.
    pub fn get(&self, wanted: u16) -> Option<&'a [u8]> {
        let mut rest = self.0;
        loop {
            let len = usize::from(half(rest, 0)?);
            let value = rest.get(ATTRIBUTE..len)?;
            if half(rest, 2)? & !NESTED == wanted {
                return Some(value);
            }
            rest = rest.get(padded(len)..)?;
        }
    }

    /// Returns the value of an attribute that is a number.
    pub fn number(&self, wanted: u16) -> Option<u32> {
        word(self.get(wanted)?, 0)
    }

    /// Returns the value of an attribute that is a string.
    pub fn text(&self, wanted: u16) -> Option<&'a str> {
        let value = self.get(wanted)?.split(|byte| *byte == 0).next()?;
        std::str::from_utf8(value).ok()
    }
}

/// Writes the answers to one request.
#[derive(Debug)]
pub struct Writer {
    request: Header,
    port: u32,
    done: Vec<Vec<u8>>,
    bytes: Vec<u8>,
}

impl Writer {
    /// Answers `request`, which came from the socket with address `port`.
    pub fn new(request: Header, port: u32) -> Self {
        Self { request, port, done: Vec::new(), bytes: Vec::new() }
    }

    /// Writes a message.
    pub fn message(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        if self.bytes.len() + ENTRY > DATAGRAM {
            self.end_datagram();
        }
        let flags = if self.request.is_dump() { MULTI } else { 0 };
        let start = self.begin(kind, flags);
        fill(self);
        self.end(start);
    }

    /// Writes messages with the same beginning and a table, as many as its entries need.
    pub fn table<T>(
        &mut self,
        kind: u16,
        head: impl Fn(&mut Self),
        table: u16,
        entries: &[T],
        fill: impl Fn(&mut Self, &T),
    ) {
        let mut entries = entries.iter().peekable();
        while entries.peek().is_some() {
            self.end_datagram();
            self.message(kind, |writer| {
                head(writer);
                writer.nest(table, |writer| {
                    while writer.bytes.len() + ENTRY <= DATAGRAM {
                        let Some(entry) = entries.next() else { break };
                        fill(writer, entry);
                    }
                });
            });
        }
    }

    /// Ends the answer: of a dump with its end, of a request for an acknowledgement with that.
    pub fn end_with(&mut self, outcome: Result<(), Errno>) {
        match outcome {
            Ok(()) if self.request.is_dump() => {
                let start = self.begin(DONE, MULTI);
                self.bytes.extend([0; 4]);
                self.end(start);
            }
            Ok(()) if self.request.flags & ACK == 0 => {}
            outcome => {
                self.end_datagram();
                let error = outcome.map_or_else(|Errno(error)| -error, |()| 0);
                let start = self.begin(ERROR, 0);
                self.bytes.extend(error.to_ne_bytes());
                let request = self.request.bytes;
                self.bytes.extend(request);
                self.end(start);
            }
        }
    }

    /// Returns the datagrams.
    pub fn finish(mut self) -> Vec<Vec<u8>> {
        self.end_datagram();
        self.done
    }

    fn end_datagram(&mut self) {
        if !self.bytes.is_empty() {
            self.done.push(std::mem::take(&mut self.bytes));
        }
    }

    fn begin(&mut self, kind: u16, flags: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.request.sequence.to_ne_bytes());
        self.bytes.extend(self.port.to_ne_bytes());
        start
    }

    fn end(&mut self, start: usize) {
        let len = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.bytes.extend(((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(padded(self.bytes.len()), 0);
    }

    /// Writes an attribute that holds attributes.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.attribute(kind | NESTED, &[]);
        fill(self);
        let len = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
    }

    /// Writes an attribute of one byte.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.attribute(kind, &[value]);
    }

    /// Writes an attribute of four bytes.
    pub fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Writes an attribute of eight bytes.
    pub fn u64(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Writes an attribute that is a string.
    pub fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(flags: u16, body: &[u8]) -> Vec<u8> {
        let len = (HEADER + body.len()) as u32;
        let words = [len.to_ne_bytes(), [1, 0x14, 0, 0], 7u32.to_ne_bytes(), [0; 4]];
        let mut bytes = words.concat();
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn attributes_are_found_and_broken_ones_are_not_read() {
        let mut body = vec![9, 0, 2, 0, b'm', b'l', b'x', b'5', 0, 0, 0, 0];
        body.extend([8, 0, 1, 0x80, 3, 0, 0, 0]);
        let attributes = Attributes(&body);
        assert_eq!((attributes.text(2), attributes.number(1)), (Some("mlx5"), Some(3)));
        assert_eq!(attributes.get(3), None);
        for len in 0..body.len() {
            // No cut shows another value.
            let cut = Attributes(&body[..len]);
            assert!([None, Some(3)].contains(&cut.number(1)));
            assert!([None, Some("mlx5")].contains(&cut.text(2)));
        }
        assert_eq!(Attributes(&[0, 0, 1, 0]).get(2), None, "a length of zero ends the list");
    }

    #[test]
    fn messages_of_one_datagram_are_split() {
        let mut bytes = request(REQUEST, &[1, 2, 3]);
        bytes.push(0);
        bytes.extend(request(REQUEST | DUMP, &[]));
        let (first, body, rest) = split(&bytes).unwrap();
        assert_eq!((first.kind, first.sequence, body), (0x1401, 7, &[1, 2, 3][..]));
        let (second, body, rest) = split(rest).unwrap();
        assert!(second.is_dump() && body.is_empty() && split(rest).is_none());
        assert!(split(&bytes[..18]).is_none());
    }

    #[test]
    fn a_long_table_takes_several_datagrams_and_then_ends() {
        let bytes = request(REQUEST | DUMP, &[]);
        let mut writer = Writer::new(split(&bytes).unwrap().0, 99);
        let entries: Vec<u32> = (0..1000).collect();
        writer.table(0x140a, |w| w.u32(1, 0), 19, &entries, |w, n| w.nest(20, |w| w.u32(21, *n)));
        writer.end_with(Ok(()));
        let mut found = Vec::new();
        let mut kinds = Vec::new();
        for datagram in writer.finish() {
            assert!(datagram.len() <= DATAGRAM);
            let mut rest = &datagram[..];
            while let Some((header, body, next)) = split(rest) {
                kinds.push(header.kind);
                let mut table = Attributes(body).get(19).unwrap_or_default();
                while let Some(entry) = Attributes(table).get(20) {
                    found.extend(Attributes(entry).number(21));
                    table = &table[ATTRIBUTE + entry.len()..];
                }
                rest = next;
            }
        }
        assert_eq!(found, entries);
        assert!(kinds.len() > 2 && kinds.pop() == Some(DONE) && kinds.iter().all(|k| *k == 0x140a));
    }
}
