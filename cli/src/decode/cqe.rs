//! CQEs in a block of bytes.

use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::signature::{fold, residue};
use mlx5_wire::syndrome::Syndrome;

use super::cause::{self, explain};
use super::event::Event;
use super::fields::{self, SIZE, TAIL, is_error};
use super::hex::{Block, Context};
use super::{Finding, Kind, Signature};

/// Lines between a report of the kernel and the dump that belongs to it.
const NEAR: usize = 6;
/// Bytes that DPDK writes over the first bytes of an error CQE that it has dumped.
const SEEN: [u8; 5] = *b"\0seen";

/// Returns `true` if these bytes are, or end with, a CQE of an error: by its opcode, format and a known syndrome.
pub fn looks_like_error(bytes: &[u8]) -> bool {
    let whole = bytes.len() >= SIZE && bytes.len() % SIZE == 0;
    let part = bytes.len() >= TAIL && bytes.len() < SIZE && bytes.len() % 4 == 0;
    let mut entries = bytes.chunks(if whole { SIZE } else { bytes.len().max(1) });
    let turned = |entry: &[u8], group| is_error(&swapped(entry, group));
    (whole || part) && entries.any(|entry| is_error(entry) || turned(entry, 4) || turned(entry, 8))
}

/// Returns `true` if these bytes are CQEs, or the end of one, and one of them is of an error.
pub fn ends_like_error(bytes: &[u8]) -> bool {
    (bytes.len() % SIZE == 0 || bytes.len() < SIZE) && bytes.chunks(SIZE).any(is_error)
}

/// Returns the bytes with each group of `group` swapped.
fn swapped(bytes: &[u8], group: usize) -> Vec<u8> {
    bytes.chunks(group).flat_map(|group| group.iter().rev().copied()).collect()
}

/// Returns the findings in a block of one CQE, several CQEs, or a part of one.
pub fn decode(block: &Block, logs: &[Event]) -> Vec<Finding> {
    let mut bytes = block.bytes.clone();
    let mut notes = Vec::new();
    let as_it_stands = bytes.chunks(SIZE).any(is_error);
    if matches!(block.group, 2 | 4 | 8) && !as_it_stands {
        let turned = swapped(&bytes, block.group);
        if turned.chunks(SIZE).any(is_error) {
            bytes = turned;
            notes.push(format!(
                "the groups of {} bytes are in the byte order of this machine, as a debugger prints them: swapped",
                block.group
            ));
        }
    }
    if bytes.len() < SIZE || bytes.len() % SIZE != 0 {
        return part(block, &bytes, notes, logs).into_iter().collect();
    }
    let entries = bytes.len() / SIZE;
    let mut found = Vec::new();
    for (index, entry) in bytes.chunks_exact(SIZE).enumerate() {
        let Ok(entry) = <[u8; SIZE]>::try_from(entry) else { continue };
        let rows = SIZE.div_ceil(16);
        let mut finding = Finding {
            line: block.line,
            times: 1,
            printer: block.printer,
            caller: block.caller.clone(),
            ..Finding::default()
        };
        finding.notes.clone_from(&notes);
        if entries > 1 {
            finding.line += index * rows * usize::from(block.group < 16);
            finding.notes.push(format!("entry {index} of {entries} in this dump"));
        }
        whole(&mut finding, entry, block, logs);
        // When there are many entries, fresh and empty ones are left out.
        let fresh = entry[SIZE - 1] >> 4 == CqeOpcode::Invalid.bits();
        if entries == 1 || finding.is_error() || (finding.kind == Kind::Cqe && !fresh && entry.iter().any(|&b| b != 0))
        {
            found.push(finding);
        }
    }
    found
}

fn whole(finding: &mut Finding, mut entry: [u8; SIZE], block: &Block, logs: &[Event]) {
    if entry.starts_with(&SEEN) {
        entry[..SEEN.len()].fill(0);
        finding
            .notes
            .push("bytes 0 to 4 hold the mark that DPDK writes over a CQE that it has seen: taken as 0".into());
    }
    finding.bytes = entry.to_vec();
    let opcode = CqeOpcode::from_bits(entry[SIZE - 1] >> 4);
    let is_named = matches!(block.context, Context::Cqe(_));
    match opcode {
        CqeOpcode::RequesterError | CqeOpcode::ResponderError if is_named || is_error(&entry) => {
            finding.kind = Kind::ErrorCqe;
            if !is_named {
                finding
                    .notes
                    .push("taken for a CQE of an error: its last byte and its syndrome say so, no words do".into());
            }
            fields::cqe(finding, &entry, 0);
            finish(finding, &entry, logs);
        }
        CqeOpcode::RequesterError | CqeOpcode::ResponderError | CqeOpcode::Unknown(_) => unknown(finding, &entry),
        CqeOpcode::Invalid => {
            fields::cqe(finding, &entry, 0);
            finding.notes.push("opcode 15: the adapter has not written this CQE".into());
        }
        _ if entry.iter().all(|&byte| byte == 0) => {
            finding.notes.push("64 bytes of 0: nothing was written here, or the dump was cleared".into());
        }
        _ => {
            if !is_named {
                finding.notes.push("taken for a CQE by its last byte; it may be something else".into());
            }
            fields::cqe(finding, &entry, 0);
            let sum = residue(&entry);
            finding.signature = Some(Signature {
                residue: sum,
                holds: None,
                text: format!(
                    "would belong to an index whose bytes XOR to {sum:#04x}. That good CQEs follow the rule is extrapolated from \
                     CQEs of errors"
                ),
            });
        }
    }
}

