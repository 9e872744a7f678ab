//! The counts of earlier, and by how much they may grow.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use doorbell_benches::report::Row;

use crate::Result;

/// Growth of a count with the compiler of the baseline: a change elsewhere can make the compiler inline differently.
const SAME_COMPILER: f64 = 1.03;
/// Growth of a count with another compiler.
const OTHER_COMPILER: f64 = 1.2;
/// Instructions by which a count may grow besides. Counts are means, and three per cent of 30 is less than one.
const SLACK: f64 = 1.0;
/// Slack for counts of one message or frame: the compiler moves instructions across the borders of what is counted.
const SLACK_OF_ONE: f64 = 4.0;

/// Operations that may cost this many times what another costs, with each compiler and on each machine.
const TIMES: [(&str, &str, f64); 3] = [
    ("SRQ cycle, lending batch, 1000 QPs", "SRQ cycle, lending batch", 1.1),
    ("SRQ cycle, lending batch, 32768 slots", "SRQ cycle, lending batch, 64 slots", 1.1),
    ("SEND post and poll, Sender, batch 1, 1024 QPs", "SEND post and poll, Sender, batch 1", 1.12),
];

/// Operations that may cost more than with libmlx5: a sender looks for buffers in the requests that a CQE covers, and
/// libmlx5 keeps no buffers.
const DEARER: [&str; 1] = ["one message: completion, unsignaled send"];

/// Highest ratio to libmlx5 of an operation of the drop-in. Programs that were not written for doorbell pay it.
const DROP_IN: f64 = 1.1;

/// The cost of one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) instructions: f64,
    pub(crate) loads: f64,
    pub(crate) stores: f64,
}

fn compiler() -> Result<String> {
    let output = Command::new("rustc").arg("--version").output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Writes the counts.
pub(crate) fn save(current: &BTreeMap<String, Cost>, path: &Path) -> Result<()> {
    let mut text = format!("# {}\n", compiler()?);
    text += "# operation\tinstructions\tloads\tstores, per message\n";
    for (label, Cost { instructions, loads, stores }) in current {
        text += &format!("{label}\t{instructions:.2}\t{loads:.2}\t{stores:.2}\n");
    }
    Ok(fs::write(path, text)?)
}

/// Fails if an operation has grown, or costs more than with libmlx5. [`DEARER`] may, and with the drop-in all may a
/// little.
pub(crate) fn compare(current: &BTreeMap<String, Cost>, rows: &[Row], path: &Path) -> Result<()> {
    let text = fs::read_to_string(path)?;
    let (compiler, mut lines) = (compiler()?, text.lines());
    let made_with = lines.next().unwrap_or_default().trim_start_matches("# ");
    let tolerance = if made_with == compiler { SAME_COMPILER } else { OTHER_COMPILER };
    let mut findings = Vec::new();
    let mut before = BTreeMap::new();
    for line in lines.filter(|line| !line.starts_with('#')) {
        let mut fields = line.split('\t');
        let label = fields.next().unwrap_or_default();
        let count: f64 = fields.next().ok_or("a line without a count")?.parse()?;
        before.insert(label, count);
        let of_one = label.starts_with("one ") && !label.contains("cache lines");
        let slack = if of_one { SLACK_OF_ONE } else { SLACK };
        match current.get(label) {
            None => findings.push(format!("{label}: is not counted any more")),
            Some(now) if now.instructions > count * tolerance + slack => {
                findings.push(format!("{label}: {:.2} instructions, was {count:.2}", now.instructions));
            }
            Some(_) => {}
        }
    }
    let new = current.keys().filter(|label| !before.contains_key(label.as_str()));
    findings.extend(new.map(|label| format!("{label}: is not in the baseline")));
    let instructions = |label| current.get(label).map_or(f64::NAN, |cost| cost.instructions);
    for (label, other, times) in TIMES {
        let ratio = instructions(label) / instructions(other);
        // A count that is missing is a finding, too.
        if !ratio.le(&times) {
            findings.push(format!("{label}: {ratio:.2} times {other}, at most {times} are allowed"));
        }
    }
    for row in rows {
        let most = match &row.op {
            op if op.contains("drop-in") => DROP_IN,
            op if DEARER.contains(&op.as_str()) => f64::INFINITY,
            _ => 1.0,
        };
        if row.unit.starts_with("instructions") && row.ratio() > most {
            let Row { op, doorbell, reference, reference_name, .. } = row;
            findings.push(format!("{op}: {doorbell:.2} instructions, {reference_name} {reference:.2}"));
        }
    }
    if !findings.is_empty() {
        return Err(
            format!("counts, with {compiler}, beside a baseline of {made_with}:\n{}", findings.join("\n")).into()
        );
    }
    let percent = (tolerance - 1.0) * 100.0;
    println!("counts: ok: {} operations within {percent:.0} % of the baseline of {made_with}", before.len());
    Ok(())
}
