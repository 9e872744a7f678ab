//! `soft-mlx5 replay`: compares what a device wrote, in a bundle of `doorbell selftest --bundle`, with this model.
//!
//! A bundle is text, a line for each thing, so that its owner can read what it gives away:
//!
//! | line | says |
//! |---|---|
//! | `doorbell-bundle 1` | what it is |
//! | `vendor`, `check` | the device, and how the checks ended |
//! | `cqe CQN SIZE INDEX HEX` | a CQE, and its index in its CQ |
//! | `block CQN INDEX TITLE ARRAYS` | a compressed block: the title and its index, and the arrays of mini CQEs, in hexadecimal |
//! | `wqe KIND SLOT OURS THEIRS` | the WQE in a slot of an `rq` or `srq`, as doorbell and as libmlx5 wrote it |
//! | `end DIGEST` | FNV-1a of all lines before |
//!
//! Failures are a CQE without the signature of its index, WQEs that differ in more than keys and the place of their
//! memory, and a wrong digest. Bytes that this model would write otherwise are a difference: against an adapter, the
//! model may be wrong.

use std::fmt;

use mlx5_wire::cqe::{Cqe64, CqeFormat, ErrorCqe};
use mlx5_wire::data::DataSegment;
use mlx5_wire::mini_cqe::MINI_CQES_PER_ARRAY;
use mlx5_wire::next::NextSegment;
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::signature::is_signed;

use super::{failures, receive_segments};

/// Result of a replay.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Replay {
    /// CQEs of the bundle.
    pub cqes: usize,
    /// WQEs of the bundle.
    pub wqes: usize,
    /// Failures, each with the number of its line.
    pub failures: Vec<(usize, String)>,
    /// Differences from this model, each with the number of its line.
    pub differences: Vec<(usize, String)>,
}

/// Reads a bundle, and compares.
pub fn replay(text: &str) -> Replay {
    let mut found = Replay::default();
    let mut bases = Bases::default();
    let (mut ended, mut digest) = (false, FNV_START);
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        let content = line.trim_end_matches('\n');
        let (key, rest) = content.split_once(' ').unwrap_or((content, ""));
        let read = match key {
            _ if ended => Err("lines after the end".into()),
            "end" => {
                ended = true;
                let right = rest == format!("{digest:016x}");
                if right { Ok(()) } else { Err("the digest is not that of the lines before".into()) }
            }
            _ if number == 1 && content != "doorbell-bundle 1" => Err("no bundle that this version reads".into()),
            "doorbell-bundle" if number == 1 => Ok(()),
            "vendor" | "check" => Ok(()),
            "cqe" => cqe(rest).map(|difference| {
                found.cqes += 1;
                found.differences.extend(difference.map(|text| (number, text)));
            }),
            "block" => block(rest).map(|()| found.cqes += 1),
            "wqe" => wqe(rest, &mut bases).map(|()| found.wqes += 1),
            _ => Err("a line of no known kind".into()),
        };
        found.failures.extend(read.err().map(|text| (number, text)));
        digest = fnv(digest, line.as_bytes());
    }
    if !ended {
        found.failures.push((0, "there is no end: the bundle is cut off".into()));
    }
    found
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, all) in [("wrong", &self.failures), ("differs from the model", &self.differences)] {
            for (line, text) in all {
                writeln!(f, "line {line}: {what}: {text}")?;
            }
        }
        let Self { cqes, wqes, .. } = self;
        let differences = self.differences.len();
        match self.failures.len() {
            0 => write!(f, "replay: ok: {cqes} CQEs, {wqes} WQEs, {differences} differences from the model"),
            failures => write!(f, "replay: FAILED: {failures} lines are wrong"),
        }
    }
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digits = text.as_bytes();
    if digits.len() % 2 != 0 || !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return Err("no hexadecimal bytes".into());
    }
    let value = |digit: u8| if digit <= b'9' { digit - b'0' } else { digit - b'a' + 10 };
    Ok(digits.chunks_exact(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect())
}

fn number(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").filter(|digits| !digits.starts_with('+'));
    let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
    number.ok_or_else(|| format!("`{text}` is no hexadecimal number"))
}

/// Checks a CQE; returns what this model would have written otherwise.
fn cqe(line: &str) -> Result<Option<String>, String> {
    let words: Vec<&str> = line.split(' ').collect();
    let [cqn, size, index, bytes] = words[..] else { return Err("not the words of a CQE".into()) };
    number(cqn)?;
    if !matches!(size, "64" | "128") {
        return Err(format!("entries of {size} bytes"));
    }
    let (index, bytes) = (number(index)?, unhex(bytes)?);
    let Ok(bytes) = <[u8; 64]>::try_from(bytes) else { return Err("a CQE has 64 bytes".into()) };
    let cqe = Cqe64::from_bytes(&bytes);
    if !is_signed(&bytes, index) {
        return Err(format!("the signature is not that of index {index:#x}"));
    }
    Ok(match cqe.opcode() {
        CqeOpcode::RequesterError | CqeOpcode::ResponderError => error_difference(&bytes),
        CqeOpcode::Requester | CqeOpcode::NoPacket => other_bytes(&bytes),
        opcode if opcode.is_responder() => other_bytes(&bytes),
        opcode => Some(format!("opcode {opcode:?}")),
    })
}

