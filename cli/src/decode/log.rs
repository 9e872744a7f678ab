//! Findings of reports in words.

use std::collections::HashMap;

use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::syndrome::Syndrome;

use super::cause::{self, explain};
use super::event::Event;
use super::report::Logged;
use super::{Finding, Kind, KnownFields};

/// Lines between a report and the dump that belongs to it.
const NEAR: usize = 8;
/// Objects of one kind of report that are named.
const NAMED: usize = 16;

/// A finding of a dump: its line, the processor or thread that printed it, and its numbers.
pub type Dumped = (usize, String, KnownFields);

/// Returns the findings of the reports that no dump shows, and of the events; the same report counts once.
pub fn findings(logs: Vec<Logged>, events: Vec<Event>, dumped: &[Dumped]) -> Vec<Finding> {
    let mut all: Vec<Event> = Vec::new();
    for logged in logs {
        let first = dumped.partition_point(|(line, ..)| line + NEAR < logged.line);
        let is_dumped = dumped[first..]
            .iter()
            .take_while(|(line, ..)| *line <= logged.line + NEAR)
            .any(|(_, caller, facts)| facts.syndrome == logged.facts.syndrome && *caller == logged.caller);
        if !is_dumped {
            let object = logged.facts.qpn.map(|qpn| ("QP", u64::from(qpn)));
            all.push(Event { finding: finding(logged), object });
        }
    }
    all.extend(events);
    let mut found: Vec<Finding> = Vec::new();
    let mut known: HashMap<String, (usize, Vec<u64>)> = HashMap::new();
    for Event { finding, object } in all {
        // All but the numbers of objects.
        let numbers = ["QP number", "CQ number", "wqe_counter"];
        let fields = finding.fields.iter().filter(|field| !numbers.contains(&field.name));
        let fields: String = fields.map(|field| format!("{}={} ", field.name, field.value)).collect();
        let failed = finding.explanation.as_ref().map(|explanation| &explanation.failed);
        let number = object.map(|object| object.1);
        match known.get_mut(&format!("{:?} {fields} {failed:?}", finding.printer)) {
            Some((at, numbers)) => {
                let same = &mut found[*at];
                same.times += 1;
                let (Some((name, _)), Some(number)) = (object, number) else { continue };
                if !numbers.contains(&number) && numbers.len() < NAMED {
                    numbers.push(number);
                    same.notes.push(format!("the same of {name} {number:#x}, in line {}", finding.line));
                }
            }
            None => {
                let key = format!("{:?} {fields} {failed:?}", finding.printer);
                known.insert(key, (found.len(), number.into_iter().collect()));
                found.push(finding);
            }
        }
    }
    found
}

fn finding(logged: Logged) -> Finding {
    let facts = logged.facts;
    let mut finding = Finding {
        line: logged.line,
        kind: Kind::Log,
        printer: logged.printer,
        times: 1,
        notes: logged.notes,
        ..Finding::default()
    };
    if let Some(status) = logged.status {
        let name = super::words::STATUSES.iter().find(|row| row.number == status);
        let field = finding.field(None, "status", format!("{status}"));
        if let Some(name) = name {
            field.means(format!("IBV_WC_{}", name.names[0].trim_start_matches("wc ").replace(' ', "_").to_uppercase()));
        }
    }
    let syndrome = facts.syndrome.map(Syndrome::new);
    if let Some(syndrome) = syndrome {
        let field = finding.field(None, "syndrome", format!("{:#04x}", syndrome.get()));
        field.means(match (syndrome.names(), logged.printed) {
            (Some(names), true) => {
                format!("{}: {} (status {} of verbs)", names.mlx5, names.verbs, names.status)
            }
            (Some(names), false) => {
                format!("not printed: an mlx5 adapter has {} where verbs say this status", names.mlx5)
            }
            (None, _) => "no name in mlx5dv.h".into(),
        });
    }
    if let Some(vendor) = facts.vendor {
        let field = finding.field(None, "vendor_err_synd", format!("{vendor:#04x}"));
        match syndrome.and_then(|syndrome| mlx5_wire::vendor::find(syndrome, vendor)) {
            Some(known) => field.means(known.meaning),
            None => field.means("unknown with this syndrome"),
        }
    }
    if let Some((error, kind)) = logged.hardware {
        finding.field(None, "hw_err_synd", format!("{error:#04x}"));
        if let Some(kind) = kind {
            finding.field(None, "hw_synd_type", format!("{kind:#04x}"));
        }
    }
    if let Some(forms) = logged.either {
        let both = |form: fn(&(Option<u32>, u16)) -> Option<String>| {
            let texts: Vec<String> = forms.iter().filter_map(form).collect();
            (!texts.is_empty()).then(|| texts.join(" or "))
        };
        let mut add = |name, text: Option<String>| {
            if let Some(text) = text {
                finding.field(None, name, text).means("both are possible");
            }
        };
        add("QP number", both(|form| form.0.map(|word| format!("{:#x}", word & 0xff_ffff))));
        add("wqe_counter", both(|form| Some(format!("{:#06x}", form.1))));
        add("opcode of the WQE", both(|form| form.0.map(|word| format!("{:#04x}", word >> 24))));
    }
    if let Some(qpn) = facts.qpn {
        finding.field(None, "QP number", format!("{qpn:#x}"));
    }
    if let Some(counter) = facts.wqe_counter {
        finding.field(None, "wqe_counter", format!("{counter:#06x}"));
    }
    if let Some(opcode) = facts.opcode {
        let field = finding.field(None, "opcode of the WQE", format!("{opcode:#04x}"));
        field.means(WqeOpcode::new(opcode).name().unwrap_or("no name in mlx5dv.h"));
    }
    match syndrome {
        Some(syndrome) => {
            finding.explanation = Some(explain(cause::Error {
                syndrome,
                vendor: facts.vendor,
                requester: logged.requester,
                opcode: facts.opcode,
                printed: logged.printed,
            }));
        }
        None => finding.notes.push("no mlx5 adapter reports this status: unknown".into()),
    }
    finding.facts = facts;
    finding
}
