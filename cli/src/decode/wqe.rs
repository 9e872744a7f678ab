//! Send WQEs in a block of bytes.

use mlx5_wire::ctrl::{CQ_UPDATE, ControlSegment, FENCE, SMALL_FENCE, SOLICITED, UNIT};
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::text::WqeText;

use super::hex::{Block, Context};
use super::{Finding, Kind, KnownFields, fields};

/// Lines between a CQE and the WQE that is printed with it.
const NEAR: usize = 12;

fn control(bytes: &[u8]) -> Option<ControlSegment> {
    bytes.first_chunk().map(ControlSegment::from_bytes)
}

/// Returns `true` if these bytes begin like a send WQE: opcode, size, flags and reserved bits are legal.
pub fn looks_like_one(bytes: &[u8]) -> bool {
    let Some(ctrl) = control(bytes) else { return false };
    let flags = CQ_UPDATE | SOLICITED | FENCE | SMALL_FENCE | 3 << 2;
    let fits = (1..=bytes.len().div_ceil(UNIT)).contains(&usize::from(ctrl.ds()));
    ctrl.opcode().name().is_some()
        && fits
        && ctrl.qpn() != 0
        && ctrl.fm_ce_se & !flags == 0
        && bytes.len() % UNIT == 0
        && ctrl.qpn_ds.get() as u8 & 0xc0 == 0
}

/// Returns the WQEs of a block: one WQE, or the WQEs of a ring.
pub fn decode(block: &Block) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < block.bytes.len() {
        let rest = &block.bytes[at..];
        let mut finding = Finding {
            line: block.line,
            times: 1,
            printer: block.printer,
            caller: block.caller.clone(),
            ..Finding::default()
        };
        let is_ring = block.context == Context::SendRing;
        let size = WqeText { bytes: rest, addressing: None }.size();
        let len = if is_ring { size } else { rest.len() };
        let wqe = &rest[..len.min(rest.len())];
        if !is_ring || wqe.iter().any(|&byte| byte != 0) {
            if block.context == Context::None {
                finding.notes.push("taken for a send WQE: its first 16 bytes are a legal control segment".into());
            }
            if is_ring {
                finding.notes.push(format!("at offset {at:#x} of the ring"));
            }
            one(&mut finding, wqe);
            found.push(finding);
        }
        at += len;
    }
    found
}

fn one(finding: &mut Finding, bytes: &[u8]) {
    finding.kind = Kind::Wqe;
    finding.bytes = bytes.to_vec();
    let Some(ctrl) = control(bytes) else {
        finding.kind = Kind::Unknown;
        finding.notes.push(format!("{} bytes: too few for the control segment of a WQE", bytes.len()));
        return;
    };
    let ds = usize::from(ctrl.ds());
    fields::wqe(finding, WqeText { bytes, addressing: None });
    if ds * UNIT > bytes.len() {
        finding.notes.push(format!("the WQE has {} bytes, of which {} are here", ds * UNIT, bytes.len()));
    }
    if finding.fields.iter().any(|field| field.name == "segment") && is_send(ctrl.opcode()) {
        finding.notes.push(
            "segments that are no data segments: of a datagram the address vector, of Ethernet the Ethernet segment; which of \
             them is not in the WQE"
                .into(),
        );
    }
    finding.facts = KnownFields {
        qpn: Some(ctrl.qpn()),
        wqe_counter: Some(ctrl.index()),
        opcode: Some(ctrl.opcode().get()),
        ..KnownFields::default()
    };
}

fn is_send(opcode: WqeOpcode) -> bool {
    matches!(opcode, WqeOpcode::SEND | WqeOpcode::SEND_IMM | WqeOpcode::SEND_INVAL)
}

/// Notes the WQE that belongs to a CQE in the lines before it.
pub fn relate(findings: &mut [Finding]) {
    let cqes: Vec<(usize, String, KnownFields)> = findings
        .iter()
        .filter(|finding| matches!(finding.kind, Kind::ErrorCqe | Kind::PartOfErrorCqe))
        .map(|finding| (finding.line, finding.caller.clone(), finding.facts.clone()))
        .collect();
    for wqe in findings.iter_mut().filter(|finding| finding.kind == Kind::Wqe) {
        // Findings are sorted by line.
        let before = cqes.partition_point(|(line, ..)| *line < wqe.line);
        let same = cqes[..before].iter().rev().take(NEAR).find(|cqe| cqe.1 == wqe.caller);
        let Some((line, _, cqe)) = same else { continue };
        if wqe.line - line > NEAR {
            continue;
        }
        let same = (cqe.qpn == wqe.facts.qpn, cqe.wqe_counter == wqe.facts.wqe_counter, cqe.opcode == wqe.facts.opcode);
        wqe.notes.push(match same {
            (true, true, true) => format!("the WQE of the CQE in line {line}: queue, index and opcode are the same"),
            (false, false, _) => format!(
                "not a WQE of the queue that the CQE in line {line} names: something else was written into the ring, and the \
                 adapter took it for a WQE"
            ),
            _ => format!("differs from the CQE in line {line} in queue, index or opcode: another WQE, or it was overwritten"),
        });
    }
}
