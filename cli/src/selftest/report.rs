//! The report, and the bundle that can be replayed.

use std::collections::BTreeSet;
use std::fmt::Write;

use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::text::CqeText;

use super::check::Outcome;
use super::lab::Lab;
use super::witness::hex;

/// Name of the report: board and firmware, nothing of the machine.
pub fn file_name(lab: &Lab) -> String {
    let name = format!("doorbell-selftest-{}-{}.txt", lab.board(), lab.context.firmware());
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect()
}

fn head(lab: &Lab) -> String {
    let attr = lab.context.attr();
    format!(
        "vendor {:#x} part {} board {} firmware {} model {}\n",
        attr.vendor_id,
        attr.vendor_part_id,
        lab.board().replace(' ', "_"),
        lab.context.firmware().replace(' ', "_"),
        if lab.model { "yes" } else { "no" }
    )
}

/// The report: no name of the machine, and no address of it.
pub fn text(lab: &Lab, outcomes: &[Outcome], verdict: &str) -> String {
    let mut text = format!("doorbell selftest {}\n{}\n", env!("CARGO_PKG_VERSION"), head(lab));
    for outcome in outcomes {
        let _ = writeln!(text, "{outcome}");
    }
    text += &notes(lab);
    text += &executed(lab);
    text += &executed_lists(lab);
    text += "\nThe first CQE of each opcode, format and operation of tag matching:\n";
    let witness = lab.witness.borrow();
    for bytes in witness.first.values() {
        let _ = writeln!(text, "{}\n  {}", CqeText(bytes), hex(bytes));
    }
    for (format, cqes) in &witness.blocks {
        let _ = writeln!(text, "Compressed, {format}: the title and its arrays");
        cqes.iter().for_each(|cqe| _ = writeln!(text, "  {}", hex(cqe)));
    }
    let _ = writeln!(text, "\n{verdict}");
    text
}

/// Returns the number of opcodes, sizes and objects that the run executed, in a line.
pub fn executed(lab: &Lab) -> String {
    let witness = lab.witness.borrow();
    if witness.objects.is_empty() {
        return String::new();
    }
    let sizes: BTreeSet<u16> = witness.sends.values().flat_map(|sizes| sizes.keys().copied()).collect();
    let cqes: BTreeSet<u8> = witness.first.keys().map(|(opcode, _, _)| *opcode).collect();
    format!(
        "executed: {} opcodes of sends in WQEs of {} sizes, CQEs of {} opcodes, {} objects of {} kinds\n",
        witness.sends.len(),
        sizes.len(),
        cqes.len(),
        witness.objects.values().sum::<u32>(),
        witness.objects.len()
    )
}

/// Returns the opcodes, CQEs and objects that [`executed`] counts.
fn executed_lists(lab: &Lab) -> String {
    let witness = lab.witness.borrow();
    let mut text = String::new();
    for (opcode, sizes) in &witness.sends {
        let name = WqeOpcode::new(*opcode).name().map_or(format!("opcode {opcode:#04x}"), str::to_owned);
        let sizes: Vec<_> = sizes.iter().map(|(blocks, count)| format!("{count} of {blocks}")).collect();
        let _ = writeln!(text, "  {name}, WQEs of so many blocks: {}", sizes.join(", "));
    }
    if witness.objects.is_empty() {
        return text;
    }
    let objects: Vec<_> = witness.objects.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let _ = writeln!(text, "  {}", objects.join(", "));
    text
}

/// Returns the notes of the checks, a line each.
pub fn notes(lab: &Lab) -> String {
    lab.notes.iter().map(|(check, note)| format!("{check:<4} noted  {note}\n")).collect()
}

/// The bundle: a line for each structure that the device wrote, and a digest of all lines.
pub fn bundle(lab: &Lab, outcomes: &[Outcome]) -> String {
    let mut text = format!("doorbell-bundle 1\n{}", head(lab));
    for outcome in outcomes {
        let _ = writeln!(text, "check {} {:?}", outcome.id, outcome.ending);
    }
    let witness = lab.witness.borrow();
    for line in witness.wqes.iter().chain(&witness.lines) {
        let _ = writeln!(text, "{line}");
    }
    let digest = digest(text.as_bytes());
    let _ = writeln!(text, "end {digest:016x}");
    text
}

/// FNV-1a of 64 bits: it finds accidental changes, not deliberate ones.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
