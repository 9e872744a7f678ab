//! Findings of reports in words.

use std::collections::HashMap;

use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::syndrome::Syndrome;
use mlx5_wire::text::Value;
use mlx5_wire::vendor;

use super::cause::{self, explain};
use super::event::Event;
use super::fields::of_words;
use super::keys::{Key, Number};
use super::report::Draft;
use super::words::status_name;
use super::{Finding, Kind};

/// Lines between a report and the dump that belongs to it.
const NEAR: usize = 8;
/// Objects of one kind of report that are named.
const NAMED: usize = 16;

/// Leaves out the reports that a dump shows, and counts the same report once. `dumps` are sorted by line.
pub fn findings(logs: Vec<Event>, events: Vec<Event>, dumps: &[Finding]) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let mut known: HashMap<String, (usize, Vec<u64>)> = HashMap::new();
    let is_dumped = |log: &Finding| {
        let first = dumps.partition_point(|dump| dump.line + NEAR < log.line);
        let near = dumps[first..].iter().take_while(|dump| dump.line <= log.line + NEAR);
        near.filter(|dump| dump.is_error())
            .any(|dump| dump.facts.syndrome == log.facts.syndrome && dump.caller == log.caller)
    };
    let logs = logs.into_iter().filter(|log| !is_dumped(&log.finding));
    for Event { finding, object } in logs.chain(events) {
        // All but the numbers of objects.
        let numbers = ["QP number", "CQ number", "wqe_counter"];
        let fields = finding.fields.iter().filter(|field| !numbers.contains(&field.name));
        let fields: String = fields.map(|field| format!("{}={} ", field.name, field.value)).collect();
        let failed = finding.explanation.as_ref().map(|explanation| &explanation.failed);
        let key = format!("{:?} {fields} {failed:?}", finding.printer);
        let number = object.map(|object| object.1);
        let Some((at, numbers)) = known.get_mut(&key) else {
            known.insert(key, (found.len(), number.into_iter().collect()));
            found.push(finding);
            continue;
        };
        let same = &mut found[*at];
        same.times += 1;
        let (Some((name, _)), Some(number)) = (object, number) else { continue };
        if !numbers.contains(&number) && numbers.len() < NAMED {
            numbers.push(number);
            same.notes.push(format!("the same of {name} {number:#x}, in line {}", finding.line));
        }
    }
    found
}

/// Returns the finding of a report.
pub fn finding(draft: Draft) -> Event {
    let mut finding =
        Finding { line: draft.line, kind: Kind::Log, printer: draft.printer, times: 1, ..Finding::default() };
    let printed = draft.values.contains_key(&Key::Syndrome);
    // The words of UCX stand for the syndrome beside them.
    let status = draft.get(Key::Status).filter(|&status| status != 0 && !(draft.named && printed));
    let of_status = status.and_then(Syndrome::from_status).map(Syndrome::get);
    let (syndrome, vendor) = syndromes(&draft, of_status, &mut finding.notes);
    finding.facts.syndrome = syndrome.or(of_status);
    finding.facts.vendor = vendor;
    finding.facts.ci = draft.get(Key::Ci);
    notes(&draft, &mut finding);
    if let Some(status) = status {
        let field = finding.field(None, "status", format!("{status}"));
        if let Some(name) = status_name(status) {
            field.means(name);
        }
    }
    let syndrome = finding.facts.syndrome.map(Syndrome::new);
    if let Some(syndrome) = syndrome {
        let mut field = of_words("syndrome", Value::Syndrome(syndrome.get()));
        if let (Some(names), false) = (syndrome.names(), printed) {
            field.means(format!("not printed: an mlx5 adapter has {} where verbs say this status", names.mlx5));
        }
        finding.fields.push(field);
    }
    let hex = |key| draft.get(key).map(|number| Value::Hex(number.into(), 2));
    let vendor_value = vendor.map(|vendor| Value::Vendor(vendor, syndrome.unwrap_or(Syndrome::new(0))));
    // SPDK prints the first of the two only.
    let kind = hex(Key::HwType).filter(|_| draft.values.contains_key(&Key::HwError));
    let more = [("vendor_err_synd", vendor_value), ("hw_err_synd", hex(Key::HwError)), ("hw_synd_type", kind)];
    finding.fields.extend(more.into_iter().filter_map(|(name, value)| value.map(|value| of_words(name, value))));
    let requester = request(&draft, &mut finding);
    let opcode = finding.facts.opcode;
    finding.explanation = Some(match syndrome {
        Some(syndrome) => explain(cause::Error { syndrome, vendor, requester, opcode, printed }),
        None => cause::of_status(status.unwrap_or_default()),
    });
    finding.caller = draft.caller;
    let object = finding.facts.qpn.map(|qpn| ("QP", u64::from(qpn)));
    Event { finding, object }
}

