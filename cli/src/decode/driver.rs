//! Lines of drivers and of programs around an error: connections that were refused, transmit queues, cables,
//! temperatures, PCIe, the IOMMU, `devlink health`.

use super::cause::{self, unknown};
use super::event::{Event, errno, event_of};
use super::known::{Row, find, rows};
use super::lines::Line;
use super::words::{Word, begins};

/// Numbers of such lines: the words before a number, and the name of its field.
const NUMBERS: [(&str, &str); 8] = [
    ("module", "module"),
    ("queue", "queue"),
    ("sq", "SQ"),
    ("cq", "CQ number"),
    ("fault addr", "address"),
    ("address", "address"),
    ("fault reason", "fault reason"),
    ("bit set", "sensors"),
];

/// Words by which the printer of such a line is known.
const PRINTERS: [(&str, &str); 7] = [
    ("nvme nvme", "nvme-rdma"),
    ("infiniband mlx5", "mlx5_ib"),
    ("mlx5_core ", "mlx5_core"),
    ("NETDEV WATCHDOG", "the kernel"),
    ("AER: ", "the kernel"),
    ("DMAR: ", "the kernel"),
    ("AMD-Vi: ", "the kernel"),
];

/// Reads such a line.
pub fn line(lines: &[Line], at: usize, words: &[Word]) -> Option<Event> {
    if let Some(event) = devlink_health(lines, at, words) {
        return Some(event);
    }
    let row = rows("line").iter().find(|row| row.words.split(", ").any(|pattern| has(words, pattern)))?;
    let mut event = event_of(
        row.explain(),
        "that the line says this is certain",
        "line",
        "Linux drivers/net/ethernet/mellanox/mlx5, drivers/infiniband/hw/mlx5, drivers/nvme/host/rdma.c; DPDK; rdma-core libibverbs/init.c",
    );
    let known = PRINTERS.iter().find(|known| lines[at].text.contains(known.0));
    event.finding.printer = known.map(|known| known.1);
    event.finding.field(None, "line", row.name.into());
    if let Some(device) = device(&lines[at].text) {
        event.finding.field(None, "device", device.into());
    }
    for (key, name) in NUMBERS {
        let value = (0..words.len()).find_map(|at| {
            let value = words.get(at + key.split(' ').count()).filter(|_| begins(&words[at..], key))?;
            let number = value.text.starts_with(|c: char| c.is_ascii_digit()) && value.hex().is_some();
            (number && value.gap.len() < 8).then_some(value.text)
        });
        if let Some(value) = value.filter(|_| event.finding.fields.iter().all(|field| field.name != name)) {
            event.finding.field(None, name, value.into());
        }
    }
    if ["create_mkey", "connect_rejected", "establish", "umem", "reg_umr", "pages"].contains(&row.name) {
        add_status(&mut event, words);
    }
    Some(event)
}

/// Returns `true` if the words have the parts of a pattern, one behind the other.
fn has(words: &[Word], pattern: &str) -> bool {
    let mut from = 0;
    pattern.split(" .. ").all(|part| {
        let found = (from..words.len()).find(|&at| begins(&words[at..], part));
        from = found.map_or(words.len(), |at| at + part.split(' ').count());
        found.is_some()
    })
}

/// Returns the last PCI address in a line, `0000:3b:00.0` or `3b:00.0`: the slot is named before the device.
fn device(text: &str) -> Option<&str> {
    let is_address = |word: &&str| {
        let Some((start, function)) = word.rsplit_once('.') else { return false };
        let parts: Vec<_> = start.split(':').collect();
        let hex = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        (2..=3).contains(&parts.len())
            && parts.iter().all(hex)
            && parts[parts.len() - 1].len() == 2
            && function.len() == 1
    };
    let words = text.split(|c: char| !(c.is_ascii_hexdigit() || c == ':' || c == '.'));
    words.map(|word| word.trim_matches([':', '.'])).rfind(is_address)
}

/// Adds the status of a connection that was not made: a reason of the peer, or an errno.
pub fn add_status(event: &mut Event, words: &[Word]) {
    let keys = ["status", "error", "err", "reason", "failed"];
    let found = words.windows(2).find_map(|two| {
        let (number, _) = two[1].number().filter(|_| keys.iter().any(|key| two[0].is(key)) && two[1].gap.len() < 8)?;
        Some((number, two[1].gap.ends_with('-')))
    });
    let Some((number, negative)) = found else { return };
    if negative {
        let name = errno(number).and_then(|row| row.name.split_once(' '));
        let field = event.finding.field(None, "status", format!("-{number}"));
        if let Some((_, name)) = name {
            field.means(name);
        }
        return;
    }
    let rejected = event.finding.fields.iter().any(|field| field.value.to_ascii_lowercase().contains("reject"));
    let reason = find("reject", &number.to_string()).filter(|_| rejected);
    let field = event.finding.field(None, "status", number.to_string());
    if let Some(reason) = reason {
        field.means(reason.words);
        if let Some(explanation) = &mut event.finding.explanation {
            let own: cause::Explanation = reason.explain();
            (explanation.failed, explanation.blame, explanation.checks) = (own.failed, own.blame, own.checks);
        }
    }
    // NVMe names what its target said.
    let nvme =
        words.windows(3).find(|three| three[0].is("nvme") && three[1].is("status")).and_then(|three| three[2].number());
    if let Some((number, _)) = nvme {
        event.finding.field(None, "nvme status", number.to_string());
    }
}

/// Reads `state error error 1 recover 0` of `devlink health show`, whose reporter stands in the line before it, or the
/// same as JSON.
fn devlink_health(lines: &[Line], at: usize, words: &[Word]) -> Option<Event> {
    let count = |words: &[Word], key: &str| {
        let two = words.windows(2).find(|two| two[0].is(key) && two[1].number().is_some())?;
        two[1].number().map(|number| number.0)
    };
    let starts = (0..words.len()).filter(|&start| words[start].is("state") && words.len() > start + 5);
    let mut states = starts.filter_map(|start| {
        let rest = &words[start..(start + 8).min(words.len())];
        let (errors, recovered) = (count(rest, "error")?, count(rest, "recover")?);
        Some((start, rest[1], errors, recovered))
    });
    let (start, state, errors, recovered) = states.find(|(_, state, errors, _)| *errors > 0 || !state.is("healthy"))?;
    let named = words[..start].iter().rposition(|word| word.is("reporter")).map(|at| joined(&words[at + 1..start]));
    let above = || lines[..at].iter().rev().take(3).find_map(|line| line.text.trim().strip_prefix("reporter "));
    let before = named.or_else(|| above().map(str::to_owned));
    let known = find("event", "health").filter(|_| before.as_ref().is_some_and(|name| name.starts_with("fw")));
    let other = || {
        unknown(
            "a health reporter of the driver counted errors",
            "devlink health dump show and diagnose of this reporter",
        )
    };
    let mut event = event_of(
        known.map_or_else(other, Row::explain),
        "the counts are certain",
        "devlink health",
        "Linux Documentation/networking/devlink/devlink-health.rst",
    );
    event.finding.field(None, "reporter", before.unwrap_or("not printed".into()));
    event.finding.field(None, "state", state.text.into());
    event.finding.field(None, "errors", errors.to_string());
    event.finding.field(None, "recovered", recovered.to_string());
    Some(event)
}

/// Returns the words with an underscore between them.
fn joined(words: &[Word]) -> String {
    words.iter().map(|word| word.text).collect::<Vec<_>>().join("_")
}
