//! The report, and the bundle that can be replayed.

use std::fmt::Write;

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
