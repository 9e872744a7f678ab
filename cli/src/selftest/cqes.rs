//! Group D: fields of CQEs.

use std::cell::Ref;

use doorbell::{Compression, DataPath, Timestamps};
use mlx5_wire::cqe::{Cqe64, CqeFormat};
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::signature::is_signed;
use mlx5_wire::text::CqeText;

use super::check::{Check, Needs};
use super::lab::Lab;
use super::layout::counter;
use super::pair::{Pair, Shape};
use super::receive::payload;
use super::stop::{Stop, fail, same};
use super::witness::{Kind, Rule, Witness, hex};

pub const CHECKS: &[Check] = &[
    Check { id: "D21", name: "owner bits over three laps of a CQ", needs: Needs::Rings, run: owners },
    Check { id: "D23", name: "wqe_counter and queue pair of each CQE", needs: Needs::Rings, run: counters },
    Check { id: "D24", name: "byte count of each CQE", needs: Needs::Rings, run: byte_counts },
    Check { id: "D25", name: "opcode of each CQE", needs: Needs::Rings, run: opcodes },
    Check { id: "D26", name: "timestamps rise, within the time that passes", needs: Needs::Device, run: timestamps },
    Check { id: "D28", name: "compressed CQEs", needs: Needs::Rings, run: compressed },
];

/// Checks of all CQEs of the run.
pub const LAST: &[Check] = &[
    Check { id: "D20", name: "signature of every CQE of this run", needs: Needs::Rings, run: signatures },
    Check { id: "D22", name: "user index of every CQE of this run", needs: Needs::Rings, run: user_indices },
    Check { id: "D27", name: "opcodes that were seen", needs: Needs::Rings, run: seen },
];

/// Lets `count` messages arrive one after the other, and returns the CQEs of the receives.
fn cqes(lab: &Lab, shape: &Shape, count: u32, imm: impl Fn(u32) -> Option<u32>) -> Result<(Pair, Vec<Cqe64>), Stop> {
    let mut pair = Pair::new(lab, shape)?;
    for number in 0..count {
        pair.send(0, &payload(number, number as usize % 60), imm(number))?;
    }
    pair.arrived(count)?;
    let cqes = pair.cqes().iter().map(Cqe64::from_bytes).collect();
    Ok((pair, cqes))
}