/// Returns the syndrome that was printed and the vendor syndrome. Digits without a prefix may be decimal or
/// hexadecimal: the reading that adapters were seen to report counts.
fn syndromes(draft: &Draft, of_status: Option<u8>, notes: &mut Vec<String>) -> (Option<u8>, Option<u8>) {
    let bytes = |key| -> Vec<u8> {
        let number: Option<&Number> = draft.values.get(&key);
        number.into_iter().flat_map(|number| number.readings()).filter_map(|n| u8::try_from(n).ok()).collect()
    };
    let (syndromes, vendors) = (bytes(Key::Syndrome), bytes(Key::Vendor));
    let printed = if syndromes.is_empty() { of_status.into_iter().collect() } else { syndromes.clone() };
    let pairs = printed.iter().flat_map(|&syndrome| vendors.iter().map(move |&vendor| (syndrome, vendor)));
    let known = pairs.into_iter().find(|&(syndrome, vendor)| vendor::find(Syndrome::new(syndrome), vendor).is_some());
    let named = syndromes.iter().copied().find(|&syndrome| Syndrome::new(syndrome).names().is_some());
    let syndrome = known.filter(|_| !syndromes.is_empty()).map(|pair| pair.0).or(named).or(syndromes.first().copied());
    let vendor = known.map(|pair| pair.1).or(vendors.first().copied());
    for (name, readings, chosen) in [("syndrome", &syndromes, syndrome), ("vendor syndrome", &vendors, vendor)] {
        let (Some(chosen), Some(&first)) = (chosen, readings.first()) else { continue };
        let bare = draft.values.get(if name == "syndrome" { &Key::Syndrome } else { &Key::Vendor });
        let Some(Number { value: digits @ 10.., bare: true }) = bare.copied() else { continue };
        let sure = known.is_some() || readings.len() == 1;
        notes.push(match (chosen == first, sure) {
            (true, true) => format!("{name} {digits} is printed in decimal: it is {chosen:#04x}, not 0x{digits}"),
            (false, _) => format!("{name} {digits} has no prefix: taken for hexadecimal, because only that reading is known"),
            (true, false) => {
                format!("{name} {digits} is taken for decimal, {chosen:#04x}; if the program prints hexadecimal, it is 0x{digits}")
            }
        });
    }
    (syndrome, vendor)
}

/// Adds what else is to be said of a report.
fn notes(draft: &Draft, finding: &mut Finding) {
    let mut note = |applies: bool, text: &str| {
        if applies {
            finding.notes.push(text.into());
        }
    };
    let has = |key| draft.values.contains_key(&key);
    note(draft.verbs_opcode, "the opcode in a completion with an error has no meaning in verbs: not read");
    note(draft.older, "an adapter before mlx5, whose syndromes have the same numbers as far as is known");
    note(
        draft.printer == Some("DPDK") && !has(Key::Vendor),
        "the vendor syndrome is in the bytes of the CQE, which DPDK writes to /var/log or to the folder of --log-path: decode that, it says more",
    );
    note(
        draft.mixed,
        "lines of several reports are mixed, and no prefix says which belong together: only this line was read",
    );
    note(draft.named && !has(Key::Vendor) && !has(Key::Syndrome), "known by the name of its status only");
}