fn unknown(finding: &mut Finding, entry: &[u8; SIZE]) {
    finding.kind = Kind::Unknown;
    finding.notes.push(format!(
        "64 bytes that are neither a CQE nor a WQE that is known: as a CQE its opcode would be {:#x} with syndrome {:#04x}, as a \
         WQE its opcode {:#04x}",
        entry[SIZE - 1] >> 4,
        entry[55],
        entry[3]
    ));
}

/// The end of a CQE, for which people often cut the rest.
fn part(block: &Block, bytes: &[u8], mut notes: Vec<String>, logs: &[Event]) -> Option<Finding> {
    let is_named = matches!(block.context, Context::Cqe(_));
    let at_end = block.base.is_none_or(|base| base as usize % SIZE + bytes.len() == SIZE);
    if !at_end || bytes.len() < TAIL || bytes.len() > SIZE || !is_error(bytes) {
        // Without words around it, any number could be meant.
        is_named.then_some(())?;
        let mut finding =
            Finding { line: block.line, times: 1, printer: block.printer, bytes: bytes.to_vec(), ..Finding::default() };
        finding.notes = notes;
        let len = bytes.len();
        finding.notes.push(format!(
            "{len} bytes of a CQE of {SIZE}: its end, which says what failed, is missing or not legible"
        ));
        return Some(finding);
    }
    let first_byte = SIZE - bytes.len();
    let mut entry = [0; SIZE];
    entry[first_byte..].copy_from_slice(bytes);
    notes.push(format!(
        "only bytes {first_byte:#04x} to 0x3f of a CQE{}",
        if is_named { "" } else { ", taken for its end because its last byte and its syndrome say so" }
    ));
    let mut finding = Finding {
        line: block.line,
        kind: Kind::PartOfErrorCqe,
        times: 1,
        printer: block.printer,
        caller: block.caller.clone(),
        ..Finding::default()
    };
    (finding.bytes, finding.first_byte, finding.notes) = (bytes.to_vec(), first_byte, notes);
    fields::cqe(&mut finding, &entry, first_byte);
    finish(&mut finding, &entry, logs);
    if finding.kind == Kind::PartOfErrorCqe {
        // The bytes that are missing are usually 0, but not always.
        finding.signature = None;
        finding.notes.push("the signature needs all 64 bytes: not checked".into());
    }
    Some(finding)
}

/// Adds the signature, the explanation of an error, and numbers of a report of the kernel near the dump.
fn finish(finding: &mut Finding, entry: &[u8; SIZE], logs: &[Event]) {
    let facts = finding.facts.clone();
    let requester = entry[SIZE - 1] >> 4 == CqeOpcode::RequesterError.bits();
    let near = |log: &&Finding| {
        log.line <= finding.line
            && finding.line - log.line <= NEAR
            && log.facts.ci.is_some()
            && log.caller == finding.caller
    };
    let beside = logs.iter().map(|log| &log.finding).rev().find(near);
    finding.facts.ci = beside.and_then(|log| log.facts.ci);
    finding.signature = Some(check(entry, finding.facts.ci));
    finding.explanation = Some(explain(cause::Error {
        syndrome: Syndrome::new(facts.syndrome.unwrap_or_default()),
        vendor: facts.vendor,
        requester: Some(requester),
        opcode: facts.opcode,
        printed: true,
    }));
    if let Some(log) = beside {
        let differs = log.facts.syndrome != facts.syndrome || log.facts.vendor.is_some_and(|v| Some(v) != facts.vendor);
        if differs {
            finding
                .notes
                .push(format!("line {} says other syndromes than these bytes: they may be of another CQE", log.line));
        }
        if let (Some(named), Some(0)) = (log.facts.qpn, facts.qpn) {
            finding.notes.push(format!("line {} names the queue: {named:#x}", log.line));
        }
    }
    if facts.syndrome == Some(0) {
        finding.notes.push("syndrome 0 is no error: the bytes may be cut, or in another order".into());
    }
}

/// Checks the signature against the index that the kernel printed.
fn check(entry: &[u8; SIZE], ci: Option<u32>) -> Signature {
    let sum = residue(entry);
    let (holds, text) = match ci {
        Some(ci) if fold(ci) == sum => (
            Some(true),
            format!("holds for index {ci:#x}, which was printed beside it: the CQE is whole and was read at its place"),
        ),
        // Kernels of 2019 advanced it before they printed it.
        Some(ci) if ci > 0 && fold(ci - 1) == sum => (
            Some(true),
            format!(
                "holds for index {:#x}, the one before the index {ci:#x} that was printed (kernels of 2019 print the next one)",
                ci - 1
            ),
        ),
        Some(ci) => (
            None,
            format!(
                "not decided: {ci:#x} was printed, which is the index modulo the size of the CQ. It holds if the bytes of the upper \
                 part XOR to {:#04x}",
                sum ^ fold(ci)
            ),
        ),
        None => {
            let small = if sum == 0 { "the first CQE of its CQ".to_owned() } else { format!("index {sum}") };
            (
                None,
                format!(
                    "belongs to {small}, or to a later index whose bytes XOR to {sum:#04x}; which one it was is not in the text"
                ),
            )
        }
    };
    Signature { residue: sum, holds, text }
}