fn owners(lab: &mut Lab) -> Result<String, Stop> {
    let shape = Shape { receives: 16, buffers: 16, cq: Some(16), ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    for round in 0..8 {
        for number in 0..8 {
            pair.send(0, &[number], None)?;
        }
        // The tap finds a CQE by the owner bit only.
        pair.arrived(8)?;
        pair.take(8)?;
        let tap = pair.tap.as_ref().map_or(0, |tap| tap.seen.len());
        same("CQEs with the owner bit of their lap", &(8 * (round + 1)), &tap)?;
    }
    pair.all_sent(0)?;
    Ok("64 CQEs in a CQ of 16".into())
}

fn counters(lab: &mut Lab) -> Result<String, Stop> {
    let (pair, cqes) = cqes(lab, &Shape::new(lab), 60, |_| None)?;
    let qpn = pair.near[0].qp_num();
    for (number, (cqe, bytes)) in cqes.iter().zip(pair.cqes()).enumerate() {
        same(format!("wqe_counter of CQE {number} ({})", hex(&bytes)), &number, &counter(&bytes))?;
        same(format!("QP of CQE {number} ({})", hex(&bytes)), &qpn, &(cqe.sop_drop_qpn.get() & 0xff_ffff))?;
    }
    Ok("60 receives".into())
}

fn byte_counts(lab: &mut Lab) -> Result<String, Stop> {
    let (_, cqes) = cqes(lab, &Shape::new(lab), 60, |_| None)?;
    for (number, cqe) in cqes.iter().enumerate() {
        same(
            format!("byte_cnt of CQE {number} ({})", CqeText(&cqe.to_bytes())),
            &(number as u32 % 60),
            &cqe.byte_cnt.get(),
        )?;
    }
    Ok("0 to 59 bytes".into())
}

fn opcodes(lab: &mut Lab) -> Result<String, Stop> {
    let (mut pair, cqes) = cqes(lab, &Shape::new(lab), 40, |number| (number % 2 == 1).then_some(number))?;
    for (number, cqe) in cqes.iter().enumerate() {
        let wanted = [CqeOpcode::ResponderSend, CqeOpcode::ResponderSendImm][number % 2];
        same(format!("opcode of CQE {number} ({})", CqeText(&cqe.to_bytes())), &wanted, &cqe.opcode())?;
        same("format", &CqeFormat::Plain, &CqeFormat::from_op_own(cqe.op_own))?;
    }
    pair.all_sent(0)?;
    for seen in pair.sent_cqes(0).iter().flatten() {
        let cqe = Cqe64::from_bytes(seen);
        same(format!("opcode of the CQE of a send ({})", hex(seen)), &CqeOpcode::Requester, &cqe.opcode())?;
    }
    Ok("SEND, SEND with immediate data, and the CQEs of their sends".into())
}

fn timestamps(lab: &mut Lab) -> Result<String, Stop> {
    let shape = Shape { receiver: |config| config.timestamps(Timestamps::Ticks), ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    let Ok(clock) = lab.context.clock() else {
        return Err(Stop::Cannot("the device has no clock that can be read".into()));
    };
    let began = std::time::Instant::now();
    let (mut first, mut last) = (None, None);
    for number in 0..100u32 {
        pair.send(0, &number.to_be_bytes(), None)?;
        pair.receive(1, |message| {
            let Some(time) = message?.timestamp() else {
                return Err(Stop::Cannot("the device has no timestamps".into()));
            };
            let now = clock.nanoseconds(time).map_err(|error| error.to_string())?;
            if last.is_some_and(|last| now < last) {
                return fail(format!("timestamp {now} ns of message {number} comes after {} ns", last.unwrap_or(0)));
            }
            first.get_or_insert(now);
            last = Some(now);
            Ok(())
        })?;
    }
    let (spent, passed) = (last.unwrap_or(0) - first.unwrap_or(0), began.elapsed().as_nanos() as u64);
    // Clocks of crystals differ by less than a part in a thousand.
    if spent > passed + passed / 1000 {
        return fail(format!("{spent} ns by timestamps in {passed} ns"));
    }
    Ok(format!("100 messages in {} us", spent / 1000))
}

fn compressed(lab: &mut Lab) -> Result<String, Stop> {
    let caps = lab.context.capabilities()?;
    let Some(caps) = caps.cqe_compression else {
        return Err(Stop::Cannot("the device does not compress CQEs".into()));
    };
    let mut done = Vec::new();
    for (there, name, config) in [
        (
            caps.hash,
            "hash",
            (|config| config.compression(Compression::Hash)) as fn(doorbell::CqConfig) -> doorbell::CqConfig,
        ),
        (caps.checksum, "checksum", |config| config.compression(Compression::Checksum)),
    ] {
        if !there {
            continue;
        }
        let shape = Shape { path: DataPath::Direct, receiver: config, cq: Some(127), ..Shape::new(lab) };
        let mut pair = Pair::new(lab, &shape)?;
        // The tap does not know arrays of mini CQEs.
        let tap = pair.tap.take();
        let (mut number, mut blocks) = (0, Vec::new());
        for _ in lab.rounds(200) {
            for message in number..number + 16 {
                pair.send(0, &payload(message, 24), None)?;
            }
            if let (0, Some(tap)) = (number, &tap) {
                pair.all_sent(0)?;
                blocks = tap.blocks();
                for (index, cqes) in &blocks {
                    lab.witness.borrow_mut().note_block(name, tap.cqn, *index, cqes.clone());
                }
            }
            let mut next = number;
            let received = pair.receive(16, |message| {
                same(format!("message {next}"), &payload(next, 24), &message?.to_vec())?;
                next += 1;
                Ok(())
            });
            number += 16;
            // No compressed CQE of a message of an adapter was ever published.
            if let Err(Stop::Fail(why)) = received {
                let blocks: Vec<_> = blocks.iter().flat_map(|(_, cqes)| cqes).map(|cqe| hex(cqe)).collect();
                lab.note("D28", format!("another layout of {name} blocks: {why}: {}", blocks.join(", ")));
                break;
            }
        }
        done.push(format!("{name}: {number} messages, {} blocks of the first 16 kept", blocks.len()));
    }
    if done.is_empty() {
        return Err(Stop::Cannot("the device has no mini-CQE format that doorbell reads".into()));
    }
    Ok(done.join(", "))
}

/// Returns the record of all CQEs, if there were any.
fn looked_at(lab: &Lab) -> Result<Ref<'_, Witness>, Stop> {
    let witness = lab.witness.borrow();
    match witness.signatures.len() {
        0 => Err(Stop::Cannot("no check before this one has brought a CQE".into())),
        _ => Ok(witness),
    }
}

fn signatures(lab: &mut Lab) -> Result<String, Stop> {
    let rule = rule(lab);
    let witness = looked_at(lab)?;
    let (mut seen, mut notes, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for (kind, signatures) in &witness.signatures {
        let (all, examples) = (signatures.seen, &signatures.examples);
        seen.push(format!("{all} of {kind}"));
        // Receives that are sound were seen whole; nobody has published a title of an adapter.
        let is_another_rule = match kind {
            Kind::Receives => rule == Rule::Another,
            Kind::Requests | Kind::Errors | Kind::Tags => signatures.wrong == all,
            Kind::Titles => true,
        };
        match signatures.wrong {
            0 => {}
            other if is_another_rule => {
                notes.push(format!("another rule for {kind} ({other} of {all}): {}", examples[0]));
            }
            other => wrong.push(format!("{other} of {all} of {kind} wrong; {}", examples.join("; "))),
        }
    }
    drop(witness);
    if !wrong.is_empty() {
        return fail(wrong.join("; "));
    }
    let right = if notes.is_empty() { "all right" } else { "of which those of another rule prove nothing" };
    for note in notes {
        lab.note("D20", note);
    }
    Ok(format!("CQEs: {}, {right}", seen.join(", ")))
}

/// Finds the rule, once, from the CQEs of some messages that are read when they must be whole.
pub fn rule(lab: &mut Lab) -> Rule {
    if let Some(rule) = lab.rule {
        return rule;
    }
    // A device that does not bring these messages fails the checks themselves.
    let rule = first_cqes(lab).map_or(Rule::Known, |cqes| {
        let is_signed = |(index, cqe): (usize, &[u8; 64])| is_signed(cqe, index as u32);
        if cqes.iter().enumerate().any(is_signed) { Rule::Known } else { Rule::Another }
    });
    *lab.rule.insert(rule)
}

fn first_cqes(lab: &Lab) -> Result<Vec<[u8; 64]>, Stop> {
    const COUNT: u32 = 32;
    let mut pair = Pair::new(lab, &Shape::new(lab))?;
    for number in 0..=COUNT {
        pair.send(0, &payload(number, 24), None)?;
    }
    pair.arrived(COUNT + 1)?;
    let tap = pair.tap.as_ref().ok_or("nothing watches the CQ")?;
    Ok(tap.again(COUNT as usize))
}

fn user_indices(lab: &mut Lab) -> Result<String, Stop> {
    let witness = looked_at(lab)?;
    if witness.strangers.is_empty() {
        return Ok("each queue has one".into());
    }
    fail(format!("a queue has several: {}", witness.strangers.join("; ")))
}

fn seen(lab: &mut Lab) -> Result<String, Stop> {
    let witness = looked_at(lab)?;
    let names = witness.first.values().map(|bytes| format!("{:?}", Cqe64::from_bytes(bytes).opcode()));
    let mut names: Vec<String> = names.collect();
    names.dedup();
    Ok(names.join(", "))
}