/// Adds queue, index and opcode of the request. Returns `true` if a send queue reports the error, where that is known.
///
/// Some programs print numbers in the order of the CQE, others swap them.
fn request(draft: &Draft, finding: &mut Finding) -> Option<bool> {
    const BOTH: &str = "the program may print numbers in the byte order of the CQE or in that of the machine, and these numbers fit both";
    let counter = draft.get(Key::Counter).and_then(|counter| u16::try_from(counter).ok());
    let both = |value: [String; 2]| value.join(" or ");
    let mut ambiguous = |name, value: String| finding.field(None, name, value).means("both are possible");
    let (qpn, counter, opcode) = match draft.get(Key::Packed) {
        None => {
            // libgdsync prints the counter without swapping it, others swap it.
            let swapped = counter.map(u16::swap_bytes).filter(|&swapped| {
                draft.printer == Some("DOCA") && !draft.values.contains_key(&Key::Qp) && Some(swapped) != counter
            });
            let opcode = draft.get(Key::Opcode).and_then(|opcode| u8::try_from(opcode).ok());
            match (counter, swapped) {
                (Some(counter), Some(swapped)) => {
                    ambiguous("wqe_counter", both([counter, swapped].map(|counter| format!("{counter:#06x}"))));
                    finding.notes.push(BOTH.into());
                    (draft.get(Key::Qp), None, opcode)
                }
                _ => (draft.get(Key::Qp), counter, opcode),
            }
        }
        Some(word) => {
            let words = [word, word.swap_bytes()];
            match words.map(likely) {
                [printed, swapped] if printed == swapped && words[0] != words[1] => {
                    ambiguous("QP number", both(words.map(|word| format!("{:#x}", word & 0xff_ffff))));
                    if let Some(counter) = counter {
                        let counters = [counter, counter.swap_bytes()];
                        ambiguous("wqe_counter", both(counters.map(|counter| format!("{counter:#06x}"))));
                    }
                    ambiguous("opcode of the WQE", both(words.map(|word| format!("{:#04x}", word >> 24))));
                    finding.notes.push(BOTH.into());
                    return draft.requester;
                }
                [printed, swapped] if printed < swapped => {
                    finding.notes.push(format!(
                        "printed without swapping the bytes: {:#010x} is {:#010x} in the order of the CQE, whose first byte is the opcode",
                        words[0], words[1]
                    ));
                    (Some(words[1] & 0xff_ffff), counter.map(u16::swap_bytes), Some((words[1] >> 24) as u8))
                }
                _ => (Some(word & 0xff_ffff), counter, Some((word >> 24) as u8)),
            }
        }
    };
    let opcode = opcode.filter(|&opcode| opcode != 0);
    let qp = qpn.map(|qpn| ("qp", Value::Hex(qpn.into(), 0)));
    let known =
        [qp, counter.map(|at| ("wqe_counter", Value::Index(at))), opcode.map(|op| ("wqe_opcode", Value::Opcode(op)))];
    finding.fields.extend(known.into_iter().flatten().map(|(name, value)| of_words(name, value)));
    (finding.facts.qpn, finding.facts.wqe_counter, finding.facts.opcode) = (qpn, counter, opcode);
    let packed = draft.values.contains_key(&Key::Packed);
    draft.requester.or(opcode.filter(|_| packed).map(|_| true))
}

/// Returns how likely a word is opcode and queue in this order: by the place of the opcode.
fn likely(word: u32) -> u8 {
    let opcode = WqeOpcode::new((word >> 24) as u8);
    match opcode.get() {
        _ if word & 0xff_ffff < 2 || opcode.name().is_none() => 0,
        // Operations of queue pairs on which programs of this kind send; 0 is that of a receive.
        0x08..=0x0b | 0x10..=0x15 => 2,
        _ => 1,
    }
}