/// Checks a compressed block. Only its title is signed.
fn block(line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split(' ').collect();
    let [cqn, index, title, arrays @ ..] = &words[..] else {
        return Err("not the words of a block".into());
    };
    number(cqn)?;
    let cqe = |text: &str| <[u8; 64]>::try_from(unhex(text)?).map_err(|_| String::from("a CQE has 64 bytes"));
    let (index, title) = (number(index)?, cqe(title)?);
    arrays.iter().try_for_each(|array| cqe(array).map(drop))?;
    if !is_signed(&title, index) {
        return Err(format!("the signature of the title is not that of index {index:#x}"));
    }
    let cqe = Cqe64::from_bytes(&title);
    if CqeFormat::from_op_own(cqe.op_own) != CqeFormat::Compressed || !cqe.opcode().is_responder() {
        return Err("the first CQE is not the title of a block".into());
    }
    let count = cqe.byte_cnt.get() as usize;
    if count.div_ceil(MINI_CQES_PER_ARRAY) != arrays.len() {
        return Err(format!("{} arrays for {count} CQEs", arrays.len()));
    }
    Ok(())
}

fn error_difference(bytes: &[u8; 64]) -> Option<String> {
    let cqe = ErrorCqe::from_bytes(bytes);
    let code = [cqe.syndrome, cqe.vendor_err_synd, cqe.hw_err_synd, cqe.hw_synd_type];
    let known = failures().any(|failure| failure == code);
    let reserved = bytes[..32].iter().chain(&bytes[36..52]).any(|byte| *byte != 0);
    match (known, reserved) {
        (false, _) => {
            Some(format!("syndrome {:02x}, vendor {:02x}, hw {:02x}/{:02x}", code[0], code[1], code[2], code[3]))
        }
        (_, true) => Some("bytes that are reserved in the CQE of an error".into()),
        _ => None,
    }
}

/// Names the bytes that this model leaves 0 in CQEs of this kind.
fn other_bytes(bytes: &[u8; 64]) -> Option<String> {
    let cqe = Cqe64::from_bytes(bytes);
    let inline = CqeFormat::from_op_own(cqe.op_own) == CqeFormat::Inline32;
    // Flags of tag matching, source, immediate data, tag matching, and from the byte count on all.
    let written = |at: usize| match at {
        0..=19 => inline || cqe.app != 0,
        20..=31 => true,
        32..=39 | 44..=63 => true,
        _ => cqe.app != 0,
    };
    let others: Vec<_> = (0..64).filter(|at| bytes[*at] != 0 && !written(*at)).map(|at| format!("{at:#x}")).collect();
    (!others.is_empty()).then(|| format!("bytes {} are not 0", others.join(", ")))
}

/// Start and key of the memory of a queue, in doorbell's and in libmlx5's. A new queue begins at slot 0.
#[derive(Default)]
struct Bases([Option<(u64, u32)>; 2]);

/// Compares a WQE of doorbell with that of libmlx5, both as the device reads them.
fn wqe(line: &str, bases: &mut Bases) -> Result<(), String> {
    let words: Vec<&str> = line.split(' ').collect();
    let [kind, slot, ours, theirs] = words[..] else { return Err("not the words of a WQE".into()) };
    let lead = match kind {
        "rq" => 0,
        "srq" => NextSegment::SIZE,
        _ => return Err(format!("a queue of kind {kind}")),
    };
    if number(slot)? == 0 {
        *bases = Bases::default();
    }
    let mut read = Vec::new();
    for (text, base) in [ours, theirs].into_iter().zip(&mut bases.0) {
        let bytes = unhex(text)?;
        let Some((link, segments)) = bytes.split_at_checked(lead) else {
            return Err("too short".into());
        };
        let segments = receive_segments(segments).ok_or("the device cannot read the segments")?;
        let Some(first) = segments.first() else { return Err("there is no segment".into()) };
        let (start, key) = *base.get_or_insert((first.addr.get(), first.lkey.get()));
        if let Some(other) = segments.iter().find(|segment| segment.lkey.get() != key) {
            return Err(format!("key {:#x} in a queue with key {key:#x}", other.lkey.get()));
        }
        let place = |addr: u64| addr.wrapping_sub(start);
        let places: Vec<_> =
            segments.iter().map(|segment| (place(segment.addr.get()), segment.byte_count.get())).collect();
        let rest = bytes[lead + DataSegment::SIZE * segments.len()..].to_vec();
        read.push((link.to_vec(), places, rest));
    }
    if read[0] == read[1] { Ok(()) } else { Err("doorbell and libmlx5 wrote different WQEs".into()) }
}

#[cfg(test)]
mod tests;
